"""So many connections of one address, and no more: on every port, in the clear and over TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from pydanube import Tls, connect

from tests.cli.test_locks_live import Locked, give, locked_broker
from tests.cli.test_slow_peers_live import PREFACE, locked_with_tls, port_of
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
MOST = 3


@asynccontextmanager
async def broker_with(path: Path, *, secure: bool) -> AsyncIterator[Locked]:
    capped = {"server.connections_per_address": str(MOST)}
    if not secure:
        async with locked_broker(path, **capped) as locked:
            await give(locked, "app", "admin")
            yield locked
        return
    async with locked_with_tls(path, **capped) as (locked, _):
        yield locked


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("port", ["grpc", "admin", "metrics", "http"])
async def test_one_address_has_so_many_connections_and_others_are_let_in(
    tmp_path: Path, port: str, secure: bool
) -> None:
    async with broker_with(tmp_path, secure=secure) as locked, AsyncExitStack() as stack:
        trust = None
        if secure:
            trust = ssl.create_default_context(cafile=str(tmp_path / "keys" / "ca.crt"))
            trust.set_alpn_protocols(["h2"] if port in ("grpc", "admin") else ["http/1.1"])
        number = port_of(locked, port)

        async def connected(source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            name = "localhost" if secure else None
            made = await asyncio.open_connection(
                "127.0.0.1", number, ssl=trust, server_hostname=name, local_addr=(source, 0)
            )
            stack.callback(made[1].close)
            made[1].write(
                PREFACE if port in ("grpc", "admin") else b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
            )
            return made

        for _ in range(MOST):
            reader, _ = await connected("127.0.0.1")
            assert await reader.read(1), "it is answered"
        closed = locked.broker.metrics.connections_closed
        try:
            reader, _ = await connected("127.0.0.1")
            assert not await reader.read(1)
        except OSError:
            pass  # reset
        await until(lambda: closed["too_many_of_address"] == 1)
        reader, _ = await connected("127.0.0.2")
        assert await reader.read(1), "another address is let in"


async def test_a_connection_that_ends_leaves_its_place_to_another(tmp_path: Path) -> None:
    async with broker_with(tmp_path, secure=True) as locked:
        tls = Tls(ca=str(tmp_path / "keys" / "ca.crt"))
        for n in range(2 * MOST):
            async with (
                connect(locked.broker.broker_url, token=locked.tokens["app"], tls=tls) as client,
                client.producer("/default/t") as producer,
            ):
                await producer.send(b"%d" % n)
        await until(lambda: not locked.broker.servers[0].by_address)
