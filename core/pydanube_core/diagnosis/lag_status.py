"""The status of a subscription, from a window of samples: pure, the same for broker, alerts, reports and consoles.

The first line that holds wins, but nothing unread and messages lost are facts that need no second sample. Defaults
are those of `DiagnosisOptions`.

| status | holds when |
|---|---|
| `UNKNOWN` | fewer than 3 samples, fewer than half of those expected, the newest is older than 3 intervals, or no line
holds |
| `DATA_LOST` | messages were trimmed before they were read |
| `CAUGHT_UP` | nothing is unread, or nothing that is older than two samples |
| `AT_RISK` | retention takes the oldest unread message before two more samples, or in a fifth of its time and not gaining |
| `STUCK` | the cursor has not moved for `stuck_after`, while there was unread messages for as long |
| `FALLING_BEHIND` | the lower bound of the lag's slope is above 0, and the lag right after acknowledgements grew by more
than an interval's messages: it grows, however large it is. Judged over the window and over its last samples |
| `SLOW` | gaining, but for longer than an hour yet. Or neither gaining nor losing, with old messages or without a
consumer |
| `CATCHING_UP` | gaining, or consumers keep pace with every message read within `stuck_after` |

A status that lacks data is `UNKNOWN`, never healthy. The wall clock decides whether a cursor is stuck, not the number
of commits. So a consumer that died between two hourly commits is found, and one that commits once an hour does not
count as dead while nothing is unread. A lag of zero once in the window does not prevent a finding. `rewind` is a
remark, not a
status: a cursor that was moved back catches up like any other.

Until half of a window has been observed, a status is provisional (`LagJudgement.settles_at_ms`): consumers fall behind
only if the lag right after acknowledgements rose over three moves of the cursor, since the last consumer came or went.
No rate spans a gap of three intervals, or a move of the cursor by an operation or a client.

After a restart of the broker the first samples show no pace. Until they do, the pace of the run before counts, where
telemetry has it (`LagJudgement.measured_until_ms`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Any, Final

from pydanube_core.cursor_state import CursorState
from pydanube_core.diagnosis.age import UnreadAge, unread_age
from pydanube_core.diagnosis.lag_window import LagWindow, Retention
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.rate_steps import RateStep, rate_step
from pydanube_core.diagnosis.slopes import FEWEST_SAMPLES as FEWEST_FOR_SLOPE
from pydanube_core.diagnosis.slopes import Slope, theil_sen

FEWEST_SAMPLES: Final = 3
POISON_FAILURES: Final = 3
RISK_SHARE: Final = 0.2  # of the retention's time
OVERDUE: Final = 2  # times the longest time between two moves of the cursor
FEWEST_MOVES: Final = 3  # of the cursor: fewer do not show whether the lag after an acknowledgement rises
RECENT_SAMPLES: Final = 8  # of the end of a window, in which a step shows that the window's median hides
GAP_INTERVALS: Final = 3  # a longer time without a sample is not spanned


class LagStatus(StrEnum):
    UNKNOWN = "UNKNOWN"
    DATA_LOST = "DATA_LOST"
    CAUGHT_UP = "CAUGHT_UP"
    AT_RISK = "AT_RISK"
    STUCK = "STUCK"
    FALLING_BEHIND = "FALLING_BEHIND"
    SLOW = "SLOW"
    CATCHING_UP = "CATCHING_UP"


_PACES: Final = (LagStatus.STUCK, LagStatus.FALLING_BEHIND, LagStatus.SLOW, LagStatus.CATCHING_UP)


class StuckReason(StrEnum):
    """Why the cursor does not move, as far as the window shows."""

    POISON = "poison"  # the message at the cursor failed three times, or blocks
    HEAD_OF_LINE = "head_of_line"  # messages behind the cursor's are acknowledged
    NO_MEMBER = "no_member"
    NOTHING_IN_FLIGHT = "nothing_in_flight"
    IN_FLIGHT_AT_LIMIT = "in_flight_at_limit"
    NO_ACK = "no_ack"  # something is in flight, there is room for more, nothing is acknowledged


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """The cursor moved back, between two samples or by a known operation."""

    at_ms: int
    from_offset: int
    to_offset: int
    by: str | None = None  # the client that moved it. None: an operation did, or it is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Messages a second that came and were read since a moment. `stands`: none was read, for longer than consumers paused."""

    since_ms: int
    produced: float
    consumed: float
    stands: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LagJudgement:
    """A status and the numbers behind it. A number that is None has its reason in `reasons`, under its name."""

    status: LagStatus
    since_ms: int | None
    evidence: Mapping[str, Any]
    lag_messages: int | None
    lost_messages: int | None
    age: UnreadAge
    produce_rate: float | None
    consume_rate: float | None
    velocity: Slope | None  # of the lag
    gaining_lately: bool  # the lag shrinks over the last few samples
    eta_s: float | None
    retention_headroom_s: float | None
    stuck_reason: StuckReason | None = None
    rewind: Rewind | None = None
    produce_step: RateStep | None = None  # of the rate at which messages come, where they wait
    consume_step: RateStep | None = None
    pace: Pace | None = None  # behind the status, where messages wait
    samples: int = 0
    expected_samples: int = 0
    settles_at_ms: int | None = None  # until then it is provisional: less than half of a window was observed
    # Set if status and rates are from the broker's previous run: the end of that run
    measured_until_ms: int | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def gaining(self) -> bool:
        return self.velocity is not None and self.velocity.gaining


