"""Addresses that have less: `/mcp/read`, `?toolsets=…`, and a cluster that is connected to be read only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from mcp import Client, MCPError
from mcp.types import ResourceTemplateReference
from pydanube_admin.http import http_server
from pydanube_core.errors import InvalidArgument
from pydanube_mcp import build_server, http_face, parse_connections

from tests.admin.real_broker import Administered
from tests.mcp.test_real_transports import bound

pytestmark = pytest.mark.anyio

MODES = ["legacy", "2026-07-28"]


@pytest.fixture
async def url(admin_url: str) -> AsyncIterator[str]:
    sock = bound()
    async with http_face(admin_url) as app, http_server(sock, app, grace_s=2):
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"


async def refusal(client: Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    assert answer.structured_content is not None
    error: dict[str, Any] = answer.structured_content["error"]
    return error


@pytest.mark.parametrize("mode", MODES)
async def test_the_reading_address_reads_by_every_road(url: str, mode: str, cluster: Administered) -> None:
    async with Client(f"{url}/mcp/read", mode=mode) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        assert "list_topics" in listed
        assert not listed & {"create_topic", "plan_operation", "apply_plan", "undo_change"}
        read = await client.call_tool("read_operation", {"operation": "topics.list", "arguments": {}})
        assert not read.is_error
        for tool, arguments in (
            ("create_topic", {"topic": "new"}),
            ("plan_operation", {"operation": "topics.create", "arguments": {"topic": "new"}}),
            ("purge_subscription", {"topic": "orders", "subscription": "billing"}),
            ("freeze_face", {"face": "cli", "reason": "a test"}),
        ):
            refused = await refusal(client, tool, arguments)
            assert refused["code"] == "READ_ONLY"
            assert "/mcp/read" in refused["message"]
        error = await refusal(
            client, "read_operation", {"operation": "topics.create", "arguments": {"topic": "new"}}
        )
        assert error["code"] == "INVALID_ARGUMENT"
    async with Client(f"{url}/mcp", mode=mode) as client:  # the same server, whole
        made = await client.call_tool("create_topic", {"topic": "made-there"})
        assert not made.is_error


@pytest.mark.parametrize("mode", MODES)
async def test_an_address_with_sets_has_these_and_the_general_tools(url: str, mode: str) -> None:
    async with Client(f"{url}/mcp?toolsets=topics,schemas", mode=mode) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        assert {"list_topics", "truncate_topic", "register_schema", "find_operations", "apply_plan"} <= listed
        assert not listed & {"health_check", "query_audit", "list_subscriptions"}
        assert not (await client.call_tool("list_topics", {})).is_error
        for tool, arguments in (
            ("query_audit", {}),
            ("read_operation", {"operation": "audit.query"}),
            ("plan_operation", {"operation": "subscriptions.purge", "arguments": {}}),
        ):
            error = await refusal(client, tool, arguments)
            assert (error["code"], error["details"]["field"]) == ("PERMISSION_DENIED", "toolsets")


@pytest.mark.parametrize("mode", MODES)
async def test_an_address_with_sets_has_no_resources_of_others(url: str, mode: str) -> None:
    async with Client(f"{url}/mcp?toolsets=topics", mode=mode) as client:
        assert (await client.read_resource("danube://topic/default/orders")).contents
        for uri in ("danube://metrics", "danube://alerts", "danube://subscription/default/orders/billing"):
            with pytest.raises(MCPError, match="none of the sets that this address has"):
                await client.read_resource(uri)
        listed = [str(each.uri) for each in (await client.list_resources()).resources]
        assert not [uri for uri in listed if uri.startswith("danube:")]
        templates = {each.name for each in (await client.list_resource_templates()).resource_templates}
        assert "topic" in templates
        assert not templates & {"broker", "subscription", "schema"}
        part = {"name": "subscription", "value": ""}
        asked = ResourceTemplateReference(uri="danube://subscription/{namespace}/{topic}/{subscription}")
        found = await client.complete(asked, part, {"namespace": "default", "topic": "orders"})
        assert found.completion.values == []


async def test_a_plan_of_another_set_is_not_applied_there(url: str) -> None:
    purge = {"operation": "subscriptions.purge", "arguments": {"topic": "orders", "subscription": "billing"}}
    own = {"operation": "topics.create", "arguments": {"topic": "planned"}}
    async with Client(f"{url}/mcp") as client:
        plans = [(await client.call_tool("plan_operation", call)).structured_content for call in (purge, own)]
    tokens = [plan["plan_token"] for plan in plans if plan is not None]
    async with Client(f"{url}/mcp?toolsets=topics") as client:
        error = await refusal(client, "apply_plan", {"plan_token": tokens[0]})
        assert error["details"]["field"] == "toolsets"
        done = await client.call_tool("apply_plan", {"plan_token": tokens[1]})
        assert not done.is_error


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/mcp?toolsets=topcis", "there is no set 'topcis'"),
        ("/mcp?toolsets=", "name at least one set"),
        ("/mcp?toolset=topics", "the address has the parameter 'toolset'. It takes only toolsets"),
        ("/mcp/read?toolsets=topics,nope", "there is no set 'nope'"),
    ],
)
async def test_an_unknown_set_is_answered_with_a_sentence(url: str, path: str, said: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as web:
        answer = await web.post(f"{url}{path}", json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["details"]["field"] == "toolsets"
    assert said in error["message"]
    assert "subscriptions" in error["message"] or "leave it out" in error["message"]


async def test_a_cluster_that_is_connected_to_be_read_only(admin_url: str, cluster: Administered) -> None:
    connections = parse_connections([f"prod={admin_url},read_only", f"test={admin_url}"], admin_url=admin_url)
    async with build_server(connections) as server, Client(server) as client:
        tools = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
        assert tools["list_topics"]["properties"]["cluster"]["enum"] == ["prod", "test"]
        assert tools["create_topic"]["properties"]["cluster"]["enum"] == ["test"]
        error = await refusal(client, "create_topic", {"topic": "new", "cluster": "prod"})
        assert error["code"] == "READ_ONLY"
        made = await client.call_tool("create_topic", {"topic": "made-by-test", "cluster": "test"})
        assert not made.is_error
    async with build_server(parse_connections([f"prod={admin_url},read_only"], admin_url="")) as server:
        assert "create_topic" not in {tool.name for tool in await server.list_tools()}


def test_another_word_behind_the_comma_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="there is no option 'readonly'"):
        parse_connections(["prod=http://10.0.0.5:50051,readonly"], admin_url="")
