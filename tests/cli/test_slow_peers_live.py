"""Peers that say nothing, or a byte at a time, on every port of a locked broker with TLS; and a port full of strangers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest
from hpack import Encoder
from pydanube import Tls, connect
from pydanube_broker import ports
from pydanube_broker.rpc import http_port
from pydanube_broker.rpc.own_server import Times

from tests.cli.test_locks_live import Locked, give, locked_broker
from tests.cli.test_tls_live import certificates

SHORT_S: Final = 0.4  # of the patience that is 10 to 60 s
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
#: name → whether TLS is spoken, what is said at once, and what then comes byte by byte
SAID: Final[dict[str, tuple[bool, bytes, bytes]]] = {
    "nothing": (False, b"", b""),
    "a byte of a handshake": (False, b"\x16", b""),
    "a handshake byte by byte": (False, b"\x16\x03\x01\x02\x00", b"\x01\x00\x01" + bytes(500)),
    "nothing in TLS": (True, b"", b""),
    "half a preface": (True, PREFACE[:10], b""),
    "a head byte by byte": (True, b"", b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nx-slow: " + b"a" * 500),
    "a frame byte by byte": (True, PREFACE, bytes((0, 255, 0, 0, 0, 0, 0, 0, 1)) + bytes(500)),
}


@asynccontextmanager
async def locked_with_tls(path: Path, **more: object) -> AsyncIterator[tuple[Locked, Path]]:
    folder = certificates(path / "keys")
    made = {"tls.cert": str(folder.file("server.crt")), "tls.key": str(folder.file("server.key"))}
    async with locked_broker(path, **made, **more) as broker:
        await give(broker, "app", "admin")
        yield broker, path


@pytest.fixture(scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Locked, Path]]:
    with pytest.MonkeyPatch.context() as patch:
        short = {f"{what}_s": SHORT_S for what in ("handshake", "headers", "frame", "request")}
        patch.setattr(ports, "Times", functools.partial(Times, **short, look_s=0.05))
        patch.setattr(http_port, "REQUEST_S", SHORT_S)
        patch.setattr(http_port, "patient_http", functools.partial(http_port.patient_http, request_s=SHORT_S))
        async with locked_with_tls(tmp_path_factory.mktemp("slow")) as found:
            yield found


def port_of(locked: Locked, name: str) -> int:
    broker = locked.broker
    url = {
        "grpc": broker.broker_url, "admin": broker.admin_url, "metrics": broker.metrics_url, "http": locked.http,
    }[name]  # fmt: skip
    return int(url.rpartition(":")[2])


async def close_of(port: int, said: tuple[bool, bytes, bytes], trust: ssl.SSLContext) -> None:
    """Say what a slow peer says until the other side has closed."""
    in_tls, at_once, then = said
    reader, writer = await asyncio.open_connection(
        "localhost", port, ssl=trust if in_tls else None, server_hostname="localhost" if in_tls else None
    )
    with contextlib.suppress(OSError, ssl.SSLError):  # reset: it is closed
        writer.write(at_once)
        hearing = asyncio.ensure_future(reader.read(-1))
        for byte in then:
            writer.write(bytes((byte,)))
            done, _ = await asyncio.wait({hearing}, timeout=0.02)
            if done:
                break
        await hearing
    writer.close()


@pytest.mark.parametrize("port", ["grpc", "admin", "metrics", "http"])
async def test_slow_peers_are_closed_on_every_port_and_others_served(
    locked: tuple[Locked, Path], port: str
) -> None:
    broker, path = locked
    trust = ssl.create_default_context(cafile=str(path / "keys" / "ca.crt"))
    trust.set_alpn_protocols(["h2"] if port in ("grpc", "admin") else ["http/1.1"])
    tls = Tls(ca=path / "keys" / "ca.crt")
    async with (
        asyncio.timeout(60),
        connect(broker.broker.broker_url, token=broker.tokens["app"], tls=tls) as client,
        client.producer(f"/default/{port}") as producer,
        asyncio.TaskGroup() as group,
    ):
        peers = [group.create_task(close_of(port_of(broker, port), said, trust)) for said in SAID.values()]
        while not all(each.done() for each in peers):
            await producer.send(b"served")


async def test_strangers_who_fill_a_port_keep_out_nobody_who_shows_who_he_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They open streams and say no more: no connection of theirs is idle, and each was in the way for a minute."""
    monkeypatch.setattr(ports, "Times", lambda **more: Times(**{**more, "connections": 12}))
    fields = {
        ":method": "POST",
        ":scheme": "https",
        ":path": "/danube.stream.Stream/Publish",
        ":authority": "x",
    }
    head = Encoder().encode([*fields.items(), ("content-type", "application/grpc"), ("te", "trailers")])
    said = PREFACE + len(head).to_bytes(3, "big") + bytes((1, 4, 0, 0, 0, 1)) + head
    async with (
        asyncio.timeout(60),
        locked_with_tls(tmp_path) as (broker, path),
        connect(
            broker.broker.broker_url, token=broker.tokens["app"], tls=Tls(ca=path / "keys" / "ca.crt")
        ) as client,
        client.producer("/default/strangers") as producer,
        AsyncExitStack() as strangers,
    ):
        trust = ssl.create_default_context(cafile=str(path / "keys" / "ca.crt"))
        trust.set_alpn_protocols(["h2"])
        for _ in range(40):  # the port holds twelve
            reader, writer = await asyncio.open_connection(
                "localhost", port_of(broker, "grpc"), ssl=trust, server_hostname="localhost"
            )
            strangers.callback(writer.close)
            writer.write(said)
            await reader.read(9)
            await producer.send(b"meanwhile")
        async with (
            connect(
                broker.broker.broker_url, token=broker.tokens["app"], tls=Tls(ca=path / "keys" / "ca.crt")
            ) as late,
            late.producer("/default/strangers-late") as other,
        ):
            await other.send(b"let in")
        assert producer.statistics().reconnects == 0


