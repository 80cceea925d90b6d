"""The roles of workers that speak as Danube's official clients do: one call per message and per ack.

Each producer and each consumer has a connection of its own, and one call in flight. The client is busier than
the broker, so a lower rate may be the client's limit. `benchmarks/go_load` does the same in Go.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Any

from pydanube.wire.http2_transport import Http2Transport
from pydanube_core.generated import danube_pb2 as pb
from pydanube_core.services import CONSUMER_SERVICE, PRODUCER_SERVICE

from pydanube_cli.bench.payloads import Checker, make_payloads, percentiles_ms, producer_of
from pydanube_cli.bench.producing import WARM_UP_PRODUCER
from pydanube_cli.bench.role import QUIET_S, Spec, Start, open_client, open_producer


def full_name(spec: Spec) -> str:
    """Return the topic's name with its namespace, which the official protocol requires."""
    name: str = spec["topic"]
    return name if name.startswith("/") else f"/default/{name}"


class _Producer:
    """One producer: its connection, its name, and the messages it has to send."""

    def __init__(self, spec: Spec, index: int, messages: int) -> None:
        self._spec = spec
        self._index = index
        self._messages = messages
        self._name = f"bench-unary-{index}"
        self._transport = Http2Transport(spec["broker"])
        self._id = pb.MsgID()
        self.taken_ms: list[float] = []

    async def create(self) -> None:
        request = pb.ProducerRequest(
            request_id=1,
            producer_name=self._name,
            topic_name=full_name(self._spec),
            dispatch_strategy="Reliable",
        )
        answer = await self._call("CreateProducer", request.SerializeToString())
        producer_id = pb.ProducerResponse.FromString(answer).producer_id
        self._id = pb.MsgID(
            producer_id=producer_id, topic_name=full_name(self._spec), broker_addr=self._spec["broker"]
        )

    async def send(self, producer: int, count: int, *, measured: bool) -> None:
        for number in range(count):
            now = time.monotonic_ns()
            [payload] = make_payloads(
                producer=producer, first=number, count=1, size=self._spec["size"], now_ns=now
            )
            message = pb.StreamMessage(
                request_id=number,
                msg_id=self._id,
                payload=payload,
                publish_time=time.time_ns() // 1_000_000,
                producer_name=self._name,
            ).SerializeToString()
            begun = time.monotonic_ns()
            await self._call("SendMessage", message)
            if measured:
                self.taken_ms.append((time.monotonic_ns() - begun) / 1e6)

    async def run(self) -> None:
        await self.send(self._index, self._messages, measured=True)

    async def _call(self, method: str, request: bytes) -> bytes:
        path = PRODUCER_SERVICE[method].path
        return await self._transport.call(path, request, timeout_s=self._spec["timeout_s"])

    async def close(self) -> None:
        await self._transport.aclose()


async def send_unary(spec: Spec, start: Start) -> dict[str, Any]:
    """Send by the official path: `producers` is a list of (index, messages)."""
    durability = await _durability(spec)
    producers = [_Producer(spec, index, messages) for index, messages in spec["producers"]]
    try:
        for producer in producers:
            await producer.create()
            await producer.send(WARM_UP_PRODUCER, spec["warm_up"] // 10, measured=False)
        await start.go()
        begun = time.monotonic_ns()
        await asyncio.gather(*(producer.run() for producer in producers))
        ended = time.monotonic_ns()
    finally:
        for producer in producers:
            await producer.close()
    taken = [ms for producer in producers for ms in producer.taken_ms]
    return {
        "begun": begun,
        "ended": ended,
        "acknowledged": len(taken),
        "durability": durability,
        "latency": percentiles_ms(taken),
        "taken_ms": taken,
    }


async def consume_unary(spec: Spec, start: Start) -> dict[str, Any]:
    """Receive `messages` of the producers of the plan, and acknowledge each by a call of its own."""
    checker = Checker(size=spec["size"])
    transport = Http2Transport(spec["broker"])
    subscription = spec["subscription"]

    async def call(method: str, request: Any) -> bytes:
        path = CONSUMER_SERVICE[method].path
        return await transport.call(path, request.SerializeToString(), timeout_s=spec["timeout_s"])

    try:
        wanted = pb.ConsumerRequest(
            topic_name=full_name(spec), consumer_name=f"bench-{spec['index']}", subscription=subscription
        )
        opened = pb.ConsumerResponse.FromString(await call("Subscribe", wanted))
        receiving = pb.ReceiveRequest(request_id=1, consumer_id=opened.consumer_id).SerializeToString()
        stream = await transport.ask(CONSUMER_SERVICE["ReceiveMessages"].path, receiving)
        await start.go()
        begun = time.monotonic_ns()
        while checker.received < spec["messages"]:
            async with asyncio.timeout(QUIET_S):
                data = await stream.read()
            if data is None:
                break
            message = pb.StreamMessage.FromString(data)
            if producer_of(message.payload) != WARM_UP_PRODUCER:
                checker.add([message.payload], time.monotonic_ns())
            await call("Ack", pb.AckRequest(msg_id=message.msg_id, subscription_name=subscription))
        ended = time.monotonic_ns()
    finally:
        await transport.aclose()
    return {
        "begun": begun,
        "ended": ended,
        "received": checker.received,
        "verified": asdict(checker.verify(spec["sent"])),
    }


async def _durability(spec: Spec) -> str:
    """Return the durability behind an answer of this topic, for which the official protocol has no field."""
    [payload] = make_payloads(producer=WARM_UP_PRODUCER, first=0, count=1, size=spec["size"], now_ns=0)
    async with open_client(spec) as client, open_producer(client, spec) as producer:
        receipt = await producer.send(payload)
    return str(receipt.durability)
