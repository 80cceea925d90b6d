"""No change of an administrator erases audit records but the audit's own retention, and `audit.verify` finds what is missing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from pydanube_admin.engine.models import Effect
from pydanube_admin.engine.system_topics import ALLOWED
from pydanube_admin.registry import OPERATIONS
from pydanube_broker.topics.limits import Limits
from pydanube_core.audit_begin import BEGIN_KEY, AuditBegin
from pydanube_core.errors import PermissionDenied
from pydanube_core.names import AUDIT_TOPIC, TopicName
from pydanube_storage.metadata import Put

from tests.admin.real_broker import Administered, administered

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster(anyio_backend: str) -> AsyncIterator[Administered]:
    async with administered() as cluster:
        yield cluster


TARGETS: Final = {"topic": AUDIT_TOPIC, "namespace": "system"}
CHANGES: Final = sorted(
    (operation.name, field)
    for operation in OPERATIONS.values()
    if operation.effect is not Effect.READ
    for field in TARGETS.keys() & operation.request.model_fields.keys()
)


@pytest.mark.parametrize(("name", "field"), CHANGES)
async def test_every_operation_refuses_a_system_topic_or_is_known_to_destroy_nothing_of_it(
    cluster: Administered, name: str, field: str
) -> None:
    """`namespaces.set_policies` on `system` with `retention_age_s=1` left one record, and verify said intact."""
    await cluster("topics.create", topic="orders")
    for example in OPERATIONS[name].examples:
        arguments = {**example.arguments, field: TARGETS[field]}
        for given in (arguments, {**arguments, "plan_only": True}):
            if name not in ALLOWED and (given is arguments or OPERATIONS[name].planned):
                assert (await cluster.refused(name, **given)).code == "PERMISSION_DENIED"
    verified = await cluster("audit.verify")
    assert (verified["intact"], verified["first_seq"]) == (True, 0)


def test_the_operations_that_are_allowed_exist() -> None:
    assert set(OPERATIONS) >= ALLOWED


async def test_the_broker_refuses_what_comes_without_an_operation(cluster: Administered) -> None:
    registry, port = cluster.broker.registry, cluster.broker.port
    await cluster("topics.create", topic="orders")
    audit = TopicName.parse(AUDIT_TOPIC)
    for change in (
        port.set_topic_policies(AUDIT_TOPIC, {"retention_age_s": 1}),
        port.set_namespace_policies("system", {"retention_age_s": 1}),
        registry.catalog.update_topic(audit, schema={"subject": "s"}),
        registry.catalog.decide_schema(audit, lambda now: {"subject": "s"}),
    ):
        with pytest.raises(PermissionDenied):
            await change


async def test_policies_of_the_settings_and_of_earlier_versions_do_not_reach_the_audit(
    tmp_path: Path,
) -> None:
    async with administered(tmp_path / "d", **{"policies.max_consumers_per_topic": 7}) as cluster:
        await cluster("topics.create", topic="orders")
        registry = cluster.broker.registry
        former = registry.catalog.index.namespace("system")
        earlier = replace(former.spec, policies={"retention_age_s": 1})
        await registry.catalog.records.transact([Put("/registry/namespaces/system", earlier.to_json())])
        audit = await registry.audit_topic()
        registry.policies.apply(audit)
        assert audit.gate.limits == Limits(max_message_size=audit.gate.limits.max_message_size)
        orders = registry.find(TopicName.parse("orders"))
        assert orders is not None
        assert orders.gate.limits.max_consumers_per_topic == 7


async def filled(cluster: Administered, records: int) -> Any:
    for _ in range(records):
        await cluster.refused("topics.delete", topic="nowhere")
    await cluster.core.audit.settled()
    return await cluster.broker.registry.audit_topic()


async def test_verify_says_which_records_are_missing_at_the_beginning(cluster: Administered) -> None:
    topic = await filled(cluster, 10)
    topic.trim(7)  # on whatever road
    found = await cluster("audit.verify")
    assert (found["intact"], found["first_bad_seq"], found["reason"]) == (
        False,
        0,
        "records 0 to 6 are missing",
    )


async def test_the_retention_of_the_audit_moves_the_begin_and_verify_holds_the_chain_against_it(
    cluster: Administered,
) -> None:
    topic, port = await filled(cluster, 10), cluster.broker.port
    cluster.broker.retention.wanted[topic.topic_id] = 8  # as journal.retention_* wants it
    await port.keep_audit_begin()
    assert topic.gate.limits.retention_offset == 8
    topic.trim(8)
    verified = await cluster("audit.verify")
    assert (verified["intact"], verified["first_seq"]) == (True, 8)
    topic.trim(12)
    found = await cluster("audit.verify")
    assert (found["first_bad_seq"], found["reason"]) == (8, "records 8 to 11 are missing")


async def test_a_begin_that_somebody_altered_is_found(cluster: Administered) -> None:
    topic, port = await filled(cluster, 10), cluster.broker.port
    kept = await port.read_state(BEGIN_KEY)
    assert kept is not None
    _, [(_, record)] = await port.read_audit(start=6, max_messages=1)
    forged = json.loads(kept.value) | {"seq": 6, "prev_hash": json.loads(record)["prev_hash"]}
    topic.trim(6)
    await port.write_state({BEGIN_KEY: json.dumps(forged).encode()})
    found = await cluster("audit.verify")
    assert not found["intact"]
    assert "begin" in found["reason"]
    key = await port.audit_key()
    assert AuditBegin.from_json(AuditBegin(6, "x").to_json(key), key) == AuditBegin(6, "x")
