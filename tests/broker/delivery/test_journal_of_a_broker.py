"""The journal that a broker leaves behind holds what the table of kinds says, where it says it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydanube import connect
from pydanube_broker.journal.records import RULES, Place, RecordKind
from pydanube_core.names import TopicName

from tests.broker.delivery.conftest import Opener
from tests.broker.journal.record_order import check_order

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


async def test_records_of_a_broker_stand_where_their_kinds_may(opened: Opener, tmp_path: Path) -> None:
    for life in range(3):
        async with opened() as broker, connect(broker.broker_url) as client:
            for name in ("a", "b"):
                async with client.producer(name) as producer:
                    for _ in range(20):
                        await producer.send(b"x" * 100)
                async with client.consumer(name, "s", start="earliest") as consumer:
                    received = await consumer.receive(max_messages=5, max_wait_s=10)
                    for message in received:
                        await message.ack()
                    await consumer.flush_acks()
            if life:
                topic = broker.registry.find(TopicName.parse("/default/a"))
                assert topic is not None
                topic.trim(5)
                await broker.registry.delete(TopicName.parse("/default/b"))
    found = check_order(tmp_path / "data" / "journal")
    assert (
        set(found)
        >= {kind for kind, rule in RULES.items() if rule.place is not Place.NEVER}
        - {
            RecordKind.CHECKPOINT,
            RecordKind.RELEASE,  # these two where a topic moves: tests/broker/topics/test_moves_between_journals.py
            RecordKind.ADOPT,
        }
    )
