"""What is said about the last address of a broker that is gone: whether a process is there comes before its start."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydanube_broker.relay import link
from pydanube_broker.relay.link import Links
from pydanube_cli.certificates import CertificateFolder

from tests.support.broker_process import free_ports

pytestmark = pytest.mark.anyio


def _no_task(_: Coroutine[Any, Any, None]) -> None:
    raise AssertionError("a dial starts no task")


@asynccontextmanager
async def silent_server(context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Accepts, and sends nothing over HTTP/2."""

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(read, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_process_that_sends_nothing_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "CONNECT_S", 0.2)
    async with silent_server() as port:
        url = f"http://127.0.0.1:{port}"
        plain = await Links(_no_task, None).dial(url)
        assert (plain.connects, plain.answers) == (True, True)
        assert plain.sentence.startswith(
            f"A server at its address {url} does not answer properly (it accepts"
        )
        context = ssl.create_default_context
        hung = await Links(_no_task, context).dial(f"https://127.0.0.1:{port}")
        assert "does not answer properly (no answer within" in hung.sentence


async def test_a_process_whose_certificate_is_not_accepted_is_there(tmp_path: Path) -> None:
    folder = CertificateFolder(path=tmp_path / "theirs")
    folder.make(("localhost", "127.0.0.1"), principal="x", days=1, again=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder.file("server.crt"), folder.file("server.key"))
    context.set_alpn_protocols(["h2"])
    async with silent_server(context) as port:
        found = await Links(_no_task, ssl.create_default_context).dial(f"https://127.0.0.1:{port}")
    assert found.answers
    assert "does not answer properly (its certificate is not accepted: " in found.sentence


async def test_of_a_port_without_a_process_nothing_answers() -> None:
    (port,) = free_ports(1)
    found = await Links(_no_task, None).dial(f"http://127.0.0.1:{port}")
    assert (found.connects, found.answers) == (False, False)
    assert found.sentence.startswith(f"Nothing answers at its address http://127.0.0.1:{port} (")
