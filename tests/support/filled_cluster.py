"""A real broker in memory with an admin core, filled with topics, cursors and consumers to order; and a bare `danube.ops`.

async with administered() as cluster:                                    # tests/admin/real_broker.py
    await add_topic(cluster, "/default/orders", messages=500, trimmed=100)
    await add_subscription(cluster, "/default/orders", "billing", next_unacked=460)
    async with attached(cluster, "/default/orders", "billing", credit=12, acks=[(467, 472)]):
        await cluster("subscriptions.lag", topic="orders")
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
import grpc
from grpc import aio
from pydanube.wire.http2_transport import Http2Transport
from pydanube.wire.ops_channel import OPS_CALL
from pydanube.wire.transport import Stream
from pydanube_core.generated import danube_stream_pb2 as pb

from tests.admin.real_broker import Administered

PAYLOAD = b"eight..."


async def parts_of(cluster: Administered, topic: str) -> list[str]:
    """The concrete topics behind a name: itself, or its partitions in their order."""
    own, *parts = await cluster.broker.port.topic(topic)
    return sorted(part.topic for part in parts) or [own.topic]


async def topics_of(cluster: Administered) -> list[str]:
    """The topics as people name them, without the broker's own."""
    found = [key.topic for key in await cluster.broker.port.topic_index()]
    return sorted(topic for topic in found if not topic.startswith("/system/"))


async def add_topic(
    cluster: Administered, topic: str, *, partitions: int = 0, messages: int = 0, trimmed: int = 0
) -> None:
    """Make a topic, and its namespace; store `messages` in it (in each partition) and trim the first `trimmed`."""
    port = cluster.broker.port
    namespace = topic.split("/")[1]
    if namespace not in {facts.namespace for facts in await port.namespaces()}:
        await port.create_namespace(namespace, {})
    await port.create_topic(
        topic, partitions=partitions, dispatch_strategy="reliable", durability="fsynced", options={}
    )
    if messages:
        await cluster.publish(topic, *itertools.repeat(PAYLOAD, messages))
    if trimmed:
        await port.truncate_topic(topic, dict.fromkeys(await parts_of(cluster, topic), trimmed))


async def add_subscription(
    cluster: Administered, topic: str, subscription: str, *, next_unacked: int = 0
) -> None:
    """Make a subscription whose cursor stands there."""
    await cluster.broker.port.create_subscription(
        topic, subscription, type="exclusive", start=f"offset:{next_unacked}"
    )


@asynccontextmanager
async def attached(
    cluster: Administered,
    topic: str,
    subscription: str,
    *,
    credit: int = 0,
    acks: Sequence[tuple[int, int]] = (),
) -> AsyncIterator[None]:
    """One consumer for each partition, which takes so many messages and acknowledges these ranges of offsets."""
    names = await parts_of(cluster, topic)
    async with _streams(cluster, "consume", len(names)) as streams:
        for name, stream in zip(names, streams, strict=True):
            opening = pb.OpenConsumer(
                topic=name, subscription=subscription, credit_messages=credit, credit_bytes=credit * 1024
            )
            await stream.write(pb.ConsumeRequest(open=opening).SerializeToString())
            opened = pb.ConsumeResponse.FromString(await stream.read() or b"").opened
            assert opened.consumer_id, opened
            if acks:
                assert (
                    await stream.read() is not None
                )  # a frame: what it acknowledges must have been delivered
                ranges = [number for bounds in acks for number in bounds]
                ack = pb.Ack(session=opened.session, ranges=ranges, confirm=1)
                await stream.write(pb.ConsumeRequest(ack=ack).SerializeToString())
                assert pb.ConsumeResponse.FromString(await stream.read() or b"").confirmed.confirm == 1
        yield


@asynccontextmanager
async def producing(cluster: Administered, topic: str) -> AsyncIterator[None]:
    """One producer for each partition, which sends nothing."""
    names = await parts_of(cluster, topic)
    async with _streams(cluster, "publish", len(names)) as streams:
        for name, stream in zip(names, streams, strict=True):
            await stream.write(pb.PublishRequest(open=pb.OpenProducer(topic=name)).SerializeToString())
            assert pb.PublishResponse.FromString(await stream.read() or b"").opened.producer_name
        yield


@asynccontextmanager
async def _streams(cluster: Administered, kind: str, count: int) -> AsyncIterator[list[Stream]]:
    transport = Http2Transport(cluster.broker.broker_url)
    begin = transport.consume if kind == "consume" else transport.publish
    try:
        yield [await begin() for _ in range(count)]
    finally:
        with anyio.CancelScope(shield=True):
            await transport.aclose()


async def emptied(cluster: Administered) -> None:
    """Delete every topic, namespace, policy and grant that a test has made, so that the next one may have the broker."""
    port = cluster.broker.port
    for topic in await topics_of(cluster):
        await port.delete_topic(topic)
    for namespace in await port.namespaces():
        if namespace.namespace not in ("default", "system"):
            await port.delete_namespace(namespace.namespace)
        elif namespace.policies:
            await port.set_namespace_policies(namespace.namespace, dict.fromkeys(namespace.policies))
    if grants := await port.list_state("security/", limit=1000):
        await port.write_state({grant.key: None for grant in grants})


@asynccontextmanager
async def serve_ops(serve_call: Callable[[bytes], Awaitable[bytes]], *, port: int = 0) -> AsyncIterator[str]:
    """Serve `danube.ops/Call` alone on a loopback port and yield the admin URL: for what no broker answers."""

    async def call(request: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
        return await serve_call(request)

    server = aio.server(options=(("grpc.so_reuseport", 0),))
    service, method = OPS_CALL.split("/")[1:]
    handler = grpc.method_handlers_generic_handler(
        service, {method: grpc.unary_unary_rpc_method_handler(call)}
    )
    server.add_generic_rpc_handlers((handler,))
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"http://127.0.0.1:{bound}"
    finally:
        await server.stop(grace=None)
