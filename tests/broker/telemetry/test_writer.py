"""The telemetry writer: rounds become rows in files, within bounds, whatever the store does."""

from __future__ import annotations

import marshal
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydanube_broker.observation.past import RunBefore
from pydanube_broker.settings.sections import Telemetry
from pydanube_broker.telemetry import writer as writer_module
from pydanube_broker.telemetry.rows import Machine
from pydanube_broker.telemetry.work import TelemetryWork
from pydanube_broker.telemetry.writer import TelemetryWriter
from pydanube_core.cursor_state import CursorState
from pydanube_core.errors import StoreUnavailable
from pydanube_core.observation import BrokerSample, ConsumerSample, CursorSample, HeadSample, Round
from pydanube_core.telemetry import table_named
from pydanube_storage.objects.local import LocalStore
from pydanube_storage.telemetry.reading import read_samples, stored_files

from tests.support.waiting import until

START = 20_000 * 86_400_000
MACHINE = Machine(broker_id="7", incarnation=3, cpus=2, memory_bytes=1 << 30)
OPTIONS = Telemetry(
    sample_interval=5, flush_age=60, keep=86_400, keep_downsampled=86_400, downsample_after=86_400
)


def head(number: int) -> HeadSample:
    return HeadSample(
        "/default/t",
        1,
        None,
        START,
        0,
        100 * number,
        100 * number,
        4000 * number,
        90 * number,
        3600 * number,
        1,
        1,
        0,
    )


def cursor(number: int, *, unread: int = 5, age_ms: int | None = 1234) -> CursorSample:
    taken = START + 5000 * number
    oldest = None if age_ms is None else taken - age_ms
    state = CursorState(taken + 3, 0, 100 * number, 100 * number - unread, 0, 4, 1, generation=1)
    return CursorSample("/default/t", 1, None, "s", 2, state, oldest)


def consumer() -> ConsumerSample:
    return ConsumerSample("/default/t", 1, "s", 2, 9, "c", START, True, START, 10, 4, 90, None, None)


def round_(number: int, *, taken_ms: int | None = None, **changed: Any) -> Round:
    taken = START + 5000 * number if taken_ms is None else taken_ms
    broker = BrokerSample(
        *(taken, "7", 5.0 * number, 1, 1, 0.1 * number, 1000, 10, 20, 1, 64, False, 0, 0, None),
        *(100 * number, 4000 * number, 90 * number, 3600 * number),
    )
    given: dict[str, Any] = {
        "heads": [head(number)],
        "cursors": [cursor(number)],
        "consumers": [consumer()],
        "gone_topics": [],
        "gone_subscriptions": [],
        **changed,
    }
    return Round(
        number=number,
        taken_at_ms=taken,
        interval_s=5.0,
        broker=broker,
        **given,
    )


class Store:
    """The tier's process, in this one; `away` refuses."""

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(folder)
        self.work = TelemetryWork(self.store).calls()
        self.away = False

    async def call(self, name: str, arguments: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], Any]:
        if self.away:
            raise StoreUnavailable("away", store="s")
        return self.work[name](arguments, blob)

    def rows(self, name: str) -> list[dict[str, Any]]:
        table = table_named(name)
        found = [
            row
            for key, _, _ in stored_files(self.store, "c", table)
            for row in read_samples(self.store, key, table).to_pylist()
        ]
        return sorted(found, key=lambda row: row["taken_at"])


def made(store: Store, options: Telemetry = OPTIONS, machine: Machine = MACHINE) -> TelemetryWriter:
    return TelemetryWriter(options, machine, store.call, "c", now_ms=lambda: START + 10_000_000)


