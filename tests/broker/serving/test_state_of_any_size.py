"""State that outgrows a segment: publishing goes on, and every start finds it."""

from __future__ import annotations

import pytest
from pydanube import connect
from pydanube_core.names import TopicName

from tests.broker.delivery.conftest import Opener
from tests.broker.delivery.waiting import facts_of
from tests.support.messages import take

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

SEGMENT = 1 << 20
SESSIONS = 1000


async def test_many_sessions_and_holes_stop_neither_publishing_nor_a_start(opened: Opener) -> None:
    """20 topics of 1000 sessions of 8 batches, and a subscription with every second message acknowledged."""
    settings = {"journal__segment_bytes": str(SEGMENT)}
    payload = b"x" * 60_000
    sent = 0
    for life in range(3):
        async with opened(**settings) as broker, connect(broker.broker_url) as client:
            if not life:
                for number in range(20):
                    name = TopicName.parse(f"/default/many-{number}")
                    (topic,) = await broker.registry.create(name, partitions=0, dispatch_strategy="reliable")
                    topic.open_epoch()
                    for session in range(1, SESSIONS + 1):
                        topic.state.producers.add(session, 1, f"producer-{session}", session)
                        for batch in range(8):
                            topic.state.producers.appended(session, 1, batch, 1, batch, 5)
                async with client.producer("t") as producer:
                    await producer.send_many([b"%d" % i for i in range(20_000)])
                async with client.consumer("t", "s", type="shared") as consumer:
                    for i, message in enumerate(await take(consumer, 20_000)):
                        if i % 2:
                            await message.ack()
                    await consumer.flush_acks()
            else:
                for number in range(20):
                    found = broker.registry.find(TopicName.parse(f"/default/many-{number}"))
                    assert found is not None
                    sessions = found.state.producers.sessions()
                    assert len(sessions) == SESSIONS
                    assert {(s.next_sequence, len(s.recent), s.token == s.producer_id) for s in sessions} == {
                        (8, 8, True)
                    }
                assert (await facts_of(broker, "t", "s")).state.lag_messages == 10_000 + sent
            async with client.producer("t") as producer:
                for _ in range(150):  # several segments, and more than the state
                    await producer.send(payload)
                    sent += 1
            assert not broker.health.reasons()
            assert list((broker.data_dir.path / "journal").glob("*.head"))
