"""Run in a process of its own by test_beside_official_client: both sets of protobuf modules, imported in the given
order, exchange bytes; then the official producer publishes to a server made of our classes.

Prints one JSON object with what was seen.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from typing import Any

import grpc

from tests.core.proto.wire_contract import encode, facts_of, plain, samples


def import_ours() -> None:
    for module in ("services", "generated.danube_pb2", "generated.danube_schema_pb2"):
        importlib.import_module(f"pydanube_core.{module}")


def import_theirs() -> None:
    importlib.import_module("danube")
    # The client itself imports these by their bare names, from a folder that it put on sys.path.
    importlib.import_module("DanubeApi_pb2")
    importlib.import_module("SchemaRegistry_pb2")


def exchange_messages() -> dict[str, int]:
    """Pass every message the official client knows from us to them and back; both must read the same values."""
    from pydanube_core.generated import danube_pb2, danube_schema_pb2

    exchanged = {}
    for ours, theirs in (
        (danube_pb2, sys.modules["DanubeApi_pb2"]),
        (danube_schema_pb2, sys.modules["SchemaRegistry_pb2"]),
    ):
        facts, their_facts = facts_of(ours.DESCRIPTOR), facts_of(theirs.DESCRIPTOR)
        assert ours.DESCRIPTOR.package == theirs.DESCRIPTOR.package
        assert ours.DESCRIPTOR.pool is not theirs.DESCRIPTOR.pool
        for name, fields in their_facts.messages.items():
            assert list(map(str, facts.messages[name])) == list(map(str, fields)), name
            values = samples(facts, name)
            mine = getattr(ours, name)(**values)
            other = getattr(theirs, name).FromString(mine.SerializeToString())
            assert type(mine) is not type(other)
            assert plain(other) == values, name
            assert getattr(ours, name).FromString(other.SerializeToString()) == mine, name
            assert other.SerializeToString() == encode(facts, name, values), name
        assert {name: facts.enums[name] for name in their_facts.enums} == their_facts.enums
        assert {name: facts.rpcs[name] for name in their_facts.rpcs} == their_facts.rpcs
        exchanged[ours.DESCRIPTOR.package] = len(their_facts.messages)
    return exchanged


async def publish_with_their_client() -> dict[str, Any]:
    """Let the official producer send one message to a server built from our table of services."""
    from pydanube_core.generated import danube_pb2
    from pydanube_core.services import DISCOVERY, HEALTH_CHECK, PRODUCER_SERVICE, Method

    official: Any = sys.modules["danube"]
    published: list[Any] = []
    created: list[Any] = []
    healthy = asyncio.Event()
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    url = f"http://127.0.0.1:{port}"

    async def look_up(request: Any, context: Any) -> Any:
        return danube_pb2.TopicLookupResponse(
            request_id=request.request_id,
            response_type=danube_pb2.TopicLookupResponse.Connect,
            connect_url=url,
            broker_url=url,
        )

    async def create(request: Any, context: Any) -> Any:
        created.append(request)
        return danube_pb2.ProducerResponse(request_id=request.request_id, producer_id=42)

    async def send(request: Any, context: Any) -> Any:
        published.append(request)
        return danube_pb2.MessageResponse(request_id=request.request_id)

    async def check_health(request: Any, context: Any) -> Any:
        healthy.set()
        return danube_pb2.HealthCheckResponse()

    routes = (
        (DISCOVERY["TopicLookup"], look_up),
        (PRODUCER_SERVICE["CreateProducer"], create),
        (PRODUCER_SERVICE["SendMessage"], send),
        (HEALTH_CHECK["HealthCheck"], check_health),
    )

    def handler(method: Method, behaviour: Any) -> grpc.GenericRpcHandler:
        rpc = getattr(grpc, f"{method.kind}_rpc_method_handler")(
            behaviour,
            request_deserializer=method.request.FromString,
            response_serializer=method.response.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(method.service, {method.name: rpc})

    # A service with two of these methods gets two generic handlers; grpcio asks them one after the other.
    server.add_generic_rpc_handlers([handler(method, behaviour) for method, behaviour in routes])
    await server.start()
    try:
        client = await official.DanubeClientBuilder().service_url(url).build()
        producer = (
            client.new_producer()
            .with_topic("/default/orders")
            .with_name("theirs")
            .with_dispatch_strategy(official.DispatchStrategy.RELIABLE)
            .build()
        )
        await producer.create()
        await producer.send(b"hello", {"k": "v"})
        await healthy.wait()
        await producer.close()
    finally:
        await server.stop(grace=None)
    assert created[0].dispatch_strategy == danube_pb2.Reliable
    (message,) = published
    assert isinstance(message, danube_pb2.StreamMessage)
    return {
        "payload": message.payload.decode(),
        "attributes": dict(message.attributes),
        "producer_id": message.msg_id.producer_id,
        "topic": message.msg_id.topic_name,
        "schema_id_given": message.HasField("schema_id"),
    }


async def main() -> None:
    steps = {"ours": import_ours, "theirs": import_theirs}
    for step in sys.argv[1:]:
        steps[step]()
    assert {"pydanube_core.services", "danube"} <= sys.modules.keys()
    async with asyncio.timeout(30):
        report = {"exchanged": exchange_messages(), "published": await publish_with_their_client()}
    print(json.dumps(report))


if __name__ == "__main__":
    asyncio.run(main())
