"""The tier of a broker with its own store: after a restart, while the store is away, and for topics that it stores."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.tier.flushing import Flusher
from pydanube_core.errors import StoreUnavailable
from pydanube_core.names import TopicName

from tests.broker.delivery.conftest import Opener, one_loop, opened
from tests.support.waiting import until

pytest.importorskip("pyarrow")
__all__ = ["one_loop", "opened"]
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(60)]

NAME = TopicName.parse("t")


async def publish(broker: Broker, count: int) -> str:
    async with connect(broker.broker_url) as client, client.producer("t") as producer:
        return (await producer.send_many([b"x"] * count)).durability


async def test_objects_of_an_earlier_start_are_found_before_their_topic_is_maintained(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tier__flush_age="1h") as broker:
        await publish(broker, 10)
        topic = broker.registry.find(NAME)
        assert topic is not None
        await broker.tier.tiered_up_to(topic, 10)
        before = await broker.tier.objects(topic, start=0, end=None)

    async def held(flusher: Flusher, topic: Any) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(Flusher, "claim", held)  # by which maintenance learns the folder again
    async with opened(tier__flush_age="1h") as broker:
        topic = broker.registry.find(NAME)
        assert topic is not None
        assert await broker.tier.objects(topic, start=0, end=None) == before
        assert [(each["start_offset"], each["end_offset"]) for each in before] == [(0, 10)]


async def test_flushes_of_all_topics_pause_when_the_store_refuses_one(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried_s: list[float] = []
    async with opened(tier__flush_age="1s") as broker:
        call = broker.tier.child.call

        async def refused(name: str, *more: Any, **named: Any) -> Any:
            if name != "flush":
                return await call(name, *more, **named)
            tried_s.append(asyncio.get_running_loop().time())
            raise StoreUnavailable("away")

        monkeypatch.setattr(broker.tier.child, "call", refused)
        async with connect(broker.broker_url) as client:
            for name in "abcd":
                async with client.producer(name) as producer:
                    await producer.send(b"x")
        await until(lambda: len(tried_s) > 2)
    assert tried_s[2] - tried_s[0] >= 1.0, (
        "two are under way at once, the third waits until the pause is over"
    )


async def test_a_topic_of_the_object_store_has_the_journal_copied_from_its_creation(opened: Opener) -> None:
    async with opened() as broker:
        assert not broker.storing.is_needed
        await broker.registry.create(NAME, partitions=0, dispatch_strategy="reliable", durability="stored")
        assert broker.storing.is_needed
        assert await publish(broker, 1) == "stored"


@pytest.mark.parametrize("steps", range(6))
async def test_a_tier_that_is_woken_while_it_ends_still_ends(opened: Opener, steps: int) -> None:
    async with opened() as broker:
        broker.tier.wake()
        for _ in range(steps):
            await asyncio.sleep(0)
        ending = asyncio.ensure_future(broker.tier.__aexit__())
        done, _ = await asyncio.wait({ending}, timeout=40)
        assert done