@pytest.mark.anyio
async def test_rounds_become_rows_with_the_round_s_time_and_the_age_to_a_tenth(tmp_path: Path) -> None:
    store = Store(tmp_path)
    writer = made(store)
    for number in range(1, 14):
        writer.take(round_(number))
    await writer.flush()
    cursors = store.rows("cursors")
    assert [int(row["taken_at"].timestamp() * 1000) for row in cursors] == [
        START + 5000 * number for number in range(1, 14)
    ]
    assert {row["unread_offsets"] for row in cursors} == {5}
    assert {row["oldest_unread_age_ms"] for row in cursors} == {1200}
    assert [row["next_offset"] for row in store.rows("heads")] == [100, 1300]
    (topic,) = store.rows("topics")
    assert (topic["messages_out"], topic["bytes_out"], topic["unread_messages"]) == (90, 3600, 5)
    assert len(store.rows("consumers")) == 1
    assert len(store.rows("brokers")) == 13
    assert writer.statistics().waiting_bytes == 0


@pytest.mark.anyio
async def test_a_store_that_is_away_costs_nothing_until_the_bound_and_rounds_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    writer = made(store)
    store.away = True
    writer.take(round_(1))
    await writer.flush()
    monkeypatch.setattr(writer_module, "WAITING_BYTES", writer.statistics().waiting_bytes + 1)
    writer.take(round_(2))
    writer.take(round_(3))
    said = writer.statistics()
    assert (said.dropped_rounds, said.errors, said.error) == (1, 1, "away")
    store.away = False
    await writer.flush()
    assert len(store.rows("cursors")) == 2
    assert writer.statistics().error is None


@pytest.mark.anyio
async def test_samples_of_two_days_are_in_two_folders(tmp_path: Path) -> None:
    store = Store(tmp_path)
    writer = made(store)
    writer.take(round_(1, taken_ms=START - 2000))
    writer.take(round_(2, taken_ms=START + 3000))
    await writer.flush()
    days = store.store.folders("c/telemetry/cursors")
    assert len(days) == 2
    assert len(store.rows("cursors")) == 2


@pytest.mark.anyio
async def test_what_changes_between_two_samples_is_told_with_the_next_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    slow = Telemetry(sample_interval=20, flush_age=60, keep=1, keep_downsampled=1, downsample_after=1)
    writer = made(store, slow)
    for number in range(1, 10):
        writer.take(round_(number, cursors=[cursor(number)] if number != 5 else []))
    await writer.flush()
    assert [row["next_offset"] for row in store.rows("cursors")] == [100, 400, 900]


@pytest.mark.anyio
async def test_a_clock_that_was_set_back_repeats_no_time_and_one_that_was_ahead_is_not_waited_for(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    writer = made(store)
    for taken_s in (0, 5, -600, -595, 10, 10 + 400 * 86_400, 15, 20):
        writer.take(round_(1, taken_ms=START + taken_s * 1000))
    await writer.flush()
    assert [int(row["taken_at"].timestamp() - START / 1000) for row in store.rows("brokers")] == [
        *(0, 5, 10, 15, 20),
        10 + 400 * 86_400,
    ]


@pytest.mark.anyio
async def test_what_is_gone_is_told_no_more(tmp_path: Path) -> None:
    store = Store(tmp_path)
    writer = made(store)
    writer.take(round_(1))
    for number in range(2, 62):
        writer.take(
            round_(number, heads=[], cursors=[], consumers=[], gone_topics=[1] if number == 2 else [])
        )
    await writer.flush()
    assert len(store.rows("heads")) == 1
    assert len(store.rows("topics")) == 1


@pytest.mark.anyio
async def test_the_task_writes_by_itself_and_looks_after_what_is_there(tmp_path: Path) -> None:
    store = Store(tmp_path)
    quick = Telemetry(sample_interval=5, flush_age=0.1, keep=1, keep_downsampled=1, downsample_after=1)
    writer = made(store, quick)
    writer.take(round_(1))
    recalled: list[Any] = []

    async def recall(read: Any, read_charted: Any) -> None:
        recalled.append(read)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.run, recall)
            await until(lambda: writer.statistics().files)  # a writer tells nobody
            tasks.cancel_scope.cancel()
    assert len(store.rows("cursors")) == 1
    assert recalled == [writer.past], "the run before is read first"


