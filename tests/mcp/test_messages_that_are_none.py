"""What is no JSON-RPC message is answered, with its id where that can be read, and the server goes on."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

import anyio
import httpx
import pytest
from pydanube_admin.http import http_server
from pydanube_mcp import http_face
from pydanube_mcp.envelopes import refusal
from pydanube_mcp.stdio import MOST_UNDERWAY

pytestmark = pytest.mark.anyio

PING = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
BEGIN = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}


def sent(text: str) -> bytes:
    """Return the bytes of a case, in which a surrogate from U+DC80 on stands for a byte that is no UTF-8."""
    return text.encode(errors="surrogateescape")


def deep(levels: int) -> str:
    return json.dumps(PING)[:-1] + ', "params": {"a": ' + "[" * levels + "]" * levels + "}}"


CASES: dict[str, tuple[str, int, Any]] = {
    "no JSON": ("{nonsense", -32700, None),
    "no JSON at all": ("hello", -32700, None),
    "half a surrogate": (json.dumps(PING | {"params": {"a": "\ud800"}}), -32700, 7),
    "a thousand levels": (deep(1000), -32700, None),
    "as many as Python reads": (deep(400), -32700, 7),
    "a batch": (json.dumps([PING]), -32600, None),
    "no object": ("3", -32600, None),
    "no jsonrpc": (json.dumps({"id": 7, "method": "ping"}), -32600, 7),
    "id 4.0": (json.dumps(PING | {"id": 4.0}), -32600, 4),
    "id 2.5": (json.dumps(PING | {"id": 2.5}), -32600, None),
    "id null": (json.dumps(PING | {"id": None}), -32600, None),
    "id true": (json.dumps(PING | {"id": True}), -32600, None),
    "id in an escaped key": ('{"jsonrpc": "2.0", "\\u0069d": 2.5, "method": "ping"}', -32600, None),
    "NaN": ('{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": {"a": NaN}}', -32700, None),
    "no UTF-8": (json.dumps(PING)[:-1] + ', "params": {"a": "\udcff"}}', -32700, None),
    "UTF-16": ("\udcff\udcfe" + "\0".join(json.dumps(PING)) + "\0", -32700, None),
    "a mark of byte order": ("\ufeff" + json.dumps(PING), -32700, None),
    "params is a list": (json.dumps(PING | {"params": []}), -32600, 7),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_no_message_is_refused_with_its_id(case: str) -> None:
    text, code, id_ = CASES[case]
    answer = refusal(sent(text))
    assert answer is not None
    if case == "a thousand levels":
        assert answer.id in (None, 7)
        return
    assert (answer.error.code, answer.id) == (code, id_)
    assert "validation" not in answer.error.message


def test_a_message_of_too_many_values_is_refused_with_its_id() -> None:
    """Over HTTP the guard of the port refuses it, before it is parsed at all."""
    answer = refusal(json.dumps(PING | {"params": {"a": [[1] * 9] * 9_000}}).encode())
    assert answer is not None
    assert (answer.error.code, answer.id) == (-32600, 7)
    assert "more than 10000 values" in answer.error.message


@pytest.mark.parametrize(
    "message",
    [
        PING,
        PING | {"id": "a"},
        PING | {"params": None},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 1, "result": {"id": None}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"id": None}},
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "m"}},
    ],
)
def test_messages_pass(message: dict[str, Any]) -> None:
    assert refusal(json.dumps(message).encode()) is None


def test_over_stdio_each_is_answered_and_the_server_goes_on() -> None:
    program = "from pydanube_mcp import run_stdio; run_stdio('http://127.0.0.1:1')"
    lines = [json.dumps(BEGIN), *(text for text, _, _ in CASES.values()), "x" * 9_000_000, json.dumps(PING)]
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(sent("\n".join(lines)) + b"\n")
        server.stdin.flush()
        answers: list[dict[str, Any]] = []
        while not answers or "result" not in answers[-1] or answers[-1]["id"] != 7:
            answers.append(json.loads(server.stdout.readline()))
        server.stdin.close()
        assert server.wait(60) == 0
    refused = [each for each in answers if "error" in each]
    assert len(refused) == len(CASES) + 1
    assert "longer" in refused[-1]["error"]["message"]


def test_over_stdio_requests_are_read_only_as_fast_as_their_answers_are() -> None:
    """A client that reads no answers fills the pipe, and not the server's memory."""
    program = "from pydanube_mcp import run_stdio; run_stdio('http://127.0.0.1:1')"
    asked = json.dumps(PING | {"method": "tools/list", "params": {"_meta": {"padding": "x" * 4000}}}).encode()
    count, taken = 3000, 0
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(BEGIN).encode() + b"\n")
        server.stdin.flush()
        assert "result" in json.loads(server.stdout.readline())
        os.set_blocking(server.stdin.fileno(), False)
        left = memoryview((asked + b"\n") * count)
        while left and select.select([], [server.stdin], [], 10)[1]:  # until it takes no more
            left = left[os.write(server.stdin.fileno(), left[:65_536]) :]
        taken = count - len(left) // len(asked)
        assert taken < 2 * MOST_UNDERWAY + 100, "more than the bound, the pipes and the buffers hold"

        def write_the_rest() -> None:
            assert server.stdin is not None
            os.set_blocking(server.stdin.fileno(), True)
            server.stdin.write(bytes(left[: 500 * len(asked)]).rpartition(b"\n")[0] + b"\n")
            server.stdin.write(json.dumps(PING | {"id": "last"}).encode() + b"\n")
            server.stdin.flush()

        writing = threading.Thread(target=write_the_rest)
        writing.start()
        while json.loads(server.stdout.readline())["id"] != "last":
            pass
        writing.join()
        server.stdin.close()
        server.stdout.read()  # answers of requests that "last" overtook: the server ends once they are written
        assert server.wait(60) == 0


