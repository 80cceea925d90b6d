"""Connections that say nothing: they are closed after a while, and at once when a port has no room for another."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import uvicorn
from pydanube_broker.rpc.connection_limits import OneWrite, patient_http
from pydanube_broker.rpc.hot import Route
from pydanube_broker.rpc.http_port import HttpPort
from pydanube_broker.rpc.own_server import OwnServer, Times
from pydanube_broker.rpc.peer_memory import PeerMemory
from pydanube_broker.rpc.places import places
from pydanube_broker.status.http_status import status_app
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route as Page

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
GET = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"


Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def dialling(port: int) -> AsyncIterator[Callable[..., Awaitable[Pair]]]:
    """Makes connections; all are closed at the end."""
    writers: list[asyncio.StreamWriter] = []

    async def call(source: str = "127.0.0.1") -> Pair:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
        writers.append(writer)
        return reader, writer

    try:
        yield call
    finally:
        for writer in writers:
            writer.close()
        for writer in writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  # nobody tells; each turn of the loop is looked at
            await asyncio.sleep(0)


async def closed(reader: asyncio.StreamReader) -> None:
    """Wait until the other side is gone, whatever it says before."""
    async with asyncio.timeout(20):
        try:
            while await reader.read(1000):
                pass
        except ConnectionResetError:
            pass


def test_an_http_port_that_is_full_closes_what_has_been_idle_for_longest() -> None:
    async def scenario() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        app = status_app(cast(Any, None))
        server = HttpPort(app, listener, tls=None, connections=4, memory=None)
        await server.start()
        try:
            async with dialling(server.port) as call:
                idle = [await call() for _ in range(4)]
                for number in range(4):
                    reader, writer = await call()
                    writer.write(GET)
                    assert b"200 OK" in await reader.readuntil(b"ok\n")
                    await closed(idle[number][0])
        finally:
            await server.stop()

    asyncio.run(scenario())


def test_one_address_that_fills_an_http_port_keeps_nobody_out() -> None:
    """Halves of requests are no idle connections: 512 of them kept everybody out for as long as a body may take."""

    async def scenario() -> None:
        async with patient_server(60) as port, dialling(port) as call:
            halves = [await call("127.0.0.2") for _ in range(10)]  # as many as there may be
            for _, writer in halves:
                writer.write(b"POST /size HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc")
            await asyncio.sleep(0)
            for number in range(3):
                reader, writer = await call()
                writer.write(b"POST /size HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nab")
                assert b"200 OK" in await reader.readuntil(b"2\n")
                await closed(halves[number][0])

    asyncio.run(scenario())


@asynccontextmanager
async def patient_server(request_s: float, memory: PeerMemory | None = None) -> AsyncIterator[int]:
    async def slow(request: Request) -> PlainTextResponse:
        await asyncio.sleep(4 * request_s)
        return PlainTextResponse("slow\n")

    async def size(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{len(await request.body())}\n")

    async def large(request: Request) -> PlainTextResponse:
        return PlainTextResponse("x" * (64 << 20))

    pages = [Page("/slow", slow), Page("/size", size, methods=["POST"]), Page("/large", large)]
    app = Starlette(routes=pages)
    protocol = patient_http(10, request_s, memory=memory)
    config = uvicorn.Config(app, log_config=None, lifespan="off", http=protocol)
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    running = asyncio.ensure_future(server._serve([listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await running
        listener.close()


class Sink:
    """A transport that notes what it is given."""

    def __init__(self) -> None:
        self.said: list[bytes | str] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.said.append(data)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.said.append("closed")

    def abort(self) -> None:
        self.said.append("aborted")
        self.closing = True


def test_head_and_body_of_an_answer_leave_together_and_nothing_stays_behind() -> None:
    async def scenario() -> None:
        sink = Sink()
        out = OneWrite(cast(asyncio.Transport, sink), asyncio.get_running_loop(), lambda: None)
        out.write(b"head ")
        out.write(b"")
        out.write(b"body")
        assert sink.said == []
        await asyncio.sleep(0)
        assert sink.said == [b"head body"]
        out.write(b"head of a stream")  # whose first event comes later
        await asyncio.sleep(0)
        assert sink.said[1:] == [b"head of a stream"]
        out.write(b"x" * 70_000)  # is not held: the transport says when it is too much
        assert len(sink.said[-1]) == 70_000
        await asyncio.sleep(0)
        out.write(b"last ")
        out.write(b"words")
        out.close()
        assert sink.said[3:] == [b"last words", "closed"]
        out.write(b"to nobody")
        out.abort()
        await asyncio.sleep(0)
        assert sink.said[-1] == "aborted"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "said",
    [b"", b"GET /size HT", b"POST /size HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc"],
    ids=["nothing", "half a head", "half a body"],
)
def test_who_does_not_go_on_is_closed(said: bytes) -> None:
    async def scenario() -> None:
        async with patient_server(0.2) as port, dialling(port) as call:
            reader, writer = await call()
            writer.write(said)
            await closed(reader)

    asyncio.run(scenario())


def test_who_waits_for_a_slow_answer_is_not() -> None:
    async def scenario() -> None:
        async with patient_server(0.2) as port, dialling(port) as call:
            reader, writer = await call()
            writer.write(b"GET /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert (await reader.read()).endswith(b"slow\n")

    asyncio.run(scenario())


def test_a_grpc_port_that_is_full_closes_what_has_been_idle_for_longest() -> None:
    async def scenario() -> None:
        server = OwnServer(
            host="127.0.0.1", port=0, flag="grpc-port", times=Times(connections=3),
            route=Route(streams={}, cold={}, hot={}, server_streams={}),
        )  # fmt: skip
        await server.start()
        try:
            async with dialling(server.port) as call:
                first = []
                for _ in range(3):
                    reader, writer = await call()
                    writer.write(PREFACE)
                    await reader.read(9)
                    first.append(reader)
                for number in range(3):
                    reader, writer = await call()
                    writer.write(PREFACE)
                    assert await reader.read(9)
                    await closed(first[number])
                assert server.closed["too_many_connections"] == 3
                assert server.connections == 3
        finally:
            await server.stop(0)

    asyncio.run(scenario())


def test_every_port_and_the_files_have_their_part(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft in (128, 256, 1024, 20_000, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda which, soft=soft: (soft, soft))
        found = places()
        assert found.grpc >= 32
        assert found.other >= 8
        if soft != resource.RLIM_INFINITY:
            assert found.grpc + 3 * found.other <= soft - 48


def test_who_reads_nothing_of_an_answer_is_not_waited_for() -> None:
    """Its connection had no other end than its own: answers of any number of them stayed in memory."""

    async def scenario() -> None:
        memory = PeerMemory(1 << 30)
        async with patient_server(0.3, memory) as port:
            with socket.create_connection(("127.0.0.1", port)) as unread:
                unread.setblocking(False)
                await asyncio.get_running_loop().sock_sendall(
                    unread, b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n"
                )
                await until(lambda: memory.held_bytes > 16 << 20)
                await until(lambda: not memory.held_bytes)

    asyncio.run(scenario())


def test_answers_that_nobody_reads_are_of_the_one_budget() -> None:
    async def scenario() -> None:
        memory = PeerMemory(160 << 20)
        async with patient_server(60, memory) as port, dialling(port) as call:
            with contextlib.ExitStack() as stack:
                for _ in range(4):
                    unread = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                    unread.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
                await until(lambda: memory.closed >= 2)
                assert memory.held_bytes <= memory.limit_bytes
                reader, writer = await call()
                writer.write(b"POST /size HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nab")
                assert b"200 OK" in await reader.readuntil(b"2\n")

    asyncio.run(scenario())
