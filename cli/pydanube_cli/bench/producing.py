"""The publishing roles of workers.

One of them publishes as Danube's official clients do, one call a message, one call in flight for each
producer. Several producers of a worker have a connection each. The client is busier than the broker: a lower
rate may be its limit, not the broker's. `benchmarks/go_load` does the same in Go.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Iterator
from itertools import chain, cycle
from typing import Any, Final

from pydanube.wire.http2_transport import Http2Transport
from pydanube_core.errors import WindowFull
from pydanube_core.generated import danube_pb2 as pb
from pydanube_core.services import PRODUCER_SERVICE

from pydanube_cli.bench.payloads import key_of, make_payloads, percentiles_ms
from pydanube_cli.bench.role import Spec, Start, open_client, open_producer

CHUNK_MESSAGES: Final = 8192  # made at a time: large enough that making them vanishes in the mean
WARM_UP_PRODUCER: Final = 1 << 20  # no producer of the plan: such messages are not counted


def _pieces(spec: Spec) -> Iterator[list[bytes]]:
    """Yield all payloads of a producer, made on demand."""
    for first in range(0, spec["messages"], CHUNK_MESSAGES):
        yield make_payloads(
            producer=spec["index"],
            first=first,
            count=min(CHUNK_MESSAGES, spec["messages"] - first),
            size=spec["size"],
            now_ns=time.monotonic_ns(),
        )


def _keys(spec: Spec) -> list[str]:
    """The key of message i is that at i modulo their number. Without keys it is empty."""
    return [key_of(number, spec["keys"]) for number in range(spec.get("keys", 0))]


async def produce_many(spec: Spec, start: Start) -> dict[str, Any]:
    """Send `messages` by the batch and wait for all."""
    async with open_client(spec) as client, open_producer(client, spec) as producer:
        await start.go()
        begun = time.monotonic_ns()
        # One call: the window bounds the messages in flight, and nothing waits between pieces.
        keys = _keys(spec)
        summary = await producer.send_many(
            chain.from_iterable(_pieces(spec)), keys=cycle(keys) if keys else None
        )
        ended = time.monotonic_ns()
    return {"begun": begun, "ended": ended, "acknowledged": summary.count, "durability": summary.durability}


async def produce_each(spec: Spec, start: Start) -> dict[str, Any]:
    """Send `messages` one by one with `send_nowait`. With a full window, wait for an earlier one."""
    async with open_client(spec) as client, open_producer(client, spec) as producer:
        await start.go()
        begun = time.monotonic_ns()
        send = producer.send_nowait
        keys: list[str] | list[None] = _keys(spec) or [None]
        earlier: deque[Awaitable[Any]] = deque()
        sent = 0
        while sent < spec["messages"]:
            count = min(CHUNK_MESSAGES, spec["messages"] - sent)
            payloads = make_payloads(
                producer=spec["index"], first=sent, count=count, size=spec["size"], now_ns=time.monotonic_ns()
            )
            for at, payload in enumerate(payloads):
                key = keys[(sent + at) % len(keys)]
                try:
                    handle = send(payload, key=key)
                except WindowFull:
                    while True:
                        await earlier.popleft()
                        try:
                            handle = send(payload, key=key)
                            break
                        except WindowFull:
                            continue
                if not at & 511:
                    earlier.append(handle)
                    await asyncio.sleep(0)
            sent += count
        receipt = await handle
        await producer.flush()
        ended = time.monotonic_ns()
        acknowledged = producer.statistics().acknowledged_messages
    return {"begun": begun, "ended": ended, "acknowledged": acknowledged, "durability": receipt.durability}


async def send_lone(spec: Spec, start: Start) -> dict[str, Any]:
    """Send messages one after another, each awaited: `messages` of them, or until `stop`."""
    limit = spec["messages"]
    async with open_client(spec) as client, open_producer(client, spec) as producer:
        for payload in make_payloads(
            producer=WARM_UP_PRODUCER, first=0, count=spec["warm_up"], size=spec["size"], now_ns=0
        ):
            await producer.send(payload)
        await start.go()
        begun = time.monotonic_ns()
        taken_ns: list[int] = []
        durability = ""
        while not start.stopped and (limit is None or len(taken_ns) < limit):
            now = time.monotonic_ns()
            [payload] = make_payloads(
                producer=spec["index"], first=len(taken_ns), count=1, size=spec["size"], now_ns=now
            )
            now = time.monotonic_ns()
            receipt = await producer.send(payload)
            taken_ns.append(time.monotonic_ns() - now)
            durability = receipt.durability
        ended = time.monotonic_ns()
    latencies = percentiles_ms([ns / 1e6 for ns in taken_ns])
    return {
        "begun": begun,
        "ended": ended,
        "acknowledged": len(taken_ns),
        "durability": durability,
        "latency": latencies,
    }


async def send_await(spec: Spec, start: Start) -> dict[str, Any]:
    """`coroutines` that each await one send after another, over `producers` producers of one process.

    With `messages` they share that many. Without, they go on until `stop`.
    """
    limit = spec["messages"]
    async with open_client(spec) as client:
        producers = [open_producer(client, spec, index) for index in range(spec["producers"])]
        for producer in producers:
            await producer.__aenter__()
        try:
            await start.go()
            begun = time.monotonic_ns()
            handed = 0
            filler = b"." * (spec["size"] - 16)
            taken_ns: list[int] = []
            durability = ""

            async def caller(producer: Any) -> None:
                nonlocal handed, durability
                while not start.stopped and (limit is None or handed < limit):
                    number = handed
                    handed += 1
                    now = time.monotonic_ns()
                    payload = number.to_bytes(8, "little") + now.to_bytes(8, "little") + filler
                    receipt = await producer.send(payload)
                    taken_ns.append(time.monotonic_ns() - now)
                    durability = receipt.durability

            async with asyncio.TaskGroup() as tasks:
                for index in range(spec["coroutines"]):
                    tasks.create_task(caller(producers[index % len(producers)]))
            ended = time.monotonic_ns()
        finally:
            for producer in producers:
                await producer.__aexit__(None, None, None)
    return {
        "begun": begun,
        "ended": ended,
        "acknowledged": len(taken_ns),
        "durability": durability,
        "latency": percentiles_ms([ns / 1e6 for ns in taken_ns]),
    }


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
    """Return the durability behind an answer of this topic, for which the official protocol has no field."""
    [payload] = make_payloads(producer=WARM_UP_PRODUCER, first=0, count=1, size=spec["size"], now_ns=0)
    async with open_client(spec) as client, open_producer(client, spec) as producer:
        receipt = await producer.send(payload)
    return str(receipt.durability)
