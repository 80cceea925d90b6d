"""Many random operations: what a plan says is what an independent look at the state sees; every call is in the audit."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pydanube_admin.engine.audit.audit_log import AuditReads
from pydanube_admin.engine.context import AdminOptions
from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_core.errors import ClusterError

from tests.admin.real_broker import Administered, administered

pytestmark = [pytest.mark.anyio, pytest.mark.long, pytest.mark.timeout(1800)]

TOPICS = ("a", "b", "c")
SUBSCRIPTIONS = ("s", "t")
POLICIES = ("max_publish_rate", "max_message_size", "max_producers_per_topic")


def any_change(chance: random.Random) -> tuple[str, dict[str, Any]]:
    topic, subscription = chance.choice(TOPICS), chance.choice(SUBSCRIPTIONS)
    policies = {chance.choice(POLICIES): chance.choice([None, 0, 5, 1000])}
    return chance.choice(
        [
            ("topics.create", {"topic": topic, "partitions": chance.choice([0, 0, 2])}),
            ("topics.delete", {"topic": topic}),
            ("topics.set_policies", {"topic": topic, "policies": policies}),
            ("namespaces.create", {"namespace": chance.choice(["n", "m"])}),
            ("namespaces.delete", {"namespace": chance.choice(["n", "m"])}),
            ("namespaces.set_policies", {"namespace": "default", "policies": policies}),
            ("subscriptions.create", {"topic": topic, "subscription": subscription}),
            ("subscriptions.delete", {"topic": topic, "subscription": subscription}),
            (
                "subscriptions.seek",
                {"topic": topic, "subscription": subscription, "to": chance.choice(["earliest", "latest"])},
            ),
            ("subscriptions.skip", {"topic": topic, "subscription": subscription, "count": 2}),
            ("subscriptions.purge", {"topic": topic, "subscription": subscription}),
            (
                "subscriptions.set_failure_policy",
                {"topic": topic, "subscription": subscription, "ack_timeout_ms": chance.choice([0, 500])},
            ),
        ]
    )


def look(cluster: Administered, path: str) -> Any:
    """The value at a path of a difference, read from the broker's own registry and cursors."""
    registry = cluster.broker.registry
    index = registry.catalog.index
    words = path.split("/")
    if words[0] == "namespaces":
        found = index.find_namespace(words[1])
        if len(words) == 2 or found is None:
            return found is not None
        return found.spec.policies.get(words[3])
    from pydanube_core.names import TopicName

    name = TopicName.parse(f"/{words[1]}/{words[2]}")
    partitioned, parts = registry.parts(name)
    if len(words) == 3:
        return bool(parts)
    if words[3] == "policies":
        record = index.partitioned(name) if partitioned else index.find_topic(name)
        return None if record is None else record.spec.settings.policies.get(words[4])
    pumps = [part.subscriptions[words[4]] for part in parts if words[4] in part.subscriptions]
    match words[5:]:
        case []:
            return bool(pumps)
        case ["cursor"]:
            return pumps[0].cursor.floor
        case ["cursor", partition]:
            return next(p.cursor.floor for p in pumps if str(p.topic.options.partition) == partition)
        case ["lag_messages"]:
            return sum(
                p.topic.commit
                - max(p.cursor.floor, p.topic.start_offset)
                - sum(end - start for start, end in p.cursor.acknowledged)
                for p in pumps
            )
        case ["failure_policy", field]:
            return pumps[0].policy.as_fields(name, words[4])[field]
        case ["offsets"]:
            return acknowledged(pumps[0].cursor)
        case _:
            raise AssertionError(path)


def acknowledged(cursor: CursorSnapshot) -> frozenset[int]:
    above = (offset for start, end in cursor.acknowledged for offset in range(start, end))
    return frozenset(range(cursor.floor)).union(above)


def named(offsets: str) -> set[int]:
    """Return the offsets of a text as `3,7-9`, both ends included."""
    bounds = [each.split("-") for each in offsets.split(",")]
    return {offset for ends in bounds for offset in range(int(ends[0]), int(ends[-1]) + 1)}


def holds(said: Any, seen: Any) -> bool:
    """Return whether a plan's value is what was seen: offsets are those that the plan acknowledges."""
    if isinstance(seen, bool):
        return (said is not None) == seen
    if isinstance(seen, frozenset):
        return said is None or named(said) <= seen
    return bool(said == seen)


async def test_what_plans_say_is_what_happens() -> None:
    chance = random.Random(7)
    applied = 0
    async with administered() as cluster:
        while applied < 500:
            operation, arguments = any_change(chance)
            plan = await cluster.core.call(
                operation, {**arguments, "plan_only": True}, principal="ann", face="cli"
            )
            if isinstance(plan, ClusterError):
                assert plan.code != "INTERNAL", plan
                continue
            body = plan.model_dump()
            for each in body["diff"]:
                seen = look(cluster, each["path"])
                assert holds(each["before"], seen), each
                if isinstance(seen, frozenset):
                    assert not named(each["after"]) & seen, each
            done = await cluster.core.call(
                operation, {**arguments, "plan_token": body["plan_token"]}, principal="ann", face="cli"
            )
            assert not isinstance(done, ClusterError), (operation, arguments, done)
            for each in body["diff"]:
                assert holds(each["after"], look(cluster, each["path"])), each
            applied += 1
            if operation == "topics.create":
                await cluster.publish(arguments["topic"], *(b"%d" % n for n in range(5)))


async def test_every_call_of_thousands_is_in_the_audit() -> None:
    """Of those that did what they should: refusals are recorded up to a bound, then counted."""
    chance = random.Random(11)
    done = 0
    async with administered(options=AdminOptions(audit_reads=AuditReads.ALL)) as cluster:
        for _ in range(2500):
            operation, arguments = any_change(chance)
            if chance.random() < 0.2:
                arguments = {**arguments, "nonsense": 1}
            changed = await cluster.core.call(operation, arguments, principal="ann", face="cli")
            read = await cluster.core.call(
                chance.choice(["topics.list", "topics.describe", "no.such"]), {}, principal="bob", face="mcp"
            )
            done += sum(not isinstance(answer, ClusterError) for answer in (changed, read))
        await cluster.core.aclose()
        seen: set[str] = set()
        offset = 0
        while found := (await cluster.broker.port.read_audit(start=offset, max_messages=1000))[1]:
            records = [json.loads(payload) for _, payload in found]
            ended = [
                each for each in records if each["phase"] == "outcome" and each["operation"] != "refusals"
            ]
            seen |= {each["call_id"] for each in ended if not each["code"]}
            offset = found[-1][0] + 1
        assert len(seen) == done > 1000
        assert (await cluster("audit.verify"))["intact"]
