"""Arguments in the types that language models write are taken by the shown schema; names and tokens stay as they are."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.types import Request
from pydantic import TypeAdapter
from pydanube_admin.registry import TOOLS
from pydanube_mcp import build_server
from pydanube_mcp.lenient import META, lenient

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("tool", "given", "taken", "coerced"),
    [
        ("list_topics", {"limit": "2"}, {"limit": 2}, ["limit"]),
        ("list_topics", {"limit": 2.0}, {"limit": 2}, ["limit"]),
        ("list_topics", {"limit": 2.5}, {"limit": 2.5}, []),
        ("list_topics", {"limit": 2.0**53 * 2}, {"limit": 2.0**53 * 2}, []),
        ("list_topics", {"limit": 1e300}, {"limit": 1e300}, []),
        ("list_topics", {"limit": "two"}, {"limit": "two"}, []),
        ("list_topics", {"namespace": None}, {}, ["namespace"]),
        ("describe_topic", {"topic": None}, {"topic": None}, []),
        ("describe_topic", {"topic": 5}, {"topic": 5}, []),
        ("list_topics", {"part": "2"}, {"part": 2}, ["part"]),
        ("list_topics", {"part": 1.0}, {"part": 1}, ["part"]),
        ("list_topics", {"part": None}, {}, ["part"]),
        ("delete_topic", {"topic": "t", "part": "2"}, {"topic": "t", "part": "2"}, []),
        (
            "delete_topic",
            {"topic": "t", "plan_only": "true"},
            {"topic": "t", "plan_only": True},
            ["plan_only"],
        ),
        (
            "delete_topic",
            {"topic": "t", "plan_only": "False"},
            {"topic": "t", "plan_only": False},
            ["plan_only"],
        ),
        ("delete_topic", {"topic": "t", "plan_token": None}, {"topic": "t", "plan_token": None}, []),
        (
            "set_topic_policies",
            {"topic": "t", "policies": '{"retention_bytes": "5", "drop_unread": null}'},
            {"topic": "t", "policies": {"retention_bytes": 5, "drop_unread": None}},
            ["policies", "policies.retention_bytes"],
        ),
        (
            "read_operation",
            {"operation": "topics.list", "arguments": '{"limit": "2"}'},
            {"operation": "topics.list", "arguments": {"limit": 2}},
            ["arguments", "arguments.limit"],
        ),
        ("read_operation", {"operation": "x", "arguments": "[]"}, {"operation": "x", "arguments": "[]"}, []),
    ],
)
def test_by_the_schema(tool: str, given: Any, taken: Any, coerced: list[str]) -> None:
    assert lenient(TOOLS[tool], given) == (taken, coerced)


async def test_what_was_read_as_another_type_is_said_beside_the_result(admin_url: str) -> None:
    async with build_server(admin_url) as server, Client(server) as client:
        answer = await client.call_tool("list_topics", {"limit": "1", "namespace": None})
        assert not answer.is_error
        assert answer.structured_content is not None
        assert len(answer.structured_content["items"]) == 1
        assert (answer.meta or {})[META] == ["limit", "namespace"]
        assert not (await client.call_tool("list_topics", {"part": "1"})).is_error
        beyond = await client.call_tool("list_topics", {"part": 100_001})
        assert beyond.is_error
        assert "part must be an integer from 1 to 100000" in str(beyond.structured_content)
        plain = await client.call_tool("list_topics", {"limit": 1})
        assert META not in (plain.meta or {})


async def call(client: Client, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Send a request as it is, past the client's own check of its parameters."""
    request = Request[dict[str, Any], str](method=method, params=params)
    return await client.session.send_request(request, TypeAdapter(dict[str, Any]))


async def test_all_arguments_as_one_string_are_read(admin_url: str) -> None:
    async with build_server(admin_url) as server, Client(server, mode="legacy") as client:
        answer = await call(client, "tools/call", {"name": "list_topics", "arguments": '{"limit": "1"}'})
        assert len(answer["structuredContent"]["items"]) == 1
        assert answer["_meta"][META] == ["arguments", "limit"]


@pytest.mark.parametrize(
    ("method", "params", "fault"),
    [
        ("tools/call", {"name": "list_topics", "arguments": "limit 1"}, "params.arguments is a string"),
        ("tools/call", {"name": "list_topics", "arguments": [1]}, "params.arguments is an array"),
        ("tools/call", {"arguments": {}}, "params.name is missing"),
        ("tools/call", {"name": 5}, "params.name is a number"),
        ("resources/read", {"url": "x"}, "params.uri is missing"),
        ("prompts/get", {"name": "x", "arguments": {"topic": 5}}, "params.arguments.topic is a number"),
    ],
)
async def test_a_parameter_that_does_not_fit_is_named(
    admin_url: str, method: str, params: dict[str, Any], fault: str
) -> None:
    async with build_server(admin_url) as server, Client(server, mode="legacy") as client:
        with pytest.raises(MCPError) as caught:
            await call(client, method, params)
        assert caught.value.error.code == -32602
        assert caught.value.error.message.startswith(fault)
