"""The MCP half of the HTTP port is loaded by its first request, and nothing waits for it that did not ask for it."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest
from mcp.server.mcpserver import server as sdk_server
from pydanube_mcp import build_server
from pydanube_mcp.lazy_app import LazyApp

pytestmark = pytest.mark.anyio

SCOPE = {"type": "http", "method": "POST", "path": "/mcp", "headers": []}


async def ask(app: LazyApp[str]) -> tuple[int, bytes]:
    told: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        told.append(message)

    await app(dict(SCOPE), receive, send)
    return told[0]["status"], told[1]["body"]


class Served:
    """What the loaded thing serves: its name; counts how often it was opened and closed."""

    def __init__(self) -> None:
        self.opened = self.closed = 0

    @asynccontextmanager
    async def __call__(self, name: str) -> AsyncIterator[Any]:
        async def app(_scope: Any, _receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": name.encode()})

        self.opened += 1
        try:
            yield app
        finally:
            self.closed += 1


async def test_requests_wait_for_one_load_while_the_loop_goes_on() -> None:
    begun, may_end = threading.Event(), threading.Event()
    loads = 0

    def load() -> str:
        nonlocal loads
        loads += 1
        begun.set()
        assert may_end.wait(20)
        return "loaded"

    served = Served()
    app = LazyApp(load, served)
    answers: list[tuple[int, bytes]] = []
    all_answered = anyio.Event()

    async def one() -> None:
        answers.append(await ask(app))
        if len(answers) == 3:
            all_answered.set()

    with anyio.fail_after(20):
        async with app.running(), anyio.create_task_group() as group:
            assert served.opened == 0
            for _ in range(3):
                group.start_soon(one)
            await anyio.to_thread.run_sync(begun.wait)  # the loop turns: it is not what loads
            assert answers == []
            may_end.set()
            await all_answered.wait()
            assert (served.opened, served.closed) == (1, 0), (
                "it stays open when the request that opened it has ended"
            )
            assert await ask(app) == (200, b"loaded")
    assert answers == [(200, b"loaded")] * 3
    assert (loads, served.opened, served.closed) == (1, 1, 1)


async def test_what_cannot_be_loaded_is_an_answer_and_the_next_request_tries_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcomes: list[Exception | str] = [ModuleNotFoundError("no such module"), "loaded"]

    def load() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    app = LazyApp(load, Served())
    with anyio.fail_after(20):
        async with app.running():
            status, body = await ask(app)
            assert status == 500
            assert b"INTERNAL" in body
            assert b"no such module" not in body
            assert await ask(app) == (200, b"loaded")
    assert [record.event for record in caplog.records if hasattr(record, "event")] == ["mcp_not_loaded"]


async def test_a_stop_does_not_wait_for_a_load() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def load() -> str:
        begun.set()
        may_end.wait(20)
        return "too late"

    served = Served()
    app = LazyApp(load, served)
    try:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group, app.running():
                group.start_soon(ask, app)
                await anyio.to_thread.run_sync(begun.wait)
                group.cancel_scope.cancel()
    finally:
        may_end.set()
    assert served.opened == 0


async def test_its_lifespan_is_answered_without_a_load() -> None:
    app = LazyApp(lambda: pytest.fail("nobody asked for it"), Served())
    asked = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    told: list[str] = []

    async def receive() -> MutableMapping[str, Any]:
        return asked.pop(0)

    async def send(message: MutableMapping[str, Any]) -> None:
        told.append(message["type"])

    async with app.running():
        await app({"type": "lifespan"}, receive, send)
    assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_the_logging_of_the_process_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK would load a library for colours in the terminal, a tenth of the start, and set up the root logger."""
    asked: list[object] = []
    monkeypatch.setattr(sdk_server, "configure_logging", asked.append)
    before = list(logging.getLogger().handlers)
    build_server("http://127.0.0.1:1")
    assert asked == []
    assert logging.getLogger().handlers == before
    assert sdk_server.configure_logging == asked.append, "put back for others"


def test_a_broker_is_put_together_without_what_only_mcp_needs() -> None:
    program = (
        "import sys, pydanube_cli.composition, pydanube_admin.http, pydanube_mcp\n"
        "pydanube_mcp.lazy_http_face\n"
        "print(*sorted({'mcp', 'mcp_types', 'httpx2', 'pyarrow', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == ""
