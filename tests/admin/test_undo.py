"""Undo: after it the state is the one of before, also over a restart; what cannot be undone says so."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import pytest
from pydanube_admin.engine import change_records
from pydanube_admin.engine.change_records import IMAGES
from pydanube_admin.engine.context import AdminOptions
from pydanube_admin.registry import OPERATIONS
from pydanube_broker.cluster import keys
from pydanube_broker.subscription.cursor import CursorSnapshot, decode_snapshot, encode_snapshot
from pydanube_core.errors import ClusterError, DiskFull
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Guard, Put, Write

from tests.admin.real_broker import Administered, administered

pytestmark = pytest.mark.anyio

STANDS = ("topic", "partition", "subscription", "type", "next_offset", "next_unacked", "lag_messages")
SCHEMA = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
SINK = 'connector = "http-sink"\ntopic = "orders"\n[settings]\nurl = "http://127.0.0.1:9"\n'


async def fill(cluster: Administered) -> None:
    await cluster("namespaces.create", namespace="empty", policies={"max_publish_rate": 7})
    await cluster("topics.create", topic="orders", policies={"max_message_size": 1000})
    await cluster("topics.create", topic="clicks", partitions=3)
    await cluster(
        "schemas.register", subject="orders-value", schema_type="json_schema", schema_definition=SCHEMA
    )
    for topic in ("orders", "clicks"):
        await cluster("subscriptions.create", topic=topic, subscription="billing", type="shared")
        await cluster.publish(topic, *(b"%d" % number for number in range(10)))
    await cluster.apply("subscriptions.skip", topic="orders", subscription="billing", count=4)
    for connector in ("runs", "rests"):
        await cluster("connectors.create", connector=connector, definition=SINK)
    await cluster("connectors.pause", connector="rests")
    for link in ("runs", "rests"):
        await cluster("links.create", link=link, source="danube://127.0.0.1:9", topics="/default/*")
    await cluster("links.pause", link="rests")


@pytest.fixture
async def cluster(anyio_backend: str) -> AsyncIterator[Administered]:
    async with administered() as cluster:
        await fill(cluster)
        yield cluster


async def state(cluster: Administered) -> dict[str, Any]:
    """Everything that an operator can see of topics, subscriptions, namespaces and schemas."""
    found: dict[str, Any] = {}
    for name in ("topics.list", "subscriptions.lag", "namespaces.list", "schemas.list"):
        found[name] = (await cluster(name))["items"]
    for item in found["topics.list"]:
        topic = item["topic"]
        found[f"payloads {topic}"] = await cluster.payloads(topic)
        for operation in ("topics.describe", "topics.get_policies", "topics.get_schema_config"):
            found[f"{operation} {topic}"] = await cluster(operation, topic=topic)
    for item in found["subscriptions.lag"]:
        arguments = {"topic": item["topic"], "subscription": item["subscription"]}
        found[f"policy {arguments}"] = await cluster("subscriptions.get_failure_policy", **arguments)
    found["subscriptions.lag"] = [
        {name: item[name] for name in STANDS} for item in found["subscriptions.lag"]
    ]  # rates and statuses go on by themselves
    for item in found["schemas.list"]:
        found[f"schema {item['subject']}"] = await cluster("schemas.versions", subject=item["subject"])
    for item in (await cluster("connectors.list"))["items"]:
        described = await cluster("connectors.describe", connector=item["connector"])
        described.pop("generation")  # grows with an undo too
        found[f"connector {item['connector']}"] = described
    for item in (await cluster("links.list"))["items"]:
        described = await cluster("links.describe", link=item["link"])
        shown = ("source", "patterns", "start", "rename", "token_file", "created_at")
        found[f"link {item['link']}"] = [described[name] for name in shown], item["state"] == "paused"
    found["cursors"] = {
        f"{topic.name} {pump.name}": (pump.cursor.floor, pump.cursor.acknowledged)
        for topic in cluster.broker.registry.topics
        for pump in topic.subscriptions.values()
    }
    text = json.dumps({str(key): value for key, value in found.items()}, default=str)
    body: dict[str, Any] = json.loads(text)
    for each in body.values():
        if isinstance(each, dict):
            each.pop("as_of", None)
            each.pop("mark", None)
            each.pop("epoch", None)  # of ownership: each return is a new one
            for part in each.get("parts", ()):
                part.pop("epoch")
    return body


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("topics.create", {"topic": "new"}),
    ("topics.create", {"topic": "new", "partitions": 2}),
    ("topics.add_partitions", {"topic": "clicks", "partitions": 5}),
    ("topics.delete", {"topic": "orders"}),
    ("topics.delete", {"topic": "clicks"}),
    (
        "topics.set_policies",
        {"topic": "orders", "policies": {"max_message_size": None, "max_publish_rate": 3}},
    ),
    ("topics.set_policies", {"topic": "clicks", "policies": {"max_publish_rate": 3}}),
    ("topics.configure_schema", {"topic": "clicks", "schema_subject": "orders-value"}),
    ("namespaces.create", {"namespace": "new"}),
    ("namespaces.delete", {"namespace": "empty"}),
    ("namespaces.set_policies", {"namespace": "default", "policies": {"max_publish_rate": 3}}),
    ("subscriptions.create", {"topic": "clicks", "subscription": "late", "start": "latest"}),
    ("subscriptions.delete", {"topic": "orders", "subscription": "billing"}),
    ("subscriptions.delete", {"topic": "clicks", "subscription": "billing"}),
    ("subscriptions.seek", {"topic": "orders", "subscription": "billing", "to": "earliest"}),
    ("subscriptions.seek", {"topic": "clicks", "subscription": "billing", "to": "latest"}),
    ("subscriptions.skip", {"topic": "orders", "subscription": "billing", "count": 3}),
    ("subscriptions.purge", {"topic": "clicks", "subscription": "billing"}),
    (
        "subscriptions.set_failure_policy",
        {"topic": "orders", "subscription": "billing", "poison_policy": "dead_letter", "ack_timeout_ms": 5},
    ),
    ("schemas.set_compatibility", {"subject": "orders-value", "mode": "full", "transitive": True}),
    ("schemas.delete_version", {"subject": "orders-value", "version": 1}),
    ("connectors.create", {"connector": "new", "definition": SINK, "group": "etl"}),
    ("connectors.set", {"connector": "runs", "definition": f"{SINK}method = 'PUT'"}),
    ("connectors.pause", {"connector": "runs"}),
    ("connectors.resume", {"connector": "rests"}),
    ("connectors.delete", {"connector": "rests"}),
    ("links.create", {"link": "new", "source": "danube://127.0.0.1:9", "topics": "/default/*"}),
    ("links.pause", {"link": "runs"}),
    ("links.resume", {"link": "rests"}),
    ("links.delete", {"link": "rests"}),
]


#: undone where there are locks: tests/cli/test_undo_of_grants.py, tests/cli/test_quotas_live.py
OF_GRANTS = {
    "bindings.create", "bindings.delete", "roles.create", "roles.delete", "tokens.revoke", "quotas.set",
}  # fmt: skip


#: A lone broker has nowhere to move to. An undone rebalance, the same code as an undone move: test_balancing_brokers.py.
OF_SEVERAL_BROKERS = {"topics.move", "topics.unload", "cluster.rebalance"}
#: undone where there are letters: test_dead_letters.py
OF_LETTERS = {"dead_letters.replay"}

#: undone on a disk: test_set_durability.py
OF_A_DISK = {"topics.set_durability"}


def test_every_change_that_can_be_undone_is_undone_here() -> None:
    undone = {name for name, _ in CHANGES} | {"topics.set_validation_policy"} | OF_GRANTS | OF_SEVERAL_BROKERS
    undone |= OF_LETTERS | OF_A_DISK
    assert undone == {name for name, operation in OPERATIONS.items() if operation.undo is not None}


@pytest.mark.parametrize(("operation", "arguments"), CHANGES)
async def test_apply_and_undo_leave_the_state_of_before(
    cluster: Administered, operation: str, arguments: dict[str, Any]
) -> None:
    before = await state(cluster)
    changed = await cluster.apply(operation, **arguments)
    assert await state(cluster) != before
    assert changed["undo_until"] is not None
    undo = (
        cluster.apply if arguments.get("to") == "earliest" else cluster
    )  # it passes over what is unread now
    undone = await undo("changes.undo", call_id=changed["call_id"])
    assert (undone["undone_call_id"], undone["operation"]) == (changed["call_id"], operation)
    assert await state(cluster) == before
    again = await cluster.refused("changes.undo", call_id=changed["call_id"])
    assert again.code == "PLAN_USED"


async def test_a_validation_policy_is_undone(cluster: Administered) -> None:
    await cluster("topics.configure_schema", topic="orders", schema_subject="orders-value")
    before = await state(cluster)
    changed = await cluster("topics.set_validation_policy", topic="orders", validation_policy="enforce")
    await cluster("changes.undo", call_id=changed["call_id"])
    assert await state(cluster) == before


async def test_deletions_are_undone_after_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("data")
    calls = []
    async with administered(folder) as cluster:
        await fill(cluster)
        before = await state(cluster)
        deletions = [each for each in CHANGES if each[0] in ("subscriptions.delete", "topics.delete")]
        for operation, arguments in sorted(deletions, key=lambda each: each[0]):
            calls.append((await cluster.apply(operation, **arguments))["call_id"])
        assert (await cluster("topics.list"))["total"] == 0
    async with administered(folder) as cluster:
        assert (await cluster("topics.list"))["total"] == 0
        for call_id in reversed(calls):
            await cluster("changes.undo", call_id=call_id)
        after = await state(cluster)
    async with administered(folder) as cluster:
        assert after == await state(cluster) == before


async def test_a_name_in_use_again_is_not_taken_away(cluster: Administered) -> None:
    deleted = await cluster.apply("topics.delete", topic="orders")
    await cluster("topics.create", topic="orders")
    error = await cluster.refused("changes.undo", call_id=deleted["call_id"])
    assert error.code == "NAME_REUSED"
    gone = await cluster.apply("subscriptions.delete", topic="clicks", subscription="billing")
    await cluster("subscriptions.create", topic="clicks", subscription="billing")
    assert (await cluster.refused("changes.undo", call_id=gone["call_id"])).code == "NAME_REUSED"
    await cluster.apply("topics.delete", topic="orders")
    await cluster("changes.undo", call_id=deleted["call_id"])
    assert (await cluster("topics.describe", topic="orders"))["messages"] == 10


async def test_an_undo_does_not_take_back_what_came_after(cluster: Administered) -> None:
    first = await cluster("topics.set_policies", topic="orders", policies={"max_publish_rate": 3})
    await cluster("topics.set_policies", topic="orders", policies={"max_publish_rate": 4})
    refused = await cluster.refused("changes.undo", call_id=first["call_id"])
    assert (refused.code, refused.retryable) == ("CONFLICT", False)
    made = await cluster("topics.create", topic="new")
    await cluster.publish("new", b"x")
    assert (await cluster.refused("changes.undo", call_id=made["call_id"])).code == "CONFLICT"
    assert await cluster.payloads("new") == [b"x"]


async def test_what_cannot_be_undone_says_so(cluster: Administered) -> None:
    policies = {"retention_bytes": 10}
    changed = await cluster.apply("topics.set_policies", topic="orders", policies=policies)
    assert changed["undo_until"] is None
    for call_id in (changed["call_id"], "c0", "a/b"):
        assert (await cluster.refused("changes.undo", call_id=call_id)).code == "PLAN_NOT_FOUND"


async def test_when_the_grace_is_over_the_data_goes(anyio_backend: str) -> None:
    async with administered(options=AdminOptions(undo_grace_ms=100)) as cluster:
        await fill(cluster)
        deleted = await cluster.apply("topics.delete", topic="orders")
        hub, catalog = cluster.broker.hub, cluster.broker.registry.catalog
        topic_id = catalog.restorable.topics.keys()
        (number,) = topic_id
        assert number in hub.states
        await anyio.sleep(0.15)
        assert (await cluster.refused("changes.undo", call_id=deleted["call_id"])).code == "PLAN_EXPIRED"
        await cluster.broker.registry.deleted.forget(1 << 62)
        assert number not in hub.states
        assert not catalog.restorable.topics
        assert cluster.broker.registry.find(TopicName.parse("orders")) is None


async def test_a_deleted_subscription_holds_back_retention_until_its_grace_is_over(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the one that is there: the undo gives back its unread messages, also after a restart."""
    monkeypatch.setenv("DANUBE_TEST_SMALL_SEGMENTS", "1")
    folder, small = tmp_path_factory.mktemp("data"), {"journal.segment_bytes": 256 * 1024}
    unread = [b"%d" % number + bytes(20_000) for number in range(30)]

    async def retain(cluster: Administered) -> None:
        cluster.broker.hub.tiering = False  # the journal's own retention; the tier asks the same function
        for _ in range(30):
            await cluster.publish("orders", b"read" + bytes(20_000))
        await cluster.apply("subscriptions.purge", topic="orders", subscription="other")
        cluster.broker.retention.apply()

    async with administered(folder, **small) as cluster:
        await cluster("topics.create", topic="orders")
        for name in ("billing", "other"):
            await cluster("subscriptions.create", topic="orders", subscription=name, start="earliest")
        for payload in unread:
            await cluster.publish("orders", payload)
        await cluster.apply("topics.set_policies", topic="orders", policies={"retention_bytes": 1})
        deleted = await cluster.apply("subscriptions.delete", topic="orders", subscription="billing")
        await retain(cluster)
    async with administered(folder, **small) as cluster:
        await retain(cluster)
        await cluster("changes.undo", call_id=deleted["call_id"])
        (lag, _) = (await cluster("subscriptions.lag", topic="orders"))["items"]
        assert (lag["subscription"], lag["lag_messages"]) == ("billing", 90)
        assert (await cluster.payloads("orders"))[:30] == unread
        await cluster.apply("subscriptions.delete", topic="orders", subscription="billing")
        await cluster.broker.registry.deleted.forget(1 << 62)
        cluster.broker.retention.apply()
        assert (await cluster("topics.describe", topic="orders"))["messages"] < 60


