"""Two objects of one topic under way: whatever the child does and in which order, they are committed without a gap."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.settings.sections import Tier as TierSettings
from pydanube_broker.tier.child import ChildDied, TierChild
from pydanube_broker.tier.flushing import Flusher
from pydanube_broker.tier.parts import TierParts
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.topic import Topic, now_ms
from pydanube_core.errors import MetadataUnavailable, StoreUnavailable
from pydanube_storage.catalog import ObjectCatalog

from tests.core.batches import steady
from tests.support.memory_store import MemoryStore

OBJECT = 100  # bytes of an object, which is as many messages


@dataclass(slots=True)
class Asked:
    arguments: dict[str, Any]
    answer: asyncio.Future[tuple[dict[str, Any], memoryview]]

    @property
    def range(self) -> tuple[int, int]:
        meta = self.arguments["meta"]
        return meta["start"], meta["end"]

    def succeed(self) -> None:
        start, end = self.range
        facts = {
            "messages": end - start, "bytes": 10, "min_append_time_ms": 1, "max_append_time_ms": 1,
            "digest": "d", "footer_bytes": 1, "footer_crc": 1, "epochs": [[1, start]],
        }  # fmt: skip
        self.answer.set_result((facts, memoryview(b"")))


@dataclass(slots=True)
class HandChild:
    """A child whose answers the test gives; the real one is in tests/e2e."""

    asked: list[Asked] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)

    async def call(self, name: str, arguments: dict[str, Any], blob: bytes = b"") -> Any:
        if name == "delete":
            self.deleted += arguments["keys"]
            return {}, memoryview(b"")
        assert name == "flush"
        self.asked.append(Asked(arguments, asyncio.get_running_loop().create_future()))
        return await self.asked[-1].answer

    def take(self, index: int) -> Asked:
        return self.asked.pop(index)


class OneByteMessages:
    """The journal's part in it: message x is one byte and a batch of its own."""

    def __init__(self, topic: Any) -> None:
        self._topic = topic

    def places(self, topic_id: int, start: int, end: int, max_bytes: int) -> Any:
        end = min(end, start + max_bytes)
        return ([("segment", bytes(8 * (end - start)))] if end > start else []), end, end - start

    def stored_bytes(self, topic_id: int, offset: int = 0) -> int:
        return int(self._topic.state.stored_bytes) - offset

    def time_at_offset(self, topic_id: int, offset: int) -> int:
        return 0


@dataclass(slots=True)
class Bench:
    flusher: Flusher
    child: HandChild
    catalog: ObjectCatalog
    topic: Topic
    tasks: list[asyncio.Task[bool]] = field(default_factory=list)

    async def start(self) -> None:
        for failure in self.flusher.failures.values():
            failure.again_s = 0.0  # its pause is over
        if self.flusher.due(self.topic, now_ms()) is not None:
            self.tasks.append(asyncio.create_task(self.flusher.flush(self.topic)))
        await self.settle()

    async def settle(self) -> None:
        """Until nothing can happen any more without the child: the store is memory, so a few turns of the loop."""
        for _ in range(30):
            await asyncio.sleep(0)

    async def committed(self) -> list[tuple[int, int]]:
        return [(each.start, each.end) async for each in self.catalog.entries(7)]


