"""The official Python client 0.5.0 from PyPI, unmodified, behind one address of three brokers."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from pydanube_broker.broker import Broker
from pydanube_core.names import TopicName

from tests.broker.moves.test_moves_between_brokers import broker_id
from tests.broker.relay.test_one_address import behind_one
from tests.support.official_client import run_beside_official_client
from tests.support.several_brokers import SeveralBrokers
from tests.support.waiting import until

__all__ = ["behind_one"]
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(400)]

SCENARIOS = Path(__file__).parents[2] / "conformance" / "official" / "scenarios.py"

MOVES = 8
BETWEEN = 150  # messages written from one move to the next
COUNT = (MOVES + 2) * BETWEEN


async def run(cluster: SeveralBrokers, scenario: str, topic: str, *arguments: str) -> None:
    """Run a scenario against the one address."""
    url = cluster.brokers[1].broker_url
    done = await anyio.to_thread.run_sync(
        lambda: run_beside_official_client(SCENARIOS, scenario, url, topic, *arguments, timeout_s=200)
    )
    assert done.returncode == 0, done.stdout + done.stderr


def owner_of(cluster: SeveralBrokers, topic: TopicName) -> Broker | None:
    return next((each for each in cluster.brokers.values() if each.registry.find(topic) is not None), None)


async def test_official_python_client_uses_topics_of_all_brokers(behind_one: SeveralBrokers) -> None:
    await run(behind_one, "reliable,shared,key_shared,partitions,nack", "/default/")
    owners = {
        owner_of(behind_one, TopicName.parse(f"/default/{name}"))
        for name in ("reliable", "shared", "key_shared", "nack", *(f"partitions-part-{n}" for n in range(3)))
    }
    assert owners - {behind_one.brokers[1], None}, "some are not at the broker that the client knows"


async def test_official_python_client_writes_and_reads_while_its_topic_moves(
    behind_one: SeveralBrokers,
) -> None:
    topic = TopicName.parse("/default/moving")

    def written() -> int:
        owner = owner_of(behind_one, topic)
        served = None if owner is None else owner.registry.find(topic)
        return 0 if served is None else served.commit

    async def keep_moving() -> None:
        for number in range(1, MOVES + 1):
            await until(lambda number=number: written() >= number * BETWEEN)
            owner = owner_of(behind_one, topic)
            assert owner is not None
            target = next(each for each in behind_one.brokers.values() if each is not owner)
            record = owner.registry.catalog.index.find_topic(topic)
            assert record is not None
            await owner.moves.begin([record], broker_id(target))
            await until(lambda target=target: target.registry.find(topic) is not None)
            assert written() < COUNT, "it moved under the load"

    async with anyio.create_task_group() as group:
        group.start_soon(keep_moving)
        await run(behind_one, "moved", str(topic), str(COUNT), "8")
