"""The role that publishes as Danube's official clients do: one call a message, one call in flight for each producer.

Several producers of a worker have a connection each. The client is busier than the broker: what it cannot send is not the
broker's limit. `benchmarks/go_load` does the same in Go.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from pydanube.wire.http2_transport import Http2Transport
from pydanube_core.generated import danube_pb2 as pb
from pydanube_core.services import PRODUCER_SERVICE

from pydanube_cli.bench.payloads import make_payloads, percentiles_ms
from pydanube_cli.bench.role import Spec, Start, open_client, open_producer

WARM_UP_PRODUCER: Final = 1 << 20  # no producer of the plan: such messages are not counted


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
            request_id=1, producer_name=self._name, topic_name=self._topic, dispatch_strategy="Reliable"
        )
        answer = await self._call("CreateProducer", request.SerializeToString())
        producer_id = pb.ProducerResponse.FromString(answer).producer_id
        self._id = pb.MsgID(producer_id=producer_id, topic_name=self._topic, broker_addr=self._spec["broker"])

    @property
    def _topic(self) -> str:
        name: str = self._spec["topic"]
        return name if name.startswith("/") else f"/default/{name}"

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


async def _durability(spec: Spec) -> str:
    """Return the durability that an answer of this topic stands for; the official one has no word for it."""
    [payload] = make_payloads(producer=WARM_UP_PRODUCER, first=0, count=1, size=spec["size"], now_ns=0)
    async with open_client(spec) as client, open_producer(client, spec) as producer:
        receipt = await producer.send(payload)
    return str(receipt.durability)
