"""The ids of official clients, derived from names, so that they outlive a restart.

These clients keep an id forever: `SendMessage`, `ReceiveMessages` and health checks carry it long after the broker
that assigned it is gone, and some clients never request a new one (docs/research/data-plane.md#105-recipes). Java
stores ids as signed numbers and treats 0 as "none", hence 1 … 2^63-1.

Two names of one cluster share an id with a probability of about n² / 2^64: one in ten million for a million names.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

MAX_ID: Final = (1 << 63) - 1


def producer_id(topic: str, producer: str) -> int:
    """Return the id of a producer's name on a topic."""
    return _id(b"producer", topic, producer)


def consumer_id(topic: str, subscription: str, consumer: str) -> int:
    """Return the id of a consumer's name in a subscription."""
    return _id(b"consumer", topic, subscription, consumer)


def _id(kind: bytes, *names: str) -> int:
    digest = blake2b(digest_size=8, person=b"pydanube", salt=kind)
    for name in names:
        data = name.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(4, "little") + data)  # lengths: ("a", "bc") is not ("ab", "c")
    return int.from_bytes(digest.digest(), "little") & MAX_ID or 1
