"""`changes.list`: who changed what since when, how it is taken back, and which findings began after it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from pydanube import connect
from pydanube_admin.engine.audit.audit_records import Entry
from pydanube_admin.engine.context import system_now_ms as now_ms
from pydanube_admin.engine.stored_records import CALL, new_id
from pydanube_admin.operations import what_changed
from pydanube_admin.operations.what_changed import ChangedItem, unlike, with_findings
from pydanube_admin.peers import note_unseen
from pydanube_core.diagnosis.alerts import Alert
from pydanube_core.diagnosis.findings import Finding, Severity
from pydanube_core.errors import MetadataUnavailable
from pydanube_core.units import format_time

from tests.admin.real_broker import Administered, administered
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster(anyio_backend: str) -> AsyncIterator[Administered]:
    async with administered() as cluster:
        yield cluster


async def test_changes_are_listed_with_their_undo(cluster: Administered) -> None:
    await cluster("topics.create", topic="orders")
    await cluster("topics.create", topic="clicks")
    await cluster("topics.list")  # a read is no change
    await cluster("plans.create", operation="topics.delete", arguments={"topic": "orders"})  # nor is a plan
    await cluster.refused("topics.create", topic="orders")  # what was refused changed nothing
    await cluster("topics.set_policies", topic="orders", policies={"max_publish_rate": 10})
    found = await cluster("changes.list", since="5m")
    assert [(each["operation"] or each["after"]["state"], each["subject"]) for each in found["items"]] == [
        ("topics.set_policies", "/default/orders"),
        ("topics.create", "/default/clicks"),
        ("topics.create", "/default/orders"),
        ("started", f"broker {found['items'][-1]['broker_id']}"),
    ]
    newest, *_, started = found["items"]
    assert (newest["kind"], started["kind"], started["by"]) == ("operator", "cluster", None)
    call = newest["undo"]["call"]
    await cluster(call["operation"], **call["arguments"])
    assert (await cluster("topics.get_policies", topic="orders"))["policies"] == {}
    again = await cluster("changes.list", since="5m", topic="orders", limit=2)
    assert [each["operation"] for each in again["items"]] == ["changes.undo", "topics.set_policies"]
    assert [each["undo"] for each in again["items"]] == [None, None]  # it was taken back
    assert again["more"] is True


async def test_a_topic_that_was_deleted_leads_to_who_did_it_and_to_its_undo(cluster: Administered) -> None:
    await cluster("topics.create", topic="orders")
    await cluster.apply("topics.delete", topic="orders")
    missing = await cluster.refused("topics.describe", topic="orders")
    step = next(each for each in missing.next if each["operation"] == "changes.list")
    found = await cluster(step["operation"], **step["arguments"])
    call = next(each["undo"]["call"] for each in found["items"] if each["operation"] == "topics.delete")
    await cluster(call["operation"], **call["arguments"])
    assert (await cluster("topics.describe", topic="orders"))["topic"] == "/default/orders"


async def test_a_cursor_that_a_client_moved_is_listed(cluster: Administered) -> None:
    with anyio.fail_after(60):
        async with connect(cluster.broker.broker_url) as client:
            async with client.producer("orders") as producer:
                await producer.send_many([b"x"] * 5)
            async with client.consumer("orders", "billing", name="worker-7") as consumer:
                await consumer.seek("latest")

        async def listed() -> list[dict[str, Any]]:
            found = await cluster("changes.list", topic="orders")
            return [each for each in found["items"] if each["operation"] == "subscriptions.seek"]

        await until(listed)
        (moved,) = await listed()
    assert (moved["kind"], moved["by"], moved["subject"]) == ("client", "worker-7", "/default/orders billing")
    assert (moved["before"], moved["after"]) == ({"next_unacked": 0}, {"next_unacked": 5})


@pytest.fixture
def alerts(cluster: Administered, monkeypatch: pytest.MonkeyPatch) -> list[Alert]:
    """Alerts that the broker shows as open."""
    found: list[Alert] = []

    async def shown(self: object) -> tuple[list[Alert], list[Alert]]:
        return found, []

    monkeypatch.setattr(type(cluster.broker.port), "alerts", shown)
    return found


async def test_findings_follow_the_last_change_of_their_topic(
    cluster: Administered, alerts: list[Alert]
) -> None:
    await cluster("topics.create", topic="orders")
    await cluster("topics.create", topic="clicks")
    later_ms = now_ms() + 1
    finding = Finding(summary="", evidence={}, rule="no_consumers")
    alert = Alert(
        alert_id="a",
        rule="no_consumers",
        subject={"topic": "/default/orders"},
        severity=Severity.WARNING,
        opened_at_ms=later_ms,
        closed_at_ms=None,
        finding=finding,
    )
    alerts += [alert, replace(alert, subject={"topic": "/default/clicks"}, opened_at_ms=1)]
    await until(lambda: now_ms() > later_ms)
    found = await cluster("changes.list")
    by_subject = {each["subject"]: each.get("findings_after", []) for each in found["items"]}
    assert [each["rule"] for each in by_subject["/default/orders"]] == ["no_consumers"]
    assert by_subject["/default/clicks"] == []  # that one began before


async def test_starts_of_a_broker_and_alerts_before_its_last_one_are_read_back(tmp_path: Path) -> None:
    """What was wrong last night, and since when the broker has other settings: asked after a restart."""
    night = Alert(
        alert_id="n1",
        rule="consumer_dead",
        subject={"topic": "/default/orders", "subscription": "billing"},
        severity=Severity.CRITICAL,
        opened_at_ms=0,
        closed_at_ms=None,
        finding=Finding(summary="its connection broke", evidence={}, rule="consumer_dead"),
    )
    with anyio.fail_after(120):
        async with administered(
            tmp_path / "data", **{"telemetry.enabled": True, "telemetry.flush_age": "200ms"}
        ) as cluster:
            events = cluster.broker.events
            events.alert(replace(night, opened_at_ms=now_ms()))
            events.alert(replace(night, opened_at_ms=now_ms() - 9, closed_at_ms=now_ms(), alert_id="n2"))
            writer = cluster.broker.telemetry
            assert writer is not None
            await until(lambda: writer.statistics().files > 0 and not writer.statistics().waiting_bytes)
        async with administered(
            tmp_path / "data",
            **{"telemetry.enabled": True, "telemetry.flush_age": "200ms", "delivery.ack_timeout": "61s"},
        ) as cluster:
            found = await cluster("changes.list", since="1h")
            assert found["unknown"] == []
            starts = [each for each in found["items"] if each["kind"] == "cluster"]
            assert {each["after"]["state"] for each in starts} == {"leads", "started", "stopped"}
            twice = [each for each in starts if each["after"]["state"] == "started"]
            oldest, newest = sorted(twice, key=lambda each: each["before"] is not None)
            assert newest["before"] == {name: oldest["after"][name] for name in ("version", "settings")}
            assert newest["after"]["settings"] != newest["before"]["settings"]
            closed = (await cluster("alerts.list", since="1h"))["items"]
            assert [(each["alert_id"], each["rule"], each["finding"]["summary"]) for each in closed] == [
                ("n2", "consumer_dead", "its connection broke"),
                ("n1", "consumer_dead", "its connection broke"),
            ]
            assert all(each["closed_at"] is not None for each in closed), (
                "what was open closed with its broker"
            )
            assert (await cluster("alerts.list"))["items"] == []
            assert (await cluster("alerts.list", since=format_time(now_ms() + 1000)))["items"] == []


async def test_without_telemetry_it_is_said_that_the_past_is_not_known(cluster: Administered) -> None:
    [why] = (await cluster("changes.list", since="1h"))["unknown"]
    assert "telemetry" in why


async def test_a_change_of_this_very_moment_is_listed(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing = time.time_ns()
    monkeypatch.setattr("pydanube_broker.wall_clock.time", SimpleNamespace(time_ns=lambda: standing))
    await cluster("topics.create", topic="orders")
    made = [each["operation"] for each in (await cluster("changes.list", since="1h"))["items"]]
    assert made.count("topics.create") == 1


async def test_changes_of_a_broker_that_does_not_answer_are_said_to_be_missing(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call to a hung broker has an unknown outcome, and sends its caller here: an empty list is not a no."""
    whole = cluster.broker.port.open_audit

    async def noted() -> Any:
        note_unseen("7", "it is not registered")
        return await whole()

    await cluster("topics.create", topic="orders")
    past = (await cluster("changes.list"))["unknown"]
    monkeypatch.setattr(cluster.broker.port, "open_audit", noted)
    found = await cluster("changes.list")
    assert found["unknown"] == [*past, "changes that broker 7 recorded: it is not registered"]
    assert (await cluster("changes.list", broker_id=cluster.broker_id))["unknown"] == past


