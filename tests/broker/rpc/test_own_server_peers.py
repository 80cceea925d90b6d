"""Peers that are slow, gone, hostile, behind TLS or on a Unix socket; others do not notice those that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
from pydanube_broker.rpc.caller import Caller, current_caller
from pydanube_broker.rpc.hot import Route
from pydanube_broker.rpc.own_server import OwnServer, Times
from pydanube_broker.rpc.routing import RELAYED
from pydanube_core.http2.codes import PREFACE, ErrorCode, FrameType

from tests.broker.rpc.http2_peer import (
    REQUEST,
    Frame,
    FrameReader,
    Peer,
    data,
    frame,
    message,
    reset,
    settings,
)
from tests.support.certificates import make_certificates

pytestmark = pytest.mark.anyio

TIMES = Times(
    handshake_s=0.3,
    headers_s=0.3,
    frame_s=0.3,
    request_s=0.3,
    ping_after_s=0.4,
    ping_timeout_s=0.3,
    look_s=0.1,
)


class Host:
    """A server that echoes, and who called it."""

    def __init__(self) -> None:
        self.closed: Counter[str] = Counter()
        self.calls: Counter[Any] = Counter()
        self.callers: list[Caller | None] = []

    async def whoami(self, request: bytes) -> bytes:
        self.callers.append(current_caller.get())
        return request

    def server(self, times: Times, **more: Any) -> OwnServer:
        route = Route(
            hot={"/test.Test/Echo": lambda request, reply: reply.send(request)},
            cold={"/test.Test/Who": self.whoami},
        )
        return OwnServer(
            host="127.0.0.1",
            port=0,
            flag="grpc-port",
            route=route,
            calls=self.calls,
            closed=self.closed,
            times=times,
            **more,
        )


@contextlib.asynccontextmanager
async def serving(times: Times = TIMES, **more: Any) -> AsyncIterator[tuple[OwnServer, Host]]:
    host = Host()
    server = host.server(times, **more)
    await server.start()
    try:
        yield server, host
    finally:
        await server.stop(0)


async def until_closed(reader: asyncio.StreamReader) -> list[Frame]:
    """The frames up to the end of the connection."""
    frames, found = FrameReader(), []
    with anyio.fail_after(30):
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(65536):
                found += frames.feed(part)
    return found


def greeting(peer: Peer) -> bytes:
    return PREFACE + settings() + settings(ack=True)


SLOW: list[tuple[str, ErrorCode, Callable[[Peer], bytes]]] = [
    ("slow_handshake", ErrorCode.SETTINGS_TIMEOUT, lambda peer: PREFACE[:10]),
    ("slow_handshake", ErrorCode.SETTINGS_TIMEOUT, lambda peer: b""),
    (
        "slow_headers",
        ErrorCode.ENHANCE_YOUR_CALM,
        lambda peer: greeting(peer) + frame(FrameType.HEADERS, 0, 1, peer.block()[:5]),
    ),
    (
        "slow_frame",
        ErrorCode.ENHANCE_YOUR_CALM,
        lambda peer: greeting(peer) + peer.request(1) + data(1, bytes(1000))[:500],
    ),
]


@pytest.mark.parametrize(("reason", "code", "sent"), SLOW)
async def test_a_peer_that_takes_its_time_is_not_waited_for(
    reason: str, code: ErrorCode, sent: Callable[[Peer], bytes]
) -> None:
    async with serving() as (server, host):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent(Peer()))
        goaway = [f for f in await until_closed(reader) if f.kind == FrameType.GOAWAY]
        assert [int.from_bytes(f.payload[4:8], "big") for f in goaway] == [code]
        assert host.closed == {reason: 1}
        writer.close()


async def test_a_frame_that_comes_byte_by_byte_does_not_live_on() -> None:
    async with serving() as (server, host):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        peer = Peer()
        writer.write(greeting(peer))
        end = asyncio.ensure_future(until_closed(reader))
        for byte in peer.request(1) * 1000:
            if end.done():
                break
            writer.write(bytes((byte,)))
            await asyncio.sleep(0.02)
        await end
        assert host.closed == {"slow_frame": 1}
        writer.close()


async def test_a_request_that_stops_coming_ends_and_its_connection_goes_on() -> None:
    async with serving() as (server, host):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        peer = Peer()
        writer.write(greeting(peer) + peer.request(1) + data(1, message(bytes(100))[:50]))
        frames = FrameReader()
        seen: list[Frame] = []
        with anyio.fail_after(30):
            while not [f for f in seen if f.kind == FrameType.HEADERS]:
                seen += frames.feed(await reader.read(65536))
                for ping in seen:
                    if ping.kind == FrameType.PING and not ping.flags & 1:
                        writer.write(frame(FrameType.PING, 1, 0, ping.payload))
        (ended,) = [f for f in seen if f.kind == FrameType.HEADERS]
        assert dict(peer.decoder.decode(ended.payload))["grpc-status"] == "4"
        assert host.closed == {}
        assert host.calls["test.Test", "Echo", "DEADLINE_EXCEEDED"] == 1
        writer.close()


async def test_a_half_open_connection_is_found_and_given_up() -> None:
    async with serving() as (server, host):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(greeting(Peer()))
        found = await until_closed(reader)  # it reads, and says nothing any more
        assert [f for f in found if f.kind == FrameType.PING]
        assert host.closed == {"half_open": 1}
        assert server.connections == 0
        writer.close()


async def test_an_idle_connection_that_answers_lives() -> None:
    async with serving() as (server, host):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(greeting(Peer()))
        frames, answered = FrameReader(), 0
        with anyio.fail_after(30):
            while answered < 3:
                for f in frames.feed(await reader.read(65536)):
                    if f.kind == FrameType.PING:
                        writer.write(frame(FrameType.PING, 1, 0, f.payload))
                        answered += 1
        assert (server.connections, host.closed) == (1, {})
        writer.close()


async def test_a_peer_that_does_not_read_holds_a_bounded_amount() -> None:
    """It asks for answers without end and reads none: it is not read from any more, and given up."""
    async with serving() as (server, host):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
        peer = Peer()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(greeting(peer) + settings((4, (1 << 31) - 1)))
        writer.write(frame(FrameType.WINDOW_UPDATE, 0, 0, ((1 << 31) - 65_536).to_bytes(4, "big")))
        number, most = 1, 0
        with anyio.fail_after(60):
            while not host.closed:
                if number < 4000 and writer.transport.get_write_buffer_size() < 100_000:
                    for _ in range(20):
                        writer.write(peer.request(number) + data(number, message(bytes(10_000)), end=True))
                        number += 2
                for connection in server.open_connections:
                    most = max(most, connection.http.out.held_bytes)
                await asyncio.sleep(0.005)
        assert host.closed == {"reads_nothing": 1}
        assert most < 4 << 20
        writer.transport.abort()


class Large:
    """A stream that says as much as it may, in pieces of 1 MB."""

    def __init__(self, request: bytes, reply: Any) -> None:
        self.reply = reply
        self.closed = False
        reply.begin()
        self.on_credit()

    def on_credit(self) -> None:
        if self.reply.writable:
            self.reply.send(bytes(1 << 20))

    def on_close(self) -> None:
        self.closed = True


@contextlib.asynccontextmanager
async def all_served(
    count: int, times: Times, *head: tuple[str, str]
) -> AsyncIterator[tuple[OwnServer, list[Large]]]:
    """Have so many `Large` streams on one connection, whose windows stay shut, until each had its turn."""
    streams: list[Large] = []

    def opened(request: bytes, reply: Any) -> Large:
        streams.append(Large(request, reply))
        return streams[-1]

    route = Route(server_streams={"/test.Test/Large": opened})
    server = OwnServer(host="127.0.0.1", port=0, flag="grpc-port", route=route, times=times)
    await server.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        peer = Peer()
        writer.write(greeting(peer) + frame(FrameType.WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4, "big")))
        headers = tuple((name, "/test.Test/Large" if name == ":path" else value) for name, value in REQUEST)
        for number in range(1, 2 * count, 2):
            writer.write(peer.request(number, block=peer.block(headers=(*headers, *head))))
            writer.write(data(number, message(b""), end=True))
        frames, got = FrameReader(), Counter[int]()
        with anyio.fail_after(30):
            while len(got) < count:
                for f in frames.feed(await reader.read(65536)):
                    if f.kind == FrameType.DATA:
                        got[f.stream_id] += len(f.payload)
        yield server, streams
        writer.transport.abort()
    finally:
        await server.stop(0)


async def test_streams_that_nobody_reads_give_way_to_those_that_wait_for_their_room() -> None:
    times = Times(look_s=0.05, stuck_s=0.3, ping_after_s=60)
    async with all_served(20, times) as (server, streams):
        assert streams[0].closed
        assert not streams[-1].closed
        assert server.connections == 1


async def test_streams_of_other_brokers_clients_do_not_wait_for_one_that_reads_nothing() -> None:
    """Nor for any number of them: beyond a bound the one that holds most is ended at once."""
    async with all_served(40, Times(stuck_s=3600), (RELAYED.decode(), "x")) as (server, streams):
        bound = server.limits.stuck_bytes + server.limits.queued_bytes
        (held,) = (each.holds() for each in server.open_connections)
        assert held < bound
        assert sum(each.closed for each in streams) >= 40 - bound // (1 << 20)


async def test_others_do_not_notice_an_attack() -> None:
    async with (
        serving(Times()) as (server, host),
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        echo = channel.unary_unary("/test.Test/Echo")
        assert await echo(b"before") == b"before"
        attackers = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        for _, writer in attackers:
            peer = Peer()
            writer.write(greeting(peer))
            writer.write(b"".join(peer.request(n) + reset(n) for n in range(1, 2400, 2)))
        texts = [b"%d" % n for n in range(50)]
        assert await asyncio.gather(*(echo(text) for text in texts)) == texts
        for reader, writer in attackers:
            goaway = [f for f in await until_closed(reader) if f.kind == FrameType.GOAWAY]
            assert [f.payload[8:] for f in goaway] == [b"rapid_reset"]
            writer.close()
        assert host.closed == {"rapid_reset": 3}
        assert await echo(b"after") == b"after"


async def test_one_connection_more_than_allowed_takes_the_place_of_what_was_idle_for_longest() -> None:
    async with serving(Times(connections=2)) as (server, host):
        opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        try:
            opened[1][1].write(greeting(Peer()))
            acknowledged = FrameReader()
            with anyio.fail_after(30):
                while not any(
                    f.kind == FrameType.SETTINGS and f.flags
                    for f in acknowledged.feed(await opened[1][0].read(65536))
                ):
                    pass  # the second has been heard of, the first has not
            opened.append(await asyncio.open_connection("127.0.0.1", server.port))
            (goaway,) = [f for f in await until_closed(opened[0][0]) if f.kind == FrameType.GOAWAY]
            assert goaway.payload == bytes(8) + b"too_many_connections", "a client takes it for no fault"
            assert host.closed == {"too_many_connections": 1}
            assert await opened[2][0].readexactly(9), "the new one is greeted"
        finally:
            for _, writer in opened:
                writer.close()


async def test_a_browser_is_told_what_speaks_here() -> None:
    async with serving(Times()) as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        peer = Peer()
        headers = ((":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "x"))
        writer.write(greeting(peer) + peer.request(1, block=peer.encoder.encode(headers), end=True))
        frames, seen = FrameReader(), []
        with anyio.fail_after(30):
            while not [f for f in seen if f.end]:
                seen += frames.feed(await reader.read(65536))
        (head,) = [f for f in seen if f.kind == FrameType.HEADERS]
        assert dict(peer.decoder.decode(head.payload))[":status"] == "405"
        assert b"gRPC" in b"".join(f.payload for f in seen if f.kind == FrameType.DATA)
        writer.close()


async def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with (
        serving(Times(), unix_path=str(path)) as (_, host),
        grpc.aio.insecure_channel(f"unix:{path}") as channel,
    ):
        assert await channel.unary_unary("/test.Test/Who")(b"x") == b"x"
        (caller,) = host.callers
        assert caller is not None
        assert caller.peer.address == "unix:"


# -- TLS -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def context(folder: Path, *, mutual: bool) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(folder / "server.pem", folder / "server.key")
    made.set_alpn_protocols(["h2"])
    if mutual:
        made.load_verify_locations(folder / "ca.pem")
        made.verify_mode = ssl.CERT_REQUIRED
    return made


@pytest.mark.parametrize("mutual", [False, True])
async def test_tls_and_who_the_client_is(certificates: Path, mutual: bool) -> None:
    authority = (certificates / "ca.pem").read_bytes()
    pair = [(certificates / f"client.{end}").read_bytes() for end in ("key", "pem")] if mutual else []
    async with serving(Times(), tls=partial(context, certificates, mutual=mutual)) as (server, host):
        credentials = grpc.ssl_channel_credentials(authority, *pair)
        async with grpc.aio.secure_channel(f"localhost:{server.port}", credentials) as channel:
            text = bytes(300_000)
            assert await channel.unary_unary("/test.Test/Who")(text) == text
        (caller,) = host.callers
        assert caller is not None
        assert caller.peer.names == (("client", "spiffe://danube/worker") if mutual else ())


async def test_mutual_tls_admits_nobody_without_a_certificate(certificates: Path) -> None:
    authority = (certificates / "ca.pem").read_bytes()
    async with serving(Times(), tls=partial(context, certificates, mutual=True)) as (server, host):
        credentials = grpc.ssl_channel_credentials(authority)
        async with grpc.aio.secure_channel(f"localhost:{server.port}", credentials) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/test.Test/Who")(b"", timeout=30)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert host.callers == []


async def test_tls_without_h2_is_closed(certificates: Path) -> None:
    async with serving(Times(), tls=partial(context, certificates, mutual=False)) as (server, host):
        plain = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        reader, writer = await asyncio.open_connection("localhost", server.port, ssl=plain)
        await until_closed(reader)
        assert host.closed == {"no_h2_in_tls": 1}
        writer.close()
