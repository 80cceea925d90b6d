"""Tools, called by the SDK's own client in memory, over the 2025 wire and the 2026 wire alike."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator
from typing import Any

import anyio
import jsonschema
import pytest
from mcp import Client
from mcp.types import CallToolResult, TextContent
from pydanube_admin.engine.models import Effect
from pydanube_admin.registry import OPERATIONS
from pydanube_core.errors import InvalidArgument
from pydanube_mcp import Profile, build_server, parse_connections
from pydanube_mcp.profiles import TOOLSETS, explain

from tests.admin.real_broker import Administered, administered
from tests.support.filled_cluster import add_topic, topics_of

pytestmark = pytest.mark.anyio

DEFAULT_TOOLS = [
    "analyze_consumer_lag",
    "apply_plan",
    "chart_topic",
    "create_topic",
    "describe_subscription",
    "describe_topic",
    "diagnose_producer",
    "diagnose_topic",
    "find_operations",
    "get_broker_status",
    "get_consumer_lag",
    "get_schema",
    "health_check",
    "list_alerts",
    "list_brokers",
    "list_subjects",
    "list_subscriptions",
    "list_topics",
    "peek_messages",
    "plan_operation",
    "query_audit",
    "read_operation",
    "undo_change",
    "what_changed",
    "what_if",
]


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def client(admin_url: str, mode: str) -> AsyncIterator[Client]:
    async with (
        build_server(admin_url, profile="full", toolsets="connectors,docs,links") as server,
        Client(server, mode=mode) as client,
    ):
        # In memory, a client that may choose takes the newest.
        assert client.protocol_version == ("2026-07-28" if mode == "auto" else "2025-11-25")
        yield client


def body(result: CallToolResult, *, error: bool = False) -> dict[str, Any]:
    """The structured content, which the text repeats for clients that read only text."""
    assert result.is_error is error, result
    structured = result.structured_content
    assert isinstance(structured, dict)
    assert isinstance(result.content[0], TextContent)
    assert json.loads(result.content[0].text) == structured
    return structured


async def test_the_topic_and_its_lag_are_told(client: Client) -> None:
    topics = body(await client.call_tool("list_topics", {}))
    assert [item["topic"] for item in topics["items"]] == ["/default/orders", "/shop/clicks"]
    lag = body(await client.call_tool("get_consumer_lag", {"subscription": "billing"}))
    assert lag["items"][0]["lag_messages"] == 40
    assert 0 < lag["items"][0]["oldest_unread_age_s"] < 60


async def test_every_tool_answers_within_its_output_schema(client: Client) -> None:
    # The list leaves the schemas out; they are given on demand, and answers keep to them.
    for tool, arguments in (
        ("list_topics", {"limit": 1}),
        ("describe_topic", {"topic": "orders"}),
        ("describe_topic", {"topic": "/shop/clicks"}),
        ("create_topic", {"topic": "fresh", "partitions": 2}),
        ("list_subscriptions", {}),
        ("get_consumer_lag", {}),
        ("get_broker_status", {}),
    ):
        answer = body(await client.call_tool(tool, arguments))
        jsonschema.validate(answer, await answer_schema(client, tool))


async def answer_schema(client: Client, tool: str) -> dict[str, Any]:
    (operation,) = (each for each in OPERATIONS.values() if each.tool == tool)
    content = (await client.read_resource(f"danube://operation/{operation.name}")).contents[0]
    shown: dict[str, Any] = json.loads(getattr(content, "text"))  # noqa: B009 - the union of text and blob
    assert (shown["tool"], shown["arguments"]) == (tool, operation.input_schema)
    return shown["answer"]


async def test_a_refusal_is_within_the_output_schema_and_half_a_result_is_not(client: Client) -> None:
    # This client leaves errors unchecked; the TypeScript SDK's checks them and shows nothing of one that does not fit.
    for tool, arguments in (("create_topic", {"topic": "orders"}), ("delete_topic", {"topic": "orders"})):
        refusal = body(await client.call_tool(tool, arguments), error=True)
        assert refusal.keys() == {"error"}
        schema = await answer_schema(client, tool)
        jsonschema.validate(refusal, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"topic": "/default/orders"}, schema)


async def test_tools_are_listed_by_name_with_four_annotations_and_their_arguments(client: Client) -> None:
    listed = (await client.list_tools()).tools
    assert [tool.name for tool in listed] == sorted(each.tool for each in OPERATIONS.values())
    for tool in listed:
        notes = tool.annotations
        assert notes is not None
        assert None not in (
            notes.read_only_hint,
            notes.destructive_hint,
            notes.idempotent_hint,
            notes.open_world_hint,
        )
        assert tool.title
        assert tool.description
        assert tool.output_schema is None
        assert tool.input_schema["type"] == "object"
    hints = {tool.name: tool.annotations for tool in listed}
    assert [name for name, notes in hints.items() if notes and notes.destructive_hint] == sorted(
        each.tool for each in OPERATIONS.values() if each.can_destroy or each.ends
    )
    ends = {"create_binding", "create_revocation", "delete_binding", "disconnect_consumer", "revoke_token"}
    assert ends <= {each.tool for each in OPERATIONS.values() if each.ends}
    assert [name for name, notes in hints.items() if notes and not notes.read_only_hint] == sorted(
        each.tool for each in OPERATIONS.values() if each.effect is not Effect.READ
    )


async def test_an_error_is_structured_and_names_the_next_tool(client: Client) -> None:
    error = body(await client.call_tool("describe_topic", {"topic": "ordres"}), error=True)["error"]
    assert (error["code"], error["retryable"]) == ("TOPIC_NOT_FOUND", False)
    step = error["next"][0]
    assert (step["tool"], step["arguments"]) == ("describe_topic", {"topic": "/default/orders"})
    body(await client.call_tool(step["tool"], step["arguments"]))


@pytest.mark.parametrize(
    ("tool", "arguments", "field"),
    [
        ("describe_topic", {}, "topic"),
        ("list_topics", {"limit": "many"}, "limit"),
        ("create_topic", {"topic": "x", "partition": 3}, "partition"),
        ("create_topic", {"topic": "bad name!"}, "topic"),
        ("list_topics", {"page": "rubbish"}, "page"),
        ("list_topics", {"cluster": "prod"}, "cluster"),
        ("lst_topics", {}, "tool"),
        ("topics.list", {}, "tool"),
    ],
)
async def test_argument_errors_are_ours(
    client: Client, tool: str, arguments: dict[str, Any], field: str
) -> None:
    result = await client.call_tool(tool, arguments)
    error = body(result, error=True)["error"]
    assert error["details"]["field"] == field
    assert "pydantic" not in json.dumps(error)


async def test_deletion_wants_a_plan_and_hands_it_over(client: Client, cluster: Administered) -> None:
    error = body(await client.call_tool("delete_topic", {"topic": "orders"}), error=True)["error"]
    assert error["code"] == "PLAN_REQUIRED"
    assert await topics_of(cluster) == ["/default/orders", "/shop/clicks"]
    step = error["next"][0]
    assert step["tool"] == "apply_plan"
    done = body(await client.call_tool(step["tool"], step["arguments"]))["result"]
    assert (done["messages"], done["undo_until"] is None) == (500, False)
    assert await topics_of(cluster) == ["/shop/clicks"]


async def test_resources_are_read_and_their_names_completed(client: Client, cluster: Administered) -> None:
    templates = {
        template.uri_template for template in (await client.list_resource_templates()).resource_templates
    }
    assert templates == {
        "danube://topic/{namespace}/{topic}",
        "danube://subscription/{namespace}/{topic}/{subscription}",
        "danube://broker/{broker_id}",
        "danube://schema/{subject}",
        "danube://docs/{page}",
        "danube://operation/{operation}",
    }
    page = (await client.read_resource("danube://docs/quickstart")).contents[0]
    assert page.mime_type == "text/markdown"
    assert getattr(page, "text").startswith("# ")  # noqa: B009 - the union of text and blob
    fixed = {str(each.uri) for each in (await client.list_resources()).resources}
    assert {uri for uri in fixed if not uri.startswith("skill:")} == {
        "danube://alerts",
        "danube://metrics",
        "ui://danube/chart",
    }
    for uri, field, value in (
        ("danube://topic/default/orders", "topic", "/default/orders"),
        (f"danube://broker/{cluster.broker_id}", "pid", os.getpid()),
        ("danube://subscription/default/orders/billing", "total", 1),
        ("danube://alerts", "next_page", None),
    ):
        content = (await client.read_resource(uri)).contents[0]
        assert content.mime_type == "application/json"
        assert json.loads(getattr(content, "text"))[field] == value  # noqa: B009 - the union of text and blob


@pytest.mark.parametrize(
    "uri",
    [
        "danube://topic/default/nope",
        "danube://topic/default",
        "danube://topic/default/bad%20name!",
        "danube://subscription/default/orders/nope",
        "danube://broker/1",
        "danube://nothing/x",
        "danube://docs/quickstar",
        "danube://docs/../README",
        "danube://operation/topics.lisst",
        "file:///etc/passwd",
    ],
)
async def test_a_resource_that_is_not_there_is_invalid_params(client: Client, uri: str) -> None:
    with pytest.raises(Exception) as caught:
        await client.read_resource(uri)
    assert getattr(caught.value, "code", None) == -32602
    assert uri in str(getattr(caught.value, "data", ""))


async def test_names_are_completed(client: Client, cluster: Administered) -> None:
    from mcp.types import ResourceTemplateReference

    async def complete(uri: str, name: str, value: str, given: dict[str, str] | None = None) -> list[str]:
        result = await client.complete(
            ResourceTemplateReference(type="ref/resource", uri=uri), {"name": name, "value": value}, given
        )
        return result.completion.values

    topic = "danube://topic/{namespace}/{topic}"
    assert await complete(topic, "namespace", "") == ["default", "shop"]
    assert await complete(topic, "topic", "o", {"namespace": "default"}) == ["orders"]
    subscription = "danube://subscription/{namespace}/{topic}/{subscription}"
    assert await complete(subscription, "subscription", "b", {"namespace": "default", "topic": "orders"}) == [
        "billing"
    ]
    assert await complete(subscription, "subscription", "", {"topic": "nowhere"}) == []
    assert await complete("danube://broker/{broker_id}", "broker_id", cluster.broker_id[0]) == [
        cluster.broker_id
    ]


async def test_the_server_says_who_it_is_and_how_to_ask_for_lag(client: Client) -> None:
    assert client.server_info.name == "danube"
    assert client.instructions is not None
    for tool in (
        "health_check",
        "analyze_consumer_lag",
        "diagnose_producer",
        "plan_operation",
        "apply_plan",
        "undo_change",
    ):
        assert tool in client.instructions


async def test_while_the_broker_is_down_tools_are_listed_and_calls_are_unavailable(mode: str) -> None:
    with anyio.fail_after(60):
        async with (
            build_server("http://127.0.0.1:1", timeout_s=5) as server,
            Client(server, mode=mode) as client,
        ):
            assert [tool.name for tool in (await client.list_tools()).tools] == DEFAULT_TOOLS
            error = body(await client.call_tool("list_topics", {}), error=True)["error"]
            assert (error["code"], error["retryable"]) == ("UNAVAILABLE", True)
            assert "danube up" in error["message"]


async def test_a_read_only_server_hides_and_refuses_what_changes(
    admin_url: str, mode: str, cluster: Administered
) -> None:
    with anyio.fail_after(60):
        async with (
            build_server(
                admin_url, profile="full", toolsets="connectors,docs,links", read_only=True
            ) as server,
            Client(server, mode=mode) as client,
        ):
            offered = {tool.name for tool in (await client.list_tools()).tools}
            assert offered == {each.tool for each in OPERATIONS.values() if each.effect is Effect.READ}
            error = body(await client.call_tool("create_topic", {"topic": "x"}), error=True)["error"]
            assert error["code"] == "READ_ONLY"
    assert await topics_of(cluster) == ["/default/orders", "/shop/clicks"]


async def test_several_clusters_are_told_apart_by_an_argument(admin_url: str, mode: str) -> None:
    with anyio.fail_after(60):
        async with administered() as other:
            await add_topic(other, "/default/staging-only")
            connections = parse_connections([f"prod={admin_url}", f"staging={other.url}"], admin_url="unused")
            async with build_server(connections) as server, Client(server, mode=mode) as client:
                for tool in (await client.list_tools()).tools:
                    assert tool.input_schema["properties"]["cluster"]["enum"] == ["prod", "staging"]
                    assert "cluster" in tool.input_schema["required"]
                listed = body(await client.call_tool("list_topics", {"cluster": "staging"}))
                assert [item["topic"] for item in listed["items"]] == ["/default/staging-only"]
                for arguments in ({}, {"cluster": "prd"}, {"cluster": 3}):
                    error = body(await client.call_tool("list_topics", arguments), error=True)["error"]
                    assert error["details"]["field"] == "cluster"
                missing = {"topic": "staging-onli", "cluster": "staging"}
                error = body(await client.call_tool("describe_topic", missing), error=True)["error"]
                assert error["next"][0]["arguments"] == {
                    "cluster": "staging",
                    "topic": "/default/staging-only",
                }
                # Whatever is proposed can be called as it stands.
                for tool, arguments in (
                    ("list_topics", {}),
                    ("list_topics", {"cluster": "stagin"}),
                    ("delete_topic", {"topic": "staging-only", "cluster": "staging"}),
                    ("topics.list", {"cluster": "staging"}),
                    ("no_such_thing", {"cluster": "staging"}),
                ):
                    error = body(await client.call_tool(tool, arguments), error=True)["error"]
                    step = error["next"][-1]
                    assert step["arguments"]["cluster"] == "staging", (tool, step)
                    assert not (await client.call_tool(step["tool"], step["arguments"])).is_error, (
                        tool,
                        step,
                    )
                assert await topics_of(other) == []
                await add_topic(other, "/default/staging-only")
                read = await client.read_resource("danube://topic/default/staging-only?cluster=staging")
                assert "staging-only" in str(read.contents[0])


async def test_the_name_of_an_operation_leads_to_its_tool(admin_url: str, mode: str) -> None:
    async with build_server(admin_url) as server, Client(server, mode=mode) as client:
        error = body(await client.call_tool("topics.delete", {"topic": "orders"}), error=True)["error"]
        assert error["details"]["did_you_mean"] == ["delete_topic"]
        (step,) = error["next"]
        assert (step["tool"], step["arguments"]["operation"]) == ("plan_operation", "topics.delete")


async def test_a_tool_registered_with_the_sdk_is_served_beside_ours(admin_url: str, mode: str) -> None:
    with anyio.fail_after(60):
        async with build_server(admin_url) as server:

            @server.tool()
            async def extra(word: str) -> str:
                """Say it again."""
                return word

            async with Client(server, mode=mode) as client:
                assert "extra" in [tool.name for tool in (await client.list_tools()).tools]
                result = await client.call_tool("extra", {"word": "again"})
                assert result.structured_content == {"result": "again"}


def tokens(value: Any) -> float:
    """Bytes divided by four."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()) / 4


