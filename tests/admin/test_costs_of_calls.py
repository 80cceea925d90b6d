"""Bounds of one call's cost where its caller chooses two numbers: both are large here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from pydanube_admin.engine.context import Context
from pydanube_admin.engine.many_plans import topics_named
from pydanube_admin.engine.models import MAX_FILTER_CHARS
from pydanube_admin.engine.stored_grants import StoredGrants, check_owner
from pydanube_admin.operations.dead_letters import still_open
from pydanube_admin.operations.messages import SearchRequest, matcher
from pydanube_admin.operations.offset_ranges import MOST_AT_ONCE
from pydanube_admin.operations.past_events import MOST_EVENTS
from pydanube_admin.operations.what_changed import ChangedItem, of_events, with_findings
from pydanube_broker.serving.administration import Administration
from pydanube_broker.topics import reading
from pydanube_broker.topics.reading import read_once
from pydanube_core.cluster_port import MessageFacts
from pydanube_core.diagnosis.alerts import Alert
from pydanube_core.errors import LimitReached, PermissionDenied
from pydanube_core.facts import EventFacts
from pydanube_core.names import TopicName
from pydanube_core.security.identity import Identity, current_identity
from pydanube_core.security.permissions import BUILT_IN, Binding, Principal, Scope
from pydanube_core.units import format_time

from tests.admin.real_broker import administered
from tests.support.processor import at_most

pytestmark = pytest.mark.anyio

TOPICS = 3000


class Index:
    """As many topics as the port lists, by their keys; nothing is locked."""

    locks = None

    async def topic_index(self) -> list[Any]:
        return [SimpleNamespace(topic=f"/default/{'a' * 100}-{number}") for number in range(TOPICS)]


async def test_globs_of_a_plan_for_many_topics_have_a_number() -> None:
    context = cast(Context, SimpleNamespace(port=Index()))
    globs = ",".join(f"*a*b{number}" for number in range(10_000))
    with at_most(0.2), pytest.raises(LimitReached, match="one plan is for 100") as refused:
        await topics_named(context, globs, "topics:delete")
    assert refused.value.details["limit"] == 100
    with at_most(1.5):
        assert (
            await topics_named(
                context, ",".join(f"*a*a*a*b{number}" for number in range(100)), "topics:delete"
            )
            == []
        )
    assert await topics_named(context, "*-17, *-17,*-2999", "topics:delete") == [
        f"/default/{'a' * 100}-17",
        f"/default/{'a' * 100}-2999",
    ]


async def test_namespaces_are_listed_at_the_cost_of_all_topics_together() -> None:
    names = [f"n{number}" for number in range(TOPICS)]
    topics = [SimpleNamespace(topic=TopicName(name, "t"), parent=None) for name in names]
    spec = SimpleNamespace(created_at_ms=0, policies={})
    index = SimpleNamespace(
        topics=lambda: topics,
        all_partitioned=lambda: topics,
        namespaces=lambda: [SimpleNamespace(name=name, spec=spec) for name in names],
    )
    registry = SimpleNamespace(
        catalog=SimpleNamespace(index=index), ownership=SimpleNamespace(several=True), topics=()
    )
    with at_most(0.3):
        found = await Administration.namespaces(cast(Administration, SimpleNamespace(_registry=registry)))
    assert {each.topics for each in found} == {2}


def test_rights_of_a_tokens_owner_are_checked_once_each() -> None:
    owner, caller = Principal("owner"), Principal("caller")
    bindings = [
        Binding(id=f"b{number}", principal=owner, roles=("producer", "consumer"), scope=Scope.CLUSTER)
        for number in range(2000)
    ]
    own = ("producer", "consumer")
    bindings.append(Binding(id="own", principal=caller, roles=own, scope=Scope.CLUSTER))
    stored = StoredGrants(
        roles={role.name: role for role in BUILT_IN},
        bindings={each.id: each for each in bindings},
        tokens={},
        revocations={},
    )
    context = cast(Context, SimpleNamespace(port=SimpleNamespace(locks=SimpleNamespace(required=True))))
    mark = current_identity.set(Identity(principal=caller, method="token"))
    try:
        with at_most(0.5):
            check_owner(context, stored, owner)
        last = Binding(id="last", principal=owner, roles=("admin",), scope=Scope.CLUSTER)
        stored = replace(stored, bindings=stored.bindings | {"last": last})
        with pytest.raises(PermissionDenied, match="does not hold all that admin gives"):
            check_owner(context, stored, owner)
    finally:
        current_identity.reset(mark)


def test_rights_on_thousands_of_resources_are_looked_up_one_by_one() -> None:
    """The caller's bindings were gone through for each binding of the other: 4 000 × 4 000 took 8.5 s."""
    owner, caller = Principal("owner"), Principal("caller")
    bindings = [
        Binding(
            id=f"{who.name}{n}",
            principal=who,
            roles=("consumer",),
            scope=Scope.TOPIC,
            resource=f"/shop/t{n}{star}",
        )
        for who, star in ((owner, ""), (caller, "*"))
        for n in range(4000)
    ]
    stored = StoredGrants(
        roles={role.name: role for role in BUILT_IN},
        bindings={each.id: each for each in bindings},
        tokens={},
        revocations={},
    )
    context = cast(Context, SimpleNamespace(port=SimpleNamespace(locks=SimpleNamespace(required=True))))
    mark = current_identity.set(Identity(principal=caller, method="token"))
    try:
        with at_most(1):
            check_owner(context, stored, owner)
        lacking = Binding(
            id="no", principal=owner, roles=("consumer",), scope=Scope.TOPIC, resource="/shop/x"
        )
        stored = replace(stored, bindings=stored.bindings | {"last": lacking})
        with pytest.raises(PermissionDenied, match="does not hold all that consumer gives"):
            check_owner(context, stored, owner)
    finally:
        current_identity.reset(mark)


