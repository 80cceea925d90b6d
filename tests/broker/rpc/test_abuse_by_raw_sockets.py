"""What a client may do to our own server by the letter of HTTP/2, and no client does: nothing of it is left behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from hpack import Encoder
from pydanube_broker.rpc.hot import Route
from pydanube_broker.rpc.own_server import OwnServer, Times
from pydanube_core.grpc_wire import frame_gzip
from pydanube_core.http2.codes import PREFACE, FrameType

from tests.broker.rpc.http2_peer import Frame, FrameReader, Peer, data, frame, message, reset, settings

pytestmark = pytest.mark.anyio

ANSWER_BYTES = 1_000_000


class Stream:
    """Echoes."""

    def __init__(self, service: Service, reply: Any) -> None:
        self.service = service
        self.reply = reply
        service.open += 1

    def on_message(self, message: bytes) -> None:
        self.reply.send(message)

    def on_credit(self) -> None: ...

    def on_half_close(self) -> None:
        self.reply.end()

    def on_close(self) -> None:
        self.service.open -= 1


class Service:
    def __init__(self) -> None:
        self.open = 0
        self.running = 0

    def route(self) -> Route:
        return Route(
            hot={
                "/t.T/Echo": lambda request, reply: reply.send(request),
                "/t.T/Large": lambda request, reply: reply.send(bytes(ANSWER_BYTES)),
                "/t.T/Never": lambda request, reply: None,
            },
            cold={"/t.T/Long": self.long},
            streams={"/t.T/Stream": lambda reply: Stream(self, reply)},
        )

    async def long(self, request: bytes) -> bytes:
        self.running += 1
        try:
            await asyncio.sleep(3600)
        finally:
            self.running -= 1
        return request


class Attack:
    """One connection that writes what it likes."""

    def __init__(
        self,
        server: OwnServer,
        service: Service,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.server = server
        self.service = service
        self.writer = writer
        self._reader = reader
        self._frames = FrameReader()
        self.heard: list[Frame] = []

    def head(self, path: str, stream_id: int, *more: tuple[str, str], end: bool = False) -> bytes:
        headers = (
            (":method", "POST"), (":scheme", "http"), (":path", f"/t.T/{path}"), (":authority", "x"),
            ("te", "trailers"), ("content-type", "application/grpc"), *more,
        )  # fmt: skip
        block = Encoder().encode([(name, value, True) for name, value in headers])
        return frame(FrameType.HEADERS, 5 if end else 4, stream_id, block)

    async def until(self, found: Any) -> None:
        """Read until what was heard has it."""
        with anyio.fail_after(30):
            while not found(self.heard):
                part = await self._reader.read(1 << 16)
                assert part, "the server closed the connection"
                self.heard += self._frames.feed(part)

    async def echoes(self, stream_id: int) -> None:
        """A call on the same connection is answered, so everything before it has been read."""
        text = b"echo %d" % stream_id
        self.writer.write(self.head("Echo", stream_id) + data(stream_id, message(text), end=True))
        await self.until(lambda frames: any(each.payload == message(text) for each in frames))

    @property
    def connection(self) -> Any:
        [found] = self.server.open_connections
        return found

    def nothing_is_left(self) -> bool:
        http = self.connection.http
        return (
            not http.streams
            and not http.out.answers_open
            and not http.out.waiting_bytes
            and not self.connection._held
            and not self.server.deadlines.waiting
            and not self.service.open
            and not self.service.running
        )


@contextlib.asynccontextmanager
async def attacking(*with_settings: tuple[int, int]) -> AsyncIterator[Attack]:
    service = Service()
    server = OwnServer(host="127.0.0.1", port=0, flag="grpc-port", route=service.route(), times=Times())
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(PREFACE + settings(*with_settings) + settings(ack=True))
    try:
        yield Attack(server, service, reader, writer)
    finally:
        writer.close()
        await server.stop(0)


async def test_a_conversation_that_comes_byte_by_byte() -> None:
    async with attacking() as attack:
        said = attack.head("Echo", 1) + data(1, message(b"one"), end=True)
        said += attack.head("Stream", 3) + data(3, message(b"two")) + data(3, message(b"three"), end=True)
        for at in range(len(said)):
            attack.writer.write(said[at : at + 1])
            await asyncio.sleep(0)
        await attack.until(lambda frames: sum(each.end for each in frames) == 2)
        texts = [each.payload for each in attack.heard if each.kind == FrameType.DATA]
        assert texts == [message(b"one"), message(b"two"), message(b"three")]
        assert attack.nothing_is_left()


async def test_resets_anywhere_in_a_call_leave_nothing_behind() -> None:
    async with attacking() as attack:
        for number in range(800):
            stream_id = 2 * number + 1
            path = ("Echo", "Never", "Long", "Stream", "Nothing")[number % 5]
            attack.writer.write(attack.head(path, stream_id, ("grpc-timeout", "50S")))
            if number % 3 == 0:
                attack.writer.write(data(stream_id, message(b"whole"), end=number % 2 == 0))
            elif number % 3 == 1:
                attack.writer.write(data(stream_id, message(b"cut off")[:-3]))
            attack.writer.write(reset(stream_id))
            if number < 50:  # each of these is a fault, of which a hundred are forgiven
                attack.writer.write(data(stream_id, b"late"))
        await attack.echoes(2001)
        await asyncio.sleep(0)  # what was cancelled ends
        assert attack.nothing_is_left()


@pytest.mark.parametrize(
    ("deadline", "status"),
    [
        ("0n", b"4"),
        ("0H", b"4"),
        ("1n", b"4"),
        ("-1S", b"13"),
        ("1", b"13"),
        ("S", b"13"),
        ("123456789S", b"13"),
        ("99999999H", None),
        ("99999999S", None),
    ],
)
async def test_deadlines_of_nothing_and_of_centuries(deadline: str, status: bytes | None) -> None:
    async with attacking() as attack:
        attack.writer.write(
            attack.head("Long", 1, ("grpc-timeout", deadline)) + data(1, message(b""), end=True)
        )
        if status is not None:
            await attack.until(lambda frames: any(each.end for each in frames))
            decoded = Peer().decoder.decode(next(each for each in attack.heard if each.end).payload, raw=True)
            assert dict(decoded)[b"grpc-status"] == status
            await asyncio.sleep(0)
            assert attack.nothing_is_left()
            return
        await attack.echoes(3)
        assert attack.service.running == 1
        assert attack.server.deadlines.waiting == 0, "longer than anybody waits: no timer is kept"
        attack.writer.write(reset(1))
        await attack.echoes(5)
        await asyncio.sleep(0)
        assert attack.nothing_is_left()


async def test_trailers_of_a_request_end_it() -> None:
    async with attacking() as attack:
        block = Encoder().encode([("x-checksum", "1", True)])
        for stream_id, path in ((1, "Echo"), (3, "Stream")):
            attack.writer.write(attack.head(path, stream_id) + data(stream_id, message(b"text")))
            attack.writer.write(frame(FrameType.HEADERS, 5, stream_id, block))
        await attack.until(lambda frames: sum(each.end for each in frames) == 2)
        assert [each.payload for each in attack.heard if each.kind == FrameType.DATA] == [
            message(b"text")
        ] * 2
        assert attack.nothing_is_left()


@pytest.mark.parametrize("window", [0, 1000, (1 << 31) - 1])
async def test_answers_that_are_asked_for_and_not_let_through_are_bounded(window: int) -> None:
    """The last case closes the connection's window, which a client has of 64 KiB without saying anything."""
    async with attacking((4, window)) as attack:
        for stream_id in range(1, 1001, 2):
            attack.writer.write(attack.head("Large", stream_id) + data(stream_id, message(b""), end=True))
        await attack.until(
            lambda frames: any(each.kind == FrameType.RST_STREAM or each.end for each in frames)
        )
        out = attack.connection.http.out
        assert out.waiting_bytes < (64 << 20) + 2 * ANSWER_BYTES
        assert len(attack.connection.http.streams) < 80
        held = list(attack.connection.http.streams)
        attack.writer.write(b"".join(map(reset, held)))
        attack.writer.write(
            settings((4, 65_535)) + frame(FrameType.WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4, "big"))
        )
        await attack.echoes(2001)
        assert attack.nothing_is_left()


async def test_bombs_cost_their_connection_its_budget() -> None:
    async with attacking() as attack:
        bomb = frame_gzip(bytes(15 << 20))
        for stream_id in range(1, 41, 2):
            attack.writer.write(attack.head("Never", stream_id, ("grpc-encoding", "gzip")))
            attack.writer.write(data(stream_id, bomb, end=True))
        await attack.echoes(2001)
        refused = [each for each in attack.heard if each.end and each.stream_id < 2001]
        assert 16 <= len(refused) <= 18, "three fit into the burst"
