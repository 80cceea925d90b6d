"""Nothing that destroys is done unless somebody agreed: every such tool, by every wire, transport and kind of client."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult, ElicitRequestParams, ElicitResult
from pydanube_admin.engine.models import Effect
from pydanube_admin.http import http_server
from pydanube_admin.registry import OPERATIONS
from pydanube_admin.remote import OpsClient
from pydanube_core.errors import PlanMismatch
from pydanube_mcp import build_server, http_face
from pydanube_mcp.consent import opened, sealed

from tests.admin.real_broker import Administered, administered
from tests.mcp.test_real_transports import bound
from tests.support.filled_cluster import add_subscription, add_topic

pytestmark = pytest.mark.anyio

DESTROYS = sorted(each.name for each in OPERATIONS.values() if each.effect is Effect.DESTROY and each.planned)
PRINCIPAL = "ann@ops"


@asynccontextmanager
async def prepared() -> AsyncIterator[Administered]:
    """A broker with a topic that is being read too slowly, and an audit that nobody else writes."""
    async with administered() as cluster:
        await add_topic(cluster, "/default/orders", messages=500)
        await add_subscription(cluster, "/default/orders", "billing", next_unacked=460)
        yield cluster


async def prepare(ops: OpsClient) -> None:
    """Make the topics and subscriptions that the examples of the operations name."""
    await ops.call("namespaces.create", {"namespace": "shop"})


async def done(ops: OpsClient) -> dict[str, int]:
    """Return how often each destructive operation was carried out, by the audit."""
    items = (await ops.call("audit.query", {"limit": 1000}))["items"]
    names = [
        item["operation"] for item in items if item["phase"] == "outcome" and item["decision"] == "allowed"
    ]
    return {name: names.count(name) for name in DESTROYS if name in names}


class Person:
    """Answers what the client asks; counts how often."""

    def __init__(self, answer: Callable[[str], ElicitResult]) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def __call__(self, context: Any, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params.message)
        assert "pydantic" not in params.message
        return self.answer(params.message)


def agrees(question: str) -> ElicitResult:
    name = question.rpartition("Type ")[2].removesuffix(" to go on.")
    return ElicitResult(action="accept", content={"name": name})


def declines(question: str) -> ElicitResult:
    return ElicitResult(action="decline")


def mistypes(question: str) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "something else"})


@asynccontextmanager
async def connected(
    transport: str, admin_url: str, mode: str, person: Person | None, *, confirm: str = "auto"
) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        match transport:
            case "stdio":
                program = (
                    f"from pydanube_mcp import run_stdio; run_stdio({admin_url!r}, principal={PRINCIPAL!r}, "
                    f"confirm={confirm!r}, timeout_s=30)"
                )
                target: Any = StdioServerParameters(command=sys.executable, args=["-c", program])
            case "http":
                sock = bound()
                target = f"http://127.0.0.1:{sock.getsockname()[1]}/mcp"
                app = await stack.enter_async_context(
                    http_face(admin_url, principal=PRINCIPAL, confirm=confirm, timeout_s=30)
                )
                await stack.enter_async_context(http_server(sock, app, grace_s=1))
            case _:
                target = await stack.enter_async_context(
                    build_server(admin_url, principal=PRINCIPAL, confirm=confirm, timeout_s=30)
                )
        yield await stack.enter_async_context(Client(target, mode=mode, elicitation_callback=person))


def structured(result: CallToolResult) -> dict[str, Any]:
    assert isinstance(result.structured_content, dict), result
    return result.structured_content


@pytest.fixture
async def ops() -> AsyncIterator[OpsClient]:
    async with (
        prepared() as cluster,
        OpsClient(cluster.url, principal=PRINCIPAL, timeout_s=30) as ops,
    ):
        await prepare(ops)
        yield ops


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("form", [True, False], ids=["form", "none"])
async def test_every_destroy_by_every_road(ops: OpsClient, transport: str, mode: str, form: bool) -> None:
    """A protocol error (such as -32021, or a missing back channel) would raise in the client's `call_tool`."""
    person = Person(declines)
    expected: dict[str, int] = {}
    with anyio.fail_after(120):
        async with connected(transport, ops.admin_url, mode, person if form else None) as client:
            for name in DESTROYS:
                operation = OPERATIONS[name]
                arguments = dict(operation.examples[0].arguments)
                person.answer = declines
                refused = await client.call_tool(operation.tool, arguments)
                assert refused.is_error, name
                error = structured(refused)["error"]
                if error["code"] not in (
                    "PLAN_REQUIRED",
                    "PERMISSION_DENIED",
                ):  # no data behind the example here
                    assert await done(ops) == expected, (name, error)
                    continue
                assert await done(ops) == expected, name
                if form:
                    assert error["code"] == "PERMISSION_DENIED"
                    person.answer = mistypes
                    assert (await client.call_tool(operation.tool, arguments)).is_error
                    # Planned, and the token passed on: a person is asked all the same.
                    plan = structured(
                        await client.call_tool("plan_operation", {"operation": name, "arguments": arguments})
                    )
                    person.answer = declines
                    token = {"plan_token": plan["plan_token"]}
                    assert (await client.call_tool("apply_plan", token)).is_error
                    assert (await client.call_tool(operation.tool, arguments | token)).is_error
                    assert await done(ops) == expected, name
                    person.answer = agrees
                    asked = len(person.asked)
                    if name in ("topics.delete", "subscriptions.seek"):
                        result = await client.call_tool("apply_plan", token)
                    else:
                        result = await client.call_tool(operation.tool, arguments)
                    assert len(person.asked) == asked + 1
                else:
                    assert error["code"] == "PLAN_REQUIRED"
                    step = error["next"][0]
                    assert step["tool"] in [tool.name for tool in (await client.list_tools()).tools]
                    result = await client.call_tool(step["tool"], step["arguments"])
                assert not result.is_error, (name, result)
                expected[name] = 1
                assert await done(ops) == expected
                if structured(result)["undo_until"] is not None:
                    undo = {"call_id": structured(result)["call_id"]}
                    plan = await ops.call("changes.undo", undo | {"plan_only": True})
                    await ops.call("changes.undo", undo | {"plan_token": plan["plan_token"]})
            assert len(expected) >= 6, expected


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_person_only_takes_no_token_from_a_model(ops: OpsClient, mode: str) -> None:
    with anyio.fail_after(60):
        async with connected("memory", ops.admin_url, mode, None, confirm="human") as client:
            refused = structured(await client.call_tool("delete_topic", {"topic": "orders"}))["error"]
            plan = structured(
                await client.call_tool(
                    "plan_operation", {"operation": "topics.delete", "arguments": {"topic": "orders"}}
                )
            )
            again = structured(await client.call_tool("apply_plan", {"plan_token": plan["plan_token"]}))[
                "error"
            ]
            for error in (refused, again):
                assert error["code"] == "PERMISSION_DENIED"
                step = error["next"][0]
                assert (step["tool"], step["operation"]) == (None, "topics.delete")
                assert step["command"] == "danube topics delete orders"
                assert "plan_token" not in json.dumps(error)
            # What the model holds opens nothing elsewhere.
            with pytest.raises(PlanMismatch):
                await ops.call("plans.apply", {"plan_token": plan["plan_token"]})
            with pytest.raises(PlanMismatch):
                await ops.call("topics.delete", {"topic": "orders", "plan_token": plan["plan_token"]})
            assert await done(ops) == {}
            # The command's calls, made by the person on another face.
            own = await ops.call(step["operation"], step["arguments"] | {"plan_only": True})
            await ops.call(step["operation"], step["arguments"] | {"plan_token": own["plan_token"]})
            assert await done(ops) == {"topics.delete": 1}
            # What does not destroy needs no person: its plan is applied with the sealed token.
            harmless = structured(
                await client.call_tool(
                    "plan_operation", {"operation": "topics.create", "arguments": {"topic": "new"}}
                )
            )
            applied = await client.call_tool("apply_plan", {"plan_token": harmless["plan_token"]})
            assert not applied.is_error
        person = Person(agrees)
        await ops.call("topics.create", {"topic": "more"})
        async with connected("memory", ops.admin_url, mode, person, confirm="human") as client:
            result = await client.call_tool("delete_topic", {"topic": "more"})
            assert not result.is_error
            assert len(person.asked) == 1
            assert "/default/more" in person.asked[0] or "more" in person.asked[0]
            # Planned first, the sealed token is good for the question, and for what follows from a yes.
            await ops.call("topics.create", {"topic": "again"})
            plan = structured(
                await client.call_tool(
                    "plan_operation", {"operation": "topics.delete", "arguments": {"topic": "again"}}
                )
            )
            with pytest.raises(PlanMismatch):
                await ops.call("plans.apply", {"plan_token": plan["plan_token"]})
            applied = await client.call_tool("apply_plan", {"plan_token": plan["plan_token"]})
            assert not applied.is_error
            assert len(person.asked) == 2


