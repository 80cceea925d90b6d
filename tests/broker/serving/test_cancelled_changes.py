"""A client that goes away cancels the task of its call by `Task.cancel`: no topic or subscription is left half made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydanube_broker.serving.registry import Registry
from pydanube_core.names import TopicName
from pydanube_core.positions import Position

from tests.admin.real_broker import Administered, administered

pytestmark = pytest.mark.anyio
NAME = TopicName.parse("t")


@pytest.fixture
async def cluster(anyio_backend: str, tmp_path: Path) -> AsyncIterator[Administered]:
    async with administered(tmp_path / "data") as cluster:
        yield cluster


@pytest.fixture
def registry(cluster: Administered) -> Registry:
    return cluster.broker.registry


async def cancelled_once(work: Coroutine[Any, Any, Any], reached: Callable[[], bool]) -> None:
    """Cancel a task as the server does, in the turn in which `reached` is true."""
    task = asyncio.create_task(work)
    with anyio.fail_after(60):
        while not reached():
            assert not task.done()
            await asyncio.sleep(0)
        assert not task.done(), "the change has a second step"
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()


async def cancelled_after(turns: int, work: Coroutine[Any, Any, Any]) -> None:
    """Cancel a task as the server does, after some turns of the loop, unless it has ended."""
    task = asyncio.create_task(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with anyio.fail_after(60):
        await asyncio.wait([task])


async def test_a_topic_in_the_catalog_is_served(cluster: Administered, registry: Registry) -> None:
    index = registry.catalog.index
    work = registry.create(NAME, partitions=0, dispatch_strategy="reliable")
    await cancelled_once(work, lambda: index.find_topic(NAME) is not None)
    assert (await cluster("topics.describe", topic="t"))["topic"] == "/default/t"


async def test_a_deleted_topic_is_not_served(cluster: Administered, registry: Registry) -> None:
    await registry.create(NAME, partitions=0, dispatch_strategy="reliable")
    await cancelled_after(1, registry.delete(NAME))
    assert (registry.find(NAME), registry.catalog.index.find_topic(NAME)) == (None, None)
    assert (await cluster.refused("topics.describe", topic="t")).code == "TOPIC_NOT_FOUND"


async def test_a_subscription_in_the_catalog_is_served(registry: Registry) -> None:
    (topic,) = await registry.create(NAME, partitions=0, dispatch_strategy="reliable")
    topic_id = topic.options.topic_id
    start = Position.parse("earliest", now_ms=0)
    for turns in range(1, 40):
        name = f"s{turns}"
        work = registry.subscribe(topic, name, type="shared", start=start, start_given=False)
        await cancelled_after(turns, work)
        made = registry.catalog.index.find_subscription(topic_id, name) is not None
        assert made == (name in topic.subscriptions), turns


async def test_creations_that_wait_for_another_one_do_not_depend_on_its_caller(registry: Registry) -> None:
    for turns in range(1, 20):
        parts = [TopicName.parse(f"p{turns}-part-{number}") for number in range(2)]
        first, second = (registry.create(part, partitions=0, dispatch_strategy="reliable") for part in parts)
        cancelled = asyncio.create_task(cancelled_after(turns, first))
        await asyncio.sleep(0)
        other = asyncio.create_task(second)
        with anyio.fail_after(30):
            (topic,) = await other
            await cancelled
        assert topic.options.topic == parts[1]
