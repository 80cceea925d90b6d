"""Maintain telemetry: merge small files by the hour, thin old samples, delete the oldest.

Each step writes a file that replaces others, and a later round deletes those, after readers that listed the folder
before have had time to read. This needs no lock and no list of files, and a crash in between loses nothing. A broker
maintains its own files, and every broker those that are older than a day, in case their broker is gone.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydanube_core.errors import CorruptObject, ObjectMissing
from pydanube_core.telemetry import TABLES, Table, TelemetryFile, live_files, telemetry_folder
from pydanube_core.telemetry.files import DAY_MS, HOUR_MS

from pydanube_storage.objects.protocol import ObjectStore
from pydanube_storage.telemetry.reading import read_samples
from pydanube_storage.telemetry.writing import encode

GRACE_MS: Final = 10 * 60_000  # time in which a reader that listed a folder opens its files
MINUTE_MS: Final = 60_000
_EPOCH_DAYS: Final = np.datetime64("1970-01-01")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How long samples are kept as recorded, then by the minute, then by the hour. Milliseconds."""

    downsample_after_ms: int
    keep_ms: int
    keep_downsampled_ms: int
    settled_ms: int = 5 * MINUTE_MS  # wait after an hour's end before its files are merged


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """Files that one new file replaces."""

    table: Table
    folder: str
    sources: tuple[tuple[str, TelemetryFile], ...]
    start_ms: int
    end_ms: int
    generation: int


def look_after(
    store: ObjectStore, cluster: str, broker_id: str, keeping: Keeping, *, now_ms: int, most: int = 20
) -> dict[str, int]:
    """Do up to `most` steps and leave the rest for the next round. Return {merged, deleted, damaged}: numbers of files."""
    done = {"merged": 0, "deleted": 0, "damaged": 0}
    for table in TABLES.values():
        top = telemetry_folder(cluster, table.name)
        for name in store.folders(top):
            day_ms = _day_ms(name.removeprefix("date="))
            if day_ms is None:
                continue
            found = {fact.key: fact.modified_ms for fact in store.list(f"{top}/{name}")}
            mine = [
                (key, file)
                for key in found
                if (file := TelemetryFile.parse(key)) is not None
                and (file.broker_id == broker_id or day_ms + 2 * DAY_MS < now_ms)
            ]
            if day_ms + DAY_MS + keeping.keep_downsampled_ms < now_ms:
                done["deleted"] += _delete(store, (key for key, _ in mine))
                continue
            done["deleted"] += _delete(store, _replaced(mine, found, now_ms))
            for step in _steps(table, f"{top}/{name}", mine, day_ms, keeping, now_ms):
                if most <= 0:
                    return done
                most -= 1
                done["damaged"] += _carry_out(store, step)
                done["merged"] += len(step.sources)
    return done


def _day_ms(text: str) -> int | None:
    try:
        return int((np.datetime64(text) - _EPOCH_DAYS).astype("timedelta64[ms]").astype(np.int64))
    except ValueError:
        return None


def _delete(store: ObjectStore, keys: Iterable[str]) -> int:
    count = 0
    for key in keys:
        store.delete(key)
        count += 1
    return count


def _replaced(
    files: Sequence[tuple[str, TelemetryFile]], modified_ms: dict[str, int | None], now_ms: int
) -> list[str]:
    """Return the keys of files whose replacement is old enough."""
    found = []
    for key, file in files:
        for other_key, other in files:
            written_ms = modified_ms[other_key]
            if other.replaces(file) and written_ms is not None and written_ms + GRACE_MS < now_ms:
                found.append(key)
                break
    return found


def _steps(
    table: Table,
    folder: str,
    files: Sequence[tuple[str, TelemetryFile]],
    day_ms: int,
    keeping: Keeping,
    now_ms: int,
) -> Iterable[_Step]:
    """Return the due steps of one folder: one file per day for old samples, one per hour for the rest."""
    live = live_files([key for key, _ in files])
    for broker in dict.fromkeys(file.broker_id for _, file in live):
        own = [(key, file) for key, file in live if file.broker_id == broker]
        age_ms = now_ms - (day_ms + DAY_MS)
        generation = 3 if age_ms > keeping.keep_ms else 2 if age_ms > keeping.downsample_after_ms else 1
        if generation > 1:
            if any(file.generation < generation for _, file in own):
                yield _Step(
                    table=table,
                    folder=folder,
                    sources=tuple(own),
                    start_ms=day_ms,
                    end_ms=day_ms + DAY_MS,
                    generation=generation,
                )
            continue
        hours: dict[int, list[tuple[str, TelemetryFile]]] = {}
        for key, file in own:
            if file.generation == 0:
                hours.setdefault(file.start_ms // HOUR_MS, []).append((key, file))
        for hour, sources in sorted(hours.items()):
            end_ms = max((hour + 1) * HOUR_MS, *(file.end_ms for _, file in sources))
            if len(sources) > 1 and end_ms + keeping.settled_ms < now_ms:
                yield _Step(
                    table=table,
                    folder=folder,
                    sources=tuple(sources),
                    start_ms=min(hour * HOUR_MS, *(file.start_ms for _, file in sources)),
                    end_ms=end_ms,
                    generation=1,
                )


def _carry_out(store: ObjectStore, step: _Step) -> int:
    """Write the replacement and return how many damaged sources were left out."""
    read, damaged = [], 0
    for key, _ in step.sources:
        try:
            read.append(read_samples(store, key, step.table))
        except CorruptObject:
            damaged += 1
        except ObjectMissing:
            return damaged  # another broker maintains this folder concurrently
    if not read:
        return damaged
    samples = pa.concat_tables(read)
    if step.generation >= 2:
        samples = thin(step.table, samples, MINUTE_MS if step.generation == 2 else HOUR_MS)
    elif _overlap([file for _, file in step.sources]):
        samples = thin(step.table, samples, 1)  # a flush whose answer was lost was written twice
    name = TelemetryFile(
        start_ms=step.start_ms,
        end_ms=step.end_ms,
        broker_id=step.sources[0][1].broker_id,
        generation=step.generation,
        random=secrets.token_hex(4),
    )
    store.put(f"{step.folder}/{name}", encode(step.table, samples))
    return damaged


def _overlap(files: Sequence[TelemetryFile]) -> bool:
    """Return whether the times of two files overlap."""
    ordered = sorted(files, key=lambda file: file.start_ms)
    return any(after.start_ms < before.end_ms for before, after in pairwise(ordered))


def thin(table: Table, samples: Any, step_ms: int) -> Any:
    """Keep the last sample of each subject in each interval of `step_ms`. Values are kept unchanged."""
    times = samples.column("taken_at").cast(pa.int64())
    steps = pc.divide(times, pa.scalar(step_ms, pa.int64()))
    numbered = samples.append_column("_step", steps).append_column(
        "_row", pa.array(np.arange(samples.num_rows, dtype=np.int64))
    )
    order = [(name, "ascending") for name in (*table.key, "taken_at")]
    ordered = numbered.sort_by(order)
    last = ordered.group_by([*table.key, "_step"], use_threads=False).aggregate([("_row", "last")])
    return samples.take(last.column("_row_last").combine_chunks())
