"""A broker that is trusted, or was, sends clients elsewhere: their token does not go with them to whoever cannot prove his name."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydanube import Tls, connect
from pydanube_broker.broker import Broker
from pydanube_broker.settings.load import load_settings
from pydanube_cli.certificates import CertificateFolder
from pydanube_core.errors import ClusterError

from tests.support.broker_process import free_ports

TOKEN = "danube_0000000000000000_" + "A" * 43


def certificates(path: Path, *hosts: str) -> CertificateFolder:
    folder = CertificateFolder(path=path)
    folder.make(hosts, principal="x", days=1, again=False)
    return folder


@asynccontextmanager
async def thief(folder: CertificateFolder | None) -> AsyncIterator[tuple[int, bytearray]]:
    """Somebody who listens, and keeps what he is sent, once it is decrypted."""
    got = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(1 << 16):
            got.extend(piece)
        writer.close()

    context = None
    if folder is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder.file("server.crt"), folder.file("server.key"))
        context.set_alpn_protocols(["h2"])
    server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1], got


@pytest.mark.anyio
@pytest.mark.parametrize("case", ["another authority", "another name", "plain text", "the right name"])
async def test_a_token_does_not_go_to_an_address_that_an_answer_names_and_that_proves_nothing(
    tmp_path: Path, case: str
) -> None:
    honest = certificates(tmp_path / "honest", "localhost", "127.0.0.1")
    theirs = {
        "another authority": certificates(tmp_path / "theirs", "localhost", "127.0.0.1"),
        "another name": None,
        "plain text": None,
        "the right name": honest,
    }[case]
    if case == "another name":  # of the same authority, for somebody else: another broker's key was stolen
        theirs = CertificateFolder(path=honest.path)
        kept = {name: honest.file(name).read_bytes() for name in ("server.crt", "server.key")}
        (tmp_path / "own").mkdir()
        for name, content in kept.items():
            (tmp_path / "own" / name).write_bytes(content)
        theirs.make(["elsewhere.example.org"], principal="x", days=1, again=True)
        own = tmp_path / "own"
    else:
        own = honest.path
    async with thief(theirs) as (port, got):
        (here,) = free_ports(1)
        values = {
            "data.dir": ":memory:", "server.grpc_port": here, "server.admin_port": 0, "server.metrics_port": 0,
            "server.advertised_url": f"https://localhost:{port}", "tls.cert": str(own / "server.crt"),
            "tls.key": str(own / "server.key"),
        }  # fmt: skip
        async with (
            Broker(load_settings(None, {}, values)),
            connect(
                f"https://localhost:{here}", token=TOKEN, tls=Tls(ca=str(honest.file("ca.crt")))
            ) as client,
        ):
            with pytest.raises((ClusterError, TimeoutError)):
                async with asyncio.timeout(5), client.producer("orders") as producer:
                    await producer.send(b"hello")
    match case:
        case "the right name":  # so that it is known that he is called
            assert got.startswith(b"PRI * HTTP/2.0")
        case "plain text":
            assert got.startswith(b"\x16\x03")  # a handshake, which he cannot answer
        case _:
            assert got == b""
