"""SIGKILL between any two steps of a change: before or after, the audit tells which, and the undo leads back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydanube_admin.engine.change_records import ChangeStep
from pydanube_admin.registry import OPERATIONS
from pydanube_admin.remote import call_sync
from pydanube_core.errors import ClusterError, Unavailable
from pydanube_core.kill_steps import HOOK

from tests.support.broker_process import BrokerProcess

STANDS = ("topic", "partition", "subscription", "type", "next_unacked", "lag_messages", "lag_bytes")
ITS_OWN = ("created_at", "topic_id", "schema_id")  # of what is made: another each time
SCHEMA = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
SINK = 'connector = "http-sink"\ntopic = "orders"\n[settings]\nurl = "http://127.0.0.1:9"\n'
NOT_BEGUN = (ChangeStep.CHECKED, ChangeStep.RECORDED, ChangeStep.IMAGE_KEPT)
BEFORE_EFFECT = (*NOT_BEGUN, ChangeStep.BEGUN)

CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("topics.delete", {"topic": "clicks"}),
    ("subscriptions.seek", {"topic": "clicks", "subscription": "billing", "to": "latest"}),
    ("topics.set_policies", {"topic": "orders", "policies": {"max_publish_rate": 3}}),
    ("topics.create", {"topic": "new"}),
    ("topics.create", {"topic": "new", "partitions": 2}),
    ("topics.add_partitions", {"topic": "clicks", "partitions": 5}),
    ("topics.delete", {"topic": "orders"}),
    ("topics.set_policies", {"topic": "clicks", "policies": {"max_publish_rate": 3}}),
    ("topics.configure_schema", {"topic": "clicks", "schema_subject": "orders-value"}),
    ("topics.set_validation_policy", {"topic": "orders", "validation_policy": "enforce"}),
    ("topics.set_durability", {"topic": "orders", "durability": "stored"}),
    ("namespaces.create", {"namespace": "new"}),
    ("namespaces.delete", {"namespace": "empty"}),
    ("namespaces.set_policies", {"namespace": "default", "policies": {"max_publish_rate": 3}}),
    ("subscriptions.create", {"topic": "clicks", "subscription": "late", "start": "latest"}),
    ("subscriptions.delete", {"topic": "orders", "subscription": "billing"}),
    ("subscriptions.delete", {"topic": "clicks", "subscription": "billing"}),
    ("subscriptions.seek", {"topic": "orders", "subscription": "billing", "to": "earliest"}),
    ("subscriptions.skip", {"topic": "orders", "subscription": "billing", "count": 3}),
    ("subscriptions.purge", {"topic": "clicks", "subscription": "billing"}),
    (
        "subscriptions.set_failure_policy",
        {"topic": "orders", "subscription": "billing", "poison_policy": "dead_letter", "ack_timeout_ms": 5},
    ),
    ("schemas.set_compatibility", {"subject": "orders-value", "mode": "full", "transitive": True}),
    ("schemas.delete_version", {"subject": "other-value", "version": 1}),
    ("roles.create", {"role": "new", "permissions": "topics:read"}),
    ("roles.create", {"role": "reader", "permissions": "schemas:read"}),
    ("roles.delete", {"role": "spare"}),
    ("bindings.create", {"binding": "new", "principal": "bob", "roles": "reader"}),
    ("bindings.delete", {"binding": "anns"}),
    ("tokens.revoke", {"token_id": "of the fixture"}),
    ("quotas.set", {"namespace": "default", "limits": {"topics": 90}}),
    ("connectors.create", {"connector": "new", "definition": SINK}),
    ("connectors.set", {"connector": "runs", "definition": f"{SINK}method = 'PUT'"}),
    ("connectors.pause", {"connector": "runs"}),
    ("connectors.resume", {"connector": "rests"}),
    ("connectors.delete", {"connector": "runs"}),
    ("links.create", {"link": "new", "source": "danube://127.0.0.1:9", "topics": "/default/*"}),
    ("links.pause", {"link": "runs"}),
    ("links.resume", {"link": "rests"}),
    ("links.delete", {"link": "runs"}),
]

# A lone broker has nowhere to move to; an undone rebalance, the same code as an undone move: test_balancing_brokers.py.
OF_SEVERAL_BROKERS = {"topics.move", "topics.unload", "cluster.rebalance"}
#: what the copy of the journal reaches and costs: it goes on where a topic was stored once
OF_THE_COPY = {
    f"{name}{ending}"
    for name in ("stored_until", "requests_per_hour", "bytes_per_hour")
    for ending in ("", "_reason")
}
#: the broker moves messages to objects in the background, where they take another number of bytes
OF_THE_STORE = {"bytes", "lag_bytes", "journal_bytes", "object_bytes", "tiered_offset"}
#: undone where there are letters: test_dead_letters.py
OF_LETTERS = {"dead_letters.replay"}


class Killed:
    """A broker that ends itself at a step which a test names."""

    def __init__(self, broker: BrokerProcess, hooks: Path) -> None:
        self.broker = broker
        self._hooks = hooks

    def __call__(self, operation: str, /, **arguments: Any) -> dict[str, Any]:
        return call_sync(self.broker.admin, operation, arguments, principal="ann", timeout_s=60)

    def plan(self, operation: str, arguments: dict[str, Any]) -> str:
        return str(self(operation, **arguments, plan_only=True)["plan_token"])

    def undo(self, call_id: str) -> None:
        """By a plan, which some want: they pass over what is unread now."""
        self("plans.apply", plan_token=self.plan("changes.undo", {"call_id": call_id}))

    def killed_at(self, step: ChangeStep, operation: str, /, **arguments: Any) -> None:
        """The call ends with its broker, at that step; then the broker is there again."""
        (self._hooks / step.value).touch()
        with pytest.raises(Unavailable):
            self(operation, **arguments)
        assert self.broker.wait() == -9
        assert not (self._hooks / step.value).exists()
        self.broker.start()

    def records(self, operation: str, token: str) -> dict[str, dict[str, Any]]:
        """What the audit says of the change of that plan: phase -> record."""
        plan_id = token.partition(".")[0]
        items = self("audit.query", operation=operation, limit=50, hashes=True)["items"]
        found = [each for each in items if each["plan_id"] == plan_id and each["decision"] != "planned"]
        assert len({each["call_id"] for each in found}) <= 1
        assert len({each["phase"] for each in found}) == len(found)
        return {each["phase"]: each for each in found}


def state(cluster: Killed, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Everything that an operator can see of topics, subscriptions, namespaces, schemas and rights."""
    found: dict[str, Any] = {}
    for name in (
        "topics.list", "subscriptions.lag", "namespaces.list", "schemas.list",
        "roles.list", "bindings.list", "tokens.list", "quotas.list",
    ):  # fmt: skip
        found[name] = cluster(name)["items"]
    found["connectors.list"] = [
        {**item, "generation": 0} for item in cluster("connectors.list")["items"]
    ]  # an undo is one more
    for item in cluster("links.list")["items"]:
        described = cluster("links.describe", link=item["link"])
        shown = ("source", "patterns", "start", "rename", "token_file")
        found[f"link {item['link']}"] = [described[name] for name in shown], item["state"] == "paused"
    for item in found["topics.list"]:
        topic = item["topic"]
        if not item["partitions"]:
            peeked = cluster("messages.peek", topic=topic, **{"from": "earliest"})["items"]
            found[f"payloads {topic}"] = [each["untrusted"]["text"] for each in peeked]
        for operation in ("topics.describe", "topics.get_policies", "topics.get_schema_config"):
            found[f"{operation} {topic}"] = cluster(operation, topic=topic)
    for item in found["subscriptions.lag"]:
        arguments = {"topic": item["topic"], "subscription": item["subscription"]}
        policy = cluster("subscriptions.get_failure_policy", **arguments)
        found[f"policy {item['topic']} {item['subscription']}"] = policy
    for item in found["namespaces.list"]:
        namespace = item["namespace"]
        found[f"limits {namespace}"] = cluster("namespaces.get_policies", namespace=namespace)
    for item in found["schemas.list"]:
        found[f"schema {item['subject']}"] = cluster("schemas.versions", subject=item["subject"])
    found["subscriptions.lag"] = [
        {name: item.get(name) for name in STANDS} for item in found["subscriptions.lag"]
    ]  # rates and statuses go on by themselves
    found["subscriptions"] = [
        {name: each[name] for name in each if name not in ("consumers", "members")}
        for each in cluster("subscriptions.list")["items"]
    ]
    body: dict[str, Any] = _without(
        json.loads(json.dumps(found)), {"as_of", "mark", "epoch", *OF_THE_COPY, *OF_THE_STORE, *without}
    )
    return body