async def _bench(messages: int) -> AsyncIterator[Bench]:
    topic = SimpleNamespace(
        topic_id=7, name="/default/logs", closed=None, assigned_epoch=1, start_offset=0, commit=messages,
        subscriptions={}, options=SimpleNamespace(settings=SimpleNamespace(schema=None)),
        state=SimpleNamespace(
            tiered_offset=0, needed_offset=0, stored_bytes=messages, producers=SimpleNamespace(sessions=list),
        ),
    )  # fmt: skip
    topic.raise_tiered_offset = lambda offset: setattr(topic.state, "tiered_offset", offset)
    async with MemoryStore() as metadata:
        catalog, child = ObjectCatalog(metadata, wall_ms=now_ms), HandChild()
        parts = TierParts(
            hub=cast("Hub", SimpleNamespace(journal=OneByteMessages(topic))),
            catalog=catalog,
            child=cast("TierChild", child),
            folders={},
            hold=cast("Any", SimpleNamespace(life="0a0a0a0a", check=lambda: None)),
            room=cast("Any", SimpleNamespace(for_flush=lambda: 1 << 40, taken=contextlib.nullcontext)),
            cluster="c",
            object_format=lambda: 1,
        )
        flusher = Flusher(parts, TierSettings(flush_bytes=OBJECT // 4, object_bytes=OBJECT, flush_age=60.0))
        yield Bench(flusher, child, catalog, cast("Topic", topic))


def run(messages: int, steps: Any) -> None:
    async def main() -> None:
        with anyio.fail_after(60):
            async for bench in _bench(messages):
                await steps(bench)

    asyncio.run(main())


def test_the_second_object_is_committed_behind_the_first() -> None:
    async def steps(bench: Bench) -> None:
        for _ in range(3):
            await bench.start()
        assert [each.range for each in bench.child.asked] == [(0, 100), (100, 200)], "two, not three"
        bench.child.take(1).succeed()
        await bench.settle()
        assert await bench.committed() == []
        bench.child.take(0).succeed()
        await bench.settle()
        assert await bench.committed() == [(0, 100), (100, 200)]
        assert bench.topic.state.tiered_offset == 200
        assert bench.flusher.in_flight == {}
        assert bench.flusher.merging == set()

    run(450, steps)


def test_a_backlog_of_less_than_two_objects_has_one_under_way() -> None:
    async def steps(bench: Bench) -> None:
        for _ in range(2):
            await bench.start()
        assert [each.range for each in bench.child.asked] == [(0, 100)]

    run(199, steps)


def test_where_the_first_fails_the_second_is_deleted_and_both_come_again() -> None:
    async def steps(bench: Bench) -> None:
        for _ in range(2):
            await bench.start()
        first, second = bench.child.asked
        bench.child.asked.clear()
        second.succeed()
        first.answer.set_exception(StoreUnavailable("away"))
        await bench.settle()
        assert [task.result() for task in bench.tasks] == [False, False]
        assert bench.child.deleted == [second.arguments["key"]]
        assert bench.flusher.errors == 1, "the second is no failure of its own"
        assert bench.flusher.failures[7].count == 1, (
            "the failure is shown and its pause stands until a flush succeeds"
        )
        await bench.start()
        assert [each.range for each in bench.child.asked] == [(0, 100)]
        bench.child.take(0).succeed()
        await bench.settle()
        assert await bench.committed() == [(0, 100)]
        assert not bench.flusher.failures

    run(450, steps)


def test_a_topic_that_is_tiered_to_its_commit_or_closed_waits_for_nothing() -> None:
    async def steps(bench: Bench) -> None:
        topic: Any = bench.topic
        later = now_ms() + 3_600_000
        assert bench.flusher.waiting(topic, later, force=True) == 0
        topic.closed = StoreUnavailable("closed")
        assert bench.flusher.waiting(topic, later, force=True) is None
        topic.closed = None
        topic.state.tiered_offset = topic.commit
        assert bench.flusher.waiting(topic, later, force=True) is None

    run(450, steps)


@pytest.mark.parametrize("error", [StoreUnavailable("away"), MetadataUnavailable("etcd is full")])
def test_what_the_metadata_refuses_is_not_said_of_the_object_store(error: StoreUnavailable) -> None:
    async def steps(bench: Bench) -> None:
        await bench.start()
        bench.child.take(0).answer.set_exception(error)
        await bench.settle()
        of_metadata = isinstance(error, MetadataUnavailable)
        assert bench.flusher.store_error() is (None if of_metadata else error)

    run(450, steps)


def test_a_broker_that_stops_cancels_both_in_any_order() -> None:
    async def steps(bench: Bench) -> None:
        for _ in range(2):
            await bench.start()
        bench.child.take(1).succeed()
        await bench.settle()
        for task in reversed(bench.tasks):
            task.cancel()
            await bench.settle()
        assert all(task.cancelled() for task in bench.tasks)
        assert await bench.committed() == []
        assert bench.flusher.in_flight == {}

    run(450, steps)


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ChildDied("gone")])
@steady
@given(choices=st.lists(st.tuples(st.integers(0, 1), st.booleans()), max_size=12))
def test_any_order_of_answers_and_failures_leaves_no_gap(
    choices: list[tuple[int, bool]], error: Exception
) -> None:
    async def steps(bench: Bench) -> None:
        for index, good in [*choices, *[(0, True)] * 12]:
            for _ in range(2):
                await bench.start()
            if bench.child.asked:
                asked = bench.child.take(min(index, len(bench.child.asked) - 1))
                if good:
                    asked.succeed()
                else:
                    asked.answer.set_exception(type(error)("once more"))  # type: ignore[call-arg]
            await bench.settle()
            found = await bench.committed()
            assert [start for start, _ in found] == [0, *(end for _, end in found)][: len(found)]
            assert bench.topic.state.tiered_offset == (found[-1][1] if found else 0)
            ends = {key.split("/")[-1] for key in (*bench.flusher.in_flight.values(), *bench.flusher.merging)}
            asked_for = {each.arguments["key"].split("/")[-1] for each in bench.child.asked}
            assert asked_for <= ends, "a key under way is known, so that nobody collects it"
        assert (await bench.committed())[-1][1] == 450

    run(450, steps)