async def test_a_client_that_breaks_off_the_question_has_not_agreed(ops: OpsClient) -> None:
    async def breaks(context: Any, params: ElicitRequestParams) -> ElicitResult:
        raise RuntimeError("the window was closed")

    with anyio.fail_after(60):
        async with connected("memory", ops.admin_url, "legacy", breaks) as client:  # type: ignore[arg-type]
            error = structured(await client.call_tool("delete_topic", {"topic": "orders"}))["error"]
    assert error["code"] == "PERMISSION_DENIED"
    assert error["next"][0]["command"] == "danube topics delete orders"
    assert "plan_token" not in json.dumps(error)
    assert await done(ops) == {}


async def test_an_answer_belongs_to_its_question(ops: OpsClient) -> None:
    """The state of one call, brought with another call's arguments or changed, is not taken."""
    person = Person(agrees)
    with anyio.fail_after(60):
        await ops.call("topics.create", {"topic": "other"})
        async with connected("memory", ops.admin_url, "2026-07-28", person) as client:
            first = await client.session.call_tool(
                "delete_topic", {"topic": "orders"}, allow_input_required=True
            )
            state = first.request_state
            answer = {"consent": ElicitResult(action="accept", content={"name": "orders"})}
            for arguments, given in (({"topic": "other"}, state), ({"topic": "orders"}, state[:-4] + "AAAA")):
                with pytest.raises(Exception, match="tate"):
                    await client.session.call_tool(
                        "delete_topic",
                        arguments,
                        input_responses=answer,
                        request_state=given,
                        allow_input_required=True,
                    )
            assert await done(ops) == {}
            ok = await client.session.call_tool(
                "delete_topic",
                {"topic": "orders"},
                input_responses=answer,
                request_state=state,
                allow_input_required=True,
            )
            assert not ok.is_error
            # Once: the plan behind it is used.
            again = await client.session.call_tool(
                "delete_topic",
                {"topic": "orders"},
                input_responses=answer,
                request_state=state,
                allow_input_required=True,
            )
            assert again.is_error
            assert await done(ops) == {"topics.delete": 1}


