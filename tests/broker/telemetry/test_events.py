"""Events become rows: starts, alerts, and what a leader sees of its cluster; those of all brokers are read back, newest first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydanube_broker.telemetry.events import Events, hash_of
from pydanube_broker.telemetry.rows import Machine, Row
from pydanube_broker.telemetry.writer import TelemetryWriter
from pydanube_broker.tier.process import URGENT, nice_of
from pydanube_core.diagnosis.alerts import Alert
from pydanube_core.diagnosis.findings import Finding, Severity
from pydanube_core.facts import SettingFacts
from pydanube_core.telemetry.tables import EVENTS
from pydanube_storage.telemetry.upkeep import HOUR_MS, thin
from pydanube_storage.telemetry.writing import table_of_rows

from tests.broker.telemetry.test_writer import MACHINE, OPTIONS, START, Store, made, round_


class Cluster:
    """What a broker is told of its cluster, and the rows that it writes."""

    def __init__(self, machine: Machine = MACHINE) -> None:
        self.members = {"7": "1.0"}
        self.is_leader = False
        self.rows: list[dict[str, Any]] = []
        self.events = Events(machine, self.take, members=lambda: self.members, leads=lambda: self.is_leader)

    def take(self, rows: Sequence[Row]) -> None:
        self.rows += [dict(zip(EVENTS.names, row, strict=True)) for row in rows]

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(row["kind"], json.loads(row["subject"]).get("broker_id", "")) for row in self.rows]


def alert(rule: str = "consumer_slow", *, closed_at_ms: int | None = None) -> Alert:
    subject = {"topic": "/default/t", "subscription": "s"}
    return Alert(
        alert_id="a1",
        rule=rule,
        subject=subject,
        severity=Severity.WARNING,
        opened_at_ms=START,
        closed_at_ms=closed_at_ms,
        finding=Finding(summary="it is slow", evidence={}),
    )


def test_brokers_that_come_and_go_are_the_leader_s_to_tell() -> None:
    cluster = Cluster()
    cluster.events.take(round_(1))
    cluster.members = {"7": "1.0", "8": "1.1"}
    cluster.events.take(round_(2))
    assert cluster.told == []
    cluster.is_leader = True
    cluster.events.take(round_(3))
    cluster.members = {"7": "1.0", "9": "1.2"}
    cluster.events.take(round_(4))
    assert cluster.told == [("leader_elected", "7"), ("broker_gone", "8"), ("broker_joined", "9")]
    assert cluster.rows[-1]["version"] == "1.2"
    assert [row["number"] for row in cluster.rows] == [1, 2, 3]


def test_alerts_are_told_as_they_open_and_close_and_those_of_the_cluster_once() -> None:
    cluster = Cluster()
    cluster.events.alert(alert())
    cluster.events.alert(alert(closed_at_ms=START + 9))
    cluster.events.alert(alert("no_leader"))
    assert [(row["kind"], row["taken_at"], row["opened_at"]) for row in cluster.rows] == [
        ("alert_opened", START, None),
        ("alert_closed", START + 9, START),
    ]
    assert {row["detail"] for row in cluster.rows} == {"it is slow"}
    cluster.is_leader = True
    cluster.events.alert(alert("no_leader"))
    assert len(cluster.rows) == 3


def test_the_hash_of_settings_differs_with_any_of_them() -> None:
    one = SettingFacts(name="tier.url", value="a", default="", source="file", description="")
    other = replace(one, name="server.name")
    assert hash_of([one, other]) == hash_of([other, one])
    assert hash_of([one, other]) != hash_of([one, replace(other, value="b")])


def test_old_events_are_all_kept_when_samples_are_thinned() -> None:
    cluster = Cluster()
    rows: list[Row] = []
    cluster.events = Events(MACHINE, rows.extend, members=dict, leads=lambda: True)
    for _ in range(5):
        cluster.events.alert(alert())
    assert thin(EVENTS, table_of_rows(EVENTS, rows), HOUR_MS).num_rows == 5


@pytest.mark.anyio
async def test_events_of_all_brokers_are_read_back_newest_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for broker_id in ("7", "8"):
        machine = replace(MACHINE, broker_id=broker_id)
        writer = made(store, OPTIONS, machine)
        events = Events(machine, writer.note_events, members=dict, leads=lambda: False)
        for number in range(6):
            events.started(START + 1000 * number + int(broker_id), version="1", settings=f"h{number}")
            if number % 2:
                await writer.flush()
        events.started(START + 9000 + int(broker_id), version="1", settings="not flushed")
    found, more = await writer.events(START, START + 20_000, 100)
    assert [row[0] for row in found] == sorted((row[0] for row in found), reverse=True)
    assert not more
    assert len(found) == 13, "those of another broker are read once they are flushed"
    some, more = await writer.events(START + 1000, START + 5000, 3)
    assert [(row[0] - START, row[1]) for row in some] == [(4008, "8"), (4007, "7"), (3008, "8")]
    assert more


@pytest.mark.anyio
async def test_events_that_are_flushed_while_files_are_read_are_in_the_answer(tmp_path: Path) -> None:
    call = Store(tmp_path).call

    async def flushed_meanwhile(
        name: str, arguments: dict[str, Any], blob: bytes
    ) -> tuple[dict[str, Any], Any]:
        answer = await call(name, arguments, blob)
        if name == "telemetry_events":
            await writer.flush()
        return answer

    writer = TelemetryWriter(OPTIONS, MACHINE, flushed_meanwhile, "c", now_ms=lambda: START)
    events = Events(MACHINE, writer.note_events, members=dict, leads=lambda: False)
    events.started(START, version="1", settings="h")
    for _ in range(2):
        found, _ = await writer.events(START, START + 1, 10)
        assert len(found) == 1


@pytest.mark.anyio
async def test_events_that_an_operator_waits_for_are_not_read_with_low_priority(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []
    call = Store(tmp_path).call

    async def noted(name: str, arguments: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], Any]:
        asked.append({"call": name, "arguments": arguments})
        return await call(name, arguments, blob)

    await TelemetryWriter(OPTIONS, MACHINE, noted, "c", now_ms=lambda: START).events(START, START + 1, 10)
    assert [(each["call"], nice_of(each)) for each in asked] == [("telemetry_events", URGENT)]