@pytest.mark.parametrize("program", ["run_stdio", "danube mcp"])
def test_a_client_that_closes_stdout_is_an_ordinary_end(program: str) -> None:
    run = {
        "run_stdio": ["-c", "from pydanube_mcp import run_stdio; run_stdio('http://127.0.0.1:1')"],
        "danube mcp": ["-m", "pydanube_cli.main", "mcp", "--admin", "http://127.0.0.1:1"],
    }
    with subprocess.Popen(
        [sys.executable, *run[program]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stderr is not None
        server.stdin.write(json.dumps(BEGIN).encode() + b"\n")
        server.stdin.flush()
        assert "result" in json.loads(server.stdout.readline())
        server.stdout.close()
        listing = json.dumps(PING | {"method": "tools/list"}).encode()
        with suppress(BrokenPipeError):
            server.stdin.write(b"".join(listing + b"\n" for _ in range(20)))
            server.stdin.flush()
        assert (server.stderr.read(), server.wait(60)) == (b"", 0)  # stdin stays open
        with suppress(BrokenPipeError):
            server.stdin.close()


async def test_over_http_an_id_that_is_none_is_no_notification() -> None:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{sock.getsockname()[1]}/mcp"
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    with anyio.fail_after(60):
        async with (
            http_face("http://127.0.0.1:1") as app,
            http_server(sock, app, grace_s=2),
            httpx.AsyncClient(trust_env=False) as web,
        ):
            for text, code, _ in CASES.values():
                answer = await web.post(url, content=sent(text), headers=headers)
                assert answer.status_code == 400, text[:50]
                assert answer.json()["error"]["code"] == code
            twice = [*headers.items(), ("origin", "http://127.0.0.1"), ("origin", "http://localhost")]
            answer = await web.post(url, content=json.dumps(PING).encode(), headers=twice)
            assert answer.status_code == 400
            assert answer.json()["error"]["details"]["field"] == "origin"
