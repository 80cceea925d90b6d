"""Arguments in the types that language models write are taken by the shown schema; names and tokens stay as they are."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import Client
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
        ("list_topics", {"limit": "two"}, {"limit": "two"}, []),
        ("list_topics", {"namespace": None}, {}, ["namespace"]),
        ("describe_topic", {"topic": None}, {"topic": None}, []),
        ("describe_topic", {"topic": 5}, {"topic": 5}, []),
        (
            "delete_topic",
            {"topic": "t", "plan_only": "true"},
            {"topic": "t", "plan_only": True},
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
        plain = await client.call_tool("list_topics", {"limit": 1})
        assert META not in (plain.meta or {})
