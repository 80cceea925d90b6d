"""What a merge asks of the disk, and what retention counts, with a catalog and without a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from pydanube_broker.tier.disk_room import DiskRoom
from pydanube_broker.tier.parts import TierParts
from pydanube_broker.tier.tier import Tier
from pydanube_broker.tier.upkeep import Upkeep
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.retention import Keep
from pydanube_core.errors import DiskFull, StoreUnavailable
from pydanube_storage.catalog import CatalogEntry, ObjectCatalog

from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio

MIB = 1 << 20


@asynccontextmanager
async def upkeep_of(
    topic: Any, *, free: int, states: Sequence[str] = ()
) -> AsyncIterator[tuple[Upkeep, list[str]]]:
    """The upkeep of a topic with two objects of 1 MiB, and the calls of the tier's process."""
    calls: list[str] = []

    async def call(name: str, arguments: dict[str, Any]) -> Any:
        calls.append(name)
        if name == "check" and states:
            state = states[(len(calls) - 1) % len(states)]
            return {"state": state, "why": state}, b""
        raise AssertionError(f"{name} was called")

    async def claim(topic: Any) -> None: ...

    async with MemoryStore() as metadata:
        catalog = ObjectCatalog(metadata, wall_ms=lambda: 0)
        await catalog.claim(7, epoch=1, folder="c/7", start_offset=0)
        for start in (0, 10):
            entry = CatalogEntry(
                name=str(start), start=start, end=start + 10, messages=10, bytes=MIB, min_append_time_ms=0,
                max_append_time_ms=0, epoch=1, generation=0, digest="", footer_bytes=1, footer_crc=0,
                committed_at_ms=0,
            )  # fmt: skip
            await catalog.append(7, entry, epoch=1)
        room = DiskRoom(Path("/data"), lambda: (free, 8 * MIB))
        room.shared = True
        flusher: Any = SimpleNamespace(claim=claim, merging=set(), backlog_bytes=lambda topic: 0)
        cold: Any = SimpleNamespace(forget=lambda topic_id: None)
        parts: Any = TierParts(
            hub=None, catalog=catalog, child=SimpleNamespace(call=call), folders={7: "c/7"}, room=room,
            hold=SimpleNamespace(life="0a0a0a0a", check=lambda: None), cluster="c", object_format=lambda: 1,
        )  # type: ignore[arg-type]  # fmt: skip
        yield Upkeep(parts, flusher, cold, object_bytes=64 * MIB), calls


def a_topic() -> Any:
    topic = SimpleNamespace(
        topic_id=7, name="/default/t", closed=None, assigned_epoch=1, start_offset=0, subscriptions={},
        state=SimpleNamespace(tiered_offset=20, cursors={}),
        gate=SimpleNamespace(limits=SimpleNamespace(retention_bytes=0)),
    )  # fmt: skip
    topic.trim = lambda offset: setattr(topic, "start_offset", offset)
    return topic


async def test_a_merge_that_would_take_the_guards_part_of_the_disk_is_not_begun() -> None:
    with anyio.fail_after(20):
        async with upkeep_of(topic := a_topic(), free=10 * MIB - 1) as (upkeep, calls):
            with pytest.raises(DiskFull, match=f"a merge in /default/t of {2 * MIB} bytes waits"):
                await upkeep.compact_some(topic, at_least=2)
            assert calls == []
        async with upkeep_of(topic, free=10 * MIB) as (upkeep, calls):
            with pytest.raises(AssertionError, match="merge was called"):
                await upkeep.compact_some(topic, at_least=2)


async def test_objects_that_were_dropped_are_counted_and_their_topic_begins_behind_them() -> None:
    with anyio.fail_after(20):
        async with upkeep_of(topic := a_topic(), free=0) as (upkeep, _):
            first, second = await upkeep.entries(topic)
            await upkeep.drop(topic, [first], first.end)
            assert (upkeep.dropped, topic.start_offset) == (1, 10)
            assert await upkeep.entries(topic) == [second]


