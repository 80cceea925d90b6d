"""Whole conversations of a scripted MCP client with a real broker, over stdio and over HTTP beside it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitRequestParams, ElicitResult

from tests.support.broker_process import BrokerProcess, client_environment, danube_command
from tests.support.task_client import TakesTasks, ask_task
from tests.support.waiting import until

# Long: each starts a broker and several clients, half a minute in all.
pytestmark = [pytest.mark.anyio, pytest.mark.long, pytest.mark.timeout(900)]

PERSON = "ann@ops"
DEADLINE_S = 400.0  # the process that writes objects stands back behind everything else on the machine
#: nothing is moved to the store by itself: the conversations say when
SETTINGS = {"DANUBE_TIER__FLUSH_AGE": "1h"}


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    pytest.importorskip("pyarrow")
    with BrokerProcess(tmp_path, environment=SETTINGS) as started:
        yield started


class Person:
    """Types what is asked for, or declines."""

    def __init__(self) -> None:
        self.agrees = False
        self.asked: list[str] = []

    async def __call__(self, context: Any, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params.message)
        if not self.agrees:
            return ElicitResult(action="decline")
        name = params.message.rpartition("Type ")[2].removesuffix(" to go on.")
        return ElicitResult(action="accept", content={"name": name})


@asynccontextmanager
async def connected(
    transport: str, broker: BrokerProcess, person: Person | None = None
) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        target: Any
        if transport == "stdio":
            program, *words = danube_command()
            words += ["mcp", "--admin", broker.admin, "--as", PERSON]
            target = StdioServerParameters(command=program, args=words, env=client_environment())
        else:
            web = await stack.enter_async_context(httpx2.AsyncClient(headers={"Danube-Principal": PERSON}))
            target = streamable_http_client(broker.http + "/mcp", http_client=web)
        yield await stack.enter_async_context(
            Client(target, extensions=[TakesTasks()], elicitation_callback=person)
        )


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert isinstance(result.structured_content, dict), result
    return result.structured_content


def produce(broker: BrokerProcess, topic: str, count: int) -> None:
    lines = b"".join(b"line %06d %s\n" % (i, b"x" * 100) for i in range(count))
    broker.command("produce", topic, stdin=lines, timeout_s=DEADLINE_S)


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_diagnose_plan_apply_verify_and_delete_refused_consented_undone(
    broker: BrokerProcess, transport: str
) -> None:
    person = Person()
    with anyio.fail_after(DEADLINE_S):
        async with connected(transport, broker, person) as client:
            # a subscription that nobody reads
            await call(client, "create_topic", topic="orders")
            await call(client, "create_subscription", topic="orders", subscription="billing")
            await anyio.to_thread.run_sync(produce, broker, "orders", 200)
            diagnosis = await call(client, "analyze_consumer_lag", topic="orders", subscription="billing")
            assert diagnosis["findings"][0]["rule"] == "no_consumers", diagnosis
            lag = await call(client, "get_consumer_lag", topic="orders")
            assert lag["items"][0]["lag_messages"] == 200
            # planned, shown, and applied once a person has agreed
            operation = {
                "operation": "subscriptions.skip",
                "arguments": {"topic": "orders", "subscription": "billing", "count": 150},
            }
            plan = await call(client, "plan_operation", **operation)
            assert plan["blast_radius"]["messages"] == 150
            token = {"plan_token": plan["plan_token"]}
            refused = await call(client, "apply_plan", **token)
            assert refused["error"]["code"] == "PERMISSION_DENIED"
            person.agrees = True
            applied = await call(client, "apply_plan", **token)
            assert applied["operation"] == "subscriptions.skip"
            lag = await call(client, "get_consumer_lag", topic="orders")
            assert lag["items"][0]["lag_messages"] == 50
            # deleted and brought back
            person.agrees = False
            refused = await call(client, "delete_topic", topic="orders")
            assert refused["error"]["code"] == "PERMISSION_DENIED"
            assert (await call(client, "describe_topic", topic="orders"))["messages"] == 200
            person.agrees = True
            deleted = await call(client, "delete_topic", topic="orders")
            gone = await call(client, "describe_topic", topic="orders")
            assert gone["error"]["code"] == "TOPIC_NOT_FOUND"
            await call(client, "undo_change", call_id=deleted["call_id"])
            assert (await call(client, "describe_topic", topic="orders"))["messages"] == 200
            lag = await call(client, "get_consumer_lag", topic="orders")
            assert lag["items"][0]["lag_messages"] == 50
            assert len(person.asked) == 4


# -- a long task, killed in the middle -------------------------------------------------------------------------------


async def patiently(client: Client, task_id: str) -> dict[str, Any]:
    """The task once it is over; a broker that is coming up is asked again."""
    end = time.monotonic() + DEADLINE_S
    while True:
        assert time.monotonic() < end, "it is not over"
        try:
            task = await ask_task(client, "get", task_id)
        except MCPError as error:
            if error.error.code != -32603:
                raise
        else:
            if task["status"] not in ("working", "input_required"):
                return task
        await anyio.sleep(0.1)


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_long_task_interrupted_by_sigkill_is_finished_under_the_same_id(
    broker: BrokerProcess, transport: str
) -> None:
    await anyio.to_thread.run_sync(produce, broker, "orders", 500)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connected(transport, broker))
        await until(lambda: bool(broker.helper_running("tier")))
        # the process that writes objects stands still, so that a flush stays half-way
        (child,) = broker.helper_running("tier")
        os.kill(child, signal.SIGSTOP)
        task = await call(client, "flush_objects", topic="orders")
        assert task["status"] == "working"
        assert (await ask_task(client, "get", task["taskId"]))["status"] == "working"
        os.kill(broker.pid, signal.SIGKILL)
        os.kill(child, signal.SIGKILL)
        await anyio.to_thread.run_sync(broker.kill)
        await anyio.to_thread.run_sync(broker.start)
        if (
            transport == "http"
        ):  # the server went with the broker; over stdio it is the same process that answers
            client = await stack.enter_async_context(connected(transport, broker))
        done = await patiently(client, task["taskId"])
        assert done["status"] == "completed"
        assert done["result"]["structuredContent"]["messages"] == 500, done
        own = await call(
            client, "read_operation", operation="tasks.get", arguments={"task_id": task["taskId"]}
        )
        assert (own["result"]["state"], own["result"]["begun_again"]) == ("done", 1)
        audit = await call(client, "query_audit", call_id=own["result"]["of_call"])
        assert [item["phase"] for item in audit["items"]].count("outcome") == 1
