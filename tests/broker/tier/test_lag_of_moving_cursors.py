"""The tier follows cursors that read its objects, so that the age of their next messages is known without a look-up."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydanube_broker.settings.sections import Settings
from pydanube_broker.settings.sections import Tier as TierSettings
from pydanube_broker.tier import tier
from pydanube_broker.tier.tier import Tier
from pydanube_broker.topics.hub import Hub
from pydanube_storage.objects import StoreOptions, open_store

from tests.broker.tier.test_slow_topics_for_a_day import CountingChild, VirtualLoop
from tests.support.memory_store import MemoryStore


class NotedLag:
    """Notes when the tier looks up an age, and which cursors it follows."""

    def __init__(self, now_s: Any) -> None:
        self.asked: list[tuple[str, int, int, int]] = []
        self.rounds_s: list[float] = []
        self._now_s = now_s

    async def part(self, topic: Any, offset: int) -> None:
        if not self.rounds_s or self._now_s() > self.rounds_s[-1]:
            self.rounds_s.append(self._now_s())
        self.asked.append(("part", topic.topic_id, 0, offset))

    async def follow(self, topic: Any, subscription_id: int, offset: int) -> None:
        self.asked.append(("follow", topic.topic_id, subscription_id, offset))


def a_topic(number: int, floors: dict[int, int], *, start: int, tiered: int, closed: object = None) -> Any:
    """All its messages are in the tier."""
    pumps = {str(each): SimpleNamespace(floor=floor, subscription_id=each) for each, floor in floors.items()}
    return SimpleNamespace(
        topic_id=number, name=f"/default/{number}", start_offset=start, closed=closed, subscriptions=pumps,
        commit=tiered, state=SimpleNamespace(tiered_offset=tiered), stored_bytes=0, assigned_epoch=1,
    )  # fmt: skip


async def no_turn() -> None:
    """Nothing to merge or to check."""


def test_every_cursor_that_reads_objects_is_looked_up_and_followed_each_quarter_of_a_minute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Cursors in the journal, and topics that are closed, are not asked about: their age is known without the tier."""
    moving = a_topic(1, {7: 10, 8: 99, 9: 100}, start=0, tiered=100)
    topics = {
        1: moving,
        2: a_topic(2, {7: 3}, start=20, tiered=50),  # retention has passed its floor
        3: a_topic(3, {7: 3}, start=0, tiered=50, closed=object()),
        4: a_topic(4, {7: 0}, start=0, tiered=0),
        5: a_topic(5, {}, start=0, tiered=50),
    }
    hub = SimpleNamespace(
        journal=SimpleNamespace(read_only=None, sealed=list), topics=topics, flush_first=set(), cold=None,
        tiering=False, on_drop=None, collect=lambda: 0, changes=SimpleNamespace(note=lambda name: None),
    )  # fmt: skip
    monkeypatch.setattr(
        tier, "TierChild", lambda options: CountingChild(open_store(StoreOptions(url="memory://lag")))
    )
    loop = VirtualLoop()
    settings = Settings(tier=TierSettings(url="memory://lag", flush_age=60))
    lag = NotedLag(loop.time)

    async def run() -> None:
        async with MemoryStore() as metadata:
            made = Tier(settings, tmp_path, cast("Hub", hub), metadata, lambda work: work.close())
            made.lag = cast("Any", lag)
            async with made:
                made.tending = made.checks = cast("Any", SimpleNamespace(turn=no_turn))
                await asyncio.sleep(10)
                assert lag.asked == [
                    *(("part", 1, 0, 10), ("follow", 1, 7, 10)),
                    *(("part", 1, 0, 99), ("follow", 1, 8, 99)),
                    *(("part", 2, 0, 20), ("follow", 2, 7, 20)),
                ]
                lag.asked.clear()
                moving.subscriptions["7"].floor = 60
                moving.subscriptions["8"].floor = 100
                await asyncio.sleep(10)
                assert lag.asked == [
                    *(("part", 1, 0, 60), ("follow", 1, 7, 60)),
                    *(("part", 2, 0, 20), ("follow", 2, 7, 20)),
                ]
                await asyncio.sleep(100)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(run())
    between = {round(after - before) for before, after in pairwise(lag.rounds_s)}
    assert between <= {15, 16}