async def test_a_cursor_of_thousands_of_holes_is_put_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its image is larger than one value of the store; it lies beside the record, and goes with it."""
    folder = tmp_path_factory.mktemp("data")
    where = {"topic": "orders", "subscription": "billing"}

    async def images(cluster: Administered) -> int:
        return len(await cluster.broker.port.list_state(IMAGES))

    async with administered(folder) as cluster:
        await fill(cluster)
        await cluster.publish("orders", *(b"" for _ in range(60_000)))
        port = cluster.broker.port
        holes = CursorSnapshot(floor=4, acknowledged=tuple((at, at + 1) for at in range(6, 60_000, 2)))
        await port.place_cursors("orders", "billing", {"/default/orders": encode_snapshot(holes)})
        plan = await cluster("subscriptions.purge", **where, plan_only=True)
        purged = await cluster("subscriptions.purge", **where, plan_token=plan["plan_token"])
        assert plan["reversible"]
        assert purged["undo_until"]
        assert await images(cluster) >= 1
    async with administered(folder) as cluster:
        await cluster("changes.undo", call_id=purged["call_id"])
        put_back = decode_snapshot(
            (await cluster.broker.port.cursors("orders", "billing"))["/default/orders"]
        )
        assert (put_back.floor, put_back.acknowledged) == (holes.floor, holes.acknowledged)
    later = AdminOptions(undo_grace_ms=1)
    async with administered(folder, options=later) as cluster:
        assert await images(cluster) >= 1
        desk = cluster.core.executor
        await desk.changes.sweep(1 << 60)
        assert await images(cluster) == 0


async def test_what_could_not_be_undone_promises_nothing(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = {"topic": "orders", "subscription": "billing"}
    monkeypatch.setattr(change_records, "MAX_IMAGE_BYTES", 10)
    plan = await cluster("subscriptions.purge", **where, plan_only=True)
    assert not plan["reversible"]
    monkeypatch.undo()
    plan = await cluster("subscriptions.purge", **where, plan_only=True)
    assert plan["reversible"]
    monkeypatch.setattr(change_records, "MAX_IMAGE_BYTES", 10)
    assert (
        await cluster.refused("subscriptions.purge", **where, plan_token=plan["plan_token"])
    ).code == "PLAN_STALE"


async def test_no_change_displaces_one_that_can_be_undone(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What destroys has room of its own; the first is undone however many came after it."""
    monkeypatch.setattr(change_records, "MAX_CHANGES", 24)
    monkeypatch.setattr(change_records, "SWEEP_MS", 0)
    deleted = await cluster.apply("topics.delete", topic="orders")
    made = [
        await cluster("topics.set_policies", topic="clicks", policies={"max_publish_rate": number + 1})
        for number in range(25)
    ]
    promised = [each for each in made if each["undo_until"] is not None]
    assert 10 < len(promised) < 20
    assert promised == made[: len(promised)]
    gone = await cluster.apply("subscriptions.delete", topic="clicks", subscription="billing")
    assert gone["undo_until"]
    for call_id in (gone["call_id"], deleted["call_id"]):
        await cluster("changes.undo", call_id=call_id)
    refused = await cluster.refused("changes.undo", call_id=promised[0]["call_id"])
    assert refused.code == "CONFLICT"  # it is kept; the policy was changed since


