"""Payloads that say which message they are and when they were sent, made and checked by the column.

The first 8 bytes are the sequence number, little-endian: the producer's index in the upper 24 bits, the message's
number in the lower 40. The next 8, where the size allows, are `time.monotonic_ns()` of handing over, which all
processes of a machine share. The rest is filler. Checking is numpy over whole batches, so that the checker is not
what is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

__all__ = ["MIN_SIZE", "Checker", "Verified", "make_payloads", "percentiles_ms"]

MIN_SIZE: Final = 8
TIMED_SIZE: Final = 16
_NUMBER_BITS: Final = 40

Array = np.ndarray[Any, Any]


def make_payloads(*, producer: int, first: int, count: int, size: int, now_ns: int) -> list[bytes]:
    """`count` payloads of `size` bytes, numbered from `first`."""
    assert size >= MIN_SIZE
    rows = np.full((count, size), ord("."), dtype=np.uint8)
    numbers = np.arange(first, first + count, dtype="<u8") | np.uint64(producer << _NUMBER_BITS)
    rows[:, :8] = numbers.view(np.uint8).reshape(count, 8)
    if size >= TIMED_SIZE:
        rows[:, 8:16] = np.full(count, now_ns, dtype="<u8").view(np.uint8).reshape(count, 8)
    blob = rows.tobytes()
    return [blob[at : at + size] for at in range(0, count * size, size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What became of the messages of one consumer."""

    sent: int
    received: int
    missing: int
    duplicates: int
    out_of_order: int


class Checker:
    """Takes received payloads and says at the end what was missing, doubled or out of order."""

    def __init__(self, *, size: int) -> None:
        self._size = size
        self._numbers: list[Array] = []
        self._latencies_ns: list[Array] = []
        self.received = 0

    def add(self, payloads: Sequence[bytes], now_ns: int) -> None:
        """Note payloads that arrived together at `now_ns`. A payload of another size is not ours: ValueError."""
        rows = np.frombuffer(b"".join(payloads), dtype=np.uint8).reshape(len(payloads), self._size)
        self._numbers.append(np.ascontiguousarray(rows[:, :8]).view("<u8").ravel())
        if self._size >= TIMED_SIZE:
            sent_ns = np.ascontiguousarray(rows[:, 8:16]).view("<i8").ravel()
            self._latencies_ns.append(now_ns - sent_ns)
        self.received += len(payloads)

    def verify(self, sent: Sequence[int]) -> Verified:
        """Compare with what producer i sent: numbers 0 … sent[i] − 1, in that order. Other producers do not count."""
        numbers = np.concatenate(self._numbers) if self._numbers else np.empty(0, dtype="<u8")
        producers = (numbers >> np.uint64(_NUMBER_BITS)).astype(np.int64)
        own = (numbers & np.uint64((1 << _NUMBER_BITS) - 1)).astype(np.int64)
        missing = duplicates = out_of_order = received = 0
        for producer, count in enumerate(sent):
            mine = own[producers == producer]
            received += len(mine)
            distinct = np.unique(mine)
            known = int(np.count_nonzero(distinct < count))
            missing += count - known
            duplicates += len(mine) - len(distinct)
            # Behind the highest number so far, and not a repetition: an order that the producer did not have.
            highest = np.maximum.accumulate(mine) if len(mine) else mine
            behind = mine < highest
            late, first = np.unique(mine, return_index=True)
            out_of_order += int(np.count_nonzero(behind[first])) if len(late) else 0
        return Verified(
            sent=sum(sent),
            received=received,
            missing=missing,
            duplicates=duplicates,
            out_of_order=out_of_order,
        )

    def latencies_ms(self) -> Array | None:
        """From handing over to here, one a message; None where the payload has no room for the time."""
        return np.concatenate(self._latencies_ns) / 1e6 if self._latencies_ns else None


def percentiles_ms(latencies_ms: Array | Sequence[float] | None) -> dict[str, float | None]:
    """p50, p99, p99.9 and the largest, in milliseconds."""
    names = ("p50_ms", "p99_ms", "p999_ms", "max_ms")
    if latencies_ms is None or len(latencies_ms) == 0:
        return dict.fromkeys(names)
    values = np.percentile(np.asarray(latencies_ms), [50, 99, 99.9, 100])
    return {name: round(float(value), 4) for name, value in zip(names, values, strict=True)}
