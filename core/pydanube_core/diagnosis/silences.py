"""Silences: alerts that an operator knows of. They stay listed, and are not sent, until a time. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydanube_core.diagnosis.alerts import Alert
from pydanube_core.stored_json import VersionedJson

SILENCES: Final = "silences/"  # keys of the metadata store
MOST_SILENCES: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence(VersionedJson):
    """One silence. It covers the alerts of a rule whose subjects have everything that `subject` names."""

    rule: str
    subject: Mapping[str, Any]
    until_ms: int
    reason: str
    by: str
    at_ms: int

    @property
    def key(self) -> str:
        text = json.dumps([self.rule, dict(self.subject)], sort_keys=True)
        return SILENCES + hashlib.sha256(text.encode()).hexdigest()[:32]

    def covers(self, alert: Alert, now_ms: int) -> bool:
        """Return whether an alert is silenced by this one now."""
        return (
            self.rule == alert.rule
            and now_ms < self.until_ms
            and all(alert.subject.get(name) == value for name, value in self.subject.items())
        )


def silence_of(alert: Alert, silences: Iterable[Silence], now_ms: int) -> Silence | None:
    """Return the silence of an alert that lasts longest, or None."""
    found = [each for each in silences if each.covers(alert, now_ms)]
    return max(found, key=lambda each: each.until_ms, default=None)