def test_a_search_costs_little_for_the_longest_key_and_the_worst_glob() -> None:
    """The loop is given to others between messages only: 4 million characters against one glob took 1.7 s."""
    glob = f"*{'a' * (MAX_FILTER_CHARS - 2)}b"
    long = SimpleNamespace(key="a" * 4_000_000, payload=b"a" * 4_000_000, attributes={})
    matches = matcher(SearchRequest.model_validate({"topic": "orders", "filter": glob}))
    with at_most(0.05):
        assert not matches(cast(MessageFacts, long))
    usual = SimpleNamespace(key="a" * 2 * MAX_FILTER_CHARS + "b", payload=b"", attributes={})
    assert matches(cast(MessageFacts, usual))
    in_payload = matcher(SearchRequest.model_validate({"topic": "orders", "contains": "a" * 511 + "b"}))
    with at_most(0.05):
        assert not in_payload(cast(MessageFacts, long))


def test_thousands_of_starts_of_one_broker_are_put_together_at_once() -> None:
    """Each was compared with all others: 2 000 starts and joins held the loop for 5 s."""
    kinds = ("broker_joined", "broker_started")
    events = [
        EventFacts(at_ms=n // 2 * 200_000, broker_id="1", kind=kinds[n % 2], subject={"broker_id": "1"})
        for n in reversed(range(MOST_EVENTS))
    ]
    with at_most(1):
        found = of_events(events, [])
    assert len(found) == MOST_EVENTS / 2
    assert {(each.after or {})["state"] for each in found} == {"started"}


def test_findings_after_changes_are_looked_up_by_their_topic() -> None:
    """Each of 200 changes was compared with each alert, and both names were parsed each time: 2 s for 3 000."""
    times = [format_time(200_000 - 1000 * n) for n in range(200)]
    items = [
        ChangedItem(
            at=time, kind="operator", operation=None, subject=f"/default/t{n}" if n else "cluster", broker_id="7",
            by=None, before=None, after=None, call_id=None, undo=None, findings_after=[],
        )
        for n, time in enumerate(times)
    ]  # fmt: skip
    alerts = [
        SimpleNamespace(
            severity=n % 3, opened_at_ms=200_001 + n, rule=f"r{n}", subject={"topic": f"/default/t{n}-part-3"} if n else {}
        )
        for n in range(3000)
    ]  # fmt: skip
    with at_most(0.3):
        found = with_findings(items, cast(list[Alert], alerts), 300_000)
    assert [[each.rule for each in item.findings_after] for item in found[:3]] == [
        ["r2", "r5", "r8", "r11", "r14"], ["r1"], ["r2"],
    ]  # fmt: skip


async def test_a_verification_of_the_audit_reads_each_record_once_and_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its readings of 128 records read a mebibyte of records, eight times as many as it looked at."""
    read, told = 0, []

    async def counted(*arguments: Any) -> Any:
        nonlocal read
        found = await read_once(*arguments)
        read += len(found or ())
        return found

    async with administered(tmp_path) as cluster:
        await cluster("namespaces.list")
        audit, tasks = cluster.core.audit, cluster.core.executor.tasks
        record = {"operation": "topics.list", "principal": "ann", "arguments": {}, "time": format_time(0)}
        for number in range(1000):
            audit.note({**record, "call_id": f"c{number:024d}"})
            await audit.settled()  # a batch each, as calls that come one by one write them
        monkeypatch.setattr(reading, "read_once", counted)
        monkeypatch.setattr(tasks, "report_progress", lambda call_id, work: told.append(work))
        found = await cluster("audit.verify")
    assert found["records"] >= 1000
    assert read <= found["records"] + 10, "the few others are the newest record and the begin"
    assert [work["done"] for work in told] == sorted({work["done"] for work in told})
    assert len(told) >= 7, "after every 128"
    assert {work["total"] for work in told} == {found["records"]}


async def test_states_of_many_letters_are_asked_in_parts_between_which_the_loop_is_free() -> None:
    asked: list[int] = []

    class Port:
        async def unacknowledged(self, topic: str, subscription: str, offsets: list[int]) -> list[int]:
            asked.append(len(offsets))
            return offsets[:1]

    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    context = cast(Context, SimpleNamespace(port=Port()))
    async with anyio.create_task_group() as group:
        group.start_soon(others)
        with at_most(0.5):
            found = await still_open(context, "/default/t", "s", list(range(100_000, 0, -1)))
        group.cancel_scope.cancel()
    assert asked == [MOST_AT_ONCE] * 10
    assert turns >= 10
    assert found == {1 + each * MOST_AT_ONCE for each in range(10)}
