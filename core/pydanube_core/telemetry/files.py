"""Names of telemetry files, and which of them count.

`<cluster>/telemetry/<table>/date=YYYY-MM-DD/<start>-<end>-<broker>-<generation>-<random>.parquet`: samples taken in
`[start, end)`, milliseconds since 1970, by one broker. A file of a higher generation replaces those of its broker
within its times. So small files are merged and old ones thinned, and at no moment a reader sees a sample twice or not at
all.

| generation | rows |
|---|---|
| 0 | as they were sampled, of one flush |
| 1 | the same, of one hour |
| 2 | the last of each minute, of one day |
| 3 | the last of each hour, of one day |
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
_FILE: Final = re.compile(r"(\d{1,15})-(\d{1,15})-(\d{1,20})-(\d)-([0-9a-f]+)\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryFile:
    """A parsed file name: the last part of a key."""

    start_ms: int
    end_ms: int
    broker_id: str
    generation: int
    random: str

    def __post_init__(self) -> None:
        assert 0 <= self.start_ms < self.end_ms
        assert 0 <= self.generation <= 9

    def __str__(self) -> str:
        return f"{self.start_ms}-{self.end_ms}-{self.broker_id}-{self.generation}-{self.random}.parquet"

    @classmethod
    def parse(cls, key: str) -> Self | None:
        """Parse the last part of a key. Return None if it is no telemetry file."""
        match = _FILE.fullmatch(key.rpartition("/")[2])
        if match is None or int(match[1]) >= int(match[2]):
            return None
        return cls(
            start_ms=int(match[1]),
            end_ms=int(match[2]),
            broker_id=match[3],
            generation=int(match[4]),
            random=match[5],
        )

    def replaces(self, other: TelemetryFile) -> bool:
        """Return whether this file has everything that `other` has."""
        return (
            self.broker_id == other.broker_id
            and self.generation > other.generation
            and self.start_ms <= other.start_ms
            and other.end_ms <= self.end_ms
        )


def live_files(
    found: Iterable[str], *, start_ms: int = 0, end_ms: int = 1 << 62
) -> list[tuple[str, TelemetryFile]]:
    """Return the keys of a listing that count for samples in `[start_ms, end_ms)`, by broker and time."""
    by_broker: dict[str, list[tuple[str, TelemetryFile]]] = {}
    for key in found:
        file = TelemetryFile.parse(key)
        if file is not None and file.start_ms < end_ms and file.end_ms > start_ms:
            by_broker.setdefault(file.broker_id, []).append((key, file))
    live: list[tuple[str, TelemetryFile]] = []
    for broker in sorted(by_broker):
        kept: list[tuple[str, TelemetryFile]] = []
        for key, file in sorted(
            by_broker[broker], key=lambda each: (-each[1].generation, each[1].start_ms, each[0])
        ):
            # Files of one generation do not overlap. Two whose names differ only in the random part are duplicates.
            if not any(other.replaces(file) or _same(other, file) for _, other in kept):
                kept.append((key, file))
        live += sorted(kept, key=lambda each: (each[1].start_ms, each[0]))
    return live


def _same(one: TelemetryFile, other: TelemetryFile) -> bool:
    return (one.generation, one.start_ms, one.end_ms) == (other.generation, other.start_ms, other.end_ms)


def telemetry_folder(cluster: str, table: str, date: str | None = None) -> str:
    """Return the folder of a table's files, or of one day of it (`2026-01-31`)."""
    folder = f"{cluster}/telemetry/{table}"
    return folder if date is None else f"{folder}/date={date}"


def date_of(time_ms: int) -> str:
    """Return the day of a time in UTC."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d")
