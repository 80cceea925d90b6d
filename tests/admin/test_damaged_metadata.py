"""No single piece of metadata stops a start: it is quarantined and reported, the rest is served, and nothing is given up."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import BrokerId
from pydanube_core.errors import ClusterError
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Delete, EmbeddedStore, KeyRange, Put, read_all

from tests.admin.real_broker import Administered, administered

pytestmark = pytest.mark.anyio

EVERYTHING = KeyRange(start="/", end="0")
#: Put down anew at a start: counters go on above all that they can have reached.
ANEW = ("/epochs/", "/incarnations/", "/leader/", "/members/", "/tier/")
ONE_IS_ENOUGH = ("/admin/",)  # of each kind
TEXTS = ("/cluster/name", "/schemas/definitions/", "/schemas/descriptors/")  # any is one
SOME = ("/registry/topics", "/incarnations/")
SCHEMA = '{"type": "object"}'
DAMAGE = b'{"version": 1, "nonsense": ['
PAYLOADS = [b"%d" % number for number in range(5)]


async def fill(cluster: Administered) -> None:
    await cluster("namespaces.create", namespace="shop", policies={"max_publish_rate": 7})
    await cluster("schemas.register", subject="s", schema_type="json_schema", schema_definition=SCHEMA)
    for topic in ("orders", "gone", "shop/carts", "safe"):
        await cluster("topics.create", topic=topic)
    await cluster("topics.create", topic="clicks", partitions=2)
    await cluster("topics.configure_schema", topic="orders", schema_subject="s")
    for topic in ("orders", "gone", "clicks", "shop/carts", "safe"):
        await cluster("subscriptions.create", topic=topic, subscription="left", type="shared")
        await cluster.publish(topic, *PAYLOADS)
        await cluster.apply(
            "subscriptions.skip", topic=topic, subscription="left", count=2
        ) if topic != "clicks" else None
    await cluster("subscriptions.create", topic="orders", subscription="deleted", start="earliest")
    await cluster.apply("subscriptions.delete", topic="orders", subscription="deleted")
    await cluster.apply("topics.delete", topic="gone")
    await cluster("topics.set_policies", topic="safe", policies={"max_publish_rate": 3}, plan_only=True)


async def state(cluster: Administered) -> dict[str, object]:
    found: dict[str, object] = {}
    for item in (await cluster("topics.list"))["items"]:
        found[item["topic"]] = sorted(await cluster.payloads(item["topic"]))
    for topic in cluster.broker.registry.topics:
        if topic.options.topic.namespace != "system":
            found |= {f"{topic.name} {p.name}": p.floor for p in topic.subscriptions.values()}
            found[f"cursors {topic.name}"] = len(topic.state.cursors)
    found["restorable"] = sorted(cluster.broker.registry.catalog.restorable.topics)
    return found


async def rewrite(folder: Path, key: str, value: bytes | None) -> bytes | None:
    """Returns what was there."""
    async with EmbeddedStore(folder / "metadata.sqlite") as store:
        former = await store.get(key)
        if value == DAMAGE or (former is not None and former.value == DAMAGE):  # else it was made anew
            await store.transact([Delete(key) if value is None else Put(key, value)])
        return None if former is None else former.value


@pytest.mark.parametrize("some", [SOME, pytest.param(None, marks=pytest.mark.long)])
@pytest.mark.timeout(600)
async def test_a_start_with_any_one_piece_damaged_serves_the_rest_and_gives_nothing_up(
    tmp_path: Path, some: tuple[str, ...] | None
) -> None:
    async with administered(tmp_path) as cluster:
        await fill(cluster)
        before = await state(cluster)
        orders = cluster.broker.registry.find(TopicName.parse("orders"))
        assert orders is not None
        head = f"/catalog-heads/{orders.topic_id:020d}"
        broker_id = BrokerId(cluster.broker.data_dir.broker_id)
    async with EmbeddedStore(tmp_path / "metadata.sqlite") as store:
        items, _ = await read_all(store, EVERYTHING)
    trees: dict[str, list[str]] = {}
    for item in items:
        if not item.key.startswith(TEXTS):
            trees.setdefault("/".join(item.key.split("/")[:3]), []).append(item.key)
    assert {
        "/registry/topics",
        "/tombstones/topics",
        "/tombstones/subscriptions",
        "/admin/changes",
    } <= trees.keys()
    damaged = {keys.LEADER} if some else {head, keys.LEADER, keys.member_key(broker_id)}
    for tree in trees.values():
        if some is None:
            damaged |= {tree[0], tree[-1]}
        elif tree[0].startswith(some):
            damaged.add(tree[-1])
    safe = ("/registry/topics/default/safe", keys.namespace_key("default"))
    for key in sorted(damaged):
        former = await rewrite(tmp_path, key, DAMAGE)
        async with administered(tmp_path) as cluster:
            status = await cluster("brokers.status")
            said = [each["message"] for each in status["reasons"] if each["code"] == "METADATA_SET_ASIDE"]
            if not key.startswith((*ONE_IS_ENOUGH, *ANEW)):
                assert said, key
                assert key in said[0] or key == head
                found = (await cluster("diagnose.cluster"))["findings"]
                assert "metadata_set_aside" in [each["rule"] for each in found]
            if key not in safe:
                assert await cluster.payloads("safe") == PAYLOADS, key
                outcome = await cluster.core.call(
                    "topics.set_policies",
                    {"topic": "safe", "policies": {"max_publish_rate": 9}},
                    principal="ann",
                    face="cli",
                )
                if isinstance(outcome, ClusterError):  # what cannot be audited is not done
                    assert (outcome.code, "audit" in key) == ("AUDIT_UNAVAILABLE", True)
            await cluster.broker.registry.deleted.forget(0)
        await rewrite(tmp_path, key, former)
    async with administered(tmp_path) as cluster:
        assert await state(cluster) == before
        assert "METADATA_SET_ASIDE" not in [
            each["code"] for each in (await cluster("brokers.status"))["reasons"]
        ]
