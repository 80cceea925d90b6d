"""Long operations as tasks: over every transport, from process to process, answered midway, never somebody else's."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import INTERNAL_ERROR
from pydanube_admin.http import http_server
from pydanube_admin.remote import OpsClient
from pydanube_core.errors import Unavailable
from pydanube_core.ops_call import unknown_outcome
from pydanube_mcp import build_server, http_face

from tests.admin.real_broker import Administered
from tests.mcp.test_real_transports import bound
from tests.support.filled_cluster import add_topic, emptied
from tests.support.task_client import TakesTasks, ask_task, ended

pytestmark = pytest.mark.anyio

VERIFIED = {"checked": 3, "damaged": [], "missing": [], "gaps": [], "duplicates": []}
TOPIC = {"topic": "orders"}


class SlowCluster:
    """A broker whose long work waits for `go`."""

    def __init__(self, cluster: Administered, patch: pytest.MonkeyPatch) -> None:
        def work(name: str) -> Any:
            return lambda *args, **options: getattr(self, name)(*args, **options)

        for name in ("verify_objects", "orphans", "collect_objects"):
            patch.setattr(cluster.broker.port, name, work(name))
        self.url = cluster.url
        self.go = anyio.Event()
        self.collected = 0

    async def verify_objects(self, topic: str, *, start: int, end: int | None) -> Mapping[str, Any]:
        await self.go.wait()
        return VERIFIED

    async def orphans(self, topic: str) -> Sequence[Mapping[str, Any]]:
        return [{"path": "a.parquet", "bytes": 5}]

    async def collect_objects(self, topic: str) -> Sequence[Mapping[str, Any]]:
        self.collected += 1
        return await self.orphans(topic)


@pytest.fixture
async def slow(shared: Administered, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SlowCluster]:
    await emptied(shared)
    await add_topic(shared, "/default/orders", messages=5)
    slow = SlowCluster(shared, monkeypatch)
    yield slow
    slow.go.set()
    with anyio.fail_after(30):
        while any(task["state"] == "running" for task in (await shared("tasks.list"))["items"]):  # noqa: ASYNC110
            await anyio.sleep(0.01)


@pytest.fixture
def admin(slow: SlowCluster) -> str:
    return slow.url


async def never_asked(context: Any, params: Any) -> Any:
    raise AssertionError("the question is the task's")


@asynccontextmanager
async def connected(
    transport: str, admin: str, *, by: str = "ann@ops", asks: bool = False, **options: Any
) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        match transport:
            case "stdio":
                program = f"from pydanube_mcp import run_stdio; run_stdio({admin!r}, principal={by!r}, **{options!r})"
                target: Any = StdioServerParameters(command=sys.executable, args=["-c", program])
            case "http":
                sock = bound()
                app = await stack.enter_async_context(http_face(admin, **options))
                await stack.enter_async_context(http_server(sock, app, grace_s=1))
                web = await stack.enter_async_context(httpx2.AsyncClient(headers={"Danube-Principal": by}))
                url = f"http://127.0.0.1:{sock.getsockname()[1]}/mcp"
                target = streamable_http_client(url, http_client=web)
            case _:
                target = await stack.enter_async_context(build_server(admin, principal=by, **options))
        yield await stack.enter_async_context(
            Client(target, extensions=[TakesTasks()], elicitation_callback=never_asked if asks else None)
        )


async def begin(client: Client, tool: str, arguments: Mapping[str, Any] = TOPIC) -> dict[str, Any]:
    result = await client.call_tool(tool, dict(arguments))
    assert isinstance(result.structured_content, dict)
    assert "taskId" in result.structured_content, result
    return result.structured_content


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_task_outlives_the_process_that_made_it(
    slow: SlowCluster, admin: str, transport: str
) -> None:
    with anyio.fail_after(90):
        async with connected(transport, admin) as client:
            task = await begin(client, "verify_objects")
            now = await ask_task(client, "get", task["taskId"])
            assert (now["status"], now["statusMessage"]) == ("working", "objects.verify")
        slow.go.set()
        async with connected(transport, admin) as client:
            done = await ended(client, task["taskId"])
    assert done["status"] == "completed"
    assert done["result"]["structuredContent"] == VERIFIED


async def test_the_default_profile_reaches_it_by_read_operation(slow: SlowCluster, admin: str) -> None:
    async with connected("memory", admin) as client:
        call = {"operation": "objects.verify", "arguments": TOPIC}
        task = await begin(client, "read_operation", call)
        slow.go.set()
        done = await ended(client, task["taskId"])
        assert done["result"]["structuredContent"] == {"operation": "objects.verify", "result": VERIFIED}
        short = await client.call_tool("read_operation", {"operation": "topics.describe", "arguments": TOPIC})
        assert short.structured_content is not None
        assert short.structured_content["operation"] == "topics.describe"


async def test_somebody_elses_task_is_unknown_as_one_that_never_was(slow: SlowCluster, admin: str) -> None:
    async with connected("memory", admin) as client:
        task = await begin(client, "verify_objects")
    async with connected("memory", admin, asks=True) as client:
        waiting = await begin(client, "collect_objects")
    assert waiting["status"] == "input_required"
    guesses = (task["taskId"], "t" + "0" * 24, "nonsense", waiting["taskId"], waiting["taskId"] + ".apply",
               waiting["taskId"].partition(".")[0] + ".x", "p" + "0" * 24 + ".x", "x:" + task["taskId"])  # fmt: skip
    yes = {"consent": {"action": "accept", "content": {"name": "orders"}}}
    errors = []
    async with connected("memory", admin, by="eve@ops") as other:
        for task_id in guesses:
            for verb in ("get", "cancel", "update"):
                given: dict[str, Any] = {"input_responses": yes} if verb == "update" else {}
                with pytest.raises(MCPError) as refused:
                    await ask_task(other, verb, task_id, **given)
                errors.append((refused.value.error.code, refused.value.error.message))
    assert set(errors) == {(-32602, "Unknown task")}
    async with connected("memory", admin) as client:
        assert (await ask_task(client, "get", task["taskId"]))["status"] == "working"
        assert (await ask_task(client, "get", waiting["taskId"]))["status"] == "input_required"
    assert slow.collected == 0


async def test_cancelled_twice_is_cancelled_once(slow: SlowCluster, admin: str) -> None:
    async with connected("memory", admin) as client:
        task = await begin(client, "verify_objects")
        for _ in range(2):
            await ask_task(client, "cancel", task["taskId"])
            assert (await ask_task(client, "get", task["taskId"]))["status"] == "cancelled"


async def test_what_fails_is_a_result_that_says_so(slow: SlowCluster, admin: str) -> None:
    async with connected("memory", admin) as client:
        task = await begin(client, "verify_objects", {"topic": "nope"})
        done = await ended(client, task["taskId"])
    assert (done["status"], done["result"]["isError"]) == ("completed", True)
    assert done["result"]["structuredContent"]["error"]["code"] == "TOPIC_NOT_FOUND"


async def test_a_client_without_the_extension_waits_for_its_call(slow: SlowCluster, admin: str) -> None:
    slow.go.set()
    async with build_server(admin) as server:
        for mode in ("legacy", "2026-07-28"):
            async with Client(server, mode=mode) as client:
                result = await client.call_tool("verify_objects", TOPIC)
                assert result.structured_content == VERIFIED
                detached = await client.call_tool("verify_objects", {**TOPIC, "detach": True})
                assert detached.structured_content is not None
                assert detached.structured_content["state"] == "running"


# -- consent midway ----------------------------------------------------------------------------------------------------


def answer(task: Mapping[str, Any], name: str, action: str = "accept") -> dict[str, Any]:
    (key,) = task["inputRequests"]
    return {key: {"action": action, "content": {"name": name}}}


async def planned(client: Client) -> dict[str, str]:
    plan = await client.call_tool("plan_operation", {"operation": "objects.collect", "arguments": TOPIC})
    assert plan.structured_content is not None
    return {"plan_token": plan.structured_content["plan_token"]}


@pytest.mark.parametrize("confirm", ["auto", "human"])
@pytest.mark.parametrize("way", ["outright", "by_token"])
async def test_a_person_agrees_midway_in_another_process(
    slow: SlowCluster, admin: str, way: str, confirm: str
) -> None:
    options: dict[str, Any] = {"asks": True, "confirm": confirm}
    async with connected("memory", admin, **options) as client:
        if way == "outright":
            task = await begin(client, "collect_objects")
        else:
            task = await begin(client, "apply_plan", await planned(client))
        assert (task["status"], slow.collected) == ("input_required", 0)
    async with connected("memory", admin, **options) as client:
        asked = await ask_task(client, "get", task["taskId"])
        (request,) = asked["inputRequests"].values()
        assert request["method"] == "elicitation/create"
        assert "Type orders" in request["params"]["message"]
        await ask_task(client, "update", task["taskId"], input_responses={"another": {"action": "accept"}})
        assert (await ask_task(client, "get", task["taskId"]))["status"] == "input_required"
        await ask_task(client, "update", task["taskId"], input_responses=answer(asked, "orders"))
        done = await ended(client, task["taskId"])
        content = done["result"]["structuredContent"]
        result = content["result"] if way == "by_token" else content
        assert (result["deleted"], slow.collected) == (["a.parquet"], 1)
        again = answer(asked, "orders")
        await ask_task(client, "update", task["taskId"], input_responses=again)
        assert slow.collected == 1


@pytest.mark.parametrize(("name", "action"), [("orders", "decline"), ("something", "accept"), ("", "cancel")])
async def test_without_consent_nothing_is_done(slow: SlowCluster, admin: str, name: str, action: str) -> None:
    async with connected("memory", admin, asks=True) as client:
        task = await begin(client, "collect_objects")
        asked = await ask_task(client, "get", task["taskId"])
        await ask_task(client, "update", task["taskId"], input_responses=answer(asked, name, action))
        assert (await ask_task(client, "get", task["taskId"]))["status"] == "cancelled"
        await ask_task(client, "update", task["taskId"], input_responses=answer(asked, "orders"))
        assert slow.collected == 0


async def test_what_changed_meanwhile_is_not_what_was_agreed_to(slow: SlowCluster, admin: str) -> None:
    async with connected("memory", admin, asks=True) as client:
        task = await begin(client, "collect_objects")
        asked = await ask_task(client, "get", task["taskId"])

        async def more(topic: str) -> Sequence[Mapping[str, Any]]:
            return [{"path": "a.parquet", "bytes": 5}, {"path": "b.parquet", "bytes": 5}]

        slow.orphans = more  # type: ignore[method-assign]
        with pytest.raises(MCPError) as refused:
            await ask_task(client, "update", task["taskId"], input_responses=answer(asked, "orders"))
        assert refused.value.error.data["code"] == "PLAN_STALE"
        assert (await ask_task(client, "get", task["taskId"]))["status"] == "cancelled"
        assert slow.collected == 0


async def test_a_lost_answer_to_an_agreed_change_neither_discards_its_plan_nor_blames_the_arguments(
    slow: SlowCluster, admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, called = OpsClient.call, list[str]()

    async def call(self: OpsClient, operation: str, *args: Any, **options: Any) -> Any:
        called.append(operation)
        if operation == "objects.collect" and "plan_token" in args[0]:
            raise Unavailable("the connection was lost", **unknown_outcome(operation))
        return await whole(self, operation, *args, **options)

    async with connected("memory", admin, asks=True) as client:
        task = await begin(client, "collect_objects")
        asked = await ask_task(client, "get", task["taskId"])
        monkeypatch.setattr(OpsClient, "call", call)
        with pytest.raises(MCPError) as lost:
            await ask_task(client, "update", task["taskId"], input_responses=answer(asked, "orders"))
        assert "objects.collect" in called
        assert "plans.discard" not in called
        assert (lost.value.error.code, lost.value.error.data["details"]["outcome"]) == (
            INTERNAL_ERROR,
            "unknown",
        )
        assert (await ask_task(client, "get", task["taskId"]))["status"] == "input_required"


async def test_with_several_clusters_the_id_says_which(slow: SlowCluster, admin: str) -> None:
    clusters = {"down": "http://127.0.0.1:1", "up": admin}
    async with (
        build_server(clusters, principal="ann@ops") as server,
        Client(server, extensions=[TakesTasks()]) as client,
    ):
        task = await begin(client, "verify_objects", {"cluster": "up", **TOPIC})
        assert task["taskId"].startswith("up:t")
        slow.go.set()
        assert (await ended(client, task["taskId"]))["status"] == "completed"
        with pytest.raises(MCPError, match="Unknown task"):
            await ask_task(client, "get", "elsewhere:" + task["taskId"].partition(":")[2])


@asynccontextmanager
async def without_tasks(transport: str, admin: str, **options: Any) -> AsyncIterator[Client]:
    """A client that takes no tasks, as most do."""
    async with AsyncExitStack() as stack:
        if transport == "http":
            sock = bound()
            app = await stack.enter_async_context(http_face(admin, **options))
            await stack.enter_async_context(http_server(sock, app, grace_s=1))
            target: Any = f"http://127.0.0.1:{sock.getsockname()[1]}/mcp"
        else:
            target = await stack.enter_async_context(build_server(admin, **options))
        yield await stack.enter_async_context(
            Client(target, mode="legacy" if transport == "legacy" else "auto")
        )


@pytest.mark.parametrize("profile", ["default", "full"])
@pytest.mark.parametrize("transport", ["memory", "legacy"])
async def test_without_tasks_a_long_call_answers_with_its_id_before_the_deadline(
    slow: SlowCluster, admin: str, transport: str, profile: str
) -> None:
    told: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    call = {"operation": "objects.verify", "arguments": TOPIC}
    with anyio.fail_after(60):
        async with without_tasks(transport, admin, profile=profile, timeout_s=1.0) as client:
            answer = await client.call_tool("read_operation", call, progress_callback=hear)
            left = answer.structured_content
            assert left is not None
            assert not answer.is_error
            assert (left["state"], left["operation"]) == ("running", "objects.verify")
            assert told == sorted(told)
            assert {message for _, message in told} == {"objects.verify"}
            step = left["next"][0]
            assert step["operation"] == "tasks.get"
            slow.go.set()
            while True:
                answer = await client.call_tool(step["tool"], step["arguments"])
                asked = answer.structured_content
                assert asked is not None
                task = asked["result"] if step["tool"] == "read_operation" else asked
                if task["state"] == "done":
                    break
    assert task["result"] == VERIFIED


async def test_without_tasks_what_ends_in_time_is_answered_as_ever(slow: SlowCluster, admin: str) -> None:
    slow.go.set()
    with anyio.fail_after(60):
        async with without_tasks("memory", admin, profile="full") as client:
            whole = await client.call_tool("verify_objects", TOPIC)
            assert whole.structured_content == VERIFIED
            within = await client.call_tool(
                "read_operation", {"operation": "objects.verify", "arguments": TOPIC}
            )
            assert within.structured_content == {"operation": "objects.verify", "result": VERIFIED}
            gone = await client.call_tool("verify_objects", {"topic": "nowhere"})
            assert gone.is_error
            assert gone.structured_content is not None
            assert gone.structured_content["error"]["code"] == "TOPIC_NOT_FOUND"


async def test_a_client_that_gives_up_waiting_stops_the_work(slow: SlowCluster, shared: Administered) -> None:
    with anyio.fail_after(60):
        async with without_tasks("memory", slow.url, timeout_s=60.0) as client:
            call = {"operation": "objects.verify", "arguments": TOPIC}
            with anyio.move_on_after(0.5):
                await client.call_tool("read_operation", call)
            while True:
                newest = (await shared("tasks.list", sort="-started_at", top=1))["items"][0]
                if newest["state"] == "cancelled":
                    break
                await anyio.sleep(0.02)
