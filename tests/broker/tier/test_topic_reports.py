"""Reports of a lost broker that its heirs read: one read for each loss, whose failure they share."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from pydanube_broker.cluster.ids import BrokerId, Incarnation
from pydanube_broker.cluster.move_record import ChainRange
from pydanube_broker.tier.topic_reports import TopicReports
from pydanube_broker.topics.log_state import LogState
from pydanube_core.errors import StoreUnavailable

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

LOST, OTHER = BrokerId(9), BrokerId(10)
FIRST = ChainRange(journal=1, from_piece=0, until=5, above_epoch=0)
SECOND = ChainRange(journal=1, from_piece=0, until=8, above_epoch=0)


class Store:
    """The tier's process with a store of reports. Reads of the brokers in `hang` wait until `answers`."""

    def __init__(self) -> None:
        self.reports: dict[str, bytes] = {}
        self.reads: list[str] = []
        self.hang: set[BrokerId] = set()
        self.answers = anyio.Event()
        self.failure: StoreUnavailable | None = None

    async def call(self, name: str, arguments: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        folder = arguments["folder"]
        if name == "states_write":
            self.reports[folder] = blob
            return {}, b""
        self.reads.append(folder)
        if any(folder.endswith(f"/{broker}") for broker in self.hang):
            await self.answers.wait()
        if self.failure is not None:
            raise self.failure
        return {"written_ms": 1}, self.reports[folder]

    async def reported(self, broker: BrokerId, incarnation: int, next_offset: int) -> None:
        """Store a broker's report as a broker of that incarnation."""
        writer = TopicReports(self.call, self.call, "c")
        state = LogState(1, opened=True, epoch=1, next_offset=next_offset)
        assert await writer.write(broker, Incarnation(incarnation), [state])


async def offset(reports: TopicReports, broker: BrokerId, chain: ChainRange | None) -> int | None:
    state = await reports.recent(broker, chain, 1)
    return None if state is None else state.next_offset


async def test_a_broker_that_returned_and_is_lost_again_has_the_report_of_its_later_life() -> None:
    """With that of the earlier life, cursors and producer sessions would go back."""
    store = Store()
    reports = TopicReports(store.call, store.call, "c")
    await store.reported(LOST, 1, 15)
    assert [await offset(reports, LOST, FIRST) for _ in range(2)] == [15, 15]
    await store.reported(LOST, 2, 18)
    assert [await offset(reports, LOST, SECOND) for _ in range(2)] == [18, 18]
    assert len(store.reads) == 2, "one for each loss"


async def test_a_rebuilt_topic_does_not_change_the_report() -> None:
    store = Store()
    reports = TopicReports(store.call, store.call, "c")
    await store.reported(LOST, 1, 15)
    state = await reports.recent(LOST, FIRST, 1)
    assert state is not None
    state.next_offset = 99
    assert await offset(reports, LOST, FIRST) == 15


async def test_rebuilds_share_a_read_and_its_failure_and_the_next_one_reads_again() -> None:
    store = Store()
    reports = TopicReports(store.call, store.call, "c")
    await store.reported(LOST, 1, 15)
    await store.reported(OTHER, 1, 7)
    store.hang, store.failure = {LOST}, StoreUnavailable("it does not answer", store="s")
    failed: list[StoreUnavailable] = []

    async def rebuild() -> None:
        with pytest.raises(StoreUnavailable) as found:
            await reports.recent(LOST, FIRST, 1)
        failed.append(found.value)

    async with anyio.create_task_group() as group:
        for _ in range(16):
            group.start_soon(rebuild)
        await anyio.wait_all_tasks_blocked()
        store.answers.set()
    assert len(failed) == 16
    assert len(store.reads) == 1, "one time-out, not sixteen in a row"
    store.failure = None
    assert await offset(reports, LOST, FIRST) == 15


async def test_a_read_that_hangs_holds_up_no_other_broker() -> None:
    store = Store()
    reports = TopicReports(store.call, store.call, "c")
    await store.reported(LOST, 1, 15)
    await store.reported(OTHER, 1, 7)
    store.hang = {LOST}
    async with anyio.create_task_group() as group:
        group.start_soon(offset, reports, LOST, FIRST)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(30):
            assert await offset(reports, OTHER, None) == 7
        store.answers.set()


async def test_a_cancelled_rebuild_leaves_the_read_to_another() -> None:
    store = Store()
    reports = TopicReports(store.call, store.call, "c")
    await store.reported(LOST, 1, 15)
    store.hang = {LOST}
    found: list[int | None] = []
    first = anyio.CancelScope()

    async def cancelled() -> None:
        with first:
            await offset(reports, LOST, FIRST)

    async def rebuild() -> None:
        found.append(await offset(reports, LOST, FIRST))

    async with anyio.create_task_group() as group:
        group.start_soon(cancelled)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(rebuild)
        await anyio.wait_all_tasks_blocked()
        first.cancel()
        store.answers.set()
    assert found == [15]
    assert len(store.reads) == 2
