"""TLS on all ports of a real broker, with the certificates that `danube tls init` makes."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType

import pytest
from pydanube import Tls, connect
from pydanube.admin import connect_admin
from pydanube.wire.http2_transport import Http2Transport
from pydanube.wire.tls import tls_failure
from pydanube_broker.broker import Broker
from pydanube_broker.settings.load import load_settings
from pydanube_cli.certificates import CertificateFolder
from pydanube_cli.composition import administered, http_face
from pydanube_cli.main import run
from pydanube_core.errors import AlreadyExists, InvalidArgument, Unavailable

from tests.support.broker_process import SMALL_SEGMENT_BYTES, WITHOUT_TELEMETRY
from tests.support.official_client import run_beside_official_client
from tests.support.waiting import until

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
MCP = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "list_topics"}
JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
HOSTS = ("localhost", "127.0.0.1")


def certificates(path: Path, *, hosts: tuple[str, ...] = HOSTS, days: int = 2) -> CertificateFolder:
    folder = CertificateFolder(path=path)
    folder.make(hosts, principal="ann", days=days, again=False)
    return folder


@asynccontextmanager
async def broker_with(folder: CertificateFolder | None, **more: object) -> AsyncIterator[tuple[Broker, str]]:
    """A running broker, and the URL of its HTTP port."""
    values: dict[str, object] = {
        "data.dir": ":memory:",
        "journal.segment_bytes": SMALL_SEGMENT_BYTES,
        **WITHOUT_TELEMETRY,
        **{f"server.{port}_port": 0 for port in ("grpc", "admin", "metrics", "http")},
        **more,
    }
    if folder is not None:
        values |= {"tls.cert": str(folder.file("server.crt")), "tls.key": str(folder.file("server.key"))}
    settings = load_settings(None, {}, values)
    async with (
        administered(settings) as (broker, core),
        http_face(broker, core.serve_call) as url,
    ):
        yield broker, url


async def get(
    url: str, ca: Path, body: bytes | None = None, headers: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    context = ssl.create_default_context(cafile=str(ca))
    request = urllib.request.Request(url, data=body, headers=JSON | headers)

    def ask() -> bytes:
        with urllib.request.urlopen(request, context=context, timeout=30) as answer:
            found: bytes = answer.read()
            return found

    return await asyncio.to_thread(ask)


async def refusal(url: str, tls: Tls | None) -> str:
    transport = Http2Transport(url, tls=tls)
    try:
        with pytest.raises(Unavailable) as caught:
            await transport.resolve(b"", timeout_s=20)
    finally:
        await transport.aclose()
    certificate = "its certificate" in caught.value.message or "not trusted here" in caught.value.message
    assert caught.value.retryable is not certificate, caught.value.message
    return caught.value.message


async def test_every_port_speaks_tls_and_messages_pass(tmp_path: Path) -> None:
    folder = certificates(tmp_path / "c")
    ca = folder.file("ca.crt")
    tls = Tls(ca=str(ca))
    async with broker_with(folder) as (broker, http):
        assert broker.broker_url.startswith("https://")
        async with connect(broker.broker_url.replace("https", "danubes"), tls=tls) as client:
            async with client.producer("orders") as producer:
                await producer.send(b"hello")
            async with client.reader("orders") as reader:
                assert (await anext(reader)).payload == b"hello"
        async with connect_admin(broker.admin_url, tls=tls) as admin:
            assert [topic.topic for topic in (await admin.topics.list()).items] == ["/default/orders"]
        assert await get(f"{broker.metrics_url}/healthz", ca) == b"ok\n"
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "topics.list", "params": {}}).encode()
        assert json.loads(await get(f"{http}/rpc", ca, body))["result"]["total"] == 1
        call = {"name": "list_topics", "arguments": {}, "_meta": META}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
        assert b"/default/orders" in await get(f"{http}/mcp", ca, body, MCP)


async def test_what_is_wrong_with_a_certificate_is_said(tmp_path: Path) -> None:
    folder, other = certificates(tmp_path / "c"), certificates(tmp_path / "other")
    ca = str(folder.file("ca.crt"))
    async with broker_with(folder) as (broker, _):
        url = broker.broker_url
        assert "an authority that is not trusted here" in await refusal(
            url, Tls(ca=str(other.file("ca.crt")))
        )
        assert "write https://" in await refusal(url.replace("https", "http"), None)
        assert broker.metrics.connections_closed["plain_text_on_tls_port"] == 1
    wrong = certificates(tmp_path / "wrong", hosts=("elsewhere.example.org",))
    async with broker_with(wrong) as (broker, _):
        assert "for another name" in await refusal(broker.broker_url, Tls(ca=str(wrong.file("ca.crt"))))
    async with broker_with(None) as (broker, _):
        assert "does not speak TLS. Write http://" in await refusal(
            broker.broker_url.replace("http", "https"), Tls(ca=ca)
        )
        assert broker.metrics.connections_closed["tls_on_plain_port"] == 1


def test_an_expired_certificate_is_called_expired() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = 10, "certificate has expired"
    assert "has expired" in tls_failure(error)


async def test_plain_http_on_a_tls_port_is_answered_in_http(tmp_path: Path) -> None:
    async with broker_with(certificates(tmp_path / "c")) as (broker, _):
        plain = broker.metrics_url.replace("https", "http")
        with pytest.raises(urllib.error.HTTPError) as caught:
            await asyncio.to_thread(urllib.request.urlopen, f"{plain}/healthz")
        assert caught.value.code == 400
        assert b"this port speaks TLS: write https://" in caught.value.read()


async def test_clients_show_a_certificate_where_that_is_asked_for(tmp_path: Path) -> None:
    folder, other = certificates(tmp_path / "c"), certificates(tmp_path / "other")
    ca, client_ca = str(folder.file("ca.crt")), {"tls.client_ca": str(folder.file("ca.crt"))}
    async with broker_with(folder, **client_ca) as (broker, _):
        assert "requires a client's certificate" in await refusal(broker.broker_url, Tls(ca=ca))
        stranger = Tls(ca=ca, cert=str(other.file("client.crt")), key=str(other.file("client.key")))
        assert "its tls.client_ca did not make" in await refusal(broker.broker_url, stranger)
        ours = Tls(ca=ca, cert=str(folder.file("client.crt")), key=str(folder.file("client.key")))
        async with connect_admin(broker.admin_url, tls=ours) as admin:
            assert (await admin.topics.list()).total == 0
        # the HTTP ports ask for none
        assert await get(f"{broker.metrics_url}/healthz", folder.file("ca.crt")) == b"ok\n"


async def test_changed_files_are_taken_and_open_connections_stay(tmp_path: Path) -> None:
    folder = certificates(tmp_path / "c")
    tls = Tls(ca=str(folder.file("ca.crt")))
    async with broker_with(folder) as (broker, _):
        shown: list[bytes | None] = []

        async def look() -> None:
            host, port = broker.broker_url.removeprefix("https://").split(":")
            context = ssl.create_default_context(cafile=str(folder.file("ca.crt")))
            context.set_alpn_protocols(["h2"])
            _, writer = await asyncio.open_connection(host, int(port), ssl=context)
            shown.append(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
            writer.close()

        assert broker.tls is not None
        async with connect(broker.broker_url, tls=tls) as client, client.producer("t") as producer:
            await producer.send(b"before")
            await look()
            folder.make(HOSTS, principal="ann", days=3, again=True)
            broker.tls.look()
            await look()
            assert shown[0] != shown[1]
            folder.file("server.key").write_text("half-written")
            broker.tls.look()
            await look()
            assert shown[1] == shown[2]  # the last good ones stay in force
            await producer.send(b"after")
            assert producer.statistics().reconnects == 0


async def test_a_storm_of_silent_connections_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pydanube_broker.rpc.tls_door.MOST_WAITING", 8)
    folder = certificates(tmp_path / "c")
    async with broker_with(folder) as (broker, _):
        host, port = broker.broker_url.removeprefix("https://").split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
        async with connect_admin(broker.broker_url, tls=Tls(ca=str(folder.file("ca.crt")))) as admin:
            assert (await admin.topics.list()).total == 0
        assert broker.metrics.connections_closed["too_many_handshakes"] >= 12
        for _, writer in silent:
            writer.close()


async def test_a_storm_from_one_address_ends_no_handshake_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest gave way, whosever it was: nobody from far away came in while the storm went on."""
    monkeypatch.setattr("pydanube_broker.rpc.tls_door.MOST_WAITING", 8)
    folder = certificates(tmp_path / "c")
    async with broker_with(folder) as (broker, _), AsyncExitStack() as stack:
        port = int(broker.broker_url.rpartition(":")[2])

        async def opened(source: str) -> asyncio.StreamWriter:
            _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
            stack.callback(writer.close)
            return writer

        slow = await opened("127.0.0.1")
        for _ in range(20):
            await opened("127.0.0.2")
        await until(lambda: broker.metrics.connections_closed["too_many_handshakes"] >= 12)
        trust = ssl.create_default_context(cafile=str(folder.file("ca.crt")))
        await slow.start_tls(trust, server_hostname="localhost")
        assert slow.get_extra_info("ssl_object").version() == "TLSv1.3"


