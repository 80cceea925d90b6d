"""The alerts that a webhook has not received yet, and the request body, in the form of Alertmanager's webhooks.

The news is the difference between the alerts that are open now and those that the receiver has taken. So a receiver
that is away for a day costs no memory, and an alert that opened and closed in that time is not sent.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from pydanube_core.diagnosis.alerts import Alert
from pydanube_core.diagnosis.rules import RULES

MOST_AT_ONCE: Final = 100  # alerts in one body
_NEVER: Final = "0001-01-01T00:00:00Z"  # Alertmanager's end of an alert that is open


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    opened: tuple[Alert, ...]
    closed: tuple[Alert, ...]

    def __bool__(self) -> bool:
        return bool(self.opened or self.closed)


class AlertNews:
    """The alerts that one receiver has taken."""

    def __init__(self) -> None:
        self._sent: dict[str, Alert] = {}

    def due(
        self,
        now_open: Iterable[Alert],
        closed: Iterable[Alert],
        *,
        leads: bool,
        now_ms: int,
        silenced: Collection[str] = (),
    ) -> News:
        """Return at most `MOST_AT_ONCE` alerts to send, the closed ones first.

        Every broker finds the alerts of the cluster, so only the leader sends them.

        Args:
            silenced: the ids of alerts that are not sent now. One that was sent before is sent as it closes.
        """
        everywhere = {one.alert_id: one for one in now_open}
        mine = {key: one for key, one in everywhere.items() if leads or not RULES[one.rule].of_cluster}
        for key in everywhere.keys() & self._sent.keys() - mine.keys():
            del self._sent[key]  # another broker leads now, and sends it
        ended = {one.alert_id: one for one in closed}
        gone = [
            ended.get(key, _ended(one, now_ms)) for key, one in self._sent.items() if key not in everywhere
        ][:MOST_AT_ONCE]
        new = [one for key, one in mine.items() if key not in self._sent and key not in silenced]
        return News(opened=tuple(new[: MOST_AT_ONCE - len(gone)]), closed=tuple(gone))

    def taken(self, news: News) -> None:
        """Remember that the receiver has taken the news."""
        for one in news.closed:
            self._sent.pop(one.alert_id, None)
        for one in news.opened:
            self._sent[one.alert_id] = one


def _ended(alert: Alert, now_ms: int) -> Alert:
    """Return an alert that is no longer among the last closed ones as closed now."""
    return replace(alert, closed_at_ms=now_ms)


def body_of(news: News, *, cluster: str, broker: str) -> bytes:
    """Return the body of a request (Alertmanager's webhook, version 4)."""
    alerts = [_shown(one, cluster, broker) for one in (*news.opened, *news.closed)]
    return json.dumps(
        {
            "version": "4",
            "groupKey": f'{{}}:{{cluster="{cluster}", broker="{broker}"}}',
            "truncatedAlerts": 0,
            "status": "firing" if news.opened else "resolved",
            "receiver": "pydanube",
            "groupLabels": {"cluster": cluster, "broker": broker},
            "commonLabels": {"cluster": cluster, "broker": broker},
            "commonAnnotations": {},
            "externalURL": "",
            "alerts": alerts,
        }
    ).encode()


def _shown(alert: Alert, cluster: str, broker: str) -> dict[str, Any]:
    calls = [
        f"{each.operation} {json.dumps(dict(each.arguments))}: {each.why}" for each in alert.finding.next[:1]
    ]
    return {
        "status": "firing" if alert.closed_at_ms is None else "resolved",
        "labels": {
            "alertname": alert.rule,
            "severity": alert.severity.word,
            "cluster": cluster,
            "broker": broker,
        }
        | {key: str(value) for key, value in alert.subject.items() if value is not None and key != "broker"},
        "annotations": {"summary": alert.finding.summary} | ({"next": calls[0]} if calls else {}),
        "startsAt": _moment(alert.opened_at_ms),
        "endsAt": _NEVER if alert.closed_at_ms is None else _moment(alert.closed_at_ms),
        "generatorURL": "",
        "fingerprint": alert.alert_id,
    }


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
