"""Many slow topics for a day of virtual time: the tier's own loop flushes and merges, and few objects are left.

The clock is the event loop's: it jumps to the next timer when nothing is ready. Real are the tier's loop with its
budget, flusher, compaction, collection, the catalog on the memory metadata store, and the memory object store. The
topics are a function of time: a message of fixed size every minute, each a batch of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
from array import array
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydanube_broker.settings.sections import Settings
from pydanube_broker.settings.sections import Tier as TierSettings
from pydanube_broker.tier import collecting, flushing, tier, upkeep
from pydanube_broker.tier.status import status_of
from pydanube_broker.tier.tier import Tier
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.limits import Limits
from pydanube_broker.topics.topic import Topic
from pydanube_core.batch import broker_part, encode_batch
from pydanube_storage.objects import StoreOptions, open_store

from tests.support.memory_store import MemoryStore

pytest.importorskip("pyarrow")
pytest.importorskip("fsspec")

from pydanube_broker.tier.work import TierWork
from pydanube_storage.objects import ObjectStore
from pydanube_storage.parquet import ObjectReader

START_MS = 1_767_225_600_000
PERIOD_MS = 60_000
DAY_S = 86_400
ACKNOWLEDGED_AFTER_MS = 1
BATCH = encode_batch([b"one message of a slow topic"])
BATCH_BYTES = len(BATCH) + len(broker_part(base_offset=0, last_offset=0, epoch=1, append_time_ms=0))


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only while everybody waits for it."""

    def __init__(self) -> None:
        self._now_s = 0.0
        selector = selectors.DefaultSelector()
        poll = selector.select

        def select(timeout: float | None = None) -> Any:
            found = poll(0)
            if timeout is None:
                assert found, "everybody waits for something that never happens"
            elif not found:
                self._now_s += timeout
            return found

        selector.select = select  # type: ignore[method-assign]
        super().__init__(selector)

    def time(self) -> float:
        return self._now_s

    def wall_ms(self) -> int:
        return START_MS + round(self._now_s * 1000)


