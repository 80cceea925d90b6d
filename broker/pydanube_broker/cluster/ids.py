"""Typed ids and counters that must not be mixed up. All fit 63 bits and are never used twice in a cluster."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator
from typing import Final, NewType

from pydanube_core.errors import InvalidArgument

TopicId = NewType("TopicId", int)
"""Create revision of the topic's key. A topic that is deleted and created again gets another one."""

SubscriptionId = NewType("SubscriptionId", int)
"""Create revision of the subscription's key."""

BrokerId = NewType("BrokerId", int)
"""Chosen once for a data directory and kept there."""

Incarnation = NewType("Incarnation", int)
"""Counts the registrations of a broker id, from 1."""

Epoch = NewType("Epoch", int)
"""Counts the assignments of a topic name, from 1, beyond the topic's deletion."""

FencingToken = NewType("FencingToken", int)
"""Create revision of the leader's key: a later leader has a greater one."""

_MOST_DIGITS: Final = 20
_BITS: Final = 40  # bits for the ids of one generation: 2^23 generations fit a signed number


def broker_number(text: str, *, field: str = "to_broker") -> BrokerId:
    """Parse a broker's id as the interfaces write it. Raises `InvalidArgument`."""
    if not text.isascii() or not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise InvalidArgument(
            f"{text[:40]!r} is no broker id: a decimal number, as brokers.list shows it",
            field=field,
            value=text[:40],
        )
    return BrokerId(int(text))


def numbers_of(generation: Epoch | Incarnation) -> Iterator[int]:
    """Count ids above those of every earlier generation, independently of any clock.

    They begin at a random place in the generation's lower half, so that two brokers in their third incarnation, or an
    epoch that is repeated after a restored backup, do not give out the same ids.
    """
    return itertools.count((generation << _BITS) + secrets.randbits(_BITS - 1))
