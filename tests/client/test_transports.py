"""What carries the SDK's bytes: calls and streams over our own HTTP/2, their answers, errors and ends."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
from hpack import Encoder
from pydanube.wire import http2_transport
from pydanube.wire.endpoint import Tls
from pydanube.wire.http2_transport import Http2Transport
from pydanube.wire.transport import Transport
from pydanube_core.errors import (
    ClusterError,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotImplementedYet,
    TopicNotFound,
    Unavailable,
)

pytest.importorskip("pydanube_broker", reason="NOT RUN: install pydanube[broker], whose server answers here")
from pydanube_broker.rpc.caller import current_caller
from pydanube_broker.rpc.hot import Route
from pydanube_broker.rpc.own_server import OwnServer, Times

from tests.support.certificates import make_certificates
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
PUBLISH = "/danube.stream.Stream/Publish"


class Broker:
    """Answers what is said, and as it is told."""

    def __init__(self) -> None:
        self.closed = 0
        self.pending: list[Any] = []
        self.changed = asyncio.Event()
        self.callers: list[Any] = []
        self.streams: list[Said] = []

    def route(self) -> Route:
        return Route(
            hot={"/t.T/Ask": self.ask},
            cold={"/t.T/Who": self.who},
            streams={PUBLISH: lambda reply: Said(self, reply)},
        )

    def ask(self, data: bytes, reply: Any) -> None:
        if data == b"wait":
            self.pending.append(reply)
        elif data == b"fail":
            raise TopicNotFound("no such topic: ü", field="topic", value="t")
        else:
            reply.send(data)

    async def who(self, data: bytes) -> bytes:
        self.callers.append(current_caller.get())
        return data

    async def until(self, test: Callable[[], bool]) -> None:
        with anyio.fail_after(30):
            while not test():
                self.changed.clear()
                await self.changed.wait()


class Said:
    """One stream."""

    def __init__(self, broker: Broker, reply: Any) -> None:
        self.broker = broker
        self.reply = reply
        broker.streams.append(self)
        broker.changed.set()

    def on_message(self, message: bytes) -> None:
        match message:
            case b"fail":
                raise TopicNotFound("raised", field="topic", value="t")
            case b"end":
                self.reply.end()
            case b"pause":
                self.reply.pause_reading()
            case _ if message.startswith(b"send "):
                for _ in range(int(message[5:])):
                    self.reply.send(bytes(100_000))
            case _:
                self.reply.send(message)

    def on_credit(self) -> None: ...

    def on_half_close(self) -> None:
        self.reply.end()

    def on_close(self) -> None:
        self.broker.closed += 1
        self.broker.changed.set()


@asynccontextmanager
async def serving(
    *, tls: ssl.SSLContext | None = None, client_tls: Tls | None = None, **who: str
) -> AsyncIterator[tuple[Broker, OwnServer, Transport]]:
    broker = Broker()
    server = OwnServer(
        host="127.0.0.1",
        port=0,
        flag="grpc-port",
        route=broker.route(),
        tls=None if tls is None else lambda: tls,
        times=Times(),
    )
    await server.start()
    scheme = "https" if tls is not None else "http"
    transport = Http2Transport(f"{scheme}://localhost:{server.port}", tls=client_tls, **who)
    try:
        yield broker, server, transport
    finally:
        await transport.aclose()
        await server.stop(0)


async def test_who_listens_gets_every_message_until_it_has_enough() -> None:
    async with serving() as (_, _, transport):
        stream = await transport.publish()
        sizes = [0, 1, 70_000, 3_000_000, 2]
        await stream.write(b"first")
        assert await stream.read() == b"first"
        taken: list[int] = []

        def take(message: bytes) -> bool:
            taken.append(len(message))
            return len(taken) < len(sizes)

        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(stream.listen(take))
            for size in sizes:
                if not stream.write_at_once(bytes(size)):
                    await stream.write(bytes(size))
        assert await listening is True
        assert taken == sizes
        await stream.aclose()
        assert not stream.write_at_once(b"late")


async def test_listening_ends_as_the_stream_does_or_by_what_the_listener_raises() -> None:
    async with serving() as (_, _, transport):
        ended, failed, broken = [await transport.publish() for _ in range(3)]
        await ended.write(b"end")
        assert await ended.listen(lambda message: True) is False
        await failed.write(b"fail")
        with pytest.raises(TopicNotFound, match="raised"):
            await failed.listen(lambda message: True)
        await broken.write(b"x")

        def refuse(message: bytes) -> bool:
            raise Internal(f"cannot read {message!r}")

        with pytest.raises(Internal, match="cannot read b'x'"):
            await broken.listen(refuse)
        for stream in (ended, failed, broken):
            await stream.aclose()


async def test_calls_and_streams_of_every_size() -> None:
    async with serving() as (broker, server, transport):
        for size in (0, 1, 70_000, 1_000_000):
            assert await transport.call("/t.T/Ask", bytes(size), timeout_s=30) == bytes(size)
        stream = await transport.publish()
        for size in (0, 1, 70_000, 3_000_000):
            await stream.write(bytes(size))
            assert await stream.read() == bytes(size)
        await stream.finish()
        assert await stream.read() is None
        assert await stream.read() is None
        await stream.aclose()
        await broker.until(lambda: broker.closed == 1)
        assert server.connections == 1


async def test_errors_are_the_brokers_own() -> None:
    async with serving() as (_, _, transport):
        with pytest.raises(TopicNotFound, match="no such topic: ü"):
            await transport.call("/t.T/Ask", b"fail", timeout_s=30)
        with pytest.raises(NotImplementedYet, match="Is it a pydanube broker"):
            await transport.call("/t.T/Nothing", b"", timeout_s=30)
        stream = await transport.publish()
        await stream.write(b"first")
        await stream.write(b"fail")
        assert await stream.read() == b"first"
        for _ in range(2):
            with pytest.raises(TopicNotFound, match="raised"):
                await stream.read()
        with pytest.raises(ClusterError):
            await stream.write(b"more")


async def test_a_deadline_ends_the_call_on_both_sides() -> None:
    async with serving() as (broker, server, transport):
        assert await transport.call("/t.T/Ask", b"", timeout_s=30) == b""
        with pytest.raises(DeadlineExceeded):
            await transport.call("/t.T/Ask", b"wait", timeout_s=0.2)
        assert len(broker.pending) == 1
        assert await transport.call("/t.T/Ask", b"on we go", timeout_s=30) == b"on we go"
        assert server.connections == 1


async def test_who_asks_goes_with_every_call() -> None:
    async with serving(token="secret", principal="ann") as (broker, _, transport):
        await transport.call("/t.T/Who", b"", timeout_s=30)
        found = dict(broker.callers[0].metadata)
        assert (found["authorization"], found["danube-principal"]) == ("Bearer secret", "ann")


async def test_a_stream_that_is_closed_is_closed_there_too() -> None:
    async with serving() as (broker, _, transport):
        stream = await transport.publish()
        await stream.write(b"x")
        assert await stream.read() == b"x"
        await stream.aclose()
        await stream.aclose()
        await broker.until(lambda: broker.closed == 1)
        with pytest.raises(Unavailable, match="closed"):
            await stream.write(b"x")
        with pytest.raises(Unavailable, match="closed"):
            await stream.read()


async def test_nobody_there_is_unavailable_and_says_so() -> None:
    async with serving() as (_, server, transport):
        await server.stop(0)
        with pytest.raises(Unavailable, match="cannot be reached"):
            await transport.publish()
        with pytest.raises(Unavailable, match="cannot be reached"):
            await transport.call("/t.T/Ask", b"", timeout_s=30)


async def test_calls_that_wait_for_a_connection_share_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    open_link = http2_transport.open_link

    async def counted(url: str, *where: Any, **how: Any) -> Any:
        tried.append(url)
        await asyncio.sleep(0)
        return await open_link(url, *where, **how)

    monkeypatch.setattr(http2_transport, "open_link", counted)
    async with serving() as (_, server, transport):
        await server.stop(0)
        tried.clear()
        failures = await asyncio.gather(*(transport.publish() for _ in range(100)), return_exceptions=True)
        assert len(tried) == 1
        assert all(isinstance(each, Unavailable) and each.details["broker"] for each in failures)
        assert len(set(map(id, failures))) == 100, "each caller may change its own"
        with pytest.raises(Unavailable):
            await transport.publish()
        assert len(tried) == 2, "a later call tries again"


async def test_a_broker_that_comes_back_is_found_again() -> None:
    async with serving() as (_, server, transport):
        stream = await transport.publish()
        await stream.write(b"x")
        assert await stream.read() == b"x"
        await server.stop(0)
        with pytest.raises(Unavailable):
            await stream.read()
        again = OwnServer(
            host="127.0.0.1", port=server.port, flag="grpc-port", route=Broker().route(), times=Times()
        )
        await again.start()
        try:
            with anyio.fail_after(30):
                while True:
                    try:
                        assert await transport.call("/t.T/Ask", b"y", timeout_s=10) == b"y"
                        break
                    except Unavailable:
                        await asyncio.sleep(0.05)
        finally:
            await transport.aclose()
            await again.stop(0)


async def test_a_broker_that_takes_no_more_calls_ends_those_it_has() -> None:
    async with serving() as (broker, server, transport):
        stream = await transport.publish()
        await stream.write(b"x")
        assert await stream.read() == b"x"
        stopping = asyncio.ensure_future(server.stop(30))
        await stream.write(b"still")
        assert await stream.read() == b"still"
        with pytest.raises(Unavailable, match="cannot be reached"):
            await transport.call("/t.T/Ask", b"", timeout_s=10)  # needs a connection of its own
        await stream.finish()
        assert await stream.read() is None
        with anyio.fail_after(20):
            await stopping
        assert broker.closed == 1


async def test_a_writer_waits_for_a_broker_that_does_not_read() -> None:
    async with serving() as (broker, _, transport):
        stream = await transport.publish()
        await stream.write(b"pause")
        written = 0

        async def write() -> None:
            nonlocal written
            while True:
                await stream.write(bytes(500_000))
                written += 500_000

        writer = asyncio.ensure_future(write())
        await broker.until(lambda: bool(broker.streams))
        before = -1
        while before != written:
            before = written
            await asyncio.sleep(0.2)
        assert 0 < written < 32 << 20
        assert not writer.done()
        assert await transport.call("/t.T/Ask", b"others go on", timeout_s=30) == b"others go on"
        writer.cancel()
        await asyncio.wait([writer])


async def test_what_nobody_reads_holds_the_broker_back() -> None:
    async with serving() as (broker, _, transport):
        stream = await transport.publish()
        await stream.write(b"send 100")  # 10 MB, and a window of 4
        await broker.until(lambda: bool(broker.streams))
        assert await transport.call("/t.T/Ask", b"others go on", timeout_s=30) == b"others go on"
        reply = broker.streams[0].reply
        with anyio.fail_after(30):
            await until(lambda: reply.connection.http.out.room(reply.stream) <= 100_000)
        assert not reply.writable
        for _ in range(100):
            assert len(await stream.read() or b"") == 100_000


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(handler: Handler) -> AsyncIterator[Transport]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport = Http2Transport(f"http://127.0.0.1:{port}")
    try:
        yield transport
    finally:
        await transport.aclose()
        server.close()


async def test_what_is_no_broker_is_unavailable() -> None:
    async def http1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    async with answering(http1) as transport:
        with pytest.raises(Unavailable, match="not_http2"):
            await transport.call("/t.T/Ask", b"", timeout_s=10)


async def test_one_that_accepts_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydanube.wire.http2_transport.CONNECT_S", 0.2)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with answering(silent) as transport:
        with pytest.raises(Unavailable, match=r"no answer within 0\.2 s"):
            await transport.publish()


async def test_one_that_falls_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydanube.wire.http2_transport.KEEPALIVE_S", 0.2)
    heard = bytearray()

    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))  # SETTINGS, and nothing more
        while piece := await reader.read(1000):
            heard.extend(piece)
        writer.close()

    async with answering(hello) as transport:
        stream = await transport.publish()
        await stream.write(b"x")
        with pytest.raises(Unavailable, match="no sign of life"), anyio.fail_after(20):
            await stream.read()
        assert b"pydanube" in heard  # the PING


@pytest.mark.parametrize(
    ("trailers", "error", "text"),
    [
        ((("grpc-status", "5"), ("grpc-message", "TOPIC_NOT_FOUND: no %C3%BC")), TopicNotFound, "no ü"),
        ((("grpc-status", "999"),), Unavailable, "UNKNOWN"),
        ((("grpc-status", "nonsense"),), Unavailable, "UNKNOWN"),
        ((("grpc-status", "5"), ("danube-error-bin", "/w==")), Internal, "."),  # one byte that is no text
        ((("x", "y"),), Unavailable, "HTTP status 200"),
    ],
)
async def test_whatever_ends_an_answer_becomes_an_error(
    trailers: tuple[tuple[str, str], ...], error: type[ClusterError], text: str
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        block = Encoder().encode(((":status", "200"), ("content-type", "application/grpc"), *trailers))
        writer.write(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
        said = b""
        while b"/t.T/Ask" not in said and b"\0\0\0\0\x03ask" not in said:
            said += await reader.read(1000)
        writer.write(len(block).to_bytes(3, "big") + bytes((1, 5, 0, 0, 0, 1)) + block)
        await reader.read()
        writer.close()

    async with answering(answer) as transport:
        with pytest.raises(error, match=text):
            await transport.call("/t.T/Ask", b"ask", timeout_s=20)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


async def test_tls_with_certificates_of_both_sides(certificates: Path) -> None:
    def file(name: str) -> str:
        return str(certificates / name)

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=file("ca.pem"))
    context.load_cert_chain(file("server.pem"), file("server.key"))
    context.set_alpn_protocols(["h2"])
    context.verify_mode = ssl.CERT_REQUIRED
    ours = Tls(ca=file("ca.pem"), cert=file("client.pem"), key=file("client.key"))
    async with serving(tls=context, client_tls=ours) as (broker, server, transport):
        assert await transport.call("/t.T/Who", bytes(200_000), timeout_s=30) == bytes(200_000)
        assert "client" in str(broker.callers[0].peer.certificate)
        for tls in (Tls(ca=file("ca.pem")), Tls()):  # no certificate; an authority that is not ours
            stranger = Http2Transport(f"https://localhost:{server.port}", tls=tls)
            with pytest.raises(Unavailable):
                await stranger.call("/t.T/Ask", b"", timeout_s=10)
            await stranger.aclose()


def test_certificates_that_are_none_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no certificate")
    with pytest.raises(InvalidArgument, match="cannot read"):
        Http2Transport("https://localhost:1", tls=Tls(ca=str(tmp_path / "nothing")))
    with pytest.raises(InvalidArgument, match="no certificate in PEM"):
        Http2Transport("https://localhost:1", tls=Tls(ca=str(tmp_path / "text")))


async def test_googles_server_understands_what_we_send_and_we_its_answers() -> None:
    async def ask(request: bytes, context: Any) -> bytes:
        if request == b"fail":
            await context.abort(grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND: no ü")
        return request

    async def echo(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)])
    methods = {
        "/t.T/Ask": grpc.unary_unary_rpc_method_handler(ask),
        PUBLISH: grpc.stream_stream_rpc_method_handler(echo),
    }
    for path, handler in methods.items():
        _, service, name = path.split("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    transport = Http2Transport(f"http://127.0.0.1:{port}")
    try:
        with anyio.fail_after(60):
            for size in (0, 1, 70_000, 3_000_000):
                assert await transport.call("/t.T/Ask", bytes(size), timeout_s=30) == bytes(size)
            with pytest.raises(TopicNotFound, match="no ü"):
                await transport.call("/t.T/Ask", b"fail", timeout_s=30)
            stream = await transport.publish()
            for size in (0, 1, 70_000, 3_000_000):
                await stream.write(bytes(size))
                assert await stream.read() == bytes(size)
            await stream.finish()
            assert await stream.read() is None
    finally:
        await transport.aclose()
        await server.stop(None)
