"""A topic that was deleted before its last messages were tiered: it keeps the journal no longer than a living one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydanube import connect
from pydanube_admin.remote import call_sync

from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until

pytest.importorskip("pyarrow")

SETTINGS = {
    "DANUBE_TIER__FLUSH_AGE": "1h",  # so that a topic is flushed only because it keeps the journal
    "DANUBE_JOURNAL__SEGMENT_BYTES": "256KiB",
    "DANUBE_JOURNAL__TAIL_CACHE_BYTES": "16KiB",
}


async def _publish(broker: BrokerProcess, topic: str, messages: list[bytes]) -> None:
    async with connect(broker.url) as client, client.producer(topic) as producer:
        await producer.send_many(messages)


@pytest.mark.long
def test_a_deleted_topic_lets_go_of_the_journal_within_its_grace_and_comes_back_whole(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, environment=SETTINGS) as broker:

        def ask(operation: str, /, **arguments: Any) -> dict[str, Any]:
            return call_sync(broker.admin, operation, arguments, principal="ann", timeout_s=60)

        def oldest_holds(name: str) -> bool:
            held = ask("journal.describe")["held_by"]
            return any(each["topic"].endswith(name) for each in held)

        def segments() -> int:
            return len(list((tmp_path / "data" / "journal").glob("*.journal")))

        def delete(topic: str) -> str:
            plan = ask("topics.delete", topic=topic, plan_only=True)
            call_id: str = ask("topics.delete", topic=topic, plan_token=plan["plan_token"])["call_id"]
            return call_id

        short = [b"short %d" % i for i in range(50)]
        deleted = []
        for topic, killed in (("living", False), ("dying", True)):
            anyio.run(_publish, broker, topic, short)
            deleted.append((topic, delete(topic)))
            if killed:  # nobody serves the topic in the life that tiers it
                broker.kill()
                broker.start()
            for _ in range(12):
                anyio.run(_publish, broker, "busy", [b"x" * 1000] * 500)
            wait_until(lambda: segments() < 16)
        for topic, call_id in deleted:
            ask("changes.undo", call_id=call_id)
            described = ask("topics.describe", topic=topic)
            assert (described["tiered_offset"], described["next_offset"]) == (50, 50)
            got = broker.command("consume", topic, "--exit", "--format", "raw").stdout
            assert got.split(b"\n")[:-1] == short
        assert json.dumps(broker.status()["tier"]["reasons"]) == "[]"
        assert not oldest_holds("living")
        assert broker.stop() == 0
