"""The guard of port 8765 over a real socket."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import httpx
import pytest
from pydanube_admin.http import (
    MAX_BODY_BYTES,
    HttpFace,
    Receive,
    Scope,
    Send,
    asked_permission,
    http_server,
    idle_lifespan,
)
from pydanube_admin.jsonrpc import JsonRpc
from pydanube_admin.remote import OpsClient
from pydanube_admin.value_limit import MAX_VALUES

from tests.support.waiting import until

pytestmark = pytest.mark.anyio

CALL = {"jsonrpc": "2.0", "id": 1, "method": "topics.list"}


def bound() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


@pytest.fixture
async def url(ops: OpsClient) -> AsyncIterator[str]:
    sock = bound()
    port = sock.getsockname()[1]
    async with http_server(sock, HttpFace(JsonRpc(ops)), grace_s=1):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
async def web(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:
        yield client


async def test_a_call_is_answered_200_whatever_its_result(web: httpx.AsyncClient) -> None:
    answer = await web.post("/rpc", json=CALL)
    assert (answer.status_code, answer.json()["result"]["total"]) == (200, 2)
    assert answer.headers["content-type"] == "application/json"
    failed = await web.post("/rpc", json=CALL | {"method": "topics.describe", "params": {"topic": "nope"}})
    assert (failed.status_code, failed.json()["error"]["data"]["code"]) == (200, "TOPIC_NOT_FOUND")
    unread = await web.post("/rpc", content=b"{", headers={"content-type": "application/json; charset=utf-8"})
    assert (unread.status_code, unread.json()["error"]["code"]) == (200, -32700)


async def test_a_notification_is_204(web: httpx.AsyncClient) -> None:
    answer = await web.post("/rpc", json={"jsonrpc": "2.0", "method": "topics.list"})
    assert (answer.status_code, answer.content) == (204, b"")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])
async def test_another_method_is_405_and_says_which_is_taken(web: httpx.AsyncClient, method: str) -> None:
    answer = await web.request(method, "/rpc")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def test_the_openrpc_document_is_there_for_reading(web: httpx.AsyncClient) -> None:
    document = await web.get("/openrpc.json")
    discovered = await web.post("/rpc", json=CALL | {"method": "rpc.discover"})
    assert document.status_code == 200
    assert document.json() == discovered.json()["result"]
    assert (await web.post("/openrpc.json", json=CALL)).status_code == 405


async def test_other_paths_are_404(web: httpx.AsyncClient) -> None:
    for path in ("/", "/rpc/", "/mcp", "/rpc/x", "//rpc"):
        assert (await web.post(path, json=CALL)).status_code == 404, path


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx", "text/json"]
)
async def test_what_a_form_could_send_is_415(web: httpx.AsyncClient, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    answer = await web.post("/rpc", content=json.dumps(CALL).encode(), headers=headers)
    assert (answer.status_code, answer.json()["error"]["details"]["field"]) == (415, "content-type")


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8765"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "localhost@evil.example"},
        {"host": "127.0.0.1/x"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost.evil.example"},
        {"origin": "file:///x"},
    ],
)
async def test_a_foreign_page_is_403(web: httpx.AsyncClient, headers: dict[str, str]) -> None:
    answer = await web.post("/rpc", json=CALL, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "PERMISSION_DENIED")
    assert answer.json()["error"]["details"]["field"] == next(iter(headers))


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "localhost"},
        {"host": "LOCALHOST:1"},
        {"host": "[::1]:8765"},
        {"host": "127.0.0.2"},
        {"origin": "http://localhost:3000"},
        {"origin": "http://127.0.0.1"},
        {"origin": "https://[::1]:9"},
    ],
)
async def test_this_machine_is_let_in_under_each_of_its_names(
    web: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    assert (await web.post("/rpc", json=CALL, headers=headers)).status_code == 200


async def test_a_name_that_was_allowed_is_let_in(ops: OpsClient) -> None:
    sock = bound()
    port = sock.getsockname()[1]
    face = HttpFace(JsonRpc(ops), allowed_hosts=["Danube.internal"])
    with anyio.fail_after(30):
        async with http_server(sock, face, grace_s=1), httpx.AsyncClient(trust_env=False) as client:
            for name, status in (("danube.internal:8765", 200), ("other.internal", 403)):
                answer = await client.post(f"http://127.0.0.1:{port}/rpc", json=CALL, headers={"host": name})
                assert answer.status_code == status


def big(size: int) -> bytes:
    body = json.dumps(CALL).encode()
    return body + b" " * (size - len(body))


async def test_a_body_of_the_limit_is_taken_and_one_byte_more_is_413(web: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/json"}
    assert (await web.post("/rpc", content=big(MAX_BODY_BYTES), headers=headers)).status_code == 200
    answer = await web.post("/rpc", content=big(MAX_BODY_BYTES + 1), headers=headers)
    assert (answer.status_code, answer.json()["error"]["details"]["max_bytes"]) == (413, MAX_BODY_BYTES)


async def test_a_body_of_very_many_values_is_413_without_being_parsed(
    ops: OpsClient,
) -> None:
    """Parsing, checking and quoting 300 000 values would hold the broker's loop for seconds."""
    params = {"topic": "orders", "offsets": [{"a": [n] * 10} for n in range(30_000)]}
    body = json.dumps(CALL | {"params": params}).encode()
    face, sock = HttpFace(JsonRpc(ops), mcp=never), bound()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    async with http_server(sock, face, grace_s=1), httpx.AsyncClient(base_url=url, trust_env=False) as client:
        for path in ("/rpc", "/mcp", "/mcp/read"):
            answer = await client.post(path, content=body, headers={"content-type": "application/json"})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (413, "INVALID_ARGUMENT"), path
            assert (error["details"]["field"], error["details"]["limit"]) == ("body", MAX_VALUES)
    began = time.thread_time()
    assert asked_permission(body) is None
    assert time.thread_time() - began < 0.1


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await idle_lifespan(receive, send)
        return
    raise AssertionError("the guard lets it through")


