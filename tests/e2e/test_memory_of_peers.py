"""What clients make a broker hold: bounded for all of them together, whatever they send by halves or do not read.

Real brokers with a small budget. Beside each attack a good client of the same address works, of which not one connection
is closed; the attackers answer PINGs and keep to flow control.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import anyio
import pytest
from pydanube import Retry, connect
from pydanube_broker.services.official.ids import producer_id
from pydanube_core.generated import danube_pb2 as official
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.http2.codes import PREFACE, FrameType
from pydanube_core.services import STREAM

from tests.broker.rpc.http2_peer import (
    REQUEST,
    Frame,
    FrameReader,
    Peer,
    data,
    frame,
    message,
    settings,
    window_update,
)
from tests.support.broker_process import BrokerProcess, broker_process_fixture

pytestmark = pytest.mark.anyio

SEND_MESSAGE = "/danube.ProducerService/SendMessage"
BUDGET = 48 << 20
#: what a broker takes beside the budget while it works: caches, copies that are being made, the allocator's holes
SLACK = 64 << 20

broker = broker_process_fixture(
    scope="module",
    environment={
        "DANUBE_SERVER__PEER_MEMORY_BYTES": str(BUDGET),
        "DANUBE_JOURNAL__TAIL_CACHE_BYTES": "8MiB",
    },
)


class Attacker:
    """A connection by hand: it reads what keeps it alive, and takes of the rest what it is told to."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self.peer = Peer()
        self.window = 65_535
        self.windows: dict[int, int] = {}
        self.ended: list[Frame] = []  # frames that end a stream
        self.goaway: bytes | None = None
        self.closed = False
        self._frames = FrameReader()
        self._moved = asyncio.Event()

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(self._url.hostname, self._url.port)
        self.writer.write(PREFACE + settings() + settings(ack=True))
        self._task = asyncio.ensure_future(self._listen())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        self.writer.transport.abort()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _listen(self) -> None:
        with contextlib.suppress(ConnectionError):
            while part := await self.reader.read(1 << 16):
                for each in self._frames.feed(part):
                    self._take(each)
                self._moved.set()
        self.closed = True
        self._moved.set()

    def _take(self, each: Frame) -> None:
        match each.kind:
            case FrameType.PING if not each.flags & 1:
                self.writer.write(frame(FrameType.PING, 1, 0, each.payload))
            case FrameType.WINDOW_UPDATE:
                more = int.from_bytes(each.payload, "big")
                if each.stream_id:
                    self.windows[each.stream_id] = self.windows.get(each.stream_id, 256 << 10) + more
                else:
                    self.window += more
            case FrameType.GOAWAY:
                self.goaway = each.payload[8:]
        if each.end or each.kind == FrameType.RST_STREAM:
            self.ended.append(each)

    async def until(self, holds: Callable[[], bool]) -> None:
        with anyio.fail_after(60):
            while not holds() and not self.closed:
                self._moved.clear()
                await self._moved.wait()

    def open(self, stream_id: int, path: str, *more: tuple[str, str]) -> None:
        headers = tuple((name, path if name == ":path" else value) for name, value in REQUEST)
        # Plain: megabytes in Huffman's code keep this loop so busy that the good client's answers come too late.
        block = self.peer.encoder.encode((*headers, *more), huffman=False)
        self.writer.write(self.peer.request(stream_id, block=block))

    async def send(self, stream_id: int, body: bytes, *, end: bool = False) -> None:
        """As the windows allow."""
        at, windows = 0, self.windows
        windows.setdefault(stream_id, 256 << 10)
        while at < len(body) and not self.closed and not self.writer.is_closing():
            room = min(self.window, windows[stream_id], len(body) - at, 16_384)
            if room <= 0:
                await self.until(lambda: self.window > 0 and windows[stream_id] > 0)
                continue
            self.window -= room
            windows[stream_id] -= room
            last = end and at + room == len(body)
            self.writer.write(data(stream_id, body[at : at + room], end=last))
            at += room
            with contextlib.suppress(ConnectionError):
                await self.writer.drain()


@asynccontextmanager
async def good_client(broker: BrokerProcess) -> AsyncIterator[None]:
    """A client that is busy beside the block and loses not one connection."""
    async with (
        connect(broker.url, retry=Retry(max_elapsed_s=0)) as client,
        client.producer("good") as producer,
        client.consumer("good", "s") as consumer,
    ):
        done = anyio.Event()

        async def work() -> None:
            while not done.is_set():
                await producer.send(bytes(1000))
                await (await anext(aiter(consumer))).ack()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            yield
            done.set()


def held(broker: BrokerProcess) -> int:
    return int(broker.status()["peer_memory"]["held_bytes"])


async def look(work: Callable[[], Any]) -> Any:
    return await anyio.to_thread.run_sync(work)


async def measured(broker: BrokerProcess, attack: Callable[[], Awaitable[None]]) -> int:
    """Most of what the broker grew by while the attack went on, in bytes."""
    before, most, done = broker.rss_bytes(), 0, False

    async def watch() -> None:
        nonlocal most
        while not done:
            most = max(most, broker.rss_bytes() - before)
            await anyio.sleep(0.02)  # a sample of what goes on beside it, not a wait

    async with good_client(broker), anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await attack()
        most, done = max(most, broker.rss_bytes() - before), True
    broker.check_log()
    print(f"grew by {most >> 20} MiB")
    return most


