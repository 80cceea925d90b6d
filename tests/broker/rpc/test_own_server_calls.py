"""Calls of every kind on our own server, made by grpcio's client."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
from pydanube_broker.rpc.caller import current_caller
from pydanube_broker.rpc.hot import Route
from pydanube_broker.rpc.own_server import OwnServer, Times
from pydanube_core.errors import ClusterError, TopicNotFound

pytestmark = pytest.mark.anyio


class Echo:
    """A hot stream that answers what it is told, and ends as it is told."""

    def __init__(self, service: Service, reply: Any) -> None:
        self.service = service
        self.reply = reply
        service.opened += 1

    def on_message(self, message: bytes) -> None:
        match message:
            case b"fail":
                self.reply.end(TopicNotFound("no such topic: ü", field="topic", value="t"))
            case b"raise":
                raise TopicNotFound("raised", field="topic", value="t")
            case b"defect":
                raise RuntimeError("a defect")
            case b"end":
                self.reply.end()
            case _:
                self.reply.send(message)

    def on_credit(self) -> None:
        self.service.credits += 1

    def on_half_close(self) -> None:
        self.reply.send(b"half closed")
        self.reply.end()

    def on_close(self) -> None:
        self.service.closed += 1
        self.service.changed.set()


class Service:
    """Handlers of every shape."""

    def __init__(self) -> None:
        self.opened = self.closed = self.credits = self.cancelled = 0
        self.changed = asyncio.Event()
        self.pending: list[Any] = []
        self.callers: list[Any] = []

    def route(self) -> Route:
        return Route(
            hot={"/t.T/Echo": self.echo, "/t.T/Pending": self.wait},
            cold={"/t.T/Cold": self.cold},
            streams={"/t.T/Stream": lambda reply: Echo(self, reply)},
            server_streams={"/t.T/Serve": self.serve},
        )

    def echo(self, data: bytes, reply: Any) -> None:
        if data == b"fail":
            raise TopicNotFound("no such topic: ü\n" + "x" * 3000, field="topic", value="t")
        if data == b"defect":
            raise RuntimeError("a defect")
        reply.send(data)
        reply.send(b"a second answer is ignored")

    def wait(self, data: bytes, reply: Any) -> None:
        self.pending.append(reply)
        self.changed.set()

    async def cold(self, data: bytes) -> bytes:
        self.callers.append(current_caller.get())
        self.changed.set()
        if data == b"fail":
            raise TopicNotFound("no such topic", field="topic", value="t")
        if data == b"wait":
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.cancelled += 1
                self.changed.set()
                raise
        return data * 2

    def serve(self, data: bytes, reply: Any) -> Echo:
        if data == b"refuse":
            raise TopicNotFound("refused", field="topic", value="t")
        stream = Echo(self, reply)
        reply.begin()
        for number in range(int(data or b"0")):
            reply.send(b"%d" % number)
        if data:
            reply.end()
        return stream

    async def until(self, test: Any) -> None:
        with anyio.fail_after(30):
            while not test():
                self.changed.clear()
                await self.changed.wait()


class Running:
    def __init__(self, server: OwnServer, service: Service, channel: Any, calls: Counter[Any]) -> None:
        self.server = server
        self.service = service
        self.channel = channel
        self.calls = calls

    def unary(self, name: str) -> Any:
        return self.channel.unary_unary(f"/t.T/{name}")


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    service, calls = Service(), Counter[Any]()
    server = OwnServer(
        host="127.0.0.1",
        port=0,
        flag="grpc-port",
        route=service.route(),
        calls=calls,
        times=Times(message_bytes=1 << 20),
    )
    await server.start()
    channel = grpc.aio.insecure_channel(
        f"127.0.0.1:{server.port}",
        options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)],
    )
    yield Running(server, service, channel, calls)
    await channel.close()
    await server.stop(0)


async def test_unary_calls_of_every_size(running: Running) -> None:
    for size in (0, 1, 5000, 33_000, 70_000, 1_000_000):
        assert await running.unary("Echo")(bytes(size)) == bytes(size)
        assert len(await running.unary("Cold")(bytes(size // 2))) == size // 2 * 2
    assert running.calls["t.T", "Echo", "OK"] == 6


async def test_many_calls_at_once_on_one_connection(running: Running) -> None:
    texts = [b"%d" % number for number in range(300)]
    assert await asyncio.gather(*(running.unary("Echo")(text) for text in texts)) == texts
    assert running.server.connections == 1


@pytest.mark.parametrize("name", ["Echo", "Cold"])
async def test_an_error_travels_as_status_text_and_object(running: Running, name: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running.unary(name)(b"fail")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert (caught.value.details() or "").startswith("TOPIC_NOT_FOUND: no such topic")
    body = dict(caught.value.trailing_metadata() or ())["danube-error-bin"]
    assert isinstance(ClusterError.from_json(bytes(body).decode()), TopicNotFound)  # type: ignore[arg-type]
    assert running.calls["t.T", name, "NOT_FOUND"] == 1


async def test_a_defect_is_internal_and_says_nothing_of_itself(running: Running) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running.unary("Echo")(b"defect")
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "a defect" not in (caught.value.details() or "")


async def test_unknown_methods_and_services(running: Running) -> None:
    for path in ("/t.T/Nothing", "/no.Service/Echo"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.channel.unary_unary(path)(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_streams_both_ways(running: Running) -> None:
    async def requests() -> AsyncIterator[bytes]:
        for size in (1, 70_000, 0, 300_000):
            yield bytes(size)

    call = running.channel.stream_stream("/t.T/Stream")(requests())
    assert [len(answer) async for answer in call] == [1, 70_000, 0, 300_000, len(b"half closed")]
    assert await call.code() is grpc.StatusCode.OK
    await running.service.until(lambda: running.service.closed == 1)


@pytest.mark.parametrize(
    ("word", "code"),
    [("fail", "NOT_FOUND"), ("raise", "NOT_FOUND"), ("defect", "INTERNAL"), ("end", "OK")],
)
async def test_a_stream_ends_as_its_handler_says(running: Running, word: str, code: str) -> None:
    call = running.channel.stream_stream("/t.T/Stream")()
    await call.write(b"hello")
    assert await call.read() == b"hello"
    await call.write(word.encode())
    assert (await call.code()).name == code
    await running.service.until(lambda: running.service.closed == 1)
    assert running.calls["t.T", "Stream", code] == 1


async def test_a_server_stream(running: Running) -> None:
    call = running.channel.unary_stream("/t.T/Serve")(b"2000")
    assert [int(answer) async for answer in call] == list(range(2000))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        _ = [answer async for answer in running.channel.unary_stream("/t.T/Serve")(b"refuse")]
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_headers_leave_when_the_stream_begins(running: Running) -> None:
    call = running.channel.unary_stream("/t.T/Serve")(b"")
    with anyio.fail_after(30):
        await call.initial_metadata()
    call.cancel()
    await running.service.until(lambda: running.service.closed == 1)
    assert running.calls["t.T", "Serve", "CANCELLED"] == 1


async def test_a_deadline_ends_the_call_and_cancels_its_handler(running: Running) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running.unary("Cold")(b"wait", timeout=0.1)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await running.service.until(lambda: running.service.cancelled == 1)
    with pytest.raises(grpc.aio.AioRpcError):
        await running.unary("Pending")(b"", timeout=0.1)
    with anyio.fail_after(30):
        # The client says so too when its own clock is first: by then the call is gone, which counts as cancelled.
        while not any(key[1] == "Pending" for key in running.calls):
            await running.unary("Echo")(b"")
    running.service.pending[0].send(b"too late")
    assert await running.unary("Echo")(b"still fine", timeout=30) == b"still fine"


async def test_calls_with_deadlines_that_are_kept_leave_nothing_behind(running: Running) -> None:
    await asyncio.gather(*(running.unary("Echo")(b"x", timeout=100 + n) for n in range(50)))
    assert running.server.deadlines.waiting == 0


async def test_cancelling_a_call_cancels_its_handler(running: Running) -> None:
    call = running.unary("Cold")(b"wait")
    await running.service.until(lambda: running.service.callers)
    call.cancel()
    await running.service.until(lambda: running.service.cancelled == 1)


async def test_the_caller_is_known_to_its_handler(running: Running) -> None:
    await running.unary("Cold")(b"", metadata=(("x-name", "me"), ("x-raw-bin", b"\0\xff")))
    (caller,) = running.service.callers
    assert caller.peer.address.startswith("ipv4:127.0.0.1:")
    assert {("x-name", "me"), ("x-raw-bin", b"\0\xff")} <= set(caller.metadata)


async def test_requests_packed_by_gzip_are_understood(running: Running) -> None:
    text = b"very repetitive " * 10_000
    assert await running.unary("Echo")(text, compression=grpc.Compression.Gzip) == text
    stream = running.channel.stream_stream("/t.T/Stream")(
        iter([text, b"x"]), compression=grpc.Compression.Gzip
    )
    assert [answer async for answer in stream] == [text, b"x", b"half closed"]


async def test_a_message_beyond_the_limit(running: Running) -> None:
    for call in (
        running.unary("Echo")(bytes((1 << 20) + 1)),
        running.unary("Echo")(bytes(2 << 20), compression=grpc.Compression.Gzip),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(1 << 20) in (caught.value.details() or "")
    stream = running.channel.stream_stream("/t.T/Stream")(iter([bytes((1 << 20) + 1)]))
    assert await stream.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await running.unary("Echo")(b"next") == b"next"


async def test_a_client_that_does_not_read_is_not_written_to_without_end(running: Running) -> None:
    call = running.channel.unary_stream("/t.T/Serve")(b"")
    await call.initial_metadata()
    (connection,) = running.server.open_connections
    (stream,) = connection.http.streams.values()
    reply, sent = stream.user, 0
    with anyio.fail_after(60):
        while reply.writable:
            reply.send(bytes(50_000))
            sent += 50_000
            await asyncio.sleep(0)
        # The windows of client and kernel take something; beyond them at most our bound waits.
        assert stream.queued_bytes <= (1 << 20) + 50_000
        running.service.credits = 0
        got = 0
        while got < sent:
            got += len(await call.read())
    assert running.service.credits >= 1
    assert await running.unary("Echo")(b"others go on") == b"others go on"
    call.cancel()


async def test_stopping_lets_calls_finish_and_ends_streams_as_retryable(running: Running) -> None:
    stream = running.channel.unary_stream("/t.T/Serve")(b"")
    await stream.initial_metadata()
    call = asyncio.ensure_future(running.unary("Pending")(b""))
    with anyio.fail_after(30):
        await running.service.until(lambda: running.service.pending)
        stopping = asyncio.ensure_future(running.server.stop(1.0))
        await asyncio.sleep(0.05)
        running.service.pending[0].send(b"finished")
        assert await call == b"finished"
        await stopping
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
        assert running.service.closed == 1
    assert running.server.connections == 0
    await running.server.stop(0)
