"""Upkeep is each topic's own: a busy topic has its turn, and what cannot be done for one keeps nobody else waiting."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from pydanube_broker.tier.collecting import Collector
from pydanube_broker.tier.flushing import Flusher
from pydanube_broker.tier.maintenance import COMPACT_AT, Maintenance
from pydanube_broker.tier.parts import TierParts
from pydanube_broker.tier.upkeep import Upkeep
from pydanube_broker.topics.hub import Hub
from pydanube_core.errors import DiskFull, StoreUnavailable
from pydanube_storage.boot import boot_id
from pydanube_storage.catalog import CatalogEntry, Moment, ObjectCatalog

from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio
EPOCH = 1


class Store:
    """The child's part in deletion: names in `stuck` cannot be deleted."""

    def __init__(self) -> None:
        self.stuck: set[str] = set()
        self.deleted: list[str] = []
        self.listed: dict[str, list[str]] = {}
        self.sizes: list[int] = []  # of each deletion

    async def call(self, name: str, arguments: dict[str, Any], blob: bytes = b"") -> Any:
        if name == "list":
            keys = self.listed.get(arguments["folder"], [])
            return {"objects": [{"key": key, "bytes": 1, "modified_ms": 0} for key in keys]}, b""
        assert name == "delete"
        error = None
        gone = []
        self.sizes.append(len(arguments["keys"]))
        for key in arguments["keys"]:
            if key.rpartition("/")[2] in self.stuck:
                error = StoreUnavailable(f"{key} cannot be deleted", key=key).to_dict()
            else:
                gone.append(key)
        self.deleted += gone
        return {"deleted": gone, "error": error}, b""


def a_topic(number: int, *, retention_offset: int = 0) -> Any:
    limits = SimpleNamespace(
        retention_bytes=0, retention_age_s=0, retention_offset=retention_offset, drop_unread=1
    )
    return SimpleNamespace(
        topic_id=number, name=f"/default/t{number}", closed=None, assigned_epoch=EPOCH, start_offset=0,
        subscriptions={}, gate=SimpleNamespace(limits=limits),
        state=SimpleNamespace(tiered_offset=1000, stored_bytes=0),
    )  # fmt: skip


class Bench:
    def __init__(self, metadata: MemoryStore, topics: Sequence[Any], clock: ManualClock) -> None:
        self.store = Store()
        self.clock = clock
        boot = boot_id()
        self.catalog = ObjectCatalog(
            metadata, wall_ms=lambda: 0, moment=lambda: Moment(wall_ms=0, boot=boot, boot_ms=clock.now_ms())
        )
        self.folders = {topic.topic_id: f"c/{topic.topic_id}" for topic in topics}
        self.retained: list[str] = []
        self.merged: list[str] = []
        self.failing: dict[str, Exception] = {}
        self.merging_fails: Exception | None = None
        self.mergeable = 0  # merges that are still to be made
        self.flusher: Any = SimpleNamespace(
            in_flight={topic.topic_id: "under way" for topic in topics},
            merging=set(),
            claim=self._claim,
        )
        self.hold = SimpleNamespace(life="0a0a0a0a", continuous=True, check=lambda: None)
        self.hub: Any = SimpleNamespace(topics={topic.topic_id: topic for topic in topics})
        parts = TierParts(
            hub=cast("Hub", self.hub),
            catalog=self.catalog,
            child=cast("Any", self.store),
            folders=self.folders,
            hold=cast("Any", self.hold),
            room=cast("Any", None),
            cluster="c",
            object_format=lambda: 1,
        )
        self.collector = Collector(parts, cast("Flusher", self.flusher), clock=clock)
        upkeep = SimpleNamespace(retain=self._retain, compact_some=self._compact)
        self.tending = Maintenance(
            parts,
            cast("Flusher", self.flusher),
            cast("Upkeep", upkeep),
            self.collector,
            self._note,
        )

    async def _claim(self, topic: Any) -> None:
        await self.catalog.claim(
            topic.topic_id, epoch=EPOCH, folder=self.folders[topic.topic_id], start_offset=0
        )

    async def _note(self, topic: Any) -> None:
        pass

    async def _retain(self, topic: Any, keep: Any) -> int:
        if topic.name in self.failing:
            raise self.failing[topic.name]
        self.retained.append(topic.name)
        return 0

    async def _compact(self, topic: Any, *, at_least: int) -> int:
        self.merged.append(topic.name)
        if self.merging_fails is not None:
            raise self.merging_fails
        if not self.mergeable:
            return 0
        self.mergeable -= 1
        return 16

    async def rest(self, topic: Any, *names: str) -> None:
        """The topic's first objects, which retention has taken out."""
        await self._claim(topic)
        held = await self.catalog.head(topic.topic_id)
        assert held is not None
        at = held.head.tiered_offset
        made = []
        for name in names:
            made.append(
                CatalogEntry(
                    name=name, start=at, end=at + 1, messages=1, bytes=1, min_append_time_ms=0,
                    max_append_time_ms=0, epoch=EPOCH, generation=0, digest="", footer_bytes=1, footer_crc=0,
                    committed_at_ms=0,
                )
            )  # fmt: skip
            await self.catalog.append(topic.topic_id, made[-1], epoch=EPOCH)
            at += 1
        await self.catalog.drop(topic.topic_id, made, start_offset=at, epoch=EPOCH)