@pytest.mark.parametrize("several", [False, True])
async def test_what_a_model_must_read_stays_small(several: bool) -> None:
    connections = {f"c{n}": "http://127.0.0.1:1" for n in range(3 if several else 1)}
    listed: dict[str, list[dict[str, Any]]] = {}
    with anyio.fail_after(60):
        for profile in ("default", "full"):
            async with build_server(connections, profile=profile) as server:
                tools = [
                    tool.model_dump(mode="json", by_alias=True, exclude_none=True)
                    for tool in await server.list_tools()
                ]
                # What a model reads: hosts give it names, descriptions and arguments.
                seen = ("name", "description", "inputSchema")
                listed[profile] = [{key: tool[key] for key in seen} for tool in tools]
    extra = 30 if several else 0  # tokens a tool, for its argument `cluster`
    for profile, most in (("default", 4_000), ("full", 110 * len(listed["full"]))):
        found = tokens(listed[profile])
        assert found <= most + extra * len(listed[profile]), (profile, found)
        assert '"title"' not in json.dumps([tool["inputSchema"] for tool in listed[profile]])
    assert len(server.instructions or "") < 1_600


async def test_found_operations_and_pages_are_short(cluster: Administered, admin_url: str, mode: str) -> None:
    """Five found operations took 1 566 tokens: bounds, and the tokens of plans that `plan_operation` takes itself."""
    with anyio.fail_after(60):
        async with build_server(admin_url) as server, Client(server, mode=mode) as client:
            found = body(await client.call_tool("find_operations", {"query": "replay dead letters"}))
            assert len(found["items"]) == 5
            assert tokens(found) <= 1_300
            for each in found["items"]:
                own = OPERATIONS[each["operation"]].input_schema["properties"].keys()
                assert own - each["arguments"]["properties"].keys() <= {"plan_only", "plan_token", "why"}
            for number in range(30):
                await add_topic(cluster, f"/default/short-{number}")
            page = body(await client.call_tool("list_topics", {}))
            assert page["next_page"] is not None
            assert 1_000 < tokens(page) <= 1_500