@pytest.mark.anyio
async def test_the_last_run_of_a_broker_is_read_back_as_rings(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for incarnation, numbers in ((3, range(3)), (4, range(10, 14))):
        writer = made(store, OPTIONS, replace(MACHINE, incarnation=incarnation))
        for number in numbers:
            # The cursor of round 12 is unchanged, so it has no row.
            unchanged: dict[str, Any] = {"cursors": []} if number == 12 else {}
            writer.take(round_(number, **unchanged))
            await writer.flush()
    other = made(store, OPTIONS, replace(MACHINE, broker_id="8"))
    other.take(round_(14))
    await other.flush()

    times, rings = await writer.past(START, START + 5000 * 14)

    assert [time - START for time in times] == [50_000, 55_000, 60_000, 65_000], "of the last run alone"
    assert list(rings) == [(1, 2)]
    past = RunBefore(times, rings, interval_s=5.0)
    assert [state.taken_at_ms - START for state, _ in past.rows(1, 2)] == [50_000, 55_000, 65_000]
    found = past.states(1, 2, [START, *times, START + 65_000 + 76_000])
    assert [each and (each[0].next_offset, each[0].lag_messages, each[0].in_flight) for each in found] == [
        None, (1000, 5, 4), (1100, 5, 4), (1100, 5, 4), (1300, 5, 4), None,
    ]  # fmt: skip
    assert found[1] is not None
    assert found[1][1] == START + 50_000 - 1200, "ages are kept to 100 ms"
    assert past.stood_since_ms(1, 2, 1295) == START + 65_000
    assert past.stood_since_ms(1, 2, 1) is None
    assert (await writer.past(START + 65_001, START + 90_000)) == ([], {})


@pytest.mark.anyio
async def test_a_clean_stop_and_a_removal_have_the_last_word(tmp_path: Path) -> None:
    store = Store(tmp_path)
    writer = made(store)
    writer.take(round_(1))
    await writer.flush()
    assert [row["state"] for row in store.rows("brokers")] == ["active"]
    writer.note_removed("9")
    await writer.aclose()
    rows = {(row["broker_id"], row["state"]): row for row in store.rows("brokers")}
    assert set(rows) == {("7", "active"), ("7", "stopped"), ("9", "removed")}
    active, stopped = rows["7", "active"], rows["7", "stopped"]
    assert stopped["taken_at"] > active["taken_at"]
    assert stopped | {"taken_at": None, "state": None} == active | {"taken_at": None, "state": None}


@pytest.mark.anyio
async def test_a_broker_that_drains_says_so_in_its_rows(tmp_path: Path) -> None:
    store = Store(tmp_path)
    states = iter(["starting", "active", "draining", "drained", "read_only"])
    writer = TelemetryWriter(
        OPTIONS, MACHINE, store.call, "c", now_ms=lambda: START + 10_000_000, state=lambda: next(states)
    )
    for number in range(1, 6):
        writer.take(round_(number))
    await writer.flush()
    told = [row["state"] for row in store.rows("brokers")]
    assert told == ["active", "active", "draining", "drained", "active"]


@pytest.mark.anyio
async def test_a_writer_that_took_nothing_has_no_last_word(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await made(store).aclose()
    assert store.rows("brokers") == []


@pytest.mark.anyio
async def test_many_who_ask_for_events_leave_the_flushes_a_thread(tmp_path: Path) -> None:
    """Two calls that hung at the store took both threads that the tier has for urgent work."""
    busy, most, gate = 0, 0, anyio.Event()

    async def call(name: str, arguments: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], Any]:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await gate.wait()
        busy -= 1
        return {"more": False}, marshal.dumps([])

    writer = TelemetryWriter(OPTIONS, MACHINE, call, "c", now_ms=lambda: START)
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(writer.events, 0, START, 10)
        await anyio.wait_all_tasks_blocked()
        gate.set()
    assert most == 1
