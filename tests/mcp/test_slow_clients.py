"""Clients that are slow, many, or stay too long: none of them keeps the others waiting."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import anyio
import httpx
import pydanube_admin.http as http_module
import pydanube_mcp.run as run_module
import pytest
from mcp import Client
from pydanube_admin.http import MAX_BODY_BYTES, http_server
from pydanube_mcp import http_face

from tests.mcp.test_real_transports import bound

pytestmark = pytest.mark.anyio

HELLO = json.dumps(
    {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    }
).encode()  # fmt: skip
HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


@pytest.fixture
async def port(admin_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """A face whose patience is short."""
    monkeypatch.setattr(http_module, "BODY_TIMEOUT_S", 0.5)
    monkeypatch.setattr(run_module, "MAX_SESSIONS", 4)
    sock = bound()
    number: int = sock.getsockname()[1]
    async with http_face(admin_url) as app, http_server(sock, app, grace_s=1):
        yield number


async def answered(port: int) -> bool:
    """Whether somebody else is served meanwhile."""
    with anyio.fail_after(10):
        async with Client(f"http://127.0.0.1:{port}/mcp") as client:
            return not (await client.call_tool("list_topics", {})).is_error


def slow_connection(port: int, begin: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=20)
    sock.sendall(begin)
    return sock


async def test_a_body_that_never_comes_is_given_up(port: int) -> None:
    head = (
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Accept: application/json\r\nContent-Length: 400\r\n\r\n{"
    )
    slow = [slow_connection(port, head) for _ in range(50)]
    try:
        assert await answered(port)
        answer = await anyio.to_thread.run_sync(slow[0].recv, 4096)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in answer.lower()
    finally:
        for each in slow:
            each.close()


async def test_headers_that_never_end_keep_nobody_waiting(port: int) -> None:
    slow = [slow_connection(port, b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Slow: ") for _ in range(50)]
    try:
        for each in slow:
            each.sendall(b"a")
        assert await answered(port)
    finally:
        for each in slow:
            each.close()


async def test_a_new_session_takes_the_place_of_the_one_idle_longest(port: int) -> None:
    url = f"http://127.0.0.1:{port}/mcp"
    listing = b'{"jsonrpc":"2.0","id":2,"method":"tools/list"}'
    async with httpx.AsyncClient(trust_env=False, timeout=20) as web:
        opened = [await web.post(url, content=HELLO, headers=HEADERS) for _ in range(4)]
        sessions = [HEADERS | {"mcp-session-id": each.headers["mcp-session-id"]} for each in opened]
        assert (await web.post(url, content=listing, headers=sessions[0])).status_code == 200
        newest = await web.post(url, content=HELLO, headers=HEADERS)
        assert newest.status_code == 200
        asked = [(await web.post(url, content=listing, headers=each)).status_code for each in sessions]
        assert asked == [200, 404, 200, 200], "the first was used last"
        gone = {"mcp-session-id": newest.headers["mcp-session-id"]}
        assert (await web.delete(url, headers=HEADERS | gone)).status_code == 200
        assert (await web.post(url, content=HELLO, headers=HEADERS)).status_code == 200
        unknown = HEADERS | {"mcp-session-id": "0" * 32}
        assert (await web.post(url, content=listing, headers=unknown)).status_code == 404


async def test_sessions_with_a_stream_open_are_not_ended_for_a_new_one(port: int) -> None:
    url = f"http://127.0.0.1:{port}/mcp"
    async with httpx.AsyncClient(trust_env=False, timeout=20) as web, AsyncExitStack() as streams:
        for _ in range(4):
            opened = await web.post(url, content=HELLO, headers=HEADERS)
            stays = HEADERS | {"mcp-session-id": opened.headers["mcp-session-id"]}
            stream = await streams.enter_async_context(web.stream("GET", url, headers=stays))
            assert stream.status_code == 200
        assert (await web.post(url, content=HELLO, headers=HEADERS)).status_code == 503


async def test_a_body_that_is_too_large_is_refused_declared_or_not(port: int) -> None:
    url = f"http://127.0.0.1:{port}/mcp"

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 65_536 + 2):
            yield b" " * 65_536

    async with httpx.AsyncClient(trust_env=False, timeout=20) as web:
        assert (await web.post(url, content=b" " * (MAX_BODY_BYTES + 1), headers=HEADERS)).status_code == 413
        assert (await web.post(url, content=endless(), headers=HEADERS)).status_code == 413
    assert await answered(port)


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
@pytest.mark.parametrize(
    "foreign",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "localhost@evil.example"},
        {"origin": "https://evil.example"},
        {"origin": "http://localhost.evil.example"},
        {"origin": "null"},
        {"origin": "file://"},
    ],
)
async def test_a_foreign_page_gets_nothing_by_any_method(
    port: int, method: str, foreign: dict[str, str]
) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=20) as web:
        answer = await web.request(
            method, f"http://127.0.0.1:{port}/mcp", content=HELLO if method == "POST" else None,
            headers=HEADERS | foreign,
        )  # fmt: skip
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    assert "mcp-session-id" not in answer.headers


async def test_large_bodies_have_their_bound_together_and_small_ones_always_room(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_module, "BODY_TIMEOUT_S", 5.0)
    monkeypatch.setattr(http_module, "MAX_BODIES_BYTES", 1_000_000)
    head = (
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Accept: application/json\r\nContent-Length: 900000\r\n\r\n"
    )
    slow = [await anyio.to_thread.run_sync(slow_connection, port, head + b" " * 600_000) for _ in range(3)]
    try:
        refused = 0
        for each in slow:
            each.settimeout(20)
            answer = await anyio.to_thread.run_sync(each.recv, 4096)
            refused += answer.startswith(b"HTTP/1.1 503")
            if answer.startswith(b"HTTP/1.1 503"):
                assert b"OVERLOADED" in answer
                assert await answered(port)
        assert refused >= 1
        # Those that held it are given up in time, and their room comes back.
        async with httpx.AsyncClient(trust_env=False, timeout=20) as web:
            large = HELLO[:-1] + b" " * 800_000 + HELLO[-1:]
            assert (
                await web.post(f"http://127.0.0.1:{port}/mcp", content=large, headers=HEADERS)
            ).status_code == 200
    finally:
        for each in slow:
            each.close()


NO_MESSAGES = [
    b"null", b"[]", b"1", b'"x"', b"{}", b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]',
    b'{"jsonrpc":"2.0","id":{},"method":"tools/list"}', b'{"jsonrpc":"2.0","id":1,"method":5}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":"x"}', b'"' + b"\\u0000" * 600_000 + b'"',
    b"[" * 2_000_000 + b"]" * 2_000_000, b'{"jsonrpc":"2.0","id":' + b"9" * 100_000 + b',"method":"x"}',
]  # fmt: skip


async def test_what_is_no_message_is_refused_in_our_words(port: int) -> None:
    """On every wire, and without the text of the library that the SDK validates with."""
    async with httpx.AsyncClient(trust_env=False, timeout=20) as web:
        for wire in ({}, {"mcp-protocol-version": "2025-11-25"}, {"mcp-protocol-version": "2026-07-28"}):
            for body in NO_MESSAGES:
                answer = await web.post(f"http://127.0.0.1:{port}/mcp", content=body, headers=HEADERS | wire)
                assert 400 <= answer.status_code < 500, body[:40]
                for foreign in ("pydantic", "alidation error", "Traceback", "input_value"):
                    assert foreign not in answer.text, (wire, body[:40])
                assert len(answer.content) < 2000
                assert answer.json()["error"]["message"]
    assert await answered(port)
