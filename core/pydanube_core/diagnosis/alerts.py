"""Alerts: findings that lasted. The same rules, with hysteresis against flapping.

A settled finding of warning or worse opens an alert once it was there in `open_after` looks in a row, and the alert closes
after `close_after` looks without it. Its id is made of rule, subject and the moment it opened. Open alerts and the
last closed ones are kept, each up to a bound. Alerts beyond it are counted.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pydanube_core.diagnosis.findings import Finding, Severity
from pydanube_core.diagnosis.options import DiagnosisOptions

MOST_OPEN: Final = 10_000
MOST_CLOSED: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    alert_id: str
    rule: str
    subject: Mapping[str, Any]
    severity: Severity
    opened_at_ms: int
    closed_at_ms: int | None
    finding: Finding  # of the last look that had it


class _Pending:
    __slots__ = ("alert", "hits", "misses", "since_ms")

    def __init__(self, now_ms: int) -> None:
        self.hits = 0
        self.misses = 0
        self.since_ms = now_ms
        self.alert: Alert | None = None


class Alerts:
    """The open and closed alerts of a broker. Mutable, owned by its observer."""

    def __init__(self, options: DiagnosisOptions) -> None:
        self._options = options
        self._states: dict[str, dict[str, _Pending]] = {}  # subject → rule → state
        self._open: OrderedDict[str, Alert] = OrderedDict()
        self._closed: deque[Alert] = deque(maxlen=MOST_CLOSED)
        self.not_kept = 0
        self.changes = 0  # alerts that opened or closed
        self.changed: Callable[[Alert], None] = lambda alert: None  # called with each of them

    def __len__(self) -> int:
        return len(self._open)

    def look(self, scope: str, findings: Iterable[Finding], now_ms: int) -> bool:
        """Take in everything found in one look at a scope (a subscription, a topic, the broker).

        Returns:
            Whether something is under way: an alert that may open or close with the next look.
        """
        firing = {
            one.rule: one for one in findings if one.severity >= Severity.WARNING and not one.provisional
        }
        states = self._states.get(scope)
        if states is None:
            if not firing:
                return False
            states = self._states[scope] = {}
        for rule in firing:
            states.setdefault(rule, _Pending(now_ms))
        unsettled = False
        for rule, state in list(states.items()):
            finding = firing.get(rule)
            if finding is None:
                state.misses += 1
                state.hits = 0
                if state.alert is None:
                    del states[rule]
                elif state.misses >= self._options.close_after:
                    self._close(state.alert, now_ms)
                    del states[rule]
                else:
                    unsettled = True
                continue
            state.hits += 1
            state.misses = 0
            if state.alert is not None:
                state.alert = replace(state.alert, finding=finding, severity=finding.severity)
                self._open[state.alert.alert_id] = state.alert
            elif state.hits >= self._options.open_after:
                state.alert = self._begin(scope, finding, state.since_ms)
            else:
                unsettled = True
        if not states:
            del self._states[scope]
        return unsettled

    def forget(self, scope: str, now_ms: int) -> None:
        """Close the alerts of a subject that is gone."""
        for state in self._states.pop(scope, {}).values():
            if state.alert is not None:
                self._close(state.alert, now_ms)

    def _begin(self, scope: str, finding: Finding, since_ms: int) -> Alert | None:
        if len(self._open) >= MOST_OPEN:
            self.not_kept += 1
            return None
        text = json.dumps([finding.rule, scope, since_ms])
        alert = Alert(
            alert_id=hashlib.blake2b(text.encode(), digest_size=8).hexdigest(),
            rule=finding.rule,
            subject=finding.subject,
            severity=finding.severity,
            opened_at_ms=since_ms,
            closed_at_ms=None,
            finding=finding,
        )
        self._open[alert.alert_id] = alert
        self.changes += 1
        self.changed(alert)
        return alert

    def _close(self, alert: Alert, now_ms: int) -> None:
        self._open.pop(alert.alert_id, None)
        self.changes += 1
        closed = replace(alert, closed_at_ms=now_ms)
        self._closed.append(closed)
        self.changed(closed)

    def open(self) -> Sequence[Alert]:
        """Open alerts, worst first: by severity, by messages concerned, then oldest first."""
        return sorted(
            self._open.values(),
            key=lambda one: (-one.severity, -one.finding.impact, one.opened_at_ms, one.alert_id),
        )

    def closed(self) -> Sequence[Alert]:
        """The last closed ones, newest first."""
        return list(reversed(self._closed))
