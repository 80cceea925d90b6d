"""The four annotations of every tool, held against what calls of it do to a real broker."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from mcp import Client
from mcp.types import ToolAnnotations
from pydanube_admin.registry import OPERATIONS, TOOLS
from pydanube_mcp import build_server
from pydanube_storage.metadata import KeyRange

from tests.admin.real_broker import Administered, administered
from tests.admin.test_undo import SCHEMA, SINK, fill

pytestmark = pytest.mark.anyio

_ADMIN: Final = "/admin/"
_HEAD: Final = "/admin/audit"  # of the chain; every call moves it, reads too
_TASKS: Final = "/admin/tasks/"  # a long read is listed as a task, as it is recorded in the audit
_CATALOG: Final = "/catalog-heads/"  # the list of a topic without objects is made when it is first looked at


async def state_of(cluster: Administered, *, plans: bool) -> dict[str, Any]:
    """Hashes of the metadata store, of every log's ends and of every cursor.

    Left out are the call's own records in the audit; with `plans` off also plans, calls and tasks, which every change
    leaves behind.
    """
    found: dict[str, Any] = {}
    store = cluster.broker.admin_state.store
    after = None
    while True:
        page = await store.range(KeyRange.prefix("/"), after=after)
        for item in page.items:
            left_out = (_HEAD, _TASKS, _CATALOG) if plans else (_ADMIN, _CATALOG)
            if not item.key.startswith(left_out):
                found[item.key] = hashlib.sha256(bytes(item.value)).hexdigest()
        if not page.more:
            break
        after = page.items[-1].key
    for topic in cluster.broker.registry.topics:
        if topic.name != "/system/audit":
            found[topic.name] = f"{topic.topic_id} {topic.state.start_offset} {topic.state.next_offset}"
        for pump in topic.subscriptions.values():
            found[f"{topic.name} {pump.name}"] = f"{pump.cursor.floor} {pump.cursor.acknowledged}"
    return found


@pytest.fixture
async def world() -> AsyncIterator[tuple[Administered, Client]]:
    async with administered() as cluster:
        await fill(cluster)
        await cluster("subscriptions.create", topic="orders", subscription="connect-rests")
        await cluster("topics.configure_schema", topic="orders", schema_subject="orders-value")
        async with (
            build_server(cluster.url, profile="full", toolsets="connectors,docs,links") as server,
            Client(server) as client,
        ):
            yield cluster, client


READS: Final[dict[str, Any]] = {
    "topic": "orders", "subscription": "billing", "subject": "orders-value", "schema_id": "1", "namespace": "default",
    "operation": "topics.list", "query": "delete topic", "plan_id": "p1", "task_id": "t1", "id": "1",
    "schema_type": "json_schema", "schema_definition": SCHEMA, "key": "k", "connector": "runs",
    "link": "runs", "scenario": "topic_deleted",
}  # fmt: skip
# Reports read telemetry in a process of their own, for a minute: what they do is tested with them.
READ_TOOLS: Final = [t for t, o in TOOLS.items() if o.effect.value == "read" and o.group != "reports"]

CHANGES: Final[dict[str, dict[str, Any]]] = {
    "topics.create": {"topic": "new"},
    "topics.delete": {"topic": "clicks"},
    "topics.truncate": {"topic": "orders", "before": "offset:2"},
    "topics.unload": {"topic": "orders"},
    "topics.add_partitions": {"topic": "clicks", "partitions": 5},
    "topics.move": {"topic": "orders"},
    "topics.take_over": {"topic": "orders"},
    "topics.replay": {"topic": "orders", "from": "earliest", "to": "copy"},
    "topics.set_policies": {"topic": "orders", "policies": {"max_publish_rate": 3}},
    "topics.set_durability": {"topic": "orders", "durability": "stored"},
    "topics.configure_schema": {"topic": "clicks", "schema_subject": "orders-value"},
    "topics.set_validation_policy": {"topic": "orders", "validation_policy": "warn"},
    "audit.export": {"into": "clicks-part-0"},
    "alerts.silence": {
        "rule": "no_consumers",
        "subject": {"topic": "orders"},
        "until": "2h",
        "reason": "a test",
    },
    "faces.freeze": {"face": "jsonrpc", "reason": "a test"},
    "faces.thaw": {"face": "jsonrpc"},
    "quotas.set": {"namespace": "default", "limits": {"topics": 100}},
    "namespaces.create": {"namespace": "new"},
    "namespaces.delete": {"namespace": "empty"},
    "namespaces.set_policies": {"namespace": "default", "policies": {"max_publish_rate": 3}},
    "subscriptions.create": {"topic": "clicks", "subscription": "late"},
    "subscriptions.delete": {"topic": "orders", "subscription": "billing"},
    "subscriptions.seek": {"topic": "orders", "subscription": "billing", "to": "earliest"},
    "subscriptions.skip": {"topic": "orders", "subscription": "billing", "count": 2},
    "subscriptions.purge": {"topic": "orders", "subscription": "billing"},
    "subscriptions.set_failure_policy": {"topic": "orders", "subscription": "billing", "ack_timeout_ms": 5},
    "dead_letters.replay": {"topic": "orders", "subscription": "billing"},
    "messages.publish": {"topic": "clicks", "payload": "x"},
    "schemas.register": {"subject": "new-value", "schema_type": "json_schema", "schema_definition": SCHEMA},
    "schemas.set_compatibility": {"subject": "orders-value", "mode": "full"},
    "schemas.delete_version": {"subject": "orders-value", "version": 1},
    "objects.flush": {"topic": "orders"},
    "objects.compact": {"topic": "orders"},
    "objects.collect": {"topic": "orders"},
    "objects.export": {"topic": "orders", "to": "file:///tmp/none", "format": "jsonl"},
    "brokers.unload": {},
    "cluster.rebalance": {},
    "brokers.activate": {},
    "brokers.remove": {},
    "producers.disconnect": {"id": "1"},
    "consumers.disconnect": {"id": "1"},
    "plans.create": {"operation": "topics.create", "arguments": {"topic": "planned"}},
    "plans.apply": {},
    "plans.discard": {},
    "changes.undo": {},
    "tasks.cancel": {"task_id": "t1"},
    "roles.create": {"role": "auditor", "permissions": "audit:read"},
    "roles.delete": {"role": "clerk"},
    "bindings.create": {"binding": "ann", "principal": "ann", "roles": "viewer"},
    "bindings.delete": {"binding": "bob"},
    "revocations.create": {"kind": "jti", "value": "4711"},
    "revocations.delete": {"revocation": "jti:4712"},
    "connectors.create": {"connector": "new", "definition": SINK},
    "connectors.set": {"connector": "runs", "definition": f"{SINK}method = 'PUT'"},
    "connectors.pause": {"connector": "runs"},
    "connectors.resume": {"connector": "rests"},
    "connectors.restart": {"connector": "runs"},
    "connectors.delete": {"connector": "runs"},
    "connectors.reset_offsets": {"connector": "rests"},
    "connectors.set_offsets": {"connector": "rests", "place": "/default/orders", "position": "latest"},
    "links.create": {"link": "new", "source": "danube://127.0.0.1:9", "topics": "/default/*"},
    "links.pause": {"link": "runs"},
    "links.resume": {"link": "rests"},
    "links.delete": {"link": "runs"},
    "links.fail_over": {"link": "runs"},
    "links.reopen": {"topic": "orders"},
    "tokens.create": {"name": "t"},
    "tokens.rotate": {},
    "tokens.revoke": {},
}


def test_every_tool_is_tried() -> None:
    assert {name for name, each in OPERATIONS.items() if each.effect.value != "read"} == set(CHANGES)


async def annotations_of(client: Client) -> dict[str, ToolAnnotations]:
    return {tool.name: tool.annotations for tool in (await client.list_tools()).tools if tool.annotations}


async def test_a_read_only_tool_leaves_the_state_as_it_was(world: tuple[Administered, Client]) -> None:
    cluster, client = world
    notes = await annotations_of(client)
    before = await state_of(cluster, plans=True)
    answered = 0
    for tool in READ_TOOLS:
        assert notes[tool].read_only_hint is True
        assert notes[tool].destructive_hint is False
        required = TOOLS[tool].input_schema.get("required", [])
        result = await client.call_tool(tool, {name: READS[name] for name in required if name in READS})
        answered += not result.is_error
        after = await state_of(cluster, plans=True)
        assert (tool, dict(after.items() ^ before.items())) == (tool, {})
    assert answered > len(READ_TOOLS) * 3 // 4, "most of them have something to read"
    # The hash sees what there is to see.
    await client.call_tool("plan_operation", CHANGES["plans.create"])
    assert await state_of(cluster, plans=True) != before


# They go through the tier's process, the nicest there is: minutes on a busy machine. Their repetition is tested with the
# tier (tests/e2e/test_tier_*).
WITH_THE_TIER: Final = (
    "objects.flush",
    "objects.compact",
    "objects.collect",
    "objects.export",
    "topics.replay",
)
QUICK: Final = ("messages.publish", "plans.create", "subscriptions.purge", "topics.create")


@pytest.mark.parametrize(
    "name",
    [
        *QUICK,
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in sorted(set(CHANGES) - {*QUICK, *WITH_THE_TIER})
        ),
    ],
)
async def test_a_change_made_twice(world: tuple[Administered, Client], name: str) -> None:
    """The same call again, with the same arguments and token: an idempotent tool has no further effect."""
    cluster, client = world
    operation = OPERATIONS[name]
    notes = (await annotations_of(client))[operation.tool]
    assert notes.read_only_hint is False
    assert notes.open_world_hint is False
    assert notes.destructive_hint is (operation.can_destroy or operation.ends)
    arguments = dict(CHANGES[name])
    if name in ("plans.apply", "plans.discard"):
        plan = await cluster("topics.delete", topic="clicks", by="root", plan_only=True)
        made = await client.call_tool("delete_topic", {"topic": "clicks", "plan_only": True})
        assert made.structured_content is not None
        field = "plan_token" if name == "plans.apply" else "plan_id"
        arguments = {field: made.structured_content[field]}
        assert plan["plan_id"] != made.structured_content["plan_id"]
    elif name == "changes.undo":
        changed = await client.call_tool("create_topic", {"topic": "mistake"})
        assert changed.structured_content is not None
        arguments = {"call_id": changed.structured_content["call_id"]}
    elif name == "roles.delete":
        await cluster("roles.create", role="clerk", permissions="topics:read")
    elif name == "bindings.delete":
        await cluster("bindings.create", binding="bob", principal="bob", roles="viewer")
    elif name == "revocations.delete":
        await cluster("revocations.create", kind="jti", value="4712")
    elif name in ("tokens.rotate", "tokens.revoke"):
        arguments = {"token_id": (await cluster("tokens.create", name="t"))["token_id"]}
    with_plans = name in (
        "connectors.restart",
        "plans.create",
        "tokens.create",
        "tokens.rotate",
    )  # what they make or count is kept beside plans
    if operation.effect.value == "destroy" and name != "plans.apply":
        untouched = await state_of(cluster, plans=False)
        asked = await client.call_tool(operation.tool, arguments)
        assert asked.is_error
        assert await state_of(cluster, plans=False) == untouched, "what destroys does nothing without a plan"
        planned = await client.call_tool(operation.tool, arguments | {"plan_only": True})
        assert planned.structured_content is not None
        if not planned.is_error:
            arguments["plan_token"] = planned.structured_content["plan_token"]
    before = await state_of(cluster, plans=with_plans)
    first = await client.call_tool(operation.tool, arguments)
    once = await state_of(cluster, plans=with_plans)
    await client.call_tool(operation.tool, arguments)
    twice = await state_of(cluster, plans=with_plans)
    if notes.idempotent_hint:
        assert twice == once
    elif name == "dead_letters.replay":  # there are none here
        assert first.structured_content is not None
        assert first.structured_content["messages"] == 0
    else:
        assert not first.is_error
        assert before != once != twice, "it says that it is not idempotent, and is"
