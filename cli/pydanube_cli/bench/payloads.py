"""Payloads with their number and time of sending, made and checked by the column.

The first 8 bytes are the sequence number, little-endian: the producer's index in the upper 24 bits, the
message's number in the lower 40. The next 8, where the size allows, are `time.monotonic_ns()` of handing
over, which all processes of a machine share. The rest is filler. Checking is numpy over whole batches, so
that the checker does not dominate the measurement.

The number of messages that all consumers of one subscription have received is a counter in a file that they
all map (`Tally`): one 8-byte word per worker, which only that worker writes. The share of each consumer is
not fixed in advance, so each adds up the counts of all and leaves when none is missing.
"""

from __future__ import annotations

import base64
import mmap
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

MIN_SIZE: Final = 8
TIMED_SIZE: Final = 16
_NUMBER_BITS: Final = 40

Array = np.ndarray[Any, Any]


def make_payloads(*, producer: int, first: int, count: int, size: int, now_ns: int) -> list[bytes]:
    """Make `count` payloads of `size` bytes, numbered from `first`."""
    assert size >= MIN_SIZE
    rows = np.full((count, size), ord("."), dtype=np.uint8)
    numbers = np.arange(first, first + count, dtype="<u8") | np.uint64(producer << _NUMBER_BITS)
    rows[:, :8] = numbers.view(np.uint8).reshape(count, 8)
    if size >= TIMED_SIZE:
        rows[:, 8:16] = np.full(count, now_ns, dtype="<u8").view(np.uint8).reshape(count, 8)
    blob = rows.tobytes()
    return [blob[at : at + size] for at in range(0, count * size, size)]


def key_of(number: int, keys: int) -> str:
    """The key of a producer's message: in turn."""
    return f"key-{number % keys}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The result of one consumer's check: missing, duplicate and reordered messages."""

    sent: int
    received: int
    missing: int
    duplicates: int
    out_of_order: int


def producer_of(payload: bytes) -> int:
    """Return the number of the producer that sent a payload."""
    return int.from_bytes(payload[:8], "little") >> _NUMBER_BITS


class Checker:
    """Takes received payloads, and reports at the end which are missing, duplicated or out of order."""

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
        """Compare with the numbers of producer i: 0 … sent[i] − 1, in that order. Ignore other producers."""
        return merge([self.part(sent)], sent)

    def part(self, sent: Sequence[int], *, keys: int = 0) -> Part:
        """Return this consumer's messages, to be merged with those of the others of its subscription.

        Args:
            keys: if not 0, order is checked within a key only. See `key_of`.
        """
        numbers = np.concatenate(self._numbers) if self._numbers else np.empty(0, dtype="<u8")
        producers = (numbers >> np.uint64(_NUMBER_BITS)).astype(np.int64)
        own = (numbers & np.uint64((1 << _NUMBER_BITS) - 1)).astype(np.int64)
        seen: list[str] = []
        received = distinct = out_of_order = 0
        for producer, count in enumerate(sent):
            mine = own[producers == producer]
            received += len(mine)
            distinct += len(np.unique(mine))
            out_of_order += _late(mine, keys)
            bits = np.zeros(count, dtype=bool)
            bits[mine[mine < count]] = True
            seen.append(base64.b64encode(zlib.compress(np.packbits(bits).tobytes(), 1)).decode())
        return Part(received=received, distinct=distinct, out_of_order=out_of_order, seen=tuple(seen))

    def latencies_ms(self) -> Array | None:
        """Return the latency of each message until its receipt, or None if the payload has no time."""
        return np.concatenate(self._latencies_ns) / 1e6 if self._latencies_ns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One consumer's part of a subscription's messages, passed as JSON from its process to the merging one.

    `seen`: for each producer the numbers received, one bit each, deflated, base64.
    """

    received: int
    distinct: int
    out_of_order: int
    seen: tuple[str, ...]


def merge(parts: Sequence[Part], sent: Sequence[int]) -> Verified:
    """Merge the messages that all consumers of a subscription received, of 0 … sent[i] − 1 of producer i."""
    received = sum(part.received for part in parts)
    missing = known = 0
    for producer, count in enumerate(sent):
        union = np.zeros(count, dtype=bool)
        for part in parts:
            packed = np.frombuffer(zlib.decompress(base64.b64decode(part.seen[producer])), dtype=np.uint8)
            union |= np.unpackbits(packed, count=count).astype(bool)
        found = int(np.count_nonzero(union))
        known += found
        missing += count - found
    # Numbers beyond the sent ones are in no union: they are distinct or doubled within one part.
    beyond = sum(part.distinct for part in parts) - sum(_bits(part, sent) for part in parts)
    return Verified(
        sent=sum(sent),
        received=received,
        missing=missing,
        duplicates=received - known - beyond,
        out_of_order=sum(part.out_of_order for part in parts),
    )


def _bits(part: Part, sent: Sequence[int]) -> int:
    total = 0
    for text, count in zip(part.seen, sent, strict=True):
        packed = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8)
        total += int(np.count_nonzero(np.unpackbits(packed, count=count)))
    return total


def _late(numbers: Array, keys: int) -> int:
    """Return how many numbers arrived for the first time after a higher one (of their key)."""
    if not len(numbers):
        return 0
    if keys:
        # Grouped by key, each group in the order of arrival. A later group is higher as a whole.
        numbers = numbers + ((numbers % keys) << _NUMBER_BITS)
        numbers = numbers[np.argsort(numbers >> _NUMBER_BITS, kind="stable")]
    _, first = np.unique(numbers, return_index=True)
    return int(np.count_nonzero((numbers < np.maximum.accumulate(numbers))[first]))


def percentiles_ms(latencies_ms: Array | Sequence[float] | None) -> dict[str, float | None]:
    """Return p50, p99, p99.9 and the maximum, in milliseconds."""
    names = ("p50_ms", "p99_ms", "p999_ms", "max_ms")
    if latencies_ms is None or len(latencies_ms) == 0:
        return dict.fromkeys(names)
    values = np.percentile(np.asarray(latencies_ms), [50, 99, 99.9, 100])
    return {name: round(float(value), 4) for name, value in zip(names, values, strict=True)}


_WORD: Final = 8


def make_tally(path: Path, workers: int) -> None:
    """Make a file with a zero for each worker."""
    path.write_bytes(bytes(_WORD * workers))


class Tally:
    """One worker's view. Leave the block to unmap the file."""

    def __init__(self, path: str, index: int) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._words: np.ndarray[tuple[int], np.dtype[np.uint64]] = np.frombuffer(self._map, dtype=np.uint64)
        self._index = index

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        del self._words  # the map cannot be closed while an array refers to it
        self._map.close()

    def put(self, received: int) -> None:
        """Set how many messages this worker has received."""
        self._words[self._index] = received

    def total(self) -> int:
        """Return how many messages all workers have received."""
        return int(self._words.sum())