def judge_lag(window: LagWindow, options: DiagnosisOptions, *, rates: bool = True) -> LagJudgement:
    """Judge one subscription of one log. O(samples), with slopes of at most 24 of them.

    Args:
        rates: without them, slopes are computed only if the status needs one, which is rare.
    """
    found = _Judge(window, options).judge(rates=rates)
    if found.status is not LagStatus.UNKNOWN or window.before is None:
        return found
    before = window.before()
    return found if before is None else _with_pace_of(before, window, options, found, rates=rates)


def _with_pace_of(
    before: LagWindow, window: LagWindow, options: DiagnosisOptions, found: LagJudgement, *, rates: bool
) -> LagJudgement:
    """Return `found` with the status and the rates of the run before, if that had one that still holds."""
    then, last = before.states[-1], window.states[-1]
    judged = _Judge(before, options).judge(rates=rates)
    stands = last.next_unacked == then.next_unacked
    moved = window.moved_ms is not None or last.next_unacked < then.next_unacked
    if judged.status not in _PACES or moved or (judged.status is LagStatus.STUCK and not stands):
        return found
    rated = ("produce_rate", "consume_rate")
    reasons = {name: why for name, why in found.reasons.items() if name not in ("status", *rated)}
    return replace(
        found,
        status=judged.status,
        since_ms=judged.since_ms,
        evidence={
            **judged.evidence,
            "lag_messages": found.lag_messages,
            "measured_until_ms": before.now_ms,
        },
        produce_rate=judged.produce_rate,
        consume_rate=judged.consume_rate,
        velocity=judged.velocity,
        pace=judged.pace,
        stuck_reason=judged.stuck_reason,
        measured_until_ms=before.now_ms,
        reasons=reasons | {name: judged.reasons[name] for name in rated if name in judged.reasons},
    )