@pytest.mark.parametrize("how", ["interrupt", "terminate", "closed stdin"])
def test_stdio_ends_in_time_whatever_ends_it(how: str) -> None:
    import signal

    program = "from pydanube_mcp import run_stdio; run_stdio('http://127.0.0.1:1')"
    line = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        },
    }
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(json.dumps(line).encode() + b"\n")
        process.stdin.flush()
        assert b"danube" in process.stdout.readline()
        match how:
            case "interrupt":
                process.send_signal(signal.SIGINT)
            case "terminate":
                process.send_signal(signal.SIGTERM)
            case _:
                process.stdin.close()
        assert process.wait(timeout=30) == 0
        assert process.stderr.read() == b""


def test_a_token_is_sealed_once_and_only_what_was_sealed_here_is_opened() -> None:
    token = f"p{'0a' * 12}.{'Zz9_' * 6}"
    shown = sealed(f"apply {token}, then {token}")
    assert token not in shown
    assert sealed(shown) == shown
    once = sealed(token)
    assert opened(once) == token
    for forged in (
        token,
        once[:-1] + ("A" if once[-1] != "A" else "B"),
        f"p{'0b' * 12}.{once.partition('.')[2]}",
    ):
        assert opened(forged) not in (token, forged)
    assert opened("p1.x") == "p1.x"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("describe_topic", {"topic": "{}"}),
        ("read_operation", {"operation": "{}"}),
        ("read_operation", {"operation": "plans.list", "arguments": {"plan_token": "{}"}}),
        ("plan_operation", {"operation": "topics.delete", "arguments": {"topic": "{}", "plan_token": "{}"}}),
        ("list_topics", {"plan_token": "{}"}),
        ("delete_topic", {"topic": "orders", "plan_token": "{} {}"}),
    ],
)
async def test_a_sealed_token_given_as_anything_else_does_not_come_back_opened(
    admin_url: str, tool: str, arguments: dict[str, Any]
) -> None:
    token = f"p{'0a' * 12}.{'Zz9_' * 6}"
    given = json.loads(json.dumps(arguments).replace("{}", sealed(token)))
    async with build_server(admin_url, confirm="human", profile="full") as server, Client(server) as client:
        answer = await client.call_tool(tool, given)
        assert token not in answer.model_dump_json()
