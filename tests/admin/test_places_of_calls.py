"""Every operation, asked in every way at each of three brokers, is carried out where it belongs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast
from unittest.mock import AsyncMock

import anyio
import pytest
from pydanube_admin.engine.change_records import ChangeRecord
from pydanube_admin.engine.models import Effect
from pydanube_admin.engine.operation import Operation, known
from pydanube_admin.engine.places import Places
from pydanube_admin.engine.plan_records import PlanRecord
from pydanube_admin.engine.task_records import DONE, RUNNING, TaskRecord
from pydanube_admin.registry import OPERATIONS
from pydanube_broker.broker import Broker
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.facts import BrokerAddress, StateItem

from tests.admin.test_any_broker_administers import administered, ask
from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import SeveralBrokers, id_of, several_brokers

pytestmark = pytest.mark.anyio

IDS: Final = ("1", "2", "3")
OWNER, LEADER = "2", "3"
OF_A_BROKER: Final = {
    *(
        f"brokers.{verb}"
        for verb in ("status", "describe", "config", "logs", "metrics", "may_stop", "unload", "activate")
    ),
    "audit.export",
    "cluster.what_if",
    "journal.describe",
}
OF_THE_LEADER: Final = {"cluster.balance", "cluster.rebalance"}
AT_ANY: Final = {
    "audit.query", "audit.verify", "brokers.remove", "changes.list", "diagnose.producer", "diagnose.subscription", "diagnose.topic", "subscriptions.lag", "topics.create", "topics.describe", "topics.list", "topics.move", "topics.take_over", "topics.unload",
}  # fmt: skip
UNDONE_AT_THE_LEADER: Final = {"cluster.rebalance", "topics.move", "topics.unload"}
ABOUT_CALLS: Final = {"operations.read", "plans.create", "plans.apply", "changes.undo", "tasks.get", "tasks.cancel"}  # fmt: skip
OTHERS: Final = sorted(OPERATIONS.keys() - ABOUT_CALLS)


@dataclass
class Three:
    """The port of one of three brokers, as far as `Places` asks it."""

    own: str
    kept: dict[str, bytes] = field(default_factory=dict)

    @property
    def life(self) -> str:
        return f"{self.own}/1"

    async def members(self) -> list[BrokerAddress]:
        return [address(each) for each in IDS]

    def known_brokers(self) -> list[BrokerAddress]:
        return [address(each) for each in IDS]

    async def leader(self) -> BrokerAddress:
        return address(LEADER)

    async def owners(self, topic: str) -> list[BrokerAddress]:
        return [address(OWNER)] if topic == "/default/orders" else [address("1"), address("2")]

    async def read_state(self, key: str) -> StateItem | None:
        value = self.kept.get(key)
        return None if value is None else StateItem(key=key, value=value, revision=1)

    def keep_plan(self, operation: str, arguments: Mapping[str, Any]) -> None:
        plan = PlanRecord(
            plan_id="p1", operation=operation, arguments=arguments, principal="", effect="change", reversible=True,
            diff=[], blast_radius={}, revision="", created_ms=0, expires_ms=0, secret="",
        )  # fmt: skip
        self.kept["plans/p1"] = plan.to_bytes()

    def keep_change(self, operation: str, arguments: Mapping[str, Any]) -> None:
        change = ChangeRecord(
            call_id="c1", plan_id="p1", operation=operation, arguments=arguments, principal="", at_ms=0,
            undo_until_ms=0, diff=[], image={},
        )  # fmt: skip
        self.kept["changes/c1"] = change.to_bytes()

    def keep_task(self, broker_id: str, *, state: str = RUNNING) -> None:
        task = TaskRecord(
            task_id="t1", call_id="c1", operation="objects.verify", arguments={}, principal="", started_ms=0,
            state=state, life=f"{broker_id}/1",
        )  # fmt: skip
        self.kept["tasks/t1"] = task.to_bytes()

    async def place(self, operation: str, arguments: Mapping[str, Any]) -> str:
        found = await Places(cast("ClusterPort", self)).elsewhere(operation, arguments)
        return self.own if found is None else found.broker.broker_id


def address(broker_id: str) -> BrokerAddress:
    return BrokerAddress(broker_id=broker_id, broker_url="", admin_url=f"http://{broker_id}")


def calls_of(operation: Operation, own: str) -> list[tuple[dict[str, Any], str]]:
    """Return arguments of the operation, and the broker where it belongs if `own` is called."""
    name = operation.name
    if name in OF_A_BROKER:
        assert "broker_id" in operation.request_names, f"{name} cannot name another broker"
        return [({"broker_id": each}, each) for each in IDS] + [({}, own)]
    if name in OF_THE_LEADER:
        return [({}, LEADER)]
    if name in AT_ANY:
        return [({"topic": "orders", "broker_id": "1"}, own)]
    if "topic" in operation.request_names:
        return [({"topic": "orders"}, OWNER), ({"topic": "at-two"}, own), ({"topic": "*"}, own)]
    return [({}, own)]


@pytest.mark.parametrize("own", IDS)
@pytest.mark.parametrize("name", OTHERS)
async def test_a_call_is_carried_out_where_it_belongs_however_it_is_asked(name: str, own: str) -> None:
    operation, at = known(name), Three(own)
    for arguments, broker in calls_of(operation, own):
        inner = {"operation": name, "arguments": arguments}
        assert await at.place(name, arguments) == broker
        if operation.effect is Effect.READ:
            assert await at.place("operations.read", inner) == broker
        if operation.planned:
            assert await at.place("plans.create", inner) == broker
            at.keep_plan(name, arguments)
            assert await at.place("plans.apply", {"plan_token": "p1.secret"}) == broker
        if operation.undo is not None:
            undone_at = LEADER if name in UNDONE_AT_THE_LEADER else broker
            undo = {"call_id": "c1"}
            at.keep_change(name, arguments)
            at.keep_plan("changes.undo", undo)
            assert await at.place("changes.undo", undo) == undone_at
            assert (
                await at.place("plans.create", {"operation": "changes.undo", "arguments": undo}) == undone_at
            )
            assert await at.place("plans.apply", {"plan_token": "p1.secret"}) == undone_at


@pytest.mark.parametrize("own", IDS)
async def test_a_task_is_asked_for_at_the_broker_that_runs_it(own: str) -> None:
    at, task = Three(own), {"task_id": "t1"}
    for runs_at in IDS:
        at.keep_task(runs_at)
        for call in ("tasks.get", "tasks.cancel"):
            assert await at.place(call, task) == runs_at
        assert await at.place("operations.read", {"operation": "tasks.get", "arguments": task}) == runs_at
        assert await at.place("plans.create", {"operation": "tasks.cancel", "arguments": task}) == runs_at
        at.keep_task(runs_at, state=DONE)
        assert await at.place("tasks.get", task) == own
    at.keep_task("4")  # it has left the cluster
    assert await at.place("tasks.get", task) == own


async def test_what_names_no_call_is_refused_by_the_broker_that_was_called() -> None:
    at = Three("1")
    for name, arguments in (
        ("operations.read", {"operation": "no.such", "arguments": {}}),
        ("operations.read", {"operation": "topics.metrics", "arguments": "not JSON"}),
        ("plans.apply", {"plan_token": "../../plans/p1"}),
        ("changes.undo", {"call_id": 7}),
        ("tasks.get", {}),
        ("no.such", {}),
    ):
        assert await at.place(name, arguments) == "1"
    nested: dict[str, Any] = {"operation": "brokers.status", "arguments": {"broker_id": "2"}}
    for _ in range(50):
        nested = {"operation": "plans.create", "arguments": nested}
    assert await at.place("plans.create", nested) == "1"


OF_IT: Final = {
    "bytes": 1, "segments": 1000, "next_lsn": 1, "durable_lsn": 1, "read_only": False, "sealed": [], "held_by": [],
}  # fmt: skip


@pytest.fixture(scope="module")
async def cluster(
    etcd: EtcdMembers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SeveralBrokers]:
    async with several_brokers(etcd, tmp_path_factory.mktemp("brokers"), administered) as cluster:
        yield cluster


async def read(broker: Broker, operation: str, /, **arguments: Any) -> dict[str, Any]:
    answer = await ask(broker, "operations.read", operation=operation, arguments=arguments)
    result: dict[str, Any] = answer["result"]
    return result


async def ended(broker: Broker, task_id: str) -> dict[str, Any]:
    """Wait until a task has ended, and return it as one broker shows it."""
    with anyio.fail_after(60):
        while (task := await ask(broker, "tasks.get", task_id=task_id))["state"] == "running":  # noqa: ASYNC110
            await anyio.sleep(0.05)
    return task


async def test_every_broker_shows_each_of_the_others_also_within_a_read(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for asked in cluster.brokers.values():
        for meant in cluster.brokers.values():
            named = {"broker_id": id_of(meant)}
            for operation in (
                "brokers.status",
                "brokers.describe",
                "brokers.config",
                "brokers.logs",
                "brokers.metrics",
            ):
                assert (await ask(asked, operation, **named))["broker_id"] == id_of(meant)
                assert (await read(asked, operation, **named))["broker_id"] == id_of(meant)
            listens = (await read(asked, "brokers.config", **named))["settings"]
            [folder] = [each["value"] for each in listens if each["name"] == "data.dir"]
            assert folder == str(meant.data_dir.path)
            with monkeypatch.context() as patched:
                patched.setattr(meant.port, "journal", AsyncMock(return_value=OF_IT))
                assert (await read(asked, "journal.describe", **named))["segments"] == 1000


async def test_another_broker_is_drained_by_a_plan_and_its_task_is_seen_and_ended_from_a_third(
    cluster: SeveralBrokers,
) -> None:
    first, second, third = cluster.brokers.values()
    for n in range(6):
        await ask(first, "topics.create", topic=f"t{n}")
    named = {"broker_id": id_of(third)}
    plan = await ask(first, "plans.create", operation="brokers.unload", arguments=named)
    assert plan["diff"] == [
        {"path": f"brokers/{id_of(third)}/state", "before": "active", "after": "draining"}
    ]
    applied = await ask(second, "plans.apply", plan_token=plan["plan_token"])
    assert applied["result"]["broker_id"] == id_of(third)
    task = await ended(second, applied["result"]["task_id"])
    assert (task["state"], task["result"]["state"]) == ("done", "drained")
    plan = await ask(second, "plans.create", operation="brokers.activate", arguments=named)
    activated = await ask(first, "plans.apply", plan_token=plan["plan_token"])
    assert activated["result"]["state"] == "active"
    await cluster.all_know_all()


async def test_the_task_of_one_broker_is_cancelled_at_another(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = cluster.brokers.values()

    async def nothing() -> None:
        return None

    monkeypatch.setattr(third.port, "unload", nothing)
    unloaded = await ask(first, "brokers.unload", broker_id=id_of(third))
    task = {"task_id": unloaded["task_id"]}
    seen = await ask(second, "tasks.get", **task)
    assert seen["state"] == "running"
    assert [each["unit"] for each in seen["work"]] == ["topics"]
    await ask(first, "tasks.cancel", **task)
    assert (await ended(second, task["task_id"]))["state"] == "cancelled"