def _without(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {name: _without(each, names) for name, each in value.items() if name not in names}
    return [_without(each, names) for each in value] if isinstance(value, list) else value


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Killed]:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    # Nothing is flushed meanwhile: the bytes of a backlog are counted differently in the tier.
    environment = {HOOK: str(hooks), "DANUBE_TIER__FLUSH_AGE": "1h"}
    with BrokerProcess(tmp_path, environment=environment, face="broker") as broker:
        cluster = Killed(broker, hooks)
        cluster("namespaces.create", namespace="empty", policies={"max_publish_rate": 7})
        cluster("topics.create", topic="orders", policies={"max_message_size": 1000})
        cluster("topics.create", topic="clicks", partitions=3)
        for subject in ("orders-value", "other-value"):
            cluster("schemas.register", subject=subject, schema_type="json_schema", schema_definition=SCHEMA)
        cluster("topics.configure_schema", topic="orders", schema_subject="orders-value")
        for topic in ("orders", "clicks"):
            cluster("subscriptions.create", topic=topic, subscription="billing", type="shared")
            for number in range(10):
                cluster("messages.publish", topic=topic, payload=json.dumps({"id": number}))
        token = cluster.plan("subscriptions.skip", {"topic": "orders", "subscription": "billing", "count": 4})
        cluster("plans.apply", plan_token=token)
        for role in ("reader", "spare"):
            cluster("roles.create", role=role, permissions="topics:read")
        cluster("bindings.create", binding="anns", principal="ann", roles="reader")
        cluster("quotas.set", namespace="default", limits={"topics": 100})
        cluster("tokens.create", name="ci")
        for connector in ("runs", "rests"):
            cluster("connectors.create", connector=connector, definition=SINK)
        cluster("connectors.pause", connector="rests")
        for link in ("runs", "rests"):
            cluster("links.create", link=link, source="danube://127.0.0.1:9", topics="/default/*")
        cluster("links.pause", link="rests")
        yield cluster


