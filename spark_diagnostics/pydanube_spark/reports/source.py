"""The telemetry that a report reads: the files with samples of a time, and the brokers' rounds in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydanube_core.errors import CorruptObject, InvalidArgument, ObjectMissing
from pydanube_core.names import TopicName
from pydanube_core.telemetry import TelemetryFile, table_named
from pydanube_core.telemetry.tables import HOLD_ROUNDS
from pydanube_storage.objects import StoreOptions
from pydanube_storage.telemetry.reading import read_samples, stored_files
from pydanube_storage.topics.located import cluster_folder, open_for_reading

_OF_ROUNDS: Final = pa.array(["active", "draining", "drained"])  # states in the rows of rounds
_SHORTEST_MS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """The files of one table that a report reads. `interval_ms`: between two rounds of the brokers.

    `last_round_ms`: broker → its last round in the time, until which the last sample of a subscription holds.
    `alive_ms`: broker → the latest time from which on it reported for as long as a sample holds. A subscription without a
    sample since then was deleted.
    """

    store: StoreOptions
    cluster: str
    keys: tuple[str, ...]
    interval_ms: int
    thinned_ms: int  # time between two samples in the coarsest file, 0 if no file is thinned
    stored_bytes: int
    oldest_ms: int  # the first round in the time if telemetry begins in it, else before the time
    newest_ms: int
    last_round_ms: Mapping[str, int]
    alive_ms: Mapping[str, int]


def find_telemetry(
    store: StoreOptions, cluster: str | None, table: str, *, start_ms: int, end_ms: int
) -> Telemetry:
    """Return the files with samples of `[start_ms, end_ms)`.

    Raises:
        InvalidArgument: there is no telemetry at all, or none of that time.
        StoreUnavailable: the store does not exist.
    """
    opened = open_for_reading(store)
    name = cluster_folder(opened, cluster)
    wanted = table_named(table)
    found = list(stored_files(opened, name, wanted, start_ms=start_ms, end_ms=end_ms))
    if not found:
        days = [each.removeprefix("date=") for each in opened.folders(f"{name}/telemetry/{table}")]
        why = (
            f"it has telemetry of {days[0]} to {days[-1]}: choose another --since and --until"
            if days
            else "its brokers have written no telemetry yet: it comes within a minute, unless telemetry.enabled is false"
        )
        raise InvalidArgument(
            f"cluster {name} in {opened.url} has no telemetry of that time; {why}",
            field="since",
            value=start_ms,
            cluster=name,
            days=[days[0], days[-1]] if days else [],
        )
    rounds = list(stored_files(opened, name, table_named("brokers"), start_ms=start_ms, end_ms=end_ms))
    interval_ms = _interval_ms(opened, rounds)
    coarsest = max(file.generation for _, file, _ in found)
    last_round_ms = _last_round_ms(opened, rounds, end_ms)
    thinned_ms = {2: 60_000, 3: 3_600_000}.get(coarsest, 0)
    return Telemetry(
        store=store,
        cluster=name,
        keys=tuple(key for key, _, _ in found),
        interval_ms=interval_ms,
        thinned_ms=thinned_ms,
        stored_bytes=sum(size for _, _, size in found),
        oldest_ms=_oldest_ms(opened, rounds, start_ms, max(interval_ms, thinned_ms)),
        newest_ms=max(last_round_ms.values(), default=min(end_ms, max(file.end_ms for _, file, _ in found))),
        last_round_ms=last_round_ms,
        alive_ms=_alive_ms([file for _, file, _ in rounds], HOLD_ROUNDS * interval_ms),
    )


def _last_round_ms(
    store: Any, rounds: Sequence[tuple[str, TelemetryFile, int]], end_ms: int
) -> dict[str, int]:
    """Return each broker's last sample before `end_ms`, by its newest file. Unreadable files are left out."""
    newest: dict[str, tuple[int, str]] = {}
    for key, file, _ in rounds:
        newest[file.broker_id] = max(newest.get(file.broker_id, (0, "")), (file.start_ms, key))
    found: dict[str, int] = {}
    for broker_id, (_, key) in newest.items():
        times = _times(store, key)
        if len(times) and times[0] < end_ms:
            found[broker_id] = int(times[np.searchsorted(times, end_ms) - 1])
    return found


def _oldest_ms(
    store: Any, rounds: Sequence[tuple[str, TelemetryFile, int]], start_ms: int, spacing_ms: int
) -> int:
    """Return the begin of telemetry by each broker's first file, whose name may have only the hour, or `start_ms`."""
    first: dict[str, tuple[int, str]] = {}
    for key, file, _ in rounds:
        first[file.broker_id] = min(first.get(file.broker_id, (file.start_ms, key)), (file.start_ms, key))
    times = [_times(store, key) for _, key in first.values()]
    oldest_ms = min((int(each[0]) for each in times if len(each)), default=start_ms)
    return start_ms if oldest_ms <= start_ms + 2 * spacing_ms else oldest_ms


def _times(store: Any, key: str) -> Any:
    """Return the times of a file's rounds, ascending. Empty for a damaged file, which its report names."""
    table = table_named("brokers")
    try:
        rows = read_samples(store, key, table, columns=["taken_at", "state"])
    except (CorruptObject, ObjectMissing):
        return np.zeros(0, np.int64)
    rounds = rows.filter(pc.is_in(rows.column("state"), _OF_ROUNDS))  # a last row at shutdown is no round
    return np.sort(rounds.column("taken_at").cast(pa.int64()).to_numpy())


def _alive_ms(files: Sequence[TelemetryFile], hold_ms: int) -> dict[str, int]:
    end_ms: dict[str, int] = {}
    for file in files:
        end_ms[file.broker_id] = max(end_ms.get(file.broker_id, 0), file.end_ms)
    found: dict[str, int] = {}
    for file in files:
        if file.start_ms + hold_ms <= end_ms[file.broker_id]:
            found[file.broker_id] = max(found.get(file.broker_id, 0), file.start_ms)
    return found


def _interval_ms(store: Any, rounds: Sequence[tuple[str, TelemetryFile, int]]) -> int:
    """Return the milliseconds between two rounds, by the newest file that is not thinned."""
    files = [(file.end_ms, key) for key, file, _ in rounds if file.generation < 2]
    for _, key in sorted(files, reverse=True)[:5]:
        gaps = np.diff(_times(store, key))
        if len(gaps):
            return max(_SHORTEST_MS, int(np.median(gaps)))
    return 5000


def topic_matches(topic: str, glob: str | None) -> bool:
    """Return whether the glob matches a concrete topic's name, or the name of its partitioned topic."""
    if glob is None:
        return True
    full = glob if glob.startswith("/") else f"/{glob}" if "/" in glob else f"/default/{glob}"
    return fnmatchcase(topic, full) or fnmatchcase(str(TopicName.parse(topic).base), full)