async def test_who_asks_before_sending_too_much_is_answered_at_once(url: str) -> None:
    async with await anyio.connect_tcp("127.0.0.1", int(url.rpartition(":")[2])) as stream:
        await stream.send(
            b"POST /rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n"
        )
        assert (await stream.receive()).startswith(b"HTTP/1.1 413 ")


async def test_a_chunked_body_beyond_the_limit_is_413_before_it_has_all_come(url: str) -> None:
    port = int(url.rpartition(":")[2])
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(
            b"POST /rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        for _ in range(MAX_BODY_BYTES // 0x10000 + 1):  # never the closing chunk
            await stream.send(chunk)
        answer = await stream.receive()
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_the_claimed_principal_is_passed_on_and_checked(
    web: httpx.AsyncClient, ops: OpsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    async def call(operation: str, arguments: Any = None, *, principal: Any = None) -> bytes:
        seen.append(principal)
        return b"{}"

    monkeypatch.setattr(ops, "call_json", call)
    await web.post("/rpc", json=CALL, headers={"Danube-Principal": "ann@ops"})
    await web.post("/rpc", json=CALL)
    assert seen == ["ann@ops", None]
    answer = await web.post("/rpc", json=CALL, headers={"Danube-Principal": "x" * 257})
    assert answer.status_code == 400


async def test_an_answer_under_way_is_finished_when_the_server_stops(
    ops: OpsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, release = anyio.Event(), anyio.Event()

    async def call(operation: str, arguments: Any = None, *, principal: Any = None) -> bytes:
        asked.set()
        await release.wait()
        return b'{"late": true}'

    monkeypatch.setattr(ops, "call_json", call)
    sock = bound()
    port = sock.getsockname()[1]
    got: list[httpx.Response] = []

    async def ask() -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            got.append(await client.post(f"http://127.0.0.1:{port}/rpc", json=CALL))

    async def free() -> None:
        await until(
            lambda: sock.fileno() == -1
        )  # closed by the server first of all when it stops; no event tells
        release.set()

    with anyio.fail_after(30):
        face = HttpFace(JsonRpc(ops))
        async with anyio.create_task_group() as group, http_server(sock, face, grace_s=10):
            group.start_soon(ask)
            await asked.wait()
            group.start_soon(free)
    assert got[0].json()["result"] == {"late": True}


async def test_an_error_inside_the_block_comes_out_as_itself(ops: OpsClient) -> None:
    sock = bound()
    with anyio.fail_after(30), pytest.raises(ZeroDivisionError):
        async with http_server(sock, HttpFace(JsonRpc(ops)), grace_s=1):
            raise ZeroDivisionError
    assert sock.fileno() == -1


async def test_an_application_that_does_not_start_is_an_error(ops: OpsClient) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no"})

    with anyio.fail_after(30), pytest.raises(RuntimeError, match="did not start"):
        async with http_server(bound(), HttpFace(JsonRpc(ops), mcp=broken), grace_s=1):
            raise AssertionError("never reached")


@pytest.fixture(autouse=True)
def _no_leftover_signal_handlers() -> Iterator[None]:
    import signal

    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before
