"""The status of a subscription that broker, alerts and reports show, settled from successive judgements.

A status judged from rates and times may waver, so it settles: it counts after `open_after` judgements in a row, and
ends after `close_after` that differ. Facts need no second judgement: messages were lost, everything is read, or the
status is unknown. A provisional status is shown as it is judged.
"""

from __future__ import annotations

from typing import Final

from pydanube_core.diagnosis.lag_status import LagJudgement, LagStatus
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.settling import Settling

_COME_AT_ONCE: Final = frozenset((LagStatus.DATA_LOST, LagStatus.CAUGHT_UP, LagStatus.UNKNOWN))
_GO_AT_ONCE: Final = frozenset((LagStatus.DATA_LOST, LagStatus.UNKNOWN))


class SettledStatus:
    """The settled status, since when, and the newest judgement with it."""

    __slots__ = ("_settling", "judgement", "since_ms")

    def __init__(self, first: LagJudgement, now_ms: int) -> None:
        self._settling = Settling(first.status, now_ms)
        self.judgement = first
        self.since_ms = _since(first, now_ms)

    @property
    def status(self) -> LagStatus:
        return self._settling.value

    @property
    def pending(self) -> bool:
        """Whether the last judgement differed from the settled status."""
        return self._settling.pending

    def observe(self, found: LagJudgement, now_ms: int, options: DiagnosisOptions) -> None:
        """Take the judgement of a moment. Moments ascend."""
        at_once = counts_at_once(found, after=self.status)
        if self._settling.observe(
            found.status,
            now_ms,
            enter_after=1 if at_once else options.open_after,
            leave_after=1 if at_once else options.close_after,
        ):
            self.since_ms = _since(found, self._settling.since_ms)
        if found.status is self.status:
            self.judgement = found


def counts_at_once(found: LagJudgement, *, after: LagStatus) -> bool:
    """Return whether a judgement after a settled status counts without a second one."""
    return found.settles_at_ms is not None or found.status in _COME_AT_ONCE or after in _GO_AT_ONCE


def _since(found: LagJudgement, seen_ms: int) -> int:
    return seen_ms if found.since_ms is None else min(seen_ms, found.since_ms)