def as_here(cluster: Killed, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments, with the id that the fixture's token has."""
    if "token_id" not in arguments:
        return arguments
    return {"token_id": cluster("tokens.list")["items"][0]["token_id"]}


def kill_and_look(cluster: Killed, step: ChangeStep, operation: str, arguments: dict[str, Any]) -> None:
    arguments = as_here(cluster, arguments)
    before = state(cluster)
    token = cluster.plan(operation, arguments)
    done = cluster("plans.apply", plan_token=token)
    after = state(cluster, without=ITS_OWN)
    cluster.undo(done["call_id"])
    assert state(cluster) == before
    token = cluster.plan(operation, arguments)

    cluster.killed_at(step, operation, **arguments, plan_token=token)

    if step in BEFORE_EFFECT:
        assert state(cluster) == before
    else:
        assert state(cluster, without=ITS_OWN) == after
    found = cluster.records(operation, token)
    assert found.keys() == (set() if step is ChangeStep.CHECKED else {"call", "outcome"})
    if step is not ChangeStep.CHECKED:
        made = step in (ChangeStep.KEPT, ChangeStep.TOLD)
        assert (found["outcome"]["decision"], found["outcome"]["code"]) == (
            ("allowed", None) if made else ("interrupted", "INTERNAL")
        )
    if step in NOT_BEGUN:
        # Nothing was begun: there is nothing to undo, and the token was not used
        if found:
            with pytest.raises(ClusterError) as refused:
                cluster("changes.undo", call_id=found["call"]["call_id"])
            assert refused.value.code == "PLAN_NOT_FOUND"
        call_id = cluster("plans.apply", plan_token=token)["call_id"]
    else:
        with pytest.raises(ClusterError) as refused:
            cluster("plans.apply", plan_token=token)
        assert refused.value.code == "PLAN_USED"
        call_id = found["call"]["call_id"]
    cluster.undo(call_id)
    assert state(cluster) == before
    verified = cluster("audit.verify")
    assert verified["intact"], verified


def test_every_operation_that_can_be_undone_is_killed_here() -> None:
    undone = {name for name, operation in OPERATIONS.items() if operation.undo is not None}
    assert {name for name, _ in CHANGES} == undone - OF_SEVERAL_BROKERS - OF_LETTERS


def test_a_change_that_is_killed_is_made_or_not(cluster: Killed) -> None:
    """A few of the steps; `test_every_change_at_every_step` has them all."""
    for step, (operation, arguments) in zip((ChangeStep.BEGUN, ChangeStep.MADE), CHANGES[:2], strict=True):
        kill_and_look(cluster, step, operation, arguments)  # one of each: a start costs seconds


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", [step for step in ChangeStep if step is not ChangeStep.TAKEN_BACK])
def test_every_change_at_every_step(cluster: Killed, step: ChangeStep) -> None:
    for operation, arguments in CHANGES:
        kill_and_look(cluster, step, operation, arguments)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", [step for step in ChangeStep if step is not ChangeStep.IMAGE_KEPT])
def test_an_undo_that_is_killed_is_made_or_not(cluster: Killed, step: ChangeStep) -> None:
    for operation, given in CHANGES:
        arguments = as_here(cluster, given)
        before = state(cluster)
        call_id = cluster("plans.apply", plan_token=cluster.plan(operation, arguments))["call_id"]
        after = state(cluster)
        token = cluster.plan("changes.undo", {"call_id": call_id})
        cluster.killed_at(step, "changes.undo", call_id=call_id, plan_token=token)
        if step in BEFORE_EFFECT:
            assert state(cluster) == after, operation
        else:
            assert state(cluster) == before, operation
        if step in (*BEFORE_EFFECT, ChangeStep.TAKEN_BACK):
            cluster.undo(call_id)
        with pytest.raises(ClusterError) as refused:
            cluster("changes.undo", call_id=call_id)
        assert refused.value.code == "PLAN_USED"
        assert state(cluster) == before, operation