def consume(topic: str) -> bytes:
    opening = pb.OpenConsumer(topic=topic, start="earliest", credit_messages=1_000_000, credit_bytes=1 << 40)
    return message(pb.ConsumeRequest(open=opening).SerializeToString())


async def test_readers_that_read_nothing_are_not_handed_a_frame_each(broker: BrokerProcess) -> None:
    async with connect(broker.url) as client, client.producer("large") as producer:
        for _ in range(3):
            await producer.send(bytes(3_900_000))

    async def attack() -> None:
        async with Attacker(broker.url) as attacker:
            for number in range(150):
                stream_id = 2 * number + 1
                attacker.open(stream_id, STREAM["Consume"].path)
                attacker.writer.write(data(stream_id, consume("/default/large")))
            await attacker.writer.drain()
            with anyio.fail_after(60):
                while await look(lambda: held(broker)) < 8 << 20:
                    assert not attacker.closed
                for _ in range(20):  # and no more of it comes
                    assert await look(lambda: held(broker)) < 16 << 20
            # A reader that goes on reading gets all of it, and so do those that waited for its room.
            for number in range(5):
                attacker.writer.write(window_update(2 * number + 1, 50 << 20))
            attacker.writer.write(window_update(0, 1 << 30))
            with anyio.fail_after(60):
                while await look(lambda: held(broker)) > 16 << 20:
                    pass
            assert not attacker.closed

    assert await measured(broker, attack) < BUDGET + SLACK


async def test_half_sent_messages_of_many_connections_have_one_budget(broker: BrokerProcess) -> None:
    async def attack() -> None:
        async with contextlib.AsyncExitStack() as stack:
            attackers = [await stack.enter_async_context(Attacker(broker.url)) for _ in range(6)]

            async def halves(attacker: Attacker) -> None:
                for stream_id in (1, 3):
                    if attacker.closed or attacker.writer.is_closing():
                        return
                    attacker.open(stream_id, STREAM["Publish"].path)
                    attacker.writer.write(data(stream_id, b"\0" + (60 << 20).to_bytes(4, "big")))
                    await attacker.send(stream_id, bytes(59 << 20))

            async with anyio.create_task_group() as tasks:
                for each in attackers:
                    tasks.start_soon(halves, each)
            said = [each.goaway for each in attackers if each.closed]
            assert len(said) >= 5, "what is left has room"
            assert b"peer_memory" in said
            assert await look(lambda: held(broker)) <= BUDGET
            with await look(lambda: urllib.request.urlopen(f"{broker.metrics}/readyz", timeout=30)) as answer:
                ready = json.load(answer)
            assert ready["ready"], "others are served"
            assert [reason["code"] for reason in ready["reasons"]] == ["PEER_MEMORY"]
            with await look(
                lambda: urllib.request.urlopen(f"{broker.metrics}/metrics", timeout=30)
            ) as answer:
                text = answer.read().decode()
            assert f"danube_peer_memory_limit_bytes {BUDGET:.7e}" in text
            assert 'danube_grpc_connections_closed_total{reason="peer_memory"}' in text

    assert await measured(broker, attack) < BUDGET + SLACK


async def test_pieces_of_a_byte_each_are_held_as_bytes(broker: BrokerProcess) -> None:
    async def attack() -> None:
        async with Attacker(broker.url) as attacker:
            for stream_id, path in ((1, STREAM["Publish"].path), (3, STREAM["Resolve"].path)):
                attacker.open(stream_id, path)
                attacker.writer.write(data(stream_id, b"\0" + (4 << 20).to_bytes(4, "big")))
                for _ in range(100):
                    attacker.writer.write(data(stream_id, b"x") * 2000)
                    await attacker.writer.drain()
            with anyio.fail_after(60):
                while await look(lambda: held(broker)) < 400_000:
                    assert not attacker.closed

    assert await measured(broker, attack) < 24 << 20


async def test_open_streams_and_their_headers_are_counted(broker: BrokerProcess) -> None:
    async def attack() -> None:
        async with Attacker(broker.url) as attacker:
            for number in range(5000):
                more = [(f"x-{number}-{at}", "v" * 3000) for at in range(9)]
                attacker.open(2 * number + 1, STREAM["Publish"].path, *more)
                with contextlib.suppress(ConnectionError):
                    await attacker.writer.drain()
                if attacker.closed or attacker.writer.is_closing():
                    break
            await attacker.until(lambda: False)
            assert attacker.closed

    assert await measured(broker, attack) < BUDGET + SLACK


async def test_long_names_of_producers_are_refused(broker: BrokerProcess) -> None:
    async with connect(broker.url) as client, client.producer("named") as producer:
        await producer.send(b"first")

    async def attack() -> None:
        async with Attacker(broker.url) as attacker:
            for number in range(100):
                name = f"{number}" + "n" * 500_000
                sent = official.StreamMessage(
                    request_id=number,
                    msg_id=official.MsgID(
                        producer_id=producer_id("/default/named", name), topic_name="/default/named"
                    ),
                    payload=b"x",
                    publish_time=1,
                    producer_name=name,
                )
                attacker.open(2 * number + 1, SEND_MESSAGE)
                await attacker.send(2 * number + 1, message(sent.SerializeToString()), end=True)
            await attacker.until(lambda: len(attacker.ended) == 100)
            assert {each.end for each in attacker.ended} == {True}

    assert await measured(broker, attack) < 40 << 20
