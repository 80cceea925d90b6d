"""The metadata of a move: the stage of an assignment, and the current move.

| stage | `broker_id`, `epoch` | may be changed by |
|---|---|---|
| `serving` | the owner | the broker that begins a move |
| `moving` | the owner, which serves until the target is ready | the target, the owner, the leader |
| `sealed` | the last owner, which was removed | the leader |
| `assigned` | the next owner, which does not serve yet | that owner (by opening), the leader (in a higher epoch) |

The end of a move makes it `serving` again. `sealed_epoch` stays, so that a broker that comes back can see that its
data of that epoch, or an older one, was handed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydanube_broker.cluster.journal_record import Journal
from pydanube_broker.records.json_record import UNLESS_DEFAULT, JsonRecord


class Stage(StrEnum):
    SERVING = "serving"
    MOVING = "moving"
    SEALED = "sealed"
    ASSIGNED = "assigned"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverPart(JsonRecord):
    """A piece in a fragment of the previous release: bytes `[start, end)` of an object, and their SHA-256 in hex."""

    key: str
    start: int
    end: int
    digest: str
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveFailure(JsonRecord):
    """The last cancelled move, or why the heir of a lost owner cannot rebuild the topic (`Assignment.damage`).

    It stays until the topic has another owner. `begun_at_ms` comes from its `MoveRecord`.
    """

    target: str
    begun_at_ms: int
    code: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRange(JsonRecord):
    """The pieces `[from_piece, until)` of the chain of a lost broker's journal, from which its topic is rebuilt.

    above_epoch: the chain's records of the topic in this epoch or an earlier one are from a former stay there.
    is_whole: the pieces have all that the owner acknowledged.
    """

    journal: Journal
    from_piece: int
    until: int
    above_epoch: int = 0
    is_whole: Annotated[bool, UNLESS_DEFAULT] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRecord(JsonRecord):
    """The current move of a topic.

    ready: the target's incarnation, once it has nearly all: from then on the owner does not serve. None until then.
    from_store: the owner is lost, and the next one rebuilds the topic from the object store.
    chain: the part of the owner's chain that has the rest of the topic, None without a chain.
    parts, copied, offers: set by owners of the previous release, which hand over through fragments. Remove with
        `tier.fragments`.
    """

    source: str
    target: str
    begun_at_ms: int
    ready: int | None = None
    from_store: Annotated[bool, UNLESS_DEFAULT] = False
    chain: Annotated[ChainRange | None, UNLESS_DEFAULT] = None
    parts: tuple[HandOverPart, ...] = ()
    copied: Annotated[int, UNLESS_DEFAULT] = 0
    offers: Annotated[int, UNLESS_DEFAULT] = 0
