"""Telemetry files: written, merged, thinned, deleted; a reader sees each sample once at every moment."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.errors import CorruptObject
from pydanube_core.telemetry import TABLES, TelemetryFile, live_files, table_named, telemetry_folder
from pydanube_core.telemetry.files import DAY_MS, HOUR_MS, date_of
from pydanube_storage.objects import ObjectStore
from pydanube_storage.objects.local import LocalStore
from pydanube_storage.telemetry.reading import read_samples, stored_files
from pydanube_storage.telemetry.upkeep import GRACE_MS, Keeping, look_after, thin
from pydanube_storage.telemetry.writing import encode, table_of_rows

HEADS = table_named("heads")
START = 20_000 * DAY_MS
KEEP = Keeping(downsample_after_ms=2 * DAY_MS, keep_ms=30 * DAY_MS, keep_downsampled_ms=400 * DAY_MS)


def head(time_ms: int, topic_id: int = 1, next_offset: int = 0) -> tuple[Any, ...]:
    return (time_ms, "7", f"/default/t{topic_id}", topic_id, None, 0, next_offset, 1, 1)


def write(store: ObjectStore, rows: list[tuple[Any, ...]], *, broker: str = "7", random: str = "a") -> str:
    times = [row[0] for row in rows]
    name = TelemetryFile(
        start_ms=min(times), end_ms=max(times) + 1, broker_id=broker, generation=0, random=random
    )
    key = f"{telemetry_folder('c', 'heads', date_of(min(times)))}/{name}"
    store.put(key, encode(HEADS, table_of_rows(HEADS, rows)))
    return key


def seen(store: ObjectStore) -> list[tuple[int, int]]:
    """(time, next offset) of every sample that a reader sees."""
    found = []
    for key, _, _ in stored_files(store, "c", HEADS):
        table = read_samples(store, key, HEADS)
        found += zip(
            table["taken_at"].cast(pa.int64()).to_pylist(), table["next_offset"].to_pylist(), strict=True
        )
    return sorted(found)


def minutes(count: int, start: int = START) -> list[list[tuple[Any, ...]]]:
    """Files of a minute each, with twelve samples."""
    return [
        [head(start + minute * 60_000 + tick * 5000, 1, 12 * minute + tick) for tick in range(12)]
        for minute in range(count)
    ]


def test_every_table_writes_and_reads_its_own_columns(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    values = {"int64": 3, "double": 1.5, "string": "x", "timestamp(ms, UTC)": START, "boolean": True}
    for table in TABLES.values():
        row = tuple(None if column.nullable else values[column.kind] for column in table.columns)
        store.put(f"f/{table.name}", encode(table, table_of_rows(table, [row])))
        (read,) = read_samples(store, f"f/{table.name}", table).to_pylist()
        assert [read[column.name] is None for column in table.columns] == [c.nullable for c in table.columns]


def test_an_hour_of_small_files_becomes_one_and_no_sample_is_seen_twice(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for rows in minutes(75):
        write(store, rows)
    before = seen(store)
    now = START + 2 * HOUR_MS
    assert look_after(store, "c", "7", KEEP, now_ms=now)["merged"] == 60
    assert seen(store) == before
    assert len(list(stored_files(store, "c", HEADS))) == 16


def test_replaced_files_are_deleted_after_the_grace_time(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    now = time.time_ns() // 1_000_000
    start = (now - 3 * HOUR_MS) // HOUR_MS * HOUR_MS
    for rows in minutes(5, start):
        write(store, rows)
    before = seen(store)
    assert look_after(store, "c", "7", KEEP, now_ms=now)["merged"] == 5
    assert look_after(store, "c", "7", KEEP, now_ms=now)["deleted"] == 0
    for path in tmp_path.rglob("*-1-*.parquet"):
        os.utime(path, (now / 1000 - GRACE_MS / 1000 - 60,) * 2)
    assert look_after(store, "c", "7", KEEP, now_ms=now)["deleted"] == 5
    assert seen(store) == before


def test_old_days_keep_the_last_sample_of_each_minute_then_of_each_hour_then_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for rows in minutes(120):
        write(store, rows)
    look_after(store, "c", "7", KEEP, now_ms=START + 4 * DAY_MS)
    assert [offset for _, offset in seen(store)] == [12 * minute + 11 for minute in range(120)]
    look_after(store, "c", "7", KEEP, now_ms=START + 40 * DAY_MS)
    assert [offset for _, offset in seen(store)] == [12 * 60 - 1, 12 * 120 - 1]
    look_after(store, "c", "7", KEEP, now_ms=START + 500 * DAY_MS)
    assert list(store.list("c")) == []


def test_files_of_a_broker_that_lives_are_its_own(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for rows in minutes(3):
        write(store, rows, broker="8")
    assert look_after(store, "c", "7", KEEP, now_ms=START + 4 * HOUR_MS)["merged"] == 0
    assert look_after(store, "c", "7", KEEP, now_ms=START + 3 * DAY_MS)["merged"] == 3


def test_a_damaged_file_is_named_and_left_out_of_the_merged_one(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    keys = [write(store, rows) for rows in minutes(3)]
    path = tmp_path / keys[1]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptObject) as caught:
        read_samples(store, keys[1], HEADS)
    assert keys[1] in caught.value.message
    assert look_after(store, "c", "7", KEEP, now_ms=START + 2 * HOUR_MS)["damaged"] == 1
    assert len(seen(store)) == 24


def test_a_flush_that_was_written_twice_is_in_the_merged_file_once(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    first, second, third = minutes(3)
    for rows in (
        first,
        first + second,
        third,
    ):  # the first one's answer was lost, and it came again with the next
        write(store, rows)
    assert len(seen(store)) == 48
    assert look_after(store, "c", "7", KEEP, now_ms=START + 2 * HOUR_MS)["merged"] == 3
    assert [offset for _, offset in seen(store)] == list(range(36))


def test_thinning_keeps_each_subject() -> None:
    rows = [head(START + tick * 5000, topic, tick) for topic in (1, 2) for tick in range(24)]
    thinned = thin(HEADS, table_of_rows(HEADS, rows), 60_000)
    found = zip(thinned["topic_id"].to_pylist(), thinned["next_offset"].to_pylist(), strict=True)
    assert sorted(found) == [(1, 11), (1, 23), (2, 11), (2, 23)]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 10), st.integers(0, 3)), max_size=12),
)
def test_no_live_file_lies_within_a_live_one_of_a_higher_generation(
    drawn: list[tuple[int, int, int]],
) -> None:
    files = [
        TelemetryFile(start_ms=a, end_ms=a + n, broker_id="7", generation=g, random=f"{i:x}")
        for i, (a, n, g) in enumerate(drawn)
    ]
    live = [file for _, file in live_files(map(str, files))]
    assert not any(one.replaces(other) for one in live for other in live)
    covered = {t for file in live for t in range(file.start_ms, file.end_ms)}
    assert covered == {t for file in files for t in range(file.start_ms, file.end_ms)}


def test_a_file_with_any_byte_turned_over_is_read_or_refused_as_damaged(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    key = write(store, minutes(1)[0])
    path = tmp_path / key
    whole = path.read_bytes()
    as_written = read_samples(store, key, HEADS)
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    refused = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            found = read_samples(store, key, HEADS)
        except CorruptObject:
            refused += 1
        else:  # what lies in no page and no checksum is the footer
            assert place >= footer or found == as_written, place
    assert refused > len(whole) // 2