async def test_a_topic_that_is_always_being_flushed_is_retained_and_merged() -> None:
    with anyio.fail_after(30):
        async with MemoryStore() as metadata:
            topics = [a_topic(1, retention_offset=5)]
            bench = Bench(metadata, topics, ManualClock())
            await bench.tending.turn()
            for _ in range(COMPACT_AT):
                bench.tending.committed(1)
            bench.merged.clear()
            await bench.tending.turn()
            assert bench.retained == ["/default/t1", "/default/t1"]
            assert bench.merged == ["/default/t1"]


async def test_merges_go_on_turn_by_turn_until_there_are_none_left() -> None:
    with anyio.fail_after(30):
        async with MemoryStore() as metadata:
            bench = Bench(metadata, [a_topic(1)], ManualClock())
            bench.mergeable = 3
            for turn in range(1, 7):
                await bench.tending.turn()
                assert len(bench.merged) == min(turn, 4), "the fourth look finds nothing, and ends it"
            for _ in range(COMPACT_AT - 1):
                bench.tending.committed(1)
            await bench.tending.turn()
            assert len(bench.merged) == 4, "too few new objects"
            bench.tending.committed(1)
            await bench.tending.turn()
            assert len(bench.merged) == 5


async def test_a_merge_that_lacks_disk_space_or_fails_is_tried_again_without_new_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with anyio.fail_after(30):
        async with MemoryStore() as metadata:
            bench = Bench(metadata, [a_topic(1)], ManualClock())
            now_s = 100.0
            monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
            await bench.tending.turn()
            for error in (DiskFull("too little room", path="/data"), StoreUnavailable("away")):
                bench.tending.troubles.clear()
                for _ in range(COMPACT_AT):
                    bench.tending.committed(1)
                bench.merging_fails = error
                bench.merged.clear()
                await bench.tending.turn()
                assert bench.merged == ["/default/t1"]
                assert bench.tending.no_room() is (error if isinstance(error, DiskFull) else None)
                await bench.tending.turn()
                assert len(bench.merged) == 1, "at once it would fail again"
                bench.merging_fails, bench.mergeable = None, 1
                now_s += 10.0
                await bench.tending.turn()
                assert len(bench.merged) == 2
                assert bench.tending.no_room() is None
                await bench.tending.turn()


async def test_objects_that_an_earlier_start_retired_are_deleted_by_this_one() -> None:
    with anyio.fail_after(30):
        async with MemoryStore() as metadata:
            clock = ManualClock()
            topic = a_topic(1)
            bench = Bench(metadata, [topic], clock)
            await bench.rest(topic, "a", "b")
            await bench.tending.turn()
            assert bench.store.deleted == []
            clock.advance(400_000)
            await bench.tending.turn()
            assert sorted(bench.store.deleted) == ["c/1/a", "c/1/b"]


