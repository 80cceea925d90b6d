"""Pressure on the whole broker, round by round: syncs, connections, processor time, and who published most."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

from pydanube_core.diagnosis.views import Pressure

from pydanube_broker.metrics import FSYNC_BUCKETS_S

MOST_ROUNDS: Final = 128
SLOW_FROM: Final = FSYNC_BUCKETS_S.index(0.5) + 1  # the first bucket of more than half a second


class _Seen(NamedTuple):
    at_ms: int
    syncs: tuple[int, ...]  # since the start, by bucket
    opened: int  # connections, since the start
    cpu_s: float
    late_ms: float
    bytes_in: int  # since the round before
    busiest: str | None
    busiest_bytes: int
    grew: int  # logs


class Pressures:
    """The last rounds. Single user: the sampler."""

    def __init__(self) -> None:
        self._seen: deque[_Seen] = deque(maxlen=MOST_ROUNDS)
        self._bytes: int = 0
        self._busiest: tuple[int, str | None] = (0, None)
        self._grew = 0
        self._open_now = 0
        self.late_ms = 0.0  # of the round that begins

    def grew(self, name: str, size_bytes: int) -> None:
        """A log got so many bytes since the last round."""
        self._bytes += size_bytes
        self._grew += 1
        if size_bytes > self._busiest[0]:
            self._busiest = (size_bytes, name)

    def note(self, now_ms: int, syncs: tuple[int, ...], connections: Counter[str], cpu_s: float) -> None:
        """Note the round that ends."""
        most, name = self._busiest
        opened = connections["opened"]
        self._open_now = opened - connections["ended"]
        self._seen.append(
            _Seen(now_ms, syncs, opened, cpu_s, self.late_ms, self._bytes, name, most, self._grew)
        )
        self._bytes, self._busiest, self._grew = 0, (0, None), 0

    def over(self, now_ms: int, window_ms: int) -> Pressure:
        """Of the window that ends now, as far as the rounds reach back."""
        seen = [one for one in self._seen if now_ms - one.at_ms <= window_ms]
        if len(seen) < 2:
            return Pressure(window_s=0.0, open_now=self._open_now)
        first, last, rounds = seen[0], seen[-1], seen[1:]
        span_s = max(0.001, (last.at_ms - first.at_ms) / 1000)
        syncs = [after - before for before, after in zip(first.syncs, last.syncs, strict=True)]
        most: Counter[str] = Counter()
        for one in rounds:
            if one.busiest is not None:
                most[one.busiest] += one.busiest_bytes
        name, size = most.most_common(1)[0] if most else (None, 0)
        return Pressure(
            window_s=span_s,
            syncs=sum(syncs),
            slow_syncs=sum(syncs[SLOW_FROM:]),
            sync_p50_ms=_within_ms(syncs, 0.5),
            sync_p99_ms=_within_ms(syncs, 0.99),
            opened=last.opened - first.opened,
            open_now=self._open_now,
            busy=(last.cpu_s - first.cpu_s) / span_s,
            late_ms=median(one.late_ms for one in rounds),
            bytes_in=sum(one.bytes_in for one in rounds),
            busiest=name,
            busiest_bytes=size,
            others=max(one.grew for one in rounds) - 1,
        )


def _within_ms(counts: Sequence[int], share: float) -> float | None:
    """The upper bound of the bucket that holds this share of all; of the last bucket its lower one."""
    if not any(counts):
        return None
    place = bisect_left(list(itertools.accumulate(counts)), share * sum(counts))
    return 1000 * (*FSYNC_BUCKETS_S, FSYNC_BUCKETS_S[-1])[place]
