"""Partitions that are taken away one after the other, each by its owner."""

from __future__ import annotations

import pytest
from pydanube_broker.cluster.records import TopicSettings
from pydanube_core.errors import Conflict
from pydanube_core.names import TopicName

from tests.broker.cluster.test_topic_catalog import names, reloaded
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio
CLICKS = TopicName.parse("clicks")


async def test_an_owner_drops_its_partition_although_it_has_not_heard_that_the_next_one_is_gone(
    store: MemoryStore,
) -> None:
    first = await reloaded(store)
    await first.create_topic(CLICKS, partitions=4, settings=TopicSettings())
    second = await reloaded(store)
    await first.drop_partition(CLICKS.part(3))
    await second.drop_partition(CLICKS.part(2))
    assert names((await reloaded(store)).index.partitions(CLICKS)) == [
        "/default/clicks-part-0",
        "/default/clicks-part-1",
    ]
    with pytest.raises(Conflict, match="not the last partition"):
        await first.drop_partition(CLICKS.part(0))
