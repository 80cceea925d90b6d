"""How many names of official clients a broker keeps, and for how long."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest
from pydanube_broker.broker import Broker
from pydanube_broker.cluster import keys
from pydanube_broker.services.official import client_registry
from pydanube_broker.services.official.ids import producer_id
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Delete, Put

from tests.broker.official.raw_client import RawClient

pytestmark = pytest.mark.anyio
TOPIC = "/default/named"


async def send(client: RawClient, name: str) -> None:
    """As a producer that this life of the broker has not heard of."""
    await client.send(TOPIC, producer_id(TOPIC, name), b"x", name)


def gone(broker: Broker) -> None:
    """Nobody calls for longer than clients do."""
    for _ in range(3):
        broker.official.clients.sweep(0.0)


async def test_names_have_a_length_whoever_brings_them(client: RawClient) -> None:
    await client.create_producer(TOPIC)
    await send(client, "n" * 1024)
    with pytest.raises(grpc.aio.AioRpcError, match="at most 1024") as caught:
        await send(client, "n" * 1025)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_names_have_a_number_and_those_nobody_wrote_down_are_forgotten(
    client: RawClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = broker.official.clients
    gone(broker)
    before, held = len(clients.producers), clients.held_bytes
    await client.create_producer(TOPIC)
    monkeypatch.setattr(client_registry, "MAX_NAMES", 4)
    for number in range(3):
        await send(client, f"sender-{number}")
    with pytest.raises(grpc.aio.AioRpcError, match="names of producers") as caught:
        await send(client, "sender-3")
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await send(client, "sender-1")
    gone(broker)
    assert len(clients.producers) == before + 1, "the one that was created"
    await send(client, "sender-3")
    gone(broker)
    assert clients.held_bytes == held + sum(
        each.size for each in clients.producers.values() if each.name == "p" and each.topic.name == TOPIC
    )


async def test_the_names_of_all_topics_have_one_bound(
    client: RawClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone(broker)
    await client.create_producer(TOPIC)
    monkeypatch.setattr(client_registry, "MAX_BYTES", broker.official.clients.held_bytes)
    with pytest.raises(grpc.aio.AioRpcError, match="bytes of all topics"):
        await client.create_producer("/default/other", "another")
    gone(broker)
    await client.create_producer("/default/other", "another")  # in the place of one that nobody uses
    gone(broker)
    await client.subscribe("/default/other")
    gone(broker)


async def test_topic_arrives_though_the_record_of_one_client_is_damaged(
    client: RawClient, broker: Broker
) -> None:
    await client.create_producer(TOPIC)
    clients, record = broker.official.clients, broker.registry.catalog.index.topic(TopicName.parse(TOPIC))
    topic = broker.registry.find(TopicName.parse(TOPIC))
    assert topic is not None
    before = {number: known.name for number, known in clients.producers.items() if known.topic is topic}
    damaged = keys.producer_client_key(record.topic_id, 1)
    await broker.admin_state.store.transact([Put(damaged, b"damaged")])
    add_clients = await broker.official.arriving(record)
    add_clients(topic)
    assert {
        number: known.name for number, known in clients.producers.items() if known.topic is topic
    } == before
    assert damaged in broker.registry.catalog.quarantine.found
    del broker.registry.catalog.quarantine.found[damaged]
    await broker.admin_state.store.transact([Delete(damaged)])