class SlowTopic:
    """What the tier asks of a topic. Its first message comes at a phase of its own."""

    closed = None
    assigned_epoch = 1
    start_offset = 0
    options = SimpleNamespace(settings=SimpleNamespace(schema=None))
    gate = SimpleNamespace(limits=Limits())

    def __init__(self, topic_id: int, wall_ms: Callable[[], int]) -> None:
        self.topic_id = topic_id
        self.name = f"/default/slow-{topic_id}"
        self.subscriptions: dict[str, Any] = {}
        self.phase_ms = START_MS + topic_id * 7_919 % PERIOD_MS
        self.wall_ms = wall_ms
        self.state = self  # its log's state is asked for the same things
        self.tiered_offset = 0
        self.producers = SimpleNamespace(sessions=list)

    def raise_tiered_offset(self, offset: int) -> None:
        self.tiered_offset = max(self.tiered_offset, offset)

    @property
    def commit(self) -> int:
        return max(0, (self.wall_ms() - ACKNOWLEDGED_AFTER_MS - self.phase_ms) // PERIOD_MS + 1)

    @property
    def stored_bytes(self) -> int:
        return self.commit * BATCH_BYTES


class SlowJournal:
    """Of all topics; what is asked for is written to a file when it is asked for."""

    read_only = None

    def __init__(self, topics: dict[int, SlowTopic], folder: Path) -> None:
        self._topics = topics
        self._file = folder / "segment"

    def sealed(self) -> list[Any]:
        return []

    def stored_bytes(self, topic_id: int, offset: int = 0) -> int:
        return (self._topics[topic_id].commit - offset) * BATCH_BYTES

    def time_at_offset(self, topic_id: int, offset: int) -> int:
        return self._topics[topic_id].phase_ms + offset * PERIOD_MS

    def places(self, topic_id: int, start: int, end: int, max_bytes: int) -> Any:
        end = min(end, start + max_bytes // BATCH_BYTES)
        if end <= start:
            return [], end, 0
        heads = [
            broker_part(
                base_offset=x, last_offset=x, epoch=1, append_time_ms=self.time_at_offset(topic_id, x)
            )
            for x in range(start, end)
        ]
        self._file.write_bytes(b"".join(head + BATCH for head in heads))
        found = array("Q", (i * BATCH_BYTES << 32 | BATCH_BYTES for i in range(end - start)))
        return [(self._file, found.tobytes())], end, (end - start) * BATCH_BYTES


class ChildInHere:
    """The child's work in this process, over what a socket would carry."""

    pid = None
    deaths = 0

    def longest_wait_s(self) -> float:
        return 0.0

    def __init__(self, store: ObjectStore) -> None:
        self._calls = TierWork(store).calls()

    async def call(self, name: str, arguments: dict[str, Any], blob: bytes = b"") -> Any:
        result, data = self._calls[name](json.loads(json.dumps(arguments)), blob)
        return json.loads(json.dumps(result)), memoryview(data)

    async def close(self) -> None:
        pass


class CountingChild(ChildInHere):
    """Objects of which only the facts exist: for so many topics that Parquet would take hours."""

    def __init__(self, store: ObjectStore) -> None:
        self.folders: dict[str, dict[str, int]] = {}

    async def call(self, name: str, arguments: dict[str, Any], blob: bytes = b"") -> Any:
        match name:
            case "flush":
                messages = sum(count for _, count in arguments["segments"])
            case "merge":
                messages = sum(self._folder(each["key"])[each["key"]] for each in arguments["sources"])
            case "delete":
                for key in arguments["keys"]:
                    self._folder(key).pop(key, None)
                return {"deleted": arguments["keys"], "error": None}, memoryview(b"")
            case "list":
                keys = list(self.folders.get(arguments["folder"], ()))
                return {"objects": [{"key": key, "bytes": 1, "modified_ms": 0} for key in keys]}, b""
            case _:
                raise AssertionError(name)
        meta = arguments["meta"]
        assert messages == meta["end"] - meta["start"]
        self._folder(arguments["key"])[arguments["key"]] = messages
        facts = {
            "messages": messages, "bytes": 4000 + 40 * messages, "min_append_time_ms": 0, "max_append_time_ms": 0,
            "digest": "d", "footer_bytes": 1, "footer_crc": 1, "epochs": [[1, meta["start"]]],
        }  # fmt: skip
        return facts, memoryview(b"")

    def _folder(self, key: str) -> dict[str, int]:
        return self.folders.setdefault(key.rpartition("/")[0], {})


def a_day(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    child: Any,
    *,
    topics: int,
    flush_age_s: float,
    objects_per_s: float,
    seconds: int = DAY_S,
) -> tuple[dict[int, list[Any]], dict[int, int], int]:
    """Run it; returns the catalog's entries and the messages of each topic, and how many objects were ever written."""
    loop = VirtualLoop()
    for module in (flushing, tier):
        monkeypatch.setattr(module, "now_ms", loop.wall_ms)
    monkeypatch.setattr(upkeep, "earliest_ms", loop.wall_ms)
    for module in (collecting, tier):
        monkeypatch.setattr(module, "BootClock", lambda: SimpleNamespace(now_ms=loop.wall_ms))
    monkeypatch.setattr(tier, "OBJECTS_PER_S", objects_per_s)
    slow = {topic_id: SlowTopic(topic_id, loop.wall_ms) for topic_id in range(1, topics + 1)}
    hub = SimpleNamespace(
        journal=SlowJournal(slow, folder), topics=slow, flush_first=set(), cold=None, tiering=False,
        on_drop=None, collect=lambda: 0, changes=SimpleNamespace(note=lambda name: None),
    )  # fmt: skip
    settings = Settings(tier=TierSettings(url="memory://slow", flush_age=flush_age_s))

    async def run() -> tuple[dict[int, list[Any]], dict[int, int], int]:
        started: set[asyncio.Task[None]] = set()

        def start(work: Coroutine[Any, Any, None]) -> None:
            task = loop.create_task(work)
            started.add(task)
            task.add_done_callback(started.discard)

        async with MemoryStore() as metadata:
            made = Tier(settings, folder, cast("Hub", hub), metadata, start)
            made.child = made.cold._child = child
            async with made:
                await asyncio.sleep(seconds)
                oldest_s = status_of(made)["oldest_due_age_s"]
                assert oldest_s is None or oldest_s < 2 * flush_age_s + topics / objects_per_s
            written, sizes = (
                made.flusher.objects,
                {each.topic_id: each.tiered_offset for each in slow.values()},
            )
            assert made.errors == 0
            for topic in slow.values():
                await made.upkeep.compact(cast("Topic", topic))
                await made.collector.collect(cast("Topic", topic), grace_ms=0)
            entries = {
                topic_id: [entry async for entry in made.catalog.entries(topic_id)] for topic_id in slow
            }
        await asyncio.gather(*started)
        return entries, sizes, written

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(run())


def check(entries: dict[int, list[Any]], sizes: dict[int, int], *, seconds: int, behind_s: float) -> None:
    for topic_id, found in entries.items():
        assert len(found) <= 3, f"topic {topic_id} has {len(found)} objects"
        assert [each.start for each in found] == [0, *(each.end for each in found)][:-1]
        assert found[-1].end == sizes[topic_id] == sum(each.messages for each in found)
        assert sizes[topic_id] >= (seconds - behind_s) * 1000 / PERIOD_MS - 2


def test_a_day_of_slow_topics_leaves_few_objects_and_every_row_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # 10 000 topics under the budget of 10 objects a second are flushed every 1000 s, 86 times a day. Here it is a sixth
    # of everything but that number: a look each second of a whole day takes longer than what it finds.
    store = open_store(StoreOptions(url="memory://slow"))
    topics, seconds, age_s = 3, DAY_S // 6, 1000 / 6
    entries, sizes, written = a_day(
        monkeypatch,
        tmp_path,
        ChildInHere(store),
        topics=topics,
        flush_age_s=age_s,
        objects_per_s=1.0,
        seconds=seconds,
    )
    assert written >= topics * 75, "there was something to merge"
    check(entries, sizes, seconds=seconds, behind_s=2 * age_s)
    keys = [fact.key for fact in store.list("")]
    assert len(keys) <= 3 * topics
    rows: dict[str, list[int]] = {}
    for key in keys:
        reader = ObjectReader(store, key)
        for index in range(reader.row_groups):
            offsets = reader.read_row_group(index, ["offset"])["offset"].to_pylist()
            rows.setdefault(key.rpartition("/")[0], []).extend(offsets)
    assert sorted(map(len, rows.values())) == sorted(sizes.values())
    assert all(sorted(found) == list(range(len(found))) for found in rows.values())


@pytest.mark.long
def test_slow_topics_for_a_day_under_the_budget_leave_three_objects_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # 200 topics and 1 object a second: 432 objects a topic, where 10 000 and 10 a second have 86 each. SLOW_TOPICS=10000
    # runs those; it takes hours, nearly all of it for looking at 10 000 topics each second of the day.
    topics = int(os.environ.get("SLOW_TOPICS", "200"))
    objects_per_s = max(1.0, topics / 1000)
    child = CountingChild(open_store(StoreOptions(url="memory://slow")))
    entries, sizes, written = a_day(
        monkeypatch, tmp_path, child, topics=topics, flush_age_s=60.0, objects_per_s=objects_per_s
    )
    assert 0.4 * DAY_S * objects_per_s < written <= 1.01 * DAY_S * objects_per_s, (
        "the budget is used, and holds"
    )
    check(entries, sizes, seconds=DAY_S, behind_s=2500)
    assert max(map(len, child.folders.values())) <= 3
