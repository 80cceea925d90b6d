"""Which messages only a former owner's journal has: all from where the objects of the topic had them when it was taken."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation, TopicId
from pydanube_broker.tier.lost_and_found import Left, left_behind
from pydanube_broker.topics.log_state import LogState
from pydanube_core.names import TopicName
from pydanube_storage.catalog import CatalogHead
from pydanube_storage.metadata import Put

from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio

NAME = TopicName("default", "t")


@pytest.mark.parametrize(
    ("tiered", "entry", "start"),
    [
        (70, None, 70),  # the owner before had tiered up to there
        (99, None, 99),
        (100, None, 100),  # all of them, and retention has dropped the objects since
        (5_000, (60, 100), 100),  # the next owner has tiered on, behind the former owner's last object
        (5_000, (60, 1_000), 1_000),
        (
            5_000,
            (60, 1_001),
            60,
        ),  # this object is the next owner's: it holds none of the messages that are lost
        (5_000, None, 0),  # retention has dropped the object: the rest of the journal is kept
    ],
)
async def test_messages_that_no_object_had_when_the_topic_was_taken_over_are_left_behind(
    tiered: int, entry: tuple[int, int] | None, start: int
) -> None:
    asked: list[int] = []

    async def find(topic_id: int, offset: int) -> Any:
        asked.append(offset)
        return None if entry is None else SimpleNamespace(start=entry[0], end=entry[1])

    head = CatalogHead(epoch=2, folder="f", start_offset=0, tiered_offset=tiered, resumes_at=1_000)
    async with metadata() as store:
        found = await left_behind(catalog_of(head, find), store, LogState(7, next_offset=100))
    assert found == Left(topic=NAME, start=start, durability="fsynced")
    assert asked == ([99] if tiered > 100 else [])


@pytest.mark.parametrize("resumes_at", [0, 100])
async def test_a_topic_that_goes_on_without_a_gap_leaves_nothing_behind(resumes_at: int) -> None:
    head = CatalogHead(epoch=2, folder="f", start_offset=0, tiered_offset=50, resumes_at=resumes_at)
    async with metadata() as store:
        assert await left_behind(catalog_of(head, None), store, LogState(7, next_offset=100)) is None
        assert await left_behind(catalog_of(None, None), store, LogState(7, next_offset=100)) is None


async def test_a_topic_that_was_deleted_leaves_nothing_behind() -> None:
    head = CatalogHead(epoch=2, folder="f", start_offset=0, tiered_offset=50, resumes_at=1_000)
    async with MemoryStore() as store:
        assert await left_behind(catalog_of(head, None), store, LogState(7, next_offset=100)) is None


def catalog_of(head: CatalogHead | None, find: Any) -> Any:
    async def read(topic_id: int) -> Any:
        return None if head is None else SimpleNamespace(head=head)

    return SimpleNamespace(head=read, find=find)


@asynccontextmanager
async def metadata() -> AsyncIterator[MemoryStore]:
    """Metadata in which another broker has the topic."""
    other = Assignment(
        topic_id=TopicId(7), topic=NAME, broker_id=BrokerId(2), incarnation=Incarnation(1), epoch=Epoch(2)
    )
    async with MemoryStore() as store:
        await store.transact([Put(keys.assignment_key(TopicId(7)), other.to_json())])
        yield store
