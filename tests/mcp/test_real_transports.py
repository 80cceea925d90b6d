"""A client that starts us as a process, and one that reaches us through a socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from pydanube_admin.http import http_server
from pydanube_core.generated.danube_ops_pb2 import CallRequest, CallResponse
from pydanube_mcp import http_face

from tests.support.filled_cluster import serve_ops

pytestmark = pytest.mark.anyio

MODES = ["legacy", "2026-07-28", "auto"]


def bound() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


@pytest.fixture
async def http_url(admin_url: str) -> AsyncIterator[str]:
    sock = bound()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    async with http_face(admin_url) as app, http_server(sock, app, grace_s=2):
        yield url


@pytest.mark.parametrize("mode", MODES[:2])
async def test_over_stdio_as_a_process(admin_url: str, mode: str) -> None:
    program = f"from pydanube_mcp import run_stdio; run_stdio({admin_url!r})"
    server = StdioServerParameters(command=sys.executable, args=["-W", "error", "-c", program])
    with anyio.fail_after(60):
        async with Client(server, mode=mode) as client:
            assert "get_consumer_lag" in [tool.name for tool in (await client.list_tools()).tools]
            lag = await client.call_tool("get_consumer_lag", {"topic": "orders"})
            assert lag.structured_content is not None
            assert lag.structured_content["items"][0]["lag_messages"] == 40
            failed = await client.call_tool("describe_topic", {"topic": "nope"})
            assert failed.is_error


@pytest.mark.parametrize("mode", MODES)
async def test_over_streamable_http(http_url: str, mode: str) -> None:
    async with Client(f"{http_url}/mcp", mode=mode) as client:
        assert "list_topics" in [tool.name for tool in (await client.list_tools()).tools]
        lag = await client.call_tool("get_consumer_lag", {"topic": "orders"})
        assert lag.structured_content is not None
        assert lag.structured_content["items"][0]["lag_messages"] == 40
        failed = await client.call_tool("create_topic", {"topic": "bad name!"})
        assert failed.structured_content is not None
        assert failed.structured_content["error"]["code"] == "INVALID_NAME"


async def test_json_rpc_is_served_beside_it(http_url: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as web:
        call = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions.lag", "params": {"topic": "orders"}}
        answer = await web.post(f"{http_url}/rpc", json=call)
    assert answer.json()["result"]["items"][0]["lag_messages"] == 40


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"content-type": "text/plain"}, 415),
    ],
)
async def test_the_guard_stands_before_mcp_too(http_url: str, headers: dict[str, str], status: int) -> None:
    async with httpx.AsyncClient(trust_env=False) as web:
        given = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
        } | headers
        answer = await web.post(f"{http_url}/mcp", content=b"{}", headers=given)
        assert answer.status_code == status
        assert (await web.get(f"{http_url}/mcp", headers=headers)).status_code in (400, 403, 406)
        assert (await web.put(f"{http_url}/mcp", content=b"{}")).status_code == 405


async def test_the_claimed_principal_of_a_request_reaches_the_admin_core() -> None:
    seen: list[str] = []

    async def record(request: bytes) -> bytes:
        call = CallRequest.FromString(request)
        if (
            call.operation == "topics.list"
        ):  # a client that lists the tools also has it asked what its user may do
            seen.append(f"{call.face}:{call.principal}")
        return CallResponse(result=b'{"items":[],"next_page":null,"total":0,"as_of":"x"}').SerializeToString()

    sock = bound()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}/mcp"
    with anyio.fail_after(60):
        async with (
            serve_ops(record) as admin_url,
            http_face(admin_url, principal="server@host") as app,
            http_server(sock, app, grace_s=2),
        ):
            async with (
                httpx2.AsyncClient(headers={"Danube-Principal": "ann@ops"}) as web,
                Client(streamable_http_client(url, http_client=web)) as client,
            ):
                await client.call_tool("list_topics", {})
            async with Client(url) as client:
                await client.call_tool("list_topics", {})
    assert seen == ["mcp:ann@ops", "mcp:server@host"]


async def test_a_read_only_face_has_no_json_rpc(admin_url: str) -> None:
    sock = bound()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    with anyio.fail_after(60):
        async with http_face(admin_url, read_only=True) as app, http_server(sock, app, grace_s=2):
            async with httpx.AsyncClient(trust_env=False) as web:
                assert (await web.post(f"{url}/rpc", json={})).status_code == 404
            async with Client(f"{url}/mcp") as client:
                assert "create_topic" not in [tool.name for tool in (await client.list_tools()).tools]


async def test_a_server_of_its_own_ends_at_sigterm(admin_url: str, tmp_path: Path) -> None:
    sock = bound()
    port = sock.getsockname()[1]
    sock.set_inheritable(True)
    program = (
        "import socket; from pydanube_mcp import run_http; "
        f"run_http(socket.socket(fileno={sock.fileno()}), {admin_url!r}, grace_s=1); print('ended')"
    )
    sock.listen()  # so that a client waits for the process instead of being refused
    with anyio.fail_after(60):
        process = await anyio.open_process(
            [sys.executable, "-W", "error", "-c", program], pass_fds=[sock.fileno()], stderr=subprocess.STDOUT
        )
        async with process:
            sock.close()
            async with Client(f"http://127.0.0.1:{port}/mcp") as client:
                listed = await client.call_tool("list_topics", {})
                assert not listed.is_error
            os.kill(process.pid, signal.SIGTERM)
            assert process.stdout is not None
            output = b"".join([chunk async for chunk in process.stdout])
            assert (await process.wait(), output) == (0, b"ended\n")


def test_a_message_on_the_wire_is_json_without_surprises() -> None:
    """What a client sees that speaks by hand, over stdio, in the 2025 handshake."""
    lines: list[dict[str, Any]] = [
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "by-hand", "version": "1"},
            },
        },
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    program = "from pydanube_mcp import run_stdio; run_stdio()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        answers = []
        for line in lines:
            process.stdin.write(json.dumps(line).encode() + b"\n")
            process.stdin.flush()
            if "id" in line:
                answers.append(json.loads(process.stdout.readline()))
        process.stdin.close()
        assert process.wait(timeout=30) == 0
    assert answers[0]["result"]["serverInfo"]["name"] == "danube"
    assert answers[0]["result"]["protocolVersion"] == "2025-06-18"
    assert {tool["name"] for tool in answers[1]["result"]["tools"]} >= {"list_topics", "get_consumer_lag"}
