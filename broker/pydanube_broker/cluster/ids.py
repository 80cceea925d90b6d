"""Numbers that must not be mixed. All of them fit 63 bits and are never used twice in a cluster."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator
from typing import Final, NewType

from pydanube_core.errors import InvalidArgument

TopicId = NewType("TopicId", int)
"""Create revision of the topic's key. A topic deleted and made anew has another."""

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
_BITS: Final = 40  # ids of one generation; 2^23 of those fit a signed number


def broker_number(text: str, *, field: str = "to_broker") -> BrokerId:
    """A broker's id as faces write it; raises `InvalidArgument`."""
    if not text.isascii() or not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise InvalidArgument(
            f"{text[:40]!r} is no broker id: a decimal number, as brokers.list shows it",
            field=field,
            value=text[:40],
        )
    return BrokerId(int(text))


def numbers_of(generation: Epoch | Incarnation) -> Iterator[int]:
    """Count ids that are above those of every earlier generation, whatever any clock says.

    They begin somewhere in its lower half: two brokers in their third incarnation, or an epoch that a restored backup
    brings again, do not give out the same ones.
    """
    return itertools.count((generation << _BITS) + secrets.randbits(_BITS - 1))