async def test_a_time_that_ends_before_it_begins_is_refused(cluster: Administered) -> None:
    refused = await cluster.refused("changes.list", since="1h", until="2h")
    assert (refused.code, refused.details["field"]) == ("INVALID_ARGUMENT", "until")
    assert "before since" in refused.message


def test_before_and_after_have_only_what_a_change_changed() -> None:
    before, after = {"rate": 10, "kept": 3, "gone": 1}, {"rate": 20, "kept": 3}
    assert unlike(before, after) == {"rate": 10, "gone": 1}
    assert unlike(after, before) == {"rate": 20}
    assert unlike(None, after) is None
    assert unlike(after, None) == after


async def test_changes_are_listed_while_the_metadata_store_does_not_answer(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise MetadataUnavailable("etcd does not answer")

    await cluster("topics.create", topic="orders")
    monkeypatch.setattr(cluster.broker.admin_state, "read", away)
    found = await cluster("changes.list")
    assert [each["undo"] for each in found["items"] if each["operation"] == "topics.create"] == [None]
    assert "how the changes are taken back: the metadata store does not answer" in found["unknown"]


def item(broker_id: str, state: str | None = "started", **more: Any) -> ChangedItem:
    of_cluster: dict[str, Any] = {
        "at": format_time(1_000), "kind": "cluster", "operation": None, "subject": f"broker {broker_id}", "by": None,
        "before": None, "after": {"state": state}, "call_id": None, "undo": None, "findings_after": [],
    }  # fmt: skip
    return ChangedItem(broker_id=broker_id, **of_cluster | more)


def alert(rule: str, opened_at_ms: int = 2_000, **subject: str) -> Alert:
    return Alert(
        alert_id=rule,
        rule=rule,
        subject=subject,
        severity=Severity.WARNING,
        opened_at_ms=opened_at_ms,
        closed_at_ms=None,
        finding=Finding(summary="", evidence={}, rule=rule),
    )


def rules_after(
    items: list[ChangedItem], alerts: list[Alert], placed: dict[str, set[str]], noted_ms: int = 10_000
) -> list[list[str]]:
    found = with_findings(items, alerts, 5_000, placed, noted_ms)
    return [[each.rule for each in one.findings_after] for one in found]


ALERTS = [
    alert("disk", broker_id="1"),
    alert("lag", topic="/default/of-2"),
    alert("lag_of_unknown_owner", topic="/default/of-none"),
    alert("cluster"),
]
PLACED = {"/default/of-2": {"2"}}


@pytest.mark.parametrize("state", ["started", "joined", "leads"])
def test_findings_of_one_broker_do_not_follow_the_start_of_another(state: str) -> None:
    assert rules_after([item("1", state), item("2", state)], ALERTS, PLACED) == [
        ["disk", "cluster"],
        ["lag", "cluster"],
    ]


def test_findings_of_topics_follow_the_loss_or_drain_of_the_broker_that_they_left() -> None:
    drain = {"kind": "operator", "operation": "brokers.unload", "subject": "1", "after": None}
    for left in (item("1", "gone"), item("1", "stopped"), item("7", **drain)):
        assert rules_after([left], ALERTS, PLACED) == [["disk", "lag", "lag_of_unknown_owner", "cluster"]]


def test_a_finding_that_noticed_a_loss_before_its_record_follows_it() -> None:
    """The change before was named for it, such as that of a quota."""
    alerts = [alert("owner_down", 3_000, broker_id="1")]
    lost, started = (item("1", state, at=format_time(4_500)) for state in ("gone", "started"))
    assert rules_after([lost], alerts, {}) == [["owner_down"]]
    assert rules_after([lost], alerts, {}, noted_ms=1_000) == [[]], "rounds of telemetry are short here"
    assert rules_after([started], alerts, {}) == [[]]


async def test_how_late_a_loss_is_noted_follows_the_rounds_of_telemetry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was 10 s, with rounds of a minute too."""
    given: list[int] = []

    def noted(*arguments: Any) -> list[ChangedItem]:
        given.append(arguments[-1])
        return with_findings(*arguments)

    monkeypatch.setattr(what_changed, "with_findings", noted)
    async with administered(**{"telemetry.sample_interval": "1m"}) as slow:
        await slow("changes.list")
    assert given == [120_000]


async def test_an_undo_is_a_change_of_the_topic_that_it_brings_back(cluster: Administered) -> None:
    """Who asked about the topic heard of its deletion only, and elsewhere the undo was one of the cluster."""
    await cluster("topics.create", topic="orders")
    done = await cluster.apply("topics.delete", topic="orders")
    await cluster("changes.undo", call_id=done["call_id"])
    found = (await cluster("changes.list", topic="orders"))["items"]
    assert [each["operation"] for each in found] == ["changes.undo", "topics.delete", "topics.create"]
    assert {each["subject"] for each in found} == {"/default/orders"}
    asked = await cluster("audit.query", topic="orders", operation="changes.undo")
    assert len(asked["items"]) == 1
    assert (await cluster("audit.query", topic="clicks"))["items"] == []


@pytest.mark.parametrize("noticed_ms", [1_500, 3_000])
def test_findings_of_a_loss_follow_it_however_recent_the_change_before(noticed_ms: int) -> None:
    """They followed that change, which sorted behind the loss."""
    items = [item("1", "joined"), item("1", "gone", at=format_time(2_000))]
    alerts = [alert("before", 500, broker_id="1"), alert("owner_down", noticed_ms, broker_id="1")]
    assert rules_after(items, alerts, {}) == [[], ["owner_down"]]


def test_findings_during_a_change_follow_it() -> None:
    """A drain that began at 1 s and ended at 4 s has the time of its end. Another change came in between."""

    def change(topic: str, begun_ms: int, ended_ms: int) -> ChangedItem:
        of_call: dict[str, Any] = {
            "kind": "operator",
            "operation": "topics.move",
            "subject": topic,
            "after": None,
        }
        return item("7", at=format_time(ended_ms), call_id=new_id(CALL, begun_ms), **of_call)

    items = [change("/default/t", 1_000, 4_000), change("/default/t", 2_500, 2_600)]
    alerts = [alert(f"at_{ms}", ms, topic="/default/t") for ms in (500, 1_500, 3_000, 4_500)]
    assert rules_after(items, alerts, {}) == [["at_1500"], ["at_3000", "at_4500"]]


async def test_pages_of_changes_are_by_time(cluster: Administered) -> None:
    """An outcome may be behind newer changes in the audit, as earlier versions wrote it."""
    times = [now_ms() - ago_s * 1000 for ago_s in (50, 40, 30, 20, 60)]
    for time_ms in times:
        entry = Entry(
            call_id=new_id(CALL, time_ms), principal="bob", face="cli", operation="topics.move",
            arguments={"topic": "t"}, time_ms=time_ms,
        )  # fmt: skip
        await cluster.core.audit.write(entry.call(), entry.outcome(decision="allowed"))
    shown: list[str] = []
    until: dict[str, Any] = {}
    while True:
        page = await cluster("changes.list", topic="t", limit=2, **until)
        shown += [each["at"] for each in page["items"]]
        if not page["more"]:
            break
        until = {"until": page["items"][-1]["at"]}
    assert shown == [format_time(time_ms) for time_ms in sorted(times, reverse=True)]


async def test_without_a_limit_as_many_changes_are_listed_as_fit(cluster: Administered) -> None:
    for n in range(25):
        await cluster("topics.create", topic=f"{'long' * 20}-{n}")
    first = await cluster("changes.list")
    assert 5 < len(first["items"]) < 20
    assert first["more"] is True
    assert len(json.dumps(first, separators=(",", ":"))) < 6_000
    older = await cluster("changes.list", until=first["items"][-1]["at"])
    shown = [each["subject"] for each in first["items"] + older["items"]]
    assert len(shown) == len(set(shown)), "the next ones, not the same"
    assert len((await cluster("changes.list", limit=24))["items"]) == 24
