"""Runbooks: the files name what exists, and a run does what they say against a real broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio.from_thread
import anyio.to_thread
import pytest
from pydanube_admin import runbooks
from pydanube_admin.registry import OPERATIONS
from pydanube_admin.runbooks.runbook import parse_runbook
from pydanube_admin.runbooks.running import Outcome, run
from pydanube_admin.runbooks.texts import fill_arguments, spread
from pydanube_core.errors import InvalidArgument

from tests.admin.real_broker import Administered, administered

NAMES = (
    "cluster_health_check",
    "diagnose_consumer_lag",
    "handle_dead_letters",
    "manage_schema_evolution",
    "plan_capacity",
    "setup_new_topic",
)


def test_the_catalogue() -> None:
    assert tuple(runbooks.all()) == NAMES
    assert runbooks.get("plan-capacity").name == "plan_capacity"
    with pytest.raises(InvalidArgument, match="Did you mean plan_capacity"):
        runbooks.get("plan_capacitiy")


@pytest.mark.parametrize("name", NAMES)
def test_a_runbook_names_only_what_exists(name: str) -> None:
    runbook = runbooks.get(name)
    parameters = {parameter.name for parameter in runbook.parameters}
    known = set(parameters)
    for step in runbook.steps:
        calls = [(step.operation, step.arguments)] if step.operation else []
        assert calls or step.why, f"{step.id}: neither a call nor advice"
        for operation, arguments in [*calls, *step.suggests]:
            declared = {argument.name: argument for argument in OPERATIONS[operation].arguments}
            assert set(arguments) <= set(declared), f"{step.id}: arguments {operation} does not have"
            required = {argument.name for argument in declared.values() if argument.required}
            assert required <= set(arguments), f"{step.id}: {operation} needs more"
        if step.operation:
            fields = OPERATIONS[step.operation].output_schema["properties"]
            if "items" in fields:
                fields = {**fields, **fields["items"]["items"]["properties"]}
            assert set(step.show) <= set(fields), f"{step.id}: shows what the result does not have"
            for check in step.checks:
                first = check.path.removeprefix("items.*.").split(".")[0]
                assert first in fields, f"{step.id}: checks what the result does not have"
        assert set(step.when) <= known
        if step.each:
            assert step.each.split(".")[0] in known, f"{step.id}: goes over what no earlier step found"
        known.add(step.id)
    assert not {parameter.name for parameter in runbook.parameters} & {step.id for step in runbook.steps}
    text = runbooks.text(runbook, {"topic": "orders", "subscription": "billing"})
    assert text.count("\n") > len(runbook.steps)
    assert "danube" in text


def test_arguments_without_a_value_are_left_out() -> None:
    known = {"topic": "orders", "lag": {"items": [{"lag_messages": 3}]}}
    arguments = {"topic": "{topic}", "subscription": "{subscription}", "count": "{lag.items.0.lag_messages}"}
    assert fill_arguments(arguments, known) == {"topic": "orders", "count": 3}
    assert spread("items.*.lag_messages", known["lag"]) == [3]


def test_a_mistake_in_a_file_is_found_when_it_is_read() -> None:
    with pytest.raises(TypeError):
        parse_runbook("x", 'title = "t"\nsummary = "s"\n[[steps]]\nid = "a"\ntitle = "b"\noperatoin = "c"')


async def carried_out(
    cluster: Administered, name: str, *, yes: bool = True, **given: str
) -> tuple[list[Outcome], list[Mapping[str, Any]]]:
    plans: list[Mapping[str, Any]] = []

    def call(operation: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        async def ask() -> Any:
            outcome = await cluster.core.call(operation, arguments, principal="ann", face="cli")
            if isinstance(outcome, Exception):
                raise outcome
            return outcome.model_dump(mode="json", by_alias=True)

        result: dict[str, Any] = anyio.from_thread.run(ask)
        return result

    def approve(_: str, plan: Mapping[str, Any]) -> bool:
        plans.append(plan)
        return yes

    def work() -> list[Outcome]:
        return list(run(runbooks.get(name), given, call=call, approve=approve))

    return await anyio.to_thread.run_sync(work), plans


pytestmark_async = pytest.mark.anyio


@pytestmark_async
async def test_every_runbook_runs_on_a_real_broker() -> None:
    async with administered() as cluster:
        await cluster("topics.create", topic="orders")
        await cluster("subscriptions.create", topic="orders", subscription="billing")
        await cluster("schemas.register", subject="orders-value", schema_type="string", schema_definition="")
        await cluster.publish("orders", b"1", b"2")
        for name, given in {
            "cluster_health_check": {},
            "diagnose_consumer_lag": {"topic": "orders"},
            "manage_schema_evolution": {"subject": "orders-value"},
            "handle_dead_letters": {"topic": "orders", "subscription": "billing"},
            "plan_capacity": {},
        }.items():
            outcomes, plans = await carried_out(cluster, name, **given)
            assert outcomes
            assert [outcome.error for outcome in outcomes] == [None] * len(outcomes), name
            assert not plans, f"{name} changes nothing here"
        await cluster(
            "subscriptions.set_failure_policy",
            topic="orders",
            subscription="billing",
            poison_policy="dead_letter",
        )
        outcomes, plans = await carried_out(
            cluster, "handle_dead_letters", topic="orders", subscription="billing"
        )
        assert [outcome.step.id for outcome in outcomes] == ["policy", "cause", "letters"]
        assert outcomes[-1].error is None
        assert not plans, "there are none: nothing is sent again"
        outcomes, _ = await carried_out(cluster, "diagnose_consumer_lag", topic="orders")
        assert [outcome.title for outcome in outcomes][1] == "Why billing is behind"


@pytestmark_async
async def test_a_change_is_made_by_the_plan_that_was_approved() -> None:
    async with administered() as cluster:
        outcomes, plans = await carried_out(
            cluster, "setup_new_topic", yes=False, namespace="default", use_case="queue", topic="jobs"
        )
        assert outcomes[-1].declined
        assert [plan["operation"] for plan in plans] == ["topics.create"]
        assert not (await cluster("topics.list", filter="/default/jobs"))["items"], (
            "declined: nothing changed"
        )
        outcomes, plans = await carried_out(
            cluster, "setup_new_topic", namespace="default", use_case="queue", topic="jobs"
        )
        assert [plan["operation"] for plan in plans] == ["topics.create", "subscriptions.create"]
        assert outcomes[-1].result is not None
        assert outcomes[-1].result["subscriptions"] == ["workers"]
        outcomes, plans = await carried_out(
            cluster, "setup_new_topic", namespace="default", use_case="queue", topic="jobs"
        )
        assert not plans, "the name is taken: the run stops before it plans"
        assert outcomes[-1].stop


@pytestmark_async
async def test_parameters_are_checked_before_anything_is_called() -> None:
    async with administered() as cluster:
        for given in ({}, {"namespace": "default", "use_case": "banana"}, {"namespace": "x", "typo": "y"}):
            with pytest.raises(InvalidArgument):
                await carried_out(cluster, "setup_new_topic", **given)