@pytest.mark.parametrize("objects", [0, 1, 99, 100, 101, 250])
async def test_every_object_of_a_deleted_topic_is_deleted_once_a_hundred_at_a_time(objects: int) -> None:
    with anyio.fail_after(30):
        async with MemoryStore() as metadata:
            bench = Bench(metadata, [], ManualClock())
            await bench.catalog.claim(9, epoch=EPOCH, folder="c/9", start_offset=0)
            keys = [f"c/9/{number}" for number in range(objects)]
            bench.store.listed["c/9"] = keys
            bench.tending.topic_deleted(9)
            await bench.tending.turn()
            assert sorted(bench.store.deleted) == sorted(keys)
            assert max(bench.store.sizes, default=0) <= 100
            assert len(bench.store.sizes) == -(-objects // 100)
            assert await bench.catalog.head(9) is None


async def test_one_object_that_cannot_be_deleted_holds_up_nothing_else() -> None:
    with anyio.fail_after(30):
        async with MemoryStore() as metadata:
            clock = ManualClock()
            topics = [a_topic(number, retention_offset=5) for number in (1, 2, 3)]
            bench = Bench(metadata, topics, clock)
            await bench.rest(topics[0], "a", "stuck", "b")
            await bench.rest(topics[1], "c")
            bench.tending.topic_deleted(9)  # a deleted topic whose object cannot be deleted either
            await bench.catalog.claim(9, epoch=EPOCH, folder="c/9", start_offset=0)
            bench.store.listed["c/9"] = ["c/9/stuck", "c/9/d"]
            bench.store.stuck = {"stuck"}
            clock.advance(400_000)
            for _ in range(2):
                await bench.tending.turn()
                bench.tending.retired |= {1, 2, 3}
            assert sorted(bench.store.deleted) == ["c/1/a", "c/1/b", "c/2/c", "c/9/d"]
            assert set(bench.retained) == {"/default/t1", "/default/t2", "/default/t3"}
            assert set(bench.tending.troubles) == {1, 9}  # said, and by whom
            assert "cannot be deleted" in bench.tending.troubles[1].error.message
            assert [group.names for group in await bench.catalog.resting(1)] == [("stuck",)]
            bench.store.stuck.clear()
            for topic_id in (1, 9):  # when its pause is over
                former = bench.tending.troubles[topic_id]
                bench.tending.troubles[topic_id] = type(former)(
                    error=former.error, count=former.count, again_s=0.0
                )
            bench.store.listed["c/9"] = ["c/9/stuck"]
            await bench.tending.turn()
            assert {"c/1/stuck", "c/9/stuck"} <= set(bench.store.deleted)
            assert await bench.catalog.resting(1) == []
            assert not bench.tending.troubles


async def test_a_deleted_topic_leaves_nothing_behind_when_its_objects_are_gone() -> None:
    """Topics that come and go for years would fill the memory."""
    with anyio.fail_after(30):
        async with MemoryStore() as metadata:
            topic = a_topic(9, retention_offset=5)
            bench = Bench(metadata, [topic], ManualClock())
            bench.failing[topic.name] = StoreUnavailable("away")
            await bench.tending.turn()
            bench.tending.committed(9)
            bench.tending.retired.add(9)

            def held() -> set[str]:
                parts = vars(bench.tending).items()
                return {name for name, part in parts if isinstance(part, dict | set | deque) and 9 in part}

            before = held()
            assert len(before) >= 4
            del bench.hub.topics[9]
            bench.flusher.in_flight.clear()
            bench.tending.topic_deleted(9)
            await bench.tending.turn()
            assert held() == set()


async def test_a_topic_that_fails_is_tried_again_after_a_pause_that_grows() -> None:
    with anyio.fail_after(30):
        async with MemoryStore() as metadata:
            bench = Bench(metadata, [a_topic(1, retention_offset=5)], ManualClock())
            bench.failing["/default/t1"] = StoreUnavailable("away")
            await bench.tending.turn()
            first = bench.tending.troubles[1]
            now_s = asyncio.get_running_loop().time()
            assert 0 < first.again_s - now_s <= 1.0
            bench.tending.troubles[1] = type(first)(error=first.error, count=1, again_s=now_s - 0.1)
            await bench.tending.turn()
            assert bench.tending.troubles[1].count == 2
            assert bench.tending.troubles[1].again_s - asyncio.get_running_loop().time() > 1.0


async def test_objects_rest_for_the_whole_grace_time_whatever_the_wall_clock_says() -> None:
    with anyio.fail_after(30):
        async with MemoryStore() as metadata:
            clock = ManualClock()
            topic = a_topic(1)
            bench = Bench(metadata, [topic], clock)
            await bench.rest(topic, "a")  # at wall time 0: for the wall clock that is half a century ago
            assert await bench.collector.delete_retired(topic, grace_ms=300_000) == 0
            clock.advance(299_999)
            assert await bench.collector.delete_retired(topic, grace_ms=300_000) == 0
            clock.advance(1)
            assert await bench.collector.delete_retired(topic, grace_ms=300_000) == 1


async def test_objects_of_another_run_of_the_machine_rest_from_when_they_are_met() -> None:
    with anyio.fail_after(30):
        async with MemoryStore() as metadata:
            clock = ManualClock()
            topic = a_topic(1)
            bench = Bench(metadata, [topic], clock)
            bench.catalog._moment = lambda: Moment(wall_ms=0, boot="another", boot_ms=0)
            await bench.rest(topic, "a")
            clock.advance(10**9)
            assert await bench.collector.delete_retired(topic, grace_ms=300_000) == 0
            clock.advance(300_000)
            assert await bench.collector.delete_retired(topic, grace_ms=300_000) == 1


def test_the_child_deletes_what_it_can_and_says_what_it_could_not(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pydanube_broker.tier.work import TierWork
    from pydanube_storage.objects import LocalStore

    store = LocalStore(tmp_path)
    for name in ("a", "b"):
        store.put(f"t/{name}.parquet", b"x")
    (tmp_path / "t" / "stuck.parquet").mkdir()
    work = TierWork(store)
    said, _ = work.delete({"keys": ["t/stuck.parquet", "t/a.parquet", "t/b.parquet"]}, b"")
    assert said["deleted"] == ["t/a.parquet", "t/b.parquet"]
    assert said["error"]["code"] == "STORE_UNAVAILABLE"
    assert [fact.key for fact in store.list("t")] == []