async def test_retention_removes_the_first_objects_that_a_limit_permits_and_none_without_a_limit() -> None:
    with anyio.fail_after(20):
        async with upkeep_of(topic := a_topic(), free=0) as (upkeep, _):
            assert await upkeep.retain(topic, Keep()) == 0
            assert len(await upkeep.entries(topic)) == 2
            assert await upkeep.retain(topic, Keep(bytes=MIB)) == 1
            assert [each.start for each in await upkeep.entries(topic)] == [topic.start_offset] == [10]


@pytest.mark.parametrize("resting", [True, False])
async def test_a_topics_size_in_the_cold_tier_is_a_change_of_its_row(resting: bool) -> None:
    async def head(topic_id: int) -> Any:
        return SimpleNamespace(head=SimpleNamespace(bytes=2 * MIB))

    async def has_resting(topic_id: int) -> bool:
        return resting

    hub, retired = Hub(), set() if resting else {7}
    tier: Any = SimpleNamespace(
        catalog=SimpleNamespace(head=head, resting=has_resting),
        tending=SimpleNamespace(retired=retired),
        object_bytes={},
        _hub=hub,
    )
    await Tier.note(tier, a_topic())
    assert tier.object_bytes == {7: 2 * MIB}
    assert hub.changes.since(0) == ["/default/t"]
    assert retired == ({7} if resting else set())


async def test_a_commit_notes_the_size_counts_for_merges_and_trims_the_journal_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[str] = []
    steps: list[str] = []
    monkeypatch.setattr("pydanube_broker.tier.tier.reached", steps.append)
    segments = [2, 0, 0]
    tier: Any = SimpleNamespace(
        note=lambda topic: begun.append(f"note {topic.name}"),
        tending=SimpleNamespace(committed=lambda topic_id: begun.append(f"committed {topic_id}")),
        _hub=SimpleNamespace(collect=lambda: segments.pop(0)),
        _start=lambda noting: begun.append("started"),
    )
    for _ in range(3):
        Tier.committed(tier, a_topic())
    assert begun == ["note /default/t", "started", "committed 7"] * 3
    assert segments == []
    assert steps == ["trimmed"], "only where a segment has gone"


async def test_waiting_for_a_topic_to_be_tiered_ends_with_the_error_of_its_flush() -> None:
    outcomes: list[Any] = []
    topic = a_topic()

    async def flush(topic: Any) -> bool:
        await anyio.lowlevel.checkpoint()
        outcome = outcomes.pop(0)
        if isinstance(outcome, StoreUnavailable):
            failures[7] = SimpleNamespace(error=outcome)
            return False
        topic.state.tiered_offset += outcome
        return bool(outcome)

    failures: dict[int, Any] = {}
    flusher: Any = SimpleNamespace(flush=flush, failures=failures, in_flight={})
    tier: Any = SimpleNamespace(flusher=flusher)
    outcomes += [5, 0, 5]
    await Tier.tiered_up_to(tier, topic, 30)
    assert (topic.state.tiered_offset, outcomes) == (30, [])
    away = StoreUnavailable("away")
    outcomes += [5, away]
    with pytest.raises(StoreUnavailable) as raised:
        await Tier.tiered_up_to(tier, topic, 50)
    assert raised.value is away
    topic.closed = StoreUnavailable("moved")
    with pytest.raises(StoreUnavailable, match="moved"):
        await Tier.tiered_up_to(tier, topic, 50)


@pytest.mark.parametrize("states", list(product(("ok", "damaged", "missing"), repeat=2)))
async def test_each_object_that_is_damaged_or_missing_is_listed_as_such(states: tuple[str, str]) -> None:
    with anyio.fail_after(20):
        async with upkeep_of(topic := a_topic(), free=0, states=states) as (upkeep, calls):
            found = await upkeep.verify(topic, start=0, end=None)
            assert calls == ["check", "check"]
            paths = dict(zip(("c/7/0", "c/7/10"), states, strict=True))
            for state in ("damaged", "missing"):
                listed = [{"path": path, "why": state} for path, each in paths.items() if each == state]
                assert found[state] == listed
            assert (found["checked"], found["gaps"], found["duplicates"]) == (2, [], [])
