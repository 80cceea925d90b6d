"""What one read causes leaves in one write, also where it is said in the next callback of the same turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydanube_broker.rpc.hot import Route
from pydanube_broker.rpc.own_connection import COMPANY_S, OwnConnection
from pydanube_broker.rpc.own_server import OwnServer
from pydanube_core.http2.codes import PREFACE, FrameType

from tests.broker.rpc.http2_peer import FrameReader, Peer, data, message, settings

pytestmark = pytest.mark.anyio


class Writes(asyncio.Transport):
    """A transport that keeps what it is given, one entry a write."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


class Messages:
    """A server stream, and a call that is followed by a message on it."""

    def __init__(self) -> None:
        self.reply: Any = None

    def open(self, request: bytes, reply: Any) -> Messages:
        self.reply = reply
        reply.begin()
        return self

    def ack(self, request: bytes, reply: Any) -> None:
        if self.reply is not None:
            asyncio.get_running_loop().call_soon(self.reply.send, b"next")
        reply.send(b"ok")

    def on_credit(self) -> None:
        pass

    def on_close(self) -> None:
        pass


async def test_an_answer_and_the_next_message_are_one_write() -> None:
    messages = Messages()
    server = OwnServer(
        host="127.0.0.1",
        port=0,
        flag="grpc-port",
        route=Route(
            hot={"/test.Test/Ack": messages.ack}, server_streams={"/test.Test/Receive": messages.open}
        ),
    )
    transport, peer = Writes(), Peer()
    connection = OwnConnection(server)
    connection.connection_made(transport)
    connection.data_received(PREFACE + settings() + settings(ack=True))

    def call(number: int, path: str) -> bytes:
        block = peer.encoder.encode(
            [(":method", "POST"), (":scheme", "http"), (":path", path), ("content-type", "application/grpc")]
        )
        return peer.request(number, block=block) + data(number, message(b"?"), end=True)

    peer.encoder.header_table_size = 0
    transport.written.clear()
    connection.data_received(call(1, "/test.Test/Ack"))
    assert len(transport.written) == 1, "with no other call open an answer leaves at once"
    connection.data_received(call(3, "/test.Test/Receive"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    transport.written.clear()
    connection.data_received(call(5, "/test.Test/Ack"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    (written,) = transport.written
    frames = FrameReader().feed(written)
    assert [(f.stream_id, f.payload) for f in frames if f.kind == FrameType.DATA] == [
        (5, message(b"ok")),
        (3, message(b"next")),
    ]
    connection.connection_lost(None)
    await server.stop(0)


async def test_a_message_that_may_wait_leaves_with_the_next_one_or_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages = Messages()
    server = OwnServer(
        host="127.0.0.1",
        port=0,
        flag="grpc-port",
        route=Route(hot={}, server_streams={"/test.Test/Receive": messages.open}),
    )
    later: list[tuple[float, Any]] = []
    monkeypatch.setattr(server, "loop", Later(server.loop, later))
    transport, peer = Writes(), Peer()
    peer.encoder.header_table_size = 0
    connection = OwnConnection(server)
    connection.connection_made(transport)
    connection.data_received(PREFACE + settings() + settings(ack=True))
    block = peer.encoder.encode(
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/test.Test/Receive"),
            ("content-type", "application/grpc"),
        ]
    )
    connection.data_received(peer.request(1, block=block) + data(1, message(b"?"), end=True))
    await turns()
    transport.written.clear()

    async def written() -> list[list[bytes]]:
        await turns()
        found = [[frame.payload for frame in FrameReader().feed(each)] for each in transport.written]
        transport.written.clear()
        return found

    messages.reply.send_along(b"one")
    assert await written() == []
    messages.reply.send(b"two")
    assert await written() == [[message(b"one"), message(b"two")]]
    messages.reply.send_along(b"three")
    messages.reply.send_along(b"four")  # no more than one waits
    assert await written() == [[message(b"three"), message(b"four")]]
    messages.reply.send_along(b"five")
    assert await written() == []
    ((wait_s, flush),) = later
    assert wait_s == COMPANY_S
    flush()
    assert await written() == [[message(b"five")]]
    connection.connection_lost(None)
    await server.stop(0)


class Later:
    """A loop whose later calls are kept instead of made."""

    def __init__(self, loop: asyncio.AbstractEventLoop, kept: list[tuple[float, Any]]) -> None:
        self._loop = loop
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def call_later(self, delay_s: float, call: Any, *arguments: Any) -> None:
        self._kept.append((delay_s, lambda: call(*arguments)))


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)