def eta_of_partitions(etas_s: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return (when the slowest partition will be caught up, that ÷ the median) for a whole topic.

    None if one partition's is unknown, because it may never catch up.
    """
    known = [eta for eta in etas_s if eta is not None]
    if not known or len(known) < len(etas_s):
        return None, None
    middle = median(known)
    return max(known), (max(known) / middle if middle > 0 else None)


class _Found:
    """A status, since when, and the numbers that decided it."""

    __slots__ = ("evidence", "since_ms", "status", "stuck_reason")

    def __init__(
        self,
        status: LagStatus,
        since_ms: int | None = None,
        stuck_reason: StuckReason | None = None,
        /,
        **evidence: Any,
    ) -> None:
        self.status = status
        self.since_ms = since_ms
        self.stuck_reason = stuck_reason
        self.evidence = evidence


class _Judge:
    def __init__(self, window: LagWindow, options: DiagnosisOptions) -> None:
        self.window = window
        self.options = options
        self.reasons: dict[str, str] = {}
        self.states = window.states
        self.times = [state.taken_at_ms for state in window.states]
        self.lags = [state.lag_messages for state in window.states]
        # Messages trimmed unread are no longer lag, and were not read.
        self.read = [state.next_unacked + state.acked_above for state in window.states]
        self.last = window.states[-1] if window.states else None
        self.age = unread_age(window)

    # -- rates -----------------------------------------------------------------------------------------------

    @cached_property
    def produced(self) -> Slope | None:
        """The slope of the head: messages published per second."""
        first = self._after_gap
        return theil_sen(self.times[first:], [state.next_offset for state in self.states[first:]])

    @cached_property
    def consumed(self) -> Slope | None:
        """The slope of the cursor: messages consumed per second."""
        first = self._unbroken
        return theil_sen(self.times[first:], self.read[first:])

    @cached_property
    def velocity(self) -> Slope | None:
        """The slope of the lag."""
        first = self._unbroken
        lost = self.last is not None and self.last.lost_messages
        if not first and not lost and min(self.read, default=0) == max(self.read, default=0):
            # Nothing is read, so the lag grows like the head. Many subscriptions are like that.
            return self.produced
        return theil_sen(self.times[first:], self.lags[first:])

    @cached_property
    def _after_gap(self) -> int:
        """The index of the first state after the last gap, which no rate spans."""
        most_ms = GAP_INTERVALS * 1000 * self.window.interval_s
        for at in range(len(self.times) - 1, 0, -1):
            if self.times[at] - self.times[at - 1] > most_ms:
                return at
        return 0

    @cached_property
    def _unbroken(self) -> int:
        """The index of the first state after the last gap, and after the last move by an operation or a client."""
        moved_ms = self.window.moved_ms
        moved = 0 if moved_ms is None else bisect_left(self.times, moved_ms)
        return max(self._after_gap, self._after_rewind(), moved)

    def _outgrown(self, first: int, *, settled: bool) -> bool | None:
        """Return whether the lag right after acknowledgements grew since a state, by its index.

        A consumer that acknowledges seldom has a lag that rises and falls. Right after an acknowledgement it is the
        number of messages of less than one interval, unless the consumer falls behind. So a growth by less is none,
        unless the cursor moved in every interval. Without a settled window half as much is noise even then.

        Returns:
            None if the cursor moved less than `FEWEST_MOVES` times.
        """
        steps = [at for at in range(first + 1, len(self.read)) if self.read[at] > self.read[at - 1]]
        if len(steps) < FEWEST_MOVES:
            return None
        part = max(1, len(steps) // 3)
        before, after = (min(self.lags[at] for at in some) for some in (steps[:part], steps[-part:]))
        waits = len(self.read) - 1 - steps[-1]
        if waits > OVERDUE * max(b - a for a, b in pairwise(steps)):
            after = self.lags[-1]  # the next acknowledgement is overdue, so this lag is no consumer's pause
        came = [b.next_offset - a.next_offset for a, b in pairwise(self.states[first:])]
        seldom = len(steps) < len(came)
        interval = [each for each in came if each > 0] or [0]
        noise = (median(interval) if seldom else 0) if settled else max(interval) / (1 if seldom else 2)
        return after - before > noise

    @property
    def _since_joined(self) -> int:
        """The index of the first unbroken state since a consumer last came or went."""
        joined_ms = self.window.joined_ms
        return (
            self._unbroken if joined_ms is None else max(self._unbroken, bisect_left(self.times, joined_ms))
        )

    def _grows(self, velocity: Slope) -> bool:
        """Return whether the lag grows: over the window, or over its last samples."""
        first, since_joined = self._unbroken, self._since_joined
        assert self.last is not None
        if velocity.low > 0:
            if self.window.settles_at_ms is None:
                if self._outgrown(first, settled=True) is not False:
                    return True
            elif not self.last.members or self._outgrown(since_joined, settled=False):
                return True
        if self.window.recent is not None:
            return _Judge(
                replace(self.window, states=self.window.recent(), recent=None), self.options
            )._grows_lately()
        return self._grows_lately()

    def _grows_lately(self) -> bool:
        recent = max(self._since_joined, len(self.states) - RECENT_SAMPLES)
        lately = theil_sen(self.times[recent:], self.lags[recent:])
        return lately is not None and lately.low > 0 and self._outgrown(recent, settled=False) is True

    @property
    def _gaining_lately(self) -> bool:
        """Whether the lag shrinks over the last few samples."""
        first = max(self._unbroken, len(self.states) - FEWEST_FOR_SLOPE)
        lately = theil_sen(self.times[first:], self.lags[first:])
        return lately is not None and lately.gaining

    def _pace(self, status: LagStatus, produced: Slope | None, consumed: Slope | None) -> Pace | None:
        """Return the rates behind a status: since nothing is read, else of the window, else of its last samples.

        The rates of a window whose consumers fell behind only lately can show more messages read than came.
        """
        if produced is None or consumed is None:
            return None
        first = stands = self._stands_at()
        if first is None:
            if status is not LagStatus.FALLING_BEHIND or produced.per_s > consumed.per_s:
                since_ms = self.times[self._unbroken]
                return Pace(since_ms=since_ms, produced=produced.per_s, consumed=consumed.per_s, stands=False)
            first = max(self._since_joined, len(self.states) - RECENT_SAMPLES)
        seconds = max(1, self.times[-1] - self.times[first]) / 1000
        return Pace(
            since_ms=self.times[first],
            produced=(self.states[-1].next_offset - self.states[first].next_offset) / seconds,
            consumed=(self.read[-1] - self.read[first]) / seconds,
            stands=stands is not None,
        )

    def _stands_at(self) -> int | None:
        """Return the index of the state since which nothing is read, though messages wait.

        Returns:
            None if that is shorter than the patience, or than twice the longest pause before, as consumers may
            acknowledge seldom.
        """
        since, longest_ms = self._since_joined, 0
        for at in range(since + 1, len(self.read)):
            if self.read[at] > self.read[at - 1]:
                since, longest_ms = at, max(longest_ms, self.times[at] - self.times[since])
            elif not self.lags[at - 1]:
                since = at
        still_ms = self.times[-1] - self.times[since]
        least_ms = 1000 * max(self.options.patience_s, GAP_INTERVALS * self.window.interval_s)
        return since if still_ms >= max(least_ms, OVERDUE * longest_ms) else None

    def _step(self, values: Sequence[int]) -> RateStep | None:
        first = self._unbroken
        return rate_step(self.times[first:], values[first:])

    def _after_rewind(self) -> int:
        """Return the index of the state after the last rewind: a step back is not part of the consumption rate."""
        states = self.states
        for at in range(len(states) - 1, 0, -1):
            if states[at].next_unacked < states[at - 1].next_unacked:
                return at
        return 0

    def _rewind(self) -> Rewind | None:
        at = self._after_rewind()
        if not at:
            return None
        before, after = self.states[at - 1], self.states[at]
        return Rewind(at_ms=after.taken_at_ms, from_offset=before.next_unacked, to_offset=after.next_unacked)

    # -- since when ------------------------------------------------------------------------------------------

    def _moved_ms(self) -> int | None:
        """Return when the cursor was last seen to move. If never, the window's start."""
        states = self.states
        for at in range(len(states) - 1, 0, -1):
            if states[at].next_unacked != states[at - 1].next_unacked:
                return states[at].taken_at_ms
        if self.window.cursor_moved_ms is not None:
            return self.window.cursor_moved_ms
        return states[0].taken_at_ms if states else None

    def _unread_ms(self) -> int | None:
        """Return since when there have been unread messages."""
        window = self.window
        since = self._since(lambda state, lag: lag > self.options.allowed_messages)
        if since is None:
            return None
        if since == self.states[0].taken_at_ms and window.unread_since_ms is not None:
            since = min(since, window.unread_since_ms)
        if window.oldest_unread_append_ms is not None and not self.states[-1].lost_messages:
            since = min(since, window.oldest_unread_append_ms)
        return since

    def _since(self, holds: Callable[[CursorState, int], bool]) -> int | None:
        """Return when the run of states began that ends with the newest and in which `holds` is true of each."""
        since: int | None = None
        for state, lag in zip(reversed(self.states), reversed(self.lags), strict=True):
            if not holds(state, lag):
                break
            since = state.taken_at_ms
        return since

    # -- the statuses ----------------------------------------------------------------------------------------

    def judge(self, *, rates: bool) -> LagJudgement:
        last, headroom_s = self.last, self._headroom()
        if last is None:
            self.reasons |= {"lag_messages": "no_sample", "lost_messages": "no_sample"}
        found = self._not_known() or self._status(headroom_s)
        if found.status is LagStatus.UNKNOWN:
            self.reasons["status"] = str(found.evidence["because"])
        produced, consumed, velocity = (
            (self.produced, self.consumed, self.velocity) if rates else (None, None, None)
        )
        for name, slope in (("produce_rate", produced), ("consume_rate", consumed)):
            if slope is None:
                self.reasons[name] = "too_few_samples" if rates else "not_asked"
        samples, expected = len(self.states), self.window.expected_samples
        late = rates and found.status not in (LagStatus.CAUGHT_UP, LagStatus.UNKNOWN)
        return LagJudgement(
            status=found.status,
            since_ms=found.since_ms,
            evidence={"samples": samples, "expected_samples": expected, **found.evidence},
            lag_messages=None if last is None else last.lag_messages,
            lost_messages=None if last is None else last.lost_messages,
            age=self.age,
            produce_rate=None if produced is None else produced.per_s,
            consume_rate=None if consumed is None else consumed.per_s,
            velocity=velocity,
            gaining_lately=rates and self._gaining_lately,
            eta_s=self._eta(velocity),
            retention_headroom_s=headroom_s,
            stuck_reason=found.stuck_reason,
            rewind=self._rewind(),
            produce_step=self._step([state.next_offset for state in self.states]) if late else None,
            consume_step=self._step(self.read) if late else None,
            pace=self._pace(found.status, produced, consumed) if late else None,
            samples=samples,
            expected_samples=expected,
            settles_at_ms=self.window.settles_at_ms,
            reasons=self.reasons,
        )

    def _not_known(self) -> _Found | None:
        """Return why the window does not suffice for a status. None if it does."""
        samples, window = len(self.states), self.window
        if 2 * samples < window.expected_samples or not samples:
            return _Found(LagStatus.UNKNOWN, because="too_few_samples")
        if samples < FEWEST_SAMPLES:
            fact = self._fact() if window.first_ms is not None else None
            return fact or _Found(LagStatus.UNKNOWN, because="too_few_samples")
        newest_age_s = (window.now_ms - self.states[-1].taken_at_ms) / 1000
        if newest_age_s > 3 * window.interval_s:
            return _Found(LagStatus.UNKNOWN, because="samples_are_old", newest_sample_age_s=newest_age_s)
        return None

    def _fact(self) -> _Found | None:
        """Return the status that the newest state alone shows: messages were lost, or nothing is unread for long."""
        options, last, age_s = self.options, self.states[-1], self.age.age_s
        lag, lost = last.lag_messages, last.lost_messages
        if lost:
            since = self._since(lambda state, lag: state.lost_messages > 0)
            offsets = {"start_offset": last.start_offset, "next_unacked": last.next_unacked}
            return _Found(LagStatus.DATA_LOST, since, lost_messages=lost, **offsets)
        young = age_s is not None and age_s <= options.allowed_age_s
        if lag <= options.allowed_messages or young:
            since = self._since(lambda state, lag: lag <= options.allowed_messages)
            return _Found(LagStatus.CAUGHT_UP, since, lag_messages=lag, oldest_unread_age_s=age_s)
        return None

    def _status(self, headroom_s: float | None) -> _Found:
        """Return the status by the first line of the module's table that holds."""
        options, last, age_s = self.options, self.states[-1], self.age.age_s
        lag = last.lag_messages
        found = self._fact() or self._at_risk(headroom_s) or self._stuck()
        if found is not None:
            return found
        velocity = self.velocity
        if velocity is None:
            return _Found(LagStatus.UNKNOWN, because="too_few_samples_for_rates")
        growth: dict[str, Any] = {
            "lag_messages": lag,
            "lag_per_s": round(velocity.per_s, 3),
            "lag_per_s_low": round(velocity.low, 3),
            "lag_per_s_high": round(velocity.high, 3),
        }
        if self._grows(velocity):
            return _Found(LagStatus.FALLING_BEHIND, self._lowest_ms(), **growth)
        if self.window.settles_at_ms is not None and last.members and velocity.per_s > 0:
            return _Found(LagStatus.UNKNOWN, because="too_few_moves", **growth)
        if velocity.gaining:
            eta_s = self._eta(velocity)
            slow = eta_s is not None and eta_s > options.slow_eta_s
            return _Found(LagStatus.SLOW if slow else LagStatus.CATCHING_UP, eta_s=eta_s, **growth)
        if not last.members:
            # Without consumers and without a shrinking lag there is no pace, however recent the messages are.
            return _Found(LagStatus.SLOW, because="no_member", oldest_unread_age_s=age_s, **growth)
        soon = age_s is not None and age_s < options.stuck_after_s
        status = LagStatus.CATCHING_UP if soon else LagStatus.SLOW
        return _Found(status, keeping_pace=True, oldest_unread_age_s=age_s, **growth)

    def _at_risk(self, headroom_s: float | None) -> _Found | None:
        retention = self.window.retention
        if headroom_s is None or retention is None:
            return None
        gaining = self.velocity is not None and self.velocity.gaining
        share_s = RISK_SHARE * (retention.age_s or 0.0)
        if headroom_s >= 2 * self.options.sample_interval_s and (gaining or headroom_s >= share_s):
            return None
        return _Found(
            LagStatus.AT_RISK,
            retention_headroom_s=headroom_s,
            retention_age_s=retention.age_s,
            gaining=gaining,
            lag_messages=self.states[-1].lag_messages,
        )

    def _stuck(self) -> _Found | None:
        now, last = self.window.now_ms, self.states[-1]
        moved_ms, unread_ms = self._moved_ms(), self._unread_ms()
        if moved_ms is None or unread_ms is None:
            return None
        since_ms = max(moved_ms, unread_ms)
        if now - since_ms < self.options.stuck_after_s * 1000:
            return None
        return _Found(
            LagStatus.STUCK,
            since_ms,
            self._stuck_reason(),
            cursor_still_s=(now - moved_ms) / 1000,
            unread_for_s=(now - unread_ms) / 1000,
            lag_messages=last.lag_messages,
            members=last.members,
            in_flight=last.in_flight,
        )

    def _lowest_ms(self) -> int:
        """Return when the lag was last lowest, since when it has grown."""
        lowest = min(range(len(self.lags)), key=lambda i: (self.lags[i], -i))
        return self.states[lowest].taken_at_ms

    def _stuck_reason(self) -> StuckReason:
        window, first, last = self.window, self.states[0], self.states[-1]
        if window.blocked or window.head_of_line_failures >= POISON_FAILURES:
            return StuckReason.POISON
        if not last.members:
            return StuckReason.NO_MEMBER
        if last.acked_above > first.acked_above:
            return StuckReason.HEAD_OF_LINE
        if not last.in_flight:
            return StuckReason.NOTHING_IN_FLIGHT
        limit = window.in_flight_limit
        if limit is not None and last.in_flight >= limit:
            return StuckReason.IN_FLIGHT_AT_LIMIT
        return StuckReason.NO_ACK

    def _eta(self, velocity: Slope | None) -> float | None:
        if self.last is not None and not self.last.lag_messages:
            self.reasons["eta_s"] = "caught_up"
        elif velocity is None or self.last is None:
            self.reasons["eta_s"] = "too_few_samples"
        elif not velocity.gaining:
            self.reasons["eta_s"] = "not_gaining"
        else:
            return self.last.lag_messages / -velocity.per_s
        return None

    def _headroom(self) -> float | None:
        """Return the seconds until retention deletes the oldest unread message."""
        retention = self.window.retention
        why: str | None = None
        if self.last is not None and not self.last.lag_messages:
            why = "caught_up"
        elif retention is None or (retention.age_s is None and retention.bytes is None):
            why = "no_retention"
        elif retention.waits_for_cursors:
            why = "retention_waits_for_cursors"
        else:
            found = [
                each
                for each in (self._until_too_old(retention), _until_too_large(retention))
                if each is not None
            ]
            if found:
                return min(found)
        self.reasons["retention_headroom_s"] = why or "not_known"
        return None

    def _until_too_old(self, retention: Retention) -> float | None:
        if retention.age_s is None or self.age.age_s is None:
            return None
        return max(0.0, retention.age_s - self.age.age_s)


def _until_too_large(retention: Retention) -> float | None:
    if retention.bytes is None or retention.unread_bytes is None or retention.bytes_per_s is None:
        return None
    room = max(0, retention.bytes - retention.unread_bytes)
    if room and retention.bytes_per_s <= 0:
        return None
    return room / retention.bytes_per_s if room else 0.0
