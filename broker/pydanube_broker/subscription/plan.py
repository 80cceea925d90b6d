"""Plans of what may be sent next, and the shell's answers to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydanube_broker.subscription.picked import Picked
from pydanube_broker.subscription.ranges import Range


class Plan(NamedTuple):
    """A proposal: read the log inside `ranges` and send what is there. Nothing is reserved.

    The shell reads from `start`, takes messages in offset order while they are inside `ranges`, at most
    `max_messages` of them and at most `max_bytes` together, but always at least one (a message larger than the
    credit must not be withheld for ever), and then answers at once, in the same turn of the loop:

    - `consumer_id` is an id: `Subscription.sent(plan, ranges, ...)` with what it took;
    - `consumer_id` is None: `Subscription.routed(plan, ranges, ...)`, which says who gets which message.

    `ranges` of a fresh plan is one range of unseen offsets, perhaps with holes in it; of a redelivery, exactly the
    messages that are due, which may be a `Picked`. `delivery_count` counts from 1 and holds for all of them.

    A named tuple and no frozen dataclass: one is made for every batch, and costs a tenth.
    """

    ticket: int
    consumer_id: int | None
    session: int | None
    ranges: Sequence[Range]
    max_messages: int
    max_bytes: int | None  # None: bytes are not limited
    delivery_count: int
    fresh: bool

    @property
    def start(self) -> int:
        return self.ranges.first if isinstance(self.ranges, Picked) else self.ranges[0][0]

    @property
    def end_limit(self) -> int:
        return self.ranges.end if isinstance(self.ranges, Picked) else self.ranges[-1][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The messages of a routed part that one consumer gets; `indices` count messages, not offsets, and ascend."""

    consumer_id: int
    session: int
    indices: Sequence[int]
    delivery_count: int