async def test_the_settings_of_a_broker_come_in_parts_and_the_changed_ones_first(
    admin_url: str, mode: str
) -> None:
    """The first part took 1 816 tokens, in the order of the sections."""
    with anyio.fail_after(60):
        async with build_server(admin_url, profile="full") as server, Client(server, mode=mode) as client:
            named: list[dict[str, Any]] = []
            arguments: dict[str, Any] = {}
            while True:
                part = body(await client.call_tool("get_broker_config", arguments))
                assert tokens(part) <= 1_500
                named += part["settings"]
                if "next" not in part["rest"]:
                    break
                arguments = part["rest"]["next"][0]["arguments"]
            changed = [each["value"] != each["default"] for each in named]
            assert changed == sorted(changed, reverse=True)
            assert any(changed)
            assert len({each["name"] for each in named}) == len(named) > 100


def test_a_missing_tool_is_explained() -> None:
    assert "is listed" in explain("list_topics", Profile.DEFAULT, read_only=False)
    assert "plan_operation" in explain("delete_topic", Profile.DEFAULT, read_only=False)
    assert "read_operation" in explain("list_plans", Profile.DEFAULT, read_only=False)
    assert "--read-only" in explain("topics.delete", Profile.FULL, read_only=True)
    assert "delete_topic" in explain("delet_topic", Profile.FULL, read_only=False)