def test_certificates_are_made_once_and_renewed_by_the_same_authority(tmp_path: Path) -> None:
    folder = certificates(tmp_path / "c")
    before = {name: folder.file(name).read_bytes() for name in ("ca.crt", "server.crt")}
    with pytest.raises(AlreadyExists, match="--force"):
        folder.make(HOSTS, principal="ann", days=2, again=False)
    folder.make(HOSTS, principal="ann", days=2, again=True)
    assert folder.file("ca.crt").read_bytes() == before["ca.crt"]
    assert folder.file("server.crt").read_bytes() != before["server.crt"]
    assert {
        oct(folder.file(f"{name}.key").stat().st_mode & 0o777) for name in ("ca", "server", "client")
    } == {"0o600"}
    with pytest.raises(InvalidArgument, match="--hosts"):
        folder.make(["http://no:1"], principal="ann", days=2, again=True)


def test_the_command_says_what_to_write_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tls", "init", "--dir", str(tmp_path / "c"), "--as", "ann", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["principal"] == "ann"
    assert all(Path(made[name]).is_file() for name in ("ca", "cert", "key", "client_cert", "client_key"))
    assert run(["tls", "init", "--dir", str(tmp_path / "c"), "--json"]) != 0
    assert run(["tls", "init", "--dir", str(tmp_path / "d"), "--hosts", "a b/c", "--json"]) == 2


