"""How fast one consumer handles the messages it is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydanube_broker.recent import SHORTEST_S, Recent

# Counters of a histogram: one for each power of two of milliseconds. The last one begins at 2^21 ms, 35 minutes.
_BUCKETS: Final = 23


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlingStatistics:
    """Acknowledgements of one consumer in the last one to two minutes. Totals count from when it attached.

    A handling time is the time from sending to acknowledgement, or from the report that the application took the
    message if the consumer reports. It is read from a histogram of powers of two, so it may be wrong by a third.
    """

    acked: int
    acks_per_s: float
    p50_ms: int | None  # None: nothing was acknowledged
    p99_ms: int | None
    from_taken: bool
    late_acks: int  # total: acknowledged after the delivery to it had expired
    expired: int  # total: deliveries


class Handling:
    """Counts for one attached consumer. About 500 bytes."""

    __slots__ = ("_recent", "expired", "late_acks")

    def __init__(self, now_ms: int) -> None:
        self._recent = Recent(_BUCKETS, now_ms)
        self.late_acks = 0
        self.expired = 0

    def acknowledged(self, messages: int, after_ms: int, now_ms: int) -> None:
        """Count messages that were acknowledged so long after they were sent or taken."""
        self._recent.add(min(max(after_ms, 0).bit_length(), _BUCKETS - 1), messages, now_ms)

    def statistics(self, now_ms: int, *, from_taken: bool) -> HandlingStatistics:
        counts, covered_s = self._recent.read(now_ms)
        acked = sum(counts)
        return HandlingStatistics(
            acked=acked,
            acks_per_s=round(acked / max(covered_s, SHORTEST_S), 3),
            p50_ms=_quantile(counts, acked, 0.5),
            p99_ms=_quantile(counts, acked, 0.99),
            from_taken=from_taken,
            late_acks=self.late_acks,
            expired=self.expired,
        )


def _quantile(counts: list[int], total: int, part: float) -> int | None:
    """Return the time below which that part of the messages lies, interpolated within its counter."""
    if not total:
        return None
    rank, below = part * total, 0
    for bucket, count in enumerate(counts):
        if count and below + count >= rank:
            low, high = (1 << bucket) >> 1, 1 << bucket
            return round(low + (high - low) * (rank - below) / count) if bucket else 0
        below += count
    raise AssertionError("the rank lies within the total")
