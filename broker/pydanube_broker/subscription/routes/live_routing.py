"""Routing in a non-reliable, key-shared subscription: highest-weight hashing over buckets of keys. Pure.

A key goes to the consumer with the greatest weight for its bucket, so that a consumer that joins or leaves
moves only its own share of the keys. Nothing is in flight here, so no key drains before it moves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[Any]
BUCKETS: Final = 4096  # one weight for each bucket and consumer: 32 KiB a consumer


class KeyOwners:
    """Bucket → consumer, over the consumers without filters, and key → consumer where there are filters."""

    def __init__(self, names: Sequence[str], filters: Mapping[str, re.Pattern[str]]) -> None:
        self._names = list(names)
        self._filters = filters
        self._weights = np.stack([_weights(name) for name in self._names]) if self._names else None
        self._by_key: dict[tuple[str, int], int] = {}

    @property
    def filtered(self) -> bool:
        return bool(self._filters)

    def by_slot(self, slots: Ints) -> Ints:
        """Return the index of each message's consumer. Needs at least one consumer, and none with filters."""
        assert self._weights is not None
        assert not self._filters
        return np.asarray(np.argmax(self._weights, axis=0)[slots % BUCKETS])

    def by_key(self, keys: Sequence[str], slots: Ints) -> Ints:
        """Return the index of each message's consumer, -1 if no consumer accepts the key."""
        return np.fromiter(
            (self._owner(key, int(slot) % BUCKETS) for key, slot in zip(keys, slots, strict=True)), np.int64
        )

    def _owner(self, key: str, bucket: int) -> int:
        found = self._by_key.get((key, bucket))
        if found is None:
            found, best = -1, -1
            for index, name in enumerate(self._names):
                pattern = self._filters.get(name)
                if pattern is not None and not pattern.fullmatch(key):
                    continue
                assert self._weights is not None
                weight = int(self._weights[index][bucket])
                if weight > best:
                    found, best = index, weight
            if len(self._by_key) >= 65_536:
                self._by_key.clear()  # keys without end: start again rather than grow
            self._by_key[key, bucket] = found
        return found


def _weights(name: str) -> Ints:
    """Return one weight for each bucket, equal for equal names everywhere (splitmix64 of bucket and name)."""
    seed = np.uint64(crc32(name.encode()) << 32 | crc32(name.encode()[::-1]))
    with np.errstate(over="ignore"):
        x = np.arange(BUCKETS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + seed
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) >> np.uint64(1)
