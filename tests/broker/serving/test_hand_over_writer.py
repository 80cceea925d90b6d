"""How many objects hand-overs make: a lone one does not wait for others, and those of a drain share."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydanube_broker.cluster.ids import BrokerId, Epoch, TopicId
from pydanube_broker.serving import hand_over_writer
from pydanube_broker.serving.hand_over_writer import HandOverWriter
from pydanube_broker.tier.fragments import Fragments
from pydanube_broker.topics.fragment import Section

AT_ONCE = 32  # as the mover lets them write


class Store:
    """Takes objects at once, and counts them."""

    def __init__(self) -> None:
        self.objects = 0

    async def call(self, name: str, arguments: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        assert name == "fragment_write"
        await asyncio.sleep(0)
        self.objects += 1
        return {}, b""


def section(number: int) -> Section:
    return Section(
        topic_id=TopicId(number), epoch=Epoch(1), first_offset=0, end_offset=0, batches=(), state=None
    )


async def written(topics: int, *, on_their_way: int) -> int:
    """Objects of so many topics, each of which writes twice, at a store that is as quick as can be."""
    store, slots = Store(), asyncio.Semaphore(AT_ONCE)
    fragments = Fragments(store.call, "c", BrokerId(1))
    writer = HandOverWriter(fragments, BrokerId(1), lambda: on_their_way, awaited=False)

    async def one(number: int) -> None:
        for _ in range(2):
            async with slots:
                await writer.write(section(number))

    async with asyncio.TaskGroup() as group:
        for number in range(topics):
            group.create_task(one(number))
    await writer.aclose()
    return store.objects


async def test_a_drain_of_a_thousand_topics_makes_less_than_a_hundred_objects() -> None:
    assert await written(1000, on_their_way=200) <= 100


async def test_topics_that_come_one_by_one_share_an_object_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_over_writer, "GATHER_AHEAD_S", 1e9)  # so long nothing is written for time alone
    monkeypatch.setattr(hand_over_writer, "GATHER_A_TOPIC_S", 1e9)
    store = Store()
    fragments = Fragments(store.call, "c", BrokerId(1))
    writer = HandOverWriter(fragments, BrokerId(1), lambda: 100, awaited=False)
    waiting = []
    for number in range(48):
        waiting.append(asyncio.ensure_future(writer.write(section(number))))
        for _ in range(3):
            await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert store.objects == 2
    await writer.aclose()


async def test_a_lone_move_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_over_writer, "GATHER_AHEAD_S", 1e9)
    monkeypatch.setattr(hand_over_writer, "GATHER_A_TOPIC_S", 1e9)
    async with asyncio.timeout(60):
        assert await written(1, on_their_way=1) == 2
