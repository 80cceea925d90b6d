"""What others' servers of this kind were found to allow: a token sent to an address that a client names, and a change by a road
that --read-only forgot (kafbat 1751). Sessions of others and claimed addresses: tests/broker/security/test_locks.py."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import Client
from pydanube_admin.engine.models import Effect
from pydanube_admin.registry import OPERATIONS
from pydanube_mcp import build_server

from tests.admin.real_broker import Administered

ADDRESSES = (
    "url",
    "uri",
    "endpoint",
    "host",
    "address",
    "server",
    "broker_url",
    "admin_url",
    "webhook",
    "proxy",
)


def properties(schema: Any) -> set[str]:
    """All names of arguments in a schema, at any depth."""
    if isinstance(schema, list):
        return set().union(*map(properties, schema)) if schema else set()
    if not isinstance(schema, dict):
        return set()
    found = set(schema.get("properties", {}))
    return found.union(*(properties(inner) for inner in schema.values()))


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_no_call_can_name_an_address_to_which_credentials_would_go(name: str) -> None:
    found = properties(OPERATIONS[name].input_schema)
    assert not [each for each in found if each in ADDRESSES or each.endswith(("_url", "_uri", "_endpoint"))]


def least(schema: dict[str, Any]) -> dict[str, Any]:
    """The required arguments, with values of their types."""
    values = {"string": "orders", "integer": 1, "boolean": True, "object": {}, "array": []}
    return {
        name: schema["properties"][name].get(
            "enum", [values[schema["properties"][name].get("type", "string")]]
        )[0]
        for name in schema.get("required", ())
    }


@pytest.mark.anyio
async def test_a_read_only_server_changes_nothing_by_any_road(cluster: Administered) -> None:
    plan = await cluster("topics.delete", topic="orders", plan_only=True)
    revisions = [(item["topic"], item["messages"]) for item in (await cluster("topics.list"))["items"]]
    plans = len((await cluster("plans.list"))["items"])
    changes = [each for each in OPERATIONS.values() if each.effect is not Effect.READ]
    assert len(changes) > 30
    token = {"plan_token": plan["plan_token"]}
    async with build_server(cluster.url, profile="full", read_only=True) as server, Client(server) as model:
        for each in changes:
            given = least(each.input_schema)
            for tool, arguments in (
                (each.tool, given | token),
                ("plan_operation", {"operation": each.name, "arguments": given}),
                ("read_operation", {"operation": each.name, "arguments": given | token}),
            ):
                answer = await model.call_tool(tool, arguments)
                assert answer.is_error, f"{tool} {arguments}"
        assert (await model.call_tool("apply_plan", token)).is_error
    assert (await cluster("plans.show", plan_id=plan["plan_id"]))["state"] == "open"
    assert len((await cluster("plans.list"))["items"]) == plans
    now = [(item["topic"], item["messages"]) for item in (await cluster("topics.list"))["items"]]
    assert now == revisions
