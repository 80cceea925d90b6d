"""MCP over stdio at the bound of requests under way: what ends them is still read."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import anyio.to_thread
import pytest
from anyio.abc import Process
from anyio.from_thread import BlockingPortal
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.types import JSONRPCError
from pydanube_mcp import stdio
from pydanube_mcp.stdio import MOST_HELD, MOST_UNDERWAY, StdinLines, Underway

from tests.admin.real_broker import Administered
from tests.cli.test_locks_live import META
from tests.support.filled_cluster import add_topic

pytestmark = pytest.mark.anyio

BOUND = 4


class Server:
    """`danube mcp` over stdio as its client sees it."""

    def __init__(self, process: Process) -> None:
        assert process.stdout is not None
        self._process = process
        self._answers = BufferedByteReceiveStream(process.stdout)

    async def send(self, method: str, params: dict[str, Any] | None = None, **more: Any) -> None:
        await self.write({"method": method, "params": params or {}} | more)

    async def write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")

    async def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self._answers.receive_until(b"\n", 8_000_000))
        return found

    async def answer(self, id: str) -> dict[str, Any]:
        """Return the answer to a request, past other messages."""
        while (found := await self.read()).get("id") != id or "method" in found:
            pass
        return found


@asynccontextmanager
async def served(admin_url: str) -> AsyncIterator[Server]:
    """A server with a low bound."""
    program = (
        f"from pydanube_mcp import consent, run_stdio, stdio; stdio.MOST_UNDERWAY = {BOUND}\n"
        f"consent.MOST_QUESTIONS = 2 * {BOUND}; run_stdio({admin_url!r})"
    )
    with anyio.fail_after(60):
        async with await anyio.open_process([sys.executable, "-c", program], stderr=None) as process:
            try:
                yield Server(process)
            finally:
                process.kill()


async def test_calls_that_wait_for_a_person_leave_room_for_the_answers(cluster: Administered) -> None:
    for n in range(2 * BOUND + 1):
        await add_topic(cluster, f"/default/old{n}")
    async with served(cluster.url) as server:
        about = {"protocolVersion": "2025-06-18", "clientInfo": {"name": "t", "version": "1"}}
        await server.send("initialize", about | {"capabilities": {"elicitation": {}}}, id="begin")
        await server.answer("begin")
        await server.send("notifications/initialized")
        questions = []
        for n in range(2 * BOUND):
            await server.send(
                "tools/call", {"name": "delete_topic", "arguments": {"topic": f"old{n}"}}, id=f"{n}"
            )
            while (found := await server.read()).get("method") != "elicitation/create":
                assert "error" not in found, found
            questions.append(found)
        last = {"name": "delete_topic", "arguments": {"topic": f"old{2 * BOUND}"}}
        await server.send("tools/call", last, id="one too many")
        refused = (await server.answer("one too many"))["result"]
        assert refused["isError"]
        assert "was not answered" in str(refused)
        await server.send("tools/list", id="behind")
        for each in questions:
            await server.write({"id": each["id"], "result": {"action": "decline"}})
        assert "result" in await server.answer("behind")
        await server.send("ping", id="alive")
        assert "result" in await server.answer("alive")


async def test_subscriptions_leave_room_for_calls() -> None:
    async with served("http://127.0.0.1:1") as server:
        for n in range(2 * BOUND):
            wanted = {"notifications": {"toolsListChanged": True}, "_meta": META}
            await server.send("subscriptions/listen", wanted, id=f"{n}")
            assert (await server.read())["method"] == "notifications/subscriptions/acknowledged"
        await server.send("tools/list", {"_meta": META}, id="behind")
        assert "result" in await server.answer("behind")


async def test_a_cancel_behind_a_request_that_waits_is_read() -> None:
    """The reader stood at the request, so that the call that made it wait could not be cancelled."""
    full, refused = Underway(), list[JSONRPCError]()
    for _ in range(MOST_UNDERWAY):
        full.begin()
    read_end, write_end = os.pipe()
    held: list[dict[str, Any]] = [{"id": f"h{n}", "method": "tools/list"} for n in range(MOST_HELD)]
    cancels: list[dict[str, Any]] = [
        {"method": "notifications/cancelled", "params": {"requestId": id}} for id in ("h1", 7)
    ]
    last: dict[str, Any] = {"id": "last", "method": "tools/list"}

    async def refuse(answer: JSONRPCError) -> None:
        refused.append(answer)

    with anyio.fail_after(30):
        async with BlockingPortal() as portal:
            incoming = StdinLines(read_end, portal, refuse, full)
            incoming.start()
            for each in (*held, *cancels, last):
                os.write(write_end, json.dumps({"jsonrpc": "2.0"} | each).encode() + b"\n")
            messages = cast("MemoryObjectReceiveStream[str]", aiter(incoming))
            assert json.loads(await anext(messages))["params"] == {"requestId": 7}, "one that is under way"
            with anyio.move_on_after(0.2):
                raise AssertionError(await anext(messages))
            full.end()
            os.close(write_end)
            passed = [json.loads(line)["id"] async for line in messages]
            messages.close()
    os.close(read_end)
    assert passed == [each["id"] for each in held if each["id"] != "h1"] + ["last"], (
        "in their order, to the end"
    )
    assert not refused


@asynccontextmanager
async def at_the_bound() -> AsyncIterator[tuple[int, Underway, StdinLines]]:
    """Lines that are read while no request has room, with the end to write them to. The test closes that."""
    full = Underway()
    for _ in range(MOST_UNDERWAY):
        full.begin()
    read_end, write_end = os.pipe()

    async def refuse(answer: JSONRPCError) -> None:
        raise AssertionError(answer)

    with anyio.fail_after(30):
        async with BlockingPortal() as portal:
            incoming = StdinLines(read_end, portal, refuse, full)
            incoming.start()
            yield write_end, full, incoming
            async for line in incoming:
                raise AssertionError(line)
            cast("MemoryObjectReceiveStream[str]", aiter(incoming)).close()
    os.close(read_end)


async def write_lines(write_end: int, *messages: dict[str, Any]) -> None:
    lines = b"".join(json.dumps({"jsonrpc": "2.0"} | each).encode() + b"\n" for each in messages)
    while lines:
        lines = lines[await anyio.to_thread.run_sync(os.write, write_end, lines) :]


@pytest.mark.parametrize("count", [1, 2, MOST_HELD, 2 * MOST_HELD])
async def test_the_last_request_that_waits_is_passed_on_though_the_input_has_ended(count: int) -> None:
    """The stream was closed while the last one was on its way, so that it had no answer."""
    async with at_the_bound() as (write_end, full, incoming):
        await write_lines(write_end, *({"id": n, "method": "tools/list"} for n in range(count)))
        await anyio.wait_all_tasks_blocked()
        os.close(write_end)
        with anyio.move_on_after(0.2):
            raise AssertionError(await anext(aiter(incoming)))
        full.end()
        assert [json.loads(line)["id"] async for line in incoming] == list(range(count))


async def test_a_ping_passes_requests_that_wait() -> None:
    async with at_the_bound() as (write_end, full, incoming):
        await write_lines(write_end, {"id": 1, "method": "tools/list"}, {"id": 2, "method": "ping"})
        assert json.loads(await anext(aiter(incoming)))["id"] == 2
        full.end()
        assert json.loads(await anext(aiter(incoming)))["id"] == 1
        os.close(write_end)


async def test_long_requests_that_wait_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "MAX_HELD_CHARS", 1000)
    async with at_the_bound() as (write_end, full, incoming):
        long: list[dict[str, Any]] = [
            {"id": n, "method": "tools/list", "params": {"a": "b" * 900}} for n in (1, 2)
        ]
        await write_lines(write_end, *long, {"id": 3, "method": "ping"})
        with anyio.move_on_after(0.2):
            raise AssertionError(await anext(aiter(incoming)), "nothing is read behind the second")
        full.end()
        assert [json.loads(await anext(aiter(incoming)))["id"] for _ in range(3)] == [1, 2, 3]
        os.close(write_end)


async def test_at_the_bound_only_requests_wait() -> None:
    full, passed = Underway(), list[Any]()
    for _ in range(MOST_UNDERWAY):
        full.begin()
    read_end, write_end = os.pipe()
    lines: list[dict[str, Any]] = [
        {"method": "notifications/cancelled", "params": {"requestId": 1, "id": 3}},
        {"id": 1, "result": {"content": {"method": "by post"}}},
        {"id": 2, "method": "ping"},
        {"id": 3, "method": "tools/list"},
    ]

    async def refuse(answer: JSONRPCError) -> None:
        raise AssertionError(answer)

    with anyio.fail_after(30):
        async with BlockingPortal() as portal:
            incoming = StdinLines(read_end, portal, refuse, full)
            incoming.start()
            os.write(
                write_end, b"".join(json.dumps({"jsonrpc": "2.0"} | each).encode() + b"\n" for each in lines)
            )
            messages = cast("MemoryObjectReceiveStream[str]", aiter(incoming))
            passed += [json.loads(await anext(messages)) for _ in range(3)]
            with anyio.move_on_after(0.5) as waiting:
                await anext(messages)
            assert waiting.cancelled_caught
            full.end()
            passed.append(json.loads(await anext(messages)))
            os.close(write_end)
            with pytest.raises(StopAsyncIteration):
                await anext(messages)
            messages.close()
    os.close(read_end)
    assert passed == [{"jsonrpc": "2.0"} | each for each in lines]
