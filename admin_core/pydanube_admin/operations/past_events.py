"""The past of brokers, as they wrote it down: their starts, alerts that closed long ago, members that came and went."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pydanube_core.diagnosis.alerts import Alert
from pydanube_core.diagnosis.findings import Finding, Severity
from pydanube_core.errors import ClusterError
from pydanube_core.facts import EventFacts

from pydanube_admin.engine.context import Context

MOST_EVENTS: Final = 2_000  # of one answer
_SEVERITIES: Final = {each.word: each for each in Severity}


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Events, newest first, and why some may be missing."""

    events: Sequence[EventFacts]
    unknown: tuple[str, ...] = ()


async def past_events(context: Context, since_ms: int, until_ms: int) -> Past:
    """Return the events of all brokers in `[since_ms, until_ms)`."""
    try:
        found = await context.port.events(since_ms, until_ms, MOST_EVENTS)
    except ClusterError as error:
        return Past(
            events=(), unknown=(f"earlier starts of brokers and alerts before them: {error.message}",)
        )
    if found is None:
        why = "this broker writes no telemetry (telemetry.enabled, an object store)"
        return Past(events=(), unknown=(f"earlier starts of brokers and alerts before them: {why}",))
    events, more = found
    if more:
        return Past(events=events, unknown=(f"events before the newest {len(events)}",))
    return Past(events=events)


def with_past(alerts: Iterable[Alert], past: Past) -> list[Alert]:
    """Return alerts that brokers still have, and those of their earlier starts.

    An alert that was open when its broker stopped closed then. It is left out if that moment is unknown.
    """
    found = list(alerts)
    known = {each.alert_id for each in found}
    ends: dict[str, int] = {}  # broker → its next start or stop, as events are read back in time
    for event in past.events:
        if event.kind in ("broker_started", "broker_stopped"):
            ends[event.broker_id] = event.at_ms
        if event.alert_id is None or event.alert_id in known:
            continue
        closed_at_ms = event.at_ms if event.kind == "alert_closed" else ends.get(event.broker_id)
        if closed_at_ms is not None:
            known.add(event.alert_id)
            found.append(_alert(event, event.opened_at_ms or event.at_ms, closed_at_ms))
    return found


def _alert(event: EventFacts, opened_at_ms: int, closed_at_ms: int) -> Alert:
    severity = _SEVERITIES.get(event.severity or "", Severity.WARNING)
    rule = event.rule or ""
    return Alert(
        alert_id=event.alert_id or "",
        rule=rule,
        subject=event.subject,
        severity=severity,
        opened_at_ms=opened_at_ms,
        closed_at_ms=closed_at_ms,
        finding=Finding(
            summary=event.detail or "", evidence={}, severity=severity, rule=rule, subject=event.subject
        ),
    )
