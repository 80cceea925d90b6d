"""Without a cold tier, `journal.retention_*` takes from a deleted topic that may come back what it takes from the living."""

from __future__ import annotations

import pytest
from pydanube import connect
from pydanube_core.facts import Grace
from pydanube_core.names import TopicName

from tests.broker.delivery.conftest import Opener, one_loop, opened

__all__ = ["one_loop", "opened"]
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

NAME = TopicName.parse("/default/gone")


async def test_a_deleted_topic_does_not_keep_more_of_the_journal_than_its_retention(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DANUBE_TEST_SMALL_SEGMENTS", "1")
    small = {"journal__segment_bytes": "256KiB", "journal__retention_bytes": "1MiB", "tier__flush_age": "1h"}
    async with opened(**small) as broker:
        broker.hub.tiering = False  # as without pyarrow
        async with connect(broker.broker_url) as client:
            async with client.producer(str(NAME)) as producer:
                await producer.send_many([b"x"] * 50)
            topic_id = broker.registry.parts(NAME)[1][0].topic_id
            await broker.registry.delete(NAME, grace=Grace(call_id="c1", until_ms=1 << 50))
            async with client.producer("busy") as producer:
                for _ in range(10):
                    await producer.send_many([b"x" * 1000] * 500)
                    broker.retention.apply()
                    await broker.hub.settled()
                    broker.hub.collect()
        assert all(topic_id not in runs for _, _, runs in broker.journal.sealed())
        assert sum(size for _, size, _ in broker.journal.sealed()) <= (1 << 20) + (256 << 10)
    async with opened(**small) as broker:
        (record,) = await broker.registry.restore("c1")
        topic = broker.registry.find(record.topic)
        assert topic is not None
        assert (topic.start_offset, topic.commit) == (50, 50), "what it had was given up, its offsets go on"