async def test_a_plan_says_that_the_disk_may_take_its_undo(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("data")
    free = shutil.disk_usage(folder).free
    async with administered(folder, **{"data.min_free_bytes": free * 3 // 4}) as cluster:
        for topic in ("orders", "clicks"):
            await cluster("topics.create", topic=topic)
        plan = await cluster("topics.delete", topic="orders", plan_only=True)
        assert plan["reversible"]
        assert plan["diff"][-1]["path"] == "undo"
        deleted = await cluster("topics.delete", topic="orders", plan_token=plan["plan_token"])
        assert deleted["undo_until"]
    async with administered(folder, **{"data.min_free_bytes": free * 2}) as cluster:
        plan = await cluster("topics.delete", topic="clicks", plan_only=True)
        assert not plan["reversible"]
        assert (await cluster("topics.delete", topic="clicks", plan_token=plan["plan_token"]))[
            "undo_until"
        ] is None
        await cluster.broker.registry.deleted.give_up()
        rules = [each["rule"] for each in (await cluster("diagnose.cluster"))["findings"]]
        assert "undo_given_up" in rules
        assert (await cluster.refused("changes.undo", call_id=deleted["call_id"])).code == "TOPIC_NOT_FOUND"


@pytest.mark.parametrize("partitions", [0, 3])
async def test_each_of_two_deleted_topics_of_one_name_comes_back_by_its_own_undo(
    cluster: Administered, partitions: int
) -> None:
    """The older first or the younger; the one that stands in the way is not touched."""
    made = {}
    for payload in (b"older", b"younger"):
        await cluster("topics.create", topic="twice", partitions=partitions)
        await cluster.publish("twice", payload)
        made[payload] = (await cluster.apply("topics.delete", topic="twice"))["call_id"]
    for payload in (b"older", b"younger", b"older"):
        await cluster("changes.undo", call_id=made[payload])
        assert set(await cluster.payloads("twice")) == {payload}
        (other,) = made.keys() - {payload}
        assert (await cluster.refused("changes.undo", call_id=made[other])).code == "NAME_REUSED"
        assert set(await cluster.payloads("twice")) == {payload}
        assert (await cluster("topics.describe", topic="twice"))["partitions"] == partitions
        made[payload] = (await cluster.apply("topics.delete", topic="twice"))["call_id"]


async def test_of_two_undos_at_once_one_is_made(cluster: Administered) -> None:
    deleted = await cluster.apply("topics.delete", topic="clicks")
    arguments = {"call_id": deleted["call_id"]}
    outcomes = await asyncio.gather(
        *(
            cluster.core.call("changes.undo", arguments, principal=face, face=face)
            for face in ("cli", "mcp", "jsonrpc")
        )
    )
    refused = [each for each in outcomes if isinstance(each, ClusterError)]
    assert [each.code for each in refused] == ["PLAN_USED", "PLAN_USED"]
    assert (await cluster("topics.describe", topic="clicks"))["partitions"] > 0


async def test_an_undo_that_the_disk_refuses_has_no_effect_and_can_be_repeated(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = cluster.broker.registry
    before = await cluster.payloads("clicks")
    deleted = await cluster.apply("topics.delete", topic="clicks")
    store: Any = registry.catalog.store
    transact = store.transact

    async def full(writes: Sequence[Write], *, guards: Sequence[Guard] = ()) -> Any:
        if any(write.key in keys.PARTITIONED for write in writes if isinstance(write, Put)):
            raise DiskFull("no room")
        return await transact(writes, guards=guards)

    with monkeypatch.context() as patched:
        patched.setattr(store, "transact", full)
        refused = await cluster.refused("changes.undo", call_id=deleted["call_id"])
    assert refused.code == "DISK_FULL"
    assert not registry.catalog.index.partitions(TopicName.parse("clicks"))
    await cluster("changes.undo", call_id=deleted["call_id"])
    assert await cluster.payloads("clicks") == before