async def test_what_tls_takes_for_strangers_is_of_the_one_budget(tmp_path: Path) -> None:
    """Each of them made the transport keep 300 KiB, of which nobody knew: a port has room for 10 000."""
    budget = 4 << 20
    more = {"server.peer_memory_bytes": budget}
    frame_of_no_kind = (16_384).to_bytes(3, "big") + bytes((0x55, 0, 0, 0, 0, 0)) + bytes(16_384)
    said = {
        "grpc": PREFACE + 8 * frame_of_no_kind,
        "http": b"POST /rpc HTTP/1.1\r\nhost: x\r\ncontent-length: 4000000\r\n\r\n" + bytes(131_072),
    }
    async with (
        asyncio.timeout(60),
        locked_with_tls(tmp_path, **more) as (broker, path),
        AsyncExitStack() as strangers,
    ):
        tls, token = Tls(ca=path / "keys" / "ca.crt"), broker.tokens["app"]
        client = await strangers.enter_async_context(connect(broker.broker.broker_url, token=token, tls=tls))
        producer = await strangers.enter_async_context(client.producer("/default/memory"))
        web = await strangers.enter_async_context(
            httpx.AsyncClient(
                verify=ssl.create_default_context(cafile=str(path / "keys" / "ca.crt")),
                headers={"authorization": f"Bearer {token}"},
                trust_env=False,
            )
        )

        async def memory() -> dict[str, int]:
            found = (await web.get(f"{broker.broker.metrics_url}/status", timeout=60)).json()["peer_memory"]
            assert isinstance(found, dict)
            return found

        for port in ("grpc", "http"):
            trust = ssl.create_default_context(cafile=str(path / "keys" / "ca.crt"))
            trust.set_alpn_protocols(["h2" if port == "grpc" else "http/1.1"])
            before = await memory()
            for _ in range(60):
                _, writer = await asyncio.open_connection(
                    "localhost", port_of(broker, port), ssl=trust, server_hostname="localhost"
                )
                strangers.callback(writer.close)
                writer.write(said[port])
                await writer.drain()
                await producer.send(b"meanwhile")
                assert (await memory())["held_bytes"] < budget * 5 // 4  # a turn has room for one more
            assert (await memory())["connections_closed"] > before["connections_closed"]
        assert producer.statistics().reconnects == 0