async def test_a_step_is_one_that_the_profile_lists(admin_url: str, mode: str) -> None:
    with anyio.fail_after(60):
        async with build_server(admin_url) as server, Client(server, mode=mode) as client:
            listed = {tool.name for tool in (await client.list_tools()).tools}
            error = body(await client.call_tool("delete_topic", {"topic": "orders"}), error=True)["error"]
            step = error["next"][0]
            assert (step["tool"], list(step["arguments"])) == ("apply_plan", ["plan_token"])
            assert step["tool"] in listed
            body(await client.call_tool(step["tool"], step["arguments"]))
            error = body(await client.call_tool(step["tool"], step["arguments"]), error=True)["error"]
            assert error["code"] == "PLAN_USED"
            assert error["next"][0]["tool"] == "plan_operation"
            assert error["next"][0]["arguments"] == {
                "operation": "topics.delete",
                "arguments": {"topic": "orders"},
            }


async def test_the_list_is_the_same_bytes_each_time(admin_url: str) -> None:
    dumps = []
    for _ in range(2):
        async with build_server(admin_url) as server:
            dumps.append([tool.model_dump_json() for tool in await server.list_tools()])
    assert dumps[0] == dumps[1]


async def test_building_a_server_leaves_logging_alone() -> None:
    before = list(logging.getLogger().handlers)
    async with build_server():
        assert logging.getLogger().handlers == before


