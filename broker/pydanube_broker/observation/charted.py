"""The values that charts of hours are drawn from: of the broker, of each log, and of each subscription.

The rings in `tracks` end with the window of a verdict, five minutes. These keep a row a minute for an hour, and one in 30
minutes for a day. In the first minutes of a broker every round is kept, so that a young broker has a chart, too. Among
rows with equal values only the first and the last are kept, so an idle topic costs two rows, and a chart may draw lines
between rows. After a restart the last hour is read back from telemetry (`pydanube_broker.telemetry.charted`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from pydanube_broker.observation.tracks import LogTrack

STEP_MS: Final = 60_000
#: between two rows that are older than an hour: a chart of a day has a point in 24 minutes
COARSE_MS: Final = 1_800_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
YOUNG_MS: Final = 600_000  # after the start, in which every round is kept
MOST_ROWS: Final = 136  # of a series before it is thinned: 3.3 KB. An hour and a day have 110 afterwards
#: Thinning a series takes some 80 µs, and all grow by the same rounds. So that they are not thinned in one and the same,
#: their limits lie up to so many rows below `MOST_ROWS`.
SPREAD_ROWS: Final = 24
MOST_SERIES: Final = 4000  # beside the broker's: 13 MB at most. Later ones have no hours
BROKER: Final = ("messages_in", "bytes_in", "messages_out", "bytes_out", "lag_messages")

K = TypeVar("K")
CursorKey: TypeAlias = tuple[int, int]  # topic id, subscription id
#: the last hour before the start, as bytes of `Series.rows`: of the broker, of logs by topic id, of cursors. Counters
#: end with 0, where this run begins
RowsBefore: TypeAlias = tuple[bytes, Mapping[int, bytes], Mapping[CursorKey, bytes]]
#: `(start_ms, end_ms) → rows`
ReadCharted: TypeAlias = Callable[[int, int], Awaitable[RowsBefore]]


class Series:
    """Rows of a time in milliseconds and `width - 1` values, ascending."""

    __slots__ = ("most", "rows", "width")

    def __init__(self, width: int, rows: bytes = b"", *, most: int = MOST_ROWS) -> None:
        self.width = width
        self.most = most  # rows before it is thinned
        self.rows = array("q", rows)

    def add(self, time_ms: int, *values: int) -> None:
        """Add a row. A clock that was set back removes the rows after it."""
        rows, width = self.rows, self.width
        while rows and rows[-width] >= time_ms:
            del rows[-width:]
        if rows[1 - width :].tolist() == rows[1 - 2 * width : -width].tolist() == [*values]:
            rows[-width] = time_ms
            return
        rows.extend((time_ms, *values))
        if len(rows) > self.most * width:
            self.thin(time_ms)

    def column(self, column: int) -> Sequence[int]:
        return self.rows[column :: self.width]

    @property
    def first_ms(self) -> int | None:
        return self.rows[0] if self.rows else None

    def precede(self, before: Series) -> None:
        """Put the rows of the run before in front, without those that are not older than these."""
        first_ms, width = self.first_ms, self.width
        count = (
            len(before.rows) if first_ms is None else bisect_right(before.rows[::width], first_ms - 1) * width
        )
        self.rows = before.rows[:count] + self.rows

    def thin(self, now_ms: int) -> None:
        """Keep the last row of each minute of the last hour, of each 30 minutes of the day before, and of older ones."""
        rows, width = self.rows, self.width
        kept, last = array("q"), None
        for at in range(0, len(rows), width):
            age_ms = now_ms - rows[at]
            step = STEP_MS if age_ms <= HOUR_MS else COARSE_MS if age_ms <= DAY_MS else now_ms
            place = (step, rows[at] // step)
            if place == last:
                del kept[-width:]
            kept.extend(rows[at : at + width])
            last = place
        self.rows = kept


@dataclass(slots=True)
class Charted:
    """See the module. Single user: the loop."""

    broker: Series = field(default_factory=lambda: Series(1 + len(BROKER)))
    logs: dict[int, Series] = field(default_factory=dict)  # its head, by topic id
    cursors: dict[CursorKey, Series] = field(default_factory=dict)  # unread messages, acknowledged messages
    latest: tuple[int, ...] = ()  # time and traffic of the last round
    _minute: int = -1
    _begun_ms: int | None = None

    def due(self, now_ms: int) -> bool:
        """Return whether the round that begins is kept."""
        self._begun_ms = now_ms if self._begun_ms is None else self._begun_ms
        minute, before = now_ms // STEP_MS, self._minute
        self._minute = minute
        return minute != before or 0 <= now_ms - self._begun_ms < YOUNG_MS

    def note(self, now_ms: int, topic_id: int, track: LogTrack) -> int:
        """Keep the state of a log and its subscriptions. Return their unread messages."""
        unread = 0
        if (log := self._series(self.logs, topic_id, 2)) is not None:
            log.add(now_ms, track.last_offset)
        for cursor in track.cursors.values():
            if (state := cursor.last) is None:
                continue
            lag = state.lag_messages
            unread += lag
            if (series := self._series(self.cursors, (topic_id, cursor.subscription_id), 3)) is not None:
                series.add(now_ms, lag, state.acknowledged)
        return unread

    def note_broker(self, now_ms: int, traffic: Sequence[int], unread: int | None) -> None:
        """Keep the broker's totals. `unread` is None in a round that is not due."""
        self.latest = (now_ms, *traffic)
        if unread is not None:
            self.broker.add(*self.latest, unread)

    def _series(self, known: dict[K, Series], key: K, width: int) -> Series | None:
        found = known.get(key)
        count = len(self.logs) + len(self.cursors)
        if found is None and count < MOST_SERIES:
            found = known[key] = Series(width, most=MOST_ROWS - count % SPREAD_ROWS)
        return found

    def forget(self, topics: Iterable[int], subscriptions: Iterable[CursorKey]) -> None:
        """Forget logs and subscriptions that are gone."""
        gone = {*topics}
        for topic_id in gone:
            self.logs.pop(topic_id, None)
        dropped = (
            [*subscriptions, *(key for key in self.cursors if key[0] in gone)] if gone else subscriptions
        )
        for key in dropped:
            self.cursors.pop(key, None)

    def precede(self, before: RowsBefore) -> None:
        """Put the rows of the run before in front of those of logs and subscriptions that are still there."""
        broker, logs, cursors = before
        self.broker.precede(Series(self.broker.width, broker))
        for topic_id, log in self.logs.items():
            log.precede(Series(2, logs.get(topic_id, b"")))
        for key, cursor in self.cursors.items():
            cursor.precede(Series(3, cursors.get(key, b"")))
