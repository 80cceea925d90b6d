"""Consent by whoever was not asked, twice, late, or with junk: nothing is done that was not agreed to, and the call ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pydanube_mcp.consent as consent_module
import pytest
from mcp import Client
from mcp.types import ElicitResult
from pydanube_admin.http import http_server
from pydanube_admin.remote import OpsClient
from pydanube_mcp import build_server, http_face

from tests.admin.real_broker import administered
from tests.mcp.test_consent import Person, agrees, declines, done, prepared, structured
from tests.mcp.test_real_transports import bound

pytestmark = pytest.mark.anyio

ACCEPT = "application/json, text/event-stream"
DELETE = {"name": "delete_topic", "arguments": {"topic": "orders"}}
YES = {"action": "accept", "content": {"name": "orders"}}
JUNK: list[Any] = [
    5,
    None,
    [],
    {},
    {"action": "accept"},
    {"action": "accept", "content": None},
    {"action": "accept", "content": {"name": {"name": "orders"}}},
    {"action": "accept", "content": {"name": ["orders"]}},
    {"action": "accept", "content": {"Name": "orders"}},
    {"action": "accept", "content": {"name": "orders\x00"}},
    {"action": "accept", "content": {"name": ""}},
    {"action": "accept", "content": "orders"},
    {"action": "ACCEPT", "content": {"name": "orders"}},
    {"action": "decline", "content": {"name": "orders"}},
    {"action": "cancel", "content": {"name": "orders"}},
    {"action": True, "content": {"name": True}},
]


class Session:
    """A client of the 2025 protocol over HTTP that says whatever it is told to."""

    def __init__(self, web: httpx.AsyncClient, url: str) -> None:
        self.web, self.url = web, url
        self.headers = {"accept": ACCEPT, "mcp-protocol-version": "2025-11-25"}
        self.number = 0

    async def open(self) -> None:
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"elicitation": {"form": {}}},
            "clientInfo": {"name": "t", "version": "1"},
        }
        answer = await self.send({"id": 0, "method": "initialize", "params": hello})
        self.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        assert (await self.send({"method": "notifications/initialized"})).status_code == 202

    async def send(self, message: Mapping[str, Any]) -> httpx.Response:
        body = {"jsonrpc": "2.0", **message}
        return await self.web.post(self.url, json=body, headers=self.headers)

    @asynccontextmanager
    async def calling(self, params: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """A call under way: what comes on its stream."""
        self.number += 1
        body = {"jsonrpc": "2.0", "id": self.number, "method": "tools/call", "params": params}
        async with self.web.stream("POST", self.url, json=body, headers=self.headers) as stream:

            async def messages() -> AsyncIterator[dict[str, Any]]:
                async for line in stream.aiter_lines():
                    if line.startswith("data:") and line[5:].strip():
                        yield json.loads(line[5:])

            yield messages()


@pytest.fixture
async def ops() -> AsyncIterator[OpsClient]:
    async with (
        prepared() as cluster,
        OpsClient(cluster.url, principal="ann@ops", timeout_s=30) as ops,
    ):
        yield ops


@asynccontextmanager
async def sessions(ops: OpsClient, count: int) -> AsyncIterator[list[Session]]:
    sock = bound()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}/mcp"
    async with (
        http_face(ops.admin_url, principal="ann@ops", timeout_s=30) as app,
        http_server(sock, app, grace_s=1),
        httpx.AsyncClient(trust_env=False, timeout=30) as web,
    ):
        made = [Session(web, url) for _ in range(count)]
        for each in made:
            await each.open()
        yield made


async def question_of(messages: AsyncIterator[dict[str, Any]]) -> Any:
    asked = await anext(messages)
    assert asked["method"] == "elicitation/create", asked
    return asked["id"]


def code_of(answer: Mapping[str, Any]) -> str:
    assert answer["result"]["isError"] is True, answer
    return str(answer["result"]["structuredContent"]["error"]["code"])


async def test_junk_is_no_consent_and_ends_the_call(ops: OpsClient) -> None:
    with anyio.fail_after(60):
        async with sessions(ops, 1) as (session,):
            for junk in JUNK:
                async with session.calling(DELETE) as messages:
                    number = await question_of(messages)
                    if (await session.send({"id": number, "result": junk})).status_code == 400:
                        # It was no message, so nobody has answered yet.
                        await session.send({"id": number, "result": {"action": "decline"}})
                    assert code_of(await anext(messages)) == "PERMISSION_DENIED", junk
            for failed in ({"code": -1, "message": "no"}, {"code": -32042, "message": "url", "data": []}):
                async with session.calling(DELETE) as messages:
                    await session.send({"id": await question_of(messages), "error": failed})
                    assert code_of(await anext(messages)) == "PERMISSION_DENIED"
            assert await done(ops) == {}


async def test_another_session_answers_for_nobody(ops: OpsClient) -> None:
    """Question ids are small numbers, so that anybody can guess them."""
    with anyio.fail_after(60):
        async with sessions(ops, 2) as (asked, other), asked.calling(DELETE) as messages:
            number = await question_of(messages)
            for guess in {number, str(number), 0, 1, 2, 3}:
                await other.send({"id": guess, "result": YES})
            stranger = Session(other.web, other.url)  # without a session at all
            await stranger.send({"id": number, "result": YES})
            stranger.headers["mcp-session-id"] = "0" * 32
            assert (await stranger.send({"id": number, "result": YES})).status_code == 404
            assert await done(ops) == {}
            await asked.send({"id": number, "result": {"action": "decline"}})
            assert code_of(await anext(messages)) == "PERMISSION_DENIED"
            assert await done(ops) == {}


async def test_a_second_answer_counts_for_nothing(ops: OpsClient) -> None:
    with anyio.fail_after(60):
        async with sessions(ops, 1) as (session,):
            async with session.calling(DELETE) as messages:
                number = await question_of(messages)
                await session.send({"id": number, "result": {"action": "decline"}})
                await session.send({"id": number, "result": YES})
                assert code_of(await anext(messages)) == "PERMISSION_DENIED"
            await session.send({"id": number, "result": YES})
            assert await done(ops) == {}
            async with session.calling(DELETE) as messages:
                number = await question_of(messages)
                for _ in range(3):
                    await session.send({"id": number, "result": YES})
                assert "isError" not in (answer := (await anext(messages))["result"]) or not answer["isError"]
            assert await done(ops) == {"topics.delete": 1}


async def test_a_late_answer_is_none(ops: OpsClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consent_module, "ASK_TIMEOUT_S", 0.2)
    with anyio.fail_after(60):
        async with sessions(ops, 1) as (session,):
            async with session.calling(DELETE) as messages:
                number = await question_of(messages)
                answers = [each async for each in messages if "result" in each]
                assert code_of(answers[0]) == "PERMISSION_DENIED"
            await session.send({"id": number, "result": YES})
            assert await done(ops) == {}


async def test_a_call_whose_client_is_gone_does_nothing(ops: OpsClient) -> None:
    """The stream is closed with the question open; the answer comes on a request of its own all the same."""
    with anyio.fail_after(60):
        async with sessions(ops, 1) as (session,):
            async with session.calling(DELETE) as messages:
                number = await question_of(messages)
            ended = await session.web.delete(session.url, headers=session.headers)
            assert ended.status_code == 200
            assert (await session.send({"id": number, "result": YES})).status_code == 404
            assert await done(ops) == {}


async def test_the_state_of_a_question_is_good_for_its_asker_its_call_and_its_server(ops: OpsClient) -> None:
    """2026: what a client brings back could come from anywhere."""
    answer = {"consent": ElicitResult(action="accept", content={"name": "orders"})}
    person = Person(agrees)
    await ops.call("topics.create", {"topic": "other"})
    with anyio.fail_after(60):
        async with Client(
            build_server(ops.admin_url, principal="ann@ops"), mode="2026-07-28", elicitation_callback=person
        ) as client:
            plans = [
                structured(await client.call_tool("delete_topic", {"topic": topic, "plan_only": True}))
                for topic in ("orders", "other")
            ]
            tokens = [plan["plan_token"] for plan in plans]
            asked = await client.session.call_tool(
                "apply_plan", {"plan_token": tokens[0]}, allow_input_required=True
            )
            state = asked.request_state
            for name, arguments in (
                ("apply_plan", {"plan_token": tokens[1]}),
                ("delete_topic", {"topic": "orders", "plan_token": tokens[0]}),
                ("delete_topic", {"topic": "other"}),
            ):
                with pytest.raises(Exception, match="tate"):
                    await client.session.call_tool(
                        name,
                        arguments,
                        input_responses=answer,
                        request_state=state,
                        allow_input_required=True,
                    )
        async with Client(
            build_server(ops.admin_url, principal="ann@ops"), mode="2026-07-28", elicitation_callback=person
        ) as elsewhere:
            with pytest.raises(Exception, match="tate"):
                await elsewhere.session.call_tool(
                    "apply_plan",
                    {"plan_token": tokens[0]},
                    input_responses=answer,
                    request_state=state,
                    allow_input_required=True,
                )
    assert await done(ops) == {}


async def test_consent_of_one_principal_is_no_consent_of_another(ops: OpsClient) -> None:
    """Over HTTP one server serves many: the plan behind the state is its maker's."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    }
    with anyio.fail_after(60):
        async with sessions(ops, 1) as (session,):

            async def call(by: str, **more: Any) -> dict[str, Any]:
                headers = {
                    "accept": ACCEPT,
                    "mcp-protocol-version": "2026-07-28",
                    "mcp-method": "tools/call",
                    "mcp-name": "delete_topic",
                    "danube-principal": by,
                }
                params = DELETE | {"_meta": meta} | more
                body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
                found = (await session.web.post(session.url, json=body, headers=headers)).text
                line = next((each[5:] for each in found.splitlines() if each.startswith("data:")), found)
                result: dict[str, Any] = json.loads(line)
                return result

            asked = (await call("ann@ops"))["result"]
            assert asked["resultType"] == "input_required"
            back = {"requestState": asked["requestState"], "inputResponses": {"consent": YES}}
            refused = (await call("eve@ops", **back))["result"]
            assert refused["isError"] is True
            assert refused["structuredContent"]["error"]["code"] in ("PLAN_NOT_FOUND", "PLAN_MISMATCH")
            assert await done(ops) == {}
            for junk in JUNK[4:]:
                got = await call("ann@ops", **(back | {"inputResponses": {"consent": junk}}))
                assert "error" in got or got["result"].get("isError"), junk
                assert "pydantic" not in json.dumps(got)
            assert await done(ops) == {}
            assert not (await call("ann@ops", **back))["result"].get("isError")
            assert await done(ops) == {"topics.delete": 1}


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_version_of_a_schema_goes_only_with_consent(mode: str) -> None:
    """The one destroying operation that facts alone cannot stand in for."""
    definition = '{"type": "object", "properties": {"a": {"type": "string"}}}'
    version = {"subject": "orders-value", "version": 1}
    async with administered() as cluster:
        await cluster(
            "schemas.register",
            subject="orders-value",
            schema_type="json_schema",
            schema_definition=definition,
        )
        with anyio.fail_after(60):
            person = Person(declines)
            async with Client(build_server(cluster.url), mode=mode, elicitation_callback=person) as client:
                refused = structured(await client.call_tool("delete_schema_version", version))["error"]
                assert (refused["code"], len(person.asked)) == ("PERMISSION_DENIED", 1)
            async with Client(build_server(cluster.url), mode=mode) as client:
                refused = structured(await client.call_tool("delete_schema_version", version))["error"]
                assert refused["code"] == "PLAN_REQUIRED"
                assert len((await cluster("schemas.versions", subject="orders-value"))["items"]) == 1
                step = refused["next"][0]
                assert not (await client.call_tool(step["tool"], step["arguments"])).is_error
        gone = await cluster.refused("schemas.delete_version", **version, by="root")
        assert gone.code == "SCHEMA_NOT_FOUND"