def test_a_token_is_not_sent_in_the_clear_over_a_network() -> None:
    with pytest.raises(InvalidArgument, match="write https://"):
        Http2Transport("http://broker.example.org:6650", token="secret")
    Http2Transport("http://127.0.0.1:6650", token="secret")
    assert os.environ.get("DANUBE_TOKEN") is None


async def test_the_official_python_client_over_tls(tmp_path: Path) -> None:
    folder = certificates(tmp_path / "c")
    script = Path(__file__).parent / "official_over_tls.py"
    async with broker_with(folder) as (broker, _):
        arguments = (broker.broker_url, folder.file("ca.crt").read_text(), "")
        done = await asyncio.to_thread(run_beside_official_client, script, *arguments, interpreter_options=())
    assert (done.stdout.strip(), done.returncode) == ("over TLS", 0), done.stderr


async def test_a_bad_second_request_on_a_tls_port_writes_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = certificates(tmp_path / "tls")
    context = ssl.create_default_context(cafile=str(folder.file("ca.crt")))
    failed: list[Mapping[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, told: failed.append(told))
    async with broker_with(folder) as (broker, http):
        for url in (http, broker.metrics_url, broker.broker_url, broker.admin_url):
            port = int(url.rpartition(":")[2])
            for bad in (
                b"\x00\xff" * 40,
                b"GET /healthz HTTP/9.9\r\n\r\n",
                b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: nonsense\r\n\r\n",
                b"GET / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            ):
                for leaves in (False, True):
                    reader, writer = await asyncio.open_connection(
                        "127.0.0.1", port, ssl=context, server_hostname="localhost"
                    )
                    writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
                    await writer.drain()
                    await asyncio.wait_for(reader.read(65_536), 10)
                    writer.write(bad)
                    if leaves:
                        writer.transport.abort()
                        continue
                    with suppress(OSError):  # it answers, or closes
                        await asyncio.wait_for(reader.read(65_536), 20)
                    writer.close()
        await asyncio.sleep(0.2)
    assert not failed
    assert not [record.getMessage() for record in caplog.records if record.exc_info]