def test_connections_are_checked() -> None:
    assert parse_connections([], admin_url="http://a:1") == {"default": "http://a:1"}
    assert parse_connections(["a=http://x:1", "b=http://y:2"], admin_url="") == {
        "a": "http://x:1",
        "b": "http://y:2",
    }
    for bad in (["x"], ["=http://x:1"], ["a="], ["a b=http://x:1"], ["a=http://x:1", "a=http://y:1"]):
        with pytest.raises(InvalidArgument):
            parse_connections(bad, admin_url="")
    with pytest.raises(InvalidArgument):
        build_server({"a": "not a url"})


def test_the_default_profile_is_the_one_of_the_interface() -> None:
    assert (
        sorted(operation.tool for operation in OPERATIONS.values() if operation.default_profile)
        == DEFAULT_TOOLS
    )


async def test_sets_of_tools_are_listed_beside_the_profile(cluster: Administered) -> None:
    async with build_server(cluster.url) as plain, Client(plain) as client:
        default = {tool.name for tool in (await client.list_tools()).tools}
    async with build_server(cluster.url, toolsets="messages, security") as server, Client(server) as client:
        more = {tool.name for tool in (await client.list_tools()).tools}
    added = {
        each.tool for each in OPERATIONS.values() if each.group in TOOLSETS["messages"] | TOOLSETS["security"]
    }
    assert more == default | added
    assert "search_messages" in more - default
    assert {each.group for each in OPERATIONS.values()} >= frozenset().union(*TOOLSETS.values())


def test_a_set_of_tools_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument) as caught:
        build_server("http://127.0.0.1:1", toolsets="messages,scheams")
    assert caught.value.details["did_you_mean"] == ["schemas"]
