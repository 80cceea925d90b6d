"""Rows of the telemetry table `events`: starts of this broker, its alerts, and changes of the cluster as its leader sees them. Pure.

They answer questions about the past that samples do not: why a topic waited last night, and since when a broker has other settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from pydanube_core.diagnosis.alerts import Alert
from pydanube_core.diagnosis.rules import RULES
from pydanube_core.facts import SettingFacts
from pydanube_core.observation import Round
from pydanube_core.telemetry.tables import EVENTS

from pydanube_broker.telemetry.rows import Machine, Row

Members = Mapping[str, str]  # registered brokers → their version
MOST_CHARS: Final = 1000  # of a text


def hash_of(settings: Iterable[SettingFacts]) -> str:
    """Return a hash of all settings, with secrets redacted: it differs if any other setting does."""
    text = json.dumps(sorted((each.name, each.value) for each in settings))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class Events:
    """Writes down the events of one start of the broker. Single user: the loop.

    Args:
        write: takes rows.
        members: returns the brokers that are registered.
        leads: returns whether this broker leads the cluster, or is alone.
    """

    def __init__(
        self,
        machine: Machine,
        write: Callable[[Sequence[Row]], None],
        *,
        members: Callable[[], Members],
        leads: Callable[[], bool],
    ) -> None:
        self._machine = machine
        self._write = write
        self._members = members
        self._leads = leads
        self._number = 0
        self._seen: Members | None = None
        self._led = False

    def started(self, now_ms: int, *, version: str, settings: str) -> None:
        self._write([self._row(now_ms, "broker_started", self._self(), version=version, settings=settings)])

    def stopped(self, now_ms: int) -> Row:
        """Return the last row."""
        return self._row(now_ms, "broker_stopped", self._self())

    def alert(self, alert: Alert) -> None:
        """Write down an alert that opened or closed. Only the leader writes one about the cluster, because every broker has it."""
        if RULES[alert.rule].of_cluster and not self._leads():
            return
        opened = alert.closed_at_ms is None
        row = self._row(
            alert.closed_at_ms or alert.opened_at_ms,
            "alert_opened" if opened else "alert_closed",
            alert.subject,
            rule=alert.rule,
            severity=alert.severity.word,
            alert_id=alert.alert_id,
            detail=alert.finding.summary,
            opened_at=None if opened else alert.opened_at_ms,
        )
        self._write([row])

    def take(self, found: Round) -> None:
        """Write down the changes of the cluster since the last round. Only the leader writes about other brokers."""
        now_ms, leads, members = found.taken_at_ms, self._leads(), dict(self._members())
        rows = [self._row(now_ms, "leader_elected", self._self())] if leads and not self._led else []
        before, self._seen, self._led = self._seen, members, leads
        if before is not None and leads:
            rows += [
                self._row(now_ms, "broker_gone", {"broker_id": broker_id})
                for broker_id in sorted(before.keys() - members.keys())
            ]
            rows += [
                self._row(now_ms, "broker_joined", {"broker_id": broker_id}, version=members[broker_id])
                for broker_id in sorted(members.keys() - before.keys())
            ]
        if rows:
            self._write(rows)

    def _self(self) -> Mapping[str, Any]:
        return {"broker_id": self._machine.broker_id}

    def _row(self, at_ms: int, kind: str, subject: Mapping[str, Any], **facts: str | int | None) -> Row:
        self._number += 1
        known = {
            "taken_at": at_ms,
            "broker_id": self._machine.broker_id,
            "incarnation": self._machine.incarnation,
            "number": self._number,
            "kind": kind,
            "subject": json.dumps(dict(subject), ensure_ascii=False),
            **{
                name: value[:MOST_CHARS] if isinstance(value, str) else value for name, value in facts.items()
            },
        }
        return tuple(known.get(name) for name in EVENTS.names)
