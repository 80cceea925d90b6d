"""The state of a subscription, from a window of samples: pure, the same for the broker, alerts, reports and consoles.

The first line that holds wins. Defaults are those of `DiagnosisOptions`.

| status | holds when |
|---|---|
| `UNKNOWN` | fewer than 3 samples, fewer than half of those expected, or the newest is older than 3 intervals |
| `DATA_LOST` | messages were trimmed before they were read |
| `CAUGHT_UP` | nothing is unread, or nothing that is older than two samples |
| `AT_RISK` | retention takes the oldest unread message within two windows, or in a fifth of its time and not gaining |
| `STUCK` | the cursor has not moved for `stuck_after`, while there was unread mail for as long |
| `FALLING_BEHIND` | the lower bound of the lag's slope is above 0, and it grew by more than 5 % |
| `SLOW` | gaining, but for longer than an hour yet; or neither gaining nor losing, with old mail or without a consumer |
| `CATCHING_UP` | gaining, or consumers keep pace with every message read within `stuck_after` |

A status that lacks data is `UNKNOWN`, never fine: half a window of silence is no health. Wall clock decides what is
stuck, not the number of commits, so a consumer that died between two hourly commits is found, and one that commits
once an hour is not taken for dead while nothing is unread. Having been at zero once in the window excuses nobody.
`rewind` is a remark, not a status: a cursor that was moved back is caught up with like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Any, Final

from pydanube_core.diagnosis.age import UnreadAge, unread_age
from pydanube_core.diagnosis.lag_window import LagWindow
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.slopes import Slope, theil_sen

FEWEST_SAMPLES: Final = 3
GROWTH_SHARE: Final = 0.05  # of the lag: less growth in a window is noise
POISON_FAILURES: Final = 3
RISK_SHARE: Final = 0.2  # of the retention's time


class LagStatus(StrEnum):
    UNKNOWN = "UNKNOWN"
    DATA_LOST = "DATA_LOST"
    CAUGHT_UP = "CAUGHT_UP"
    AT_RISK = "AT_RISK"
    STUCK = "STUCK"
    FALLING_BEHIND = "FALLING_BEHIND"
    SLOW = "SLOW"
    CATCHING_UP = "CATCHING_UP"


class StuckReason(StrEnum):
    """Why the cursor stands, as far as the window tells."""

    POISON = "poison"  # the message at the cursor failed three times, or blocks
    HEAD_OF_LINE = "head_of_line"  # messages behind the cursor's are acknowledged
    NO_MEMBER = "no_member"
    NOTHING_IN_FLIGHT = "nothing_in_flight"
    IN_FLIGHT_AT_LIMIT = "in_flight_at_limit"
    NO_ACK = "no_ack"  # something is in flight, there is room for more, nothing is acknowledged


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """The cursor went back, between two samples or as an event told."""

    at_ms: int
    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LagJudgement:
    """One status and the numbers that decided it. What is None has a reason in `reasons`, under its name."""

    status: LagStatus
    since_ms: int | None
    evidence: Mapping[str, Any]
    lag_messages: int | None
    lost_messages: int | None
    age: UnreadAge
    produce_rate: float | None
    consume_rate: float | None
    velocity: Slope | None  # of the lag
    eta_s: float | None
    retention_headroom_s: float | None
    stuck_reason: StuckReason | None = None
    rewind: Rewind | None = None
    samples: int = 0
    expected_samples: int = 0
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def gaining(self) -> bool:
        return self.velocity is not None and self.velocity.per_s < 0 and self.velocity.high <= 0


def judge_lag(window: LagWindow, options: DiagnosisOptions) -> LagJudgement:
    """Judge one subscription of one log. O(samples), with slopes of at most 24 of them."""
    return _Judge(window, options).judge()


def eta_of_partitions(etas_s: Sequence[float | None]) -> tuple[float | None, float | None]:
    """When a whole topic is caught up, and how uneven its partitions are: (the latest, latest ÷ median).

    None where one partition's is not known: what is never caught up has no end to give.
    """
    known = [eta for eta in etas_s if eta is not None]
    if not known or len(known) < len(etas_s):
        return None, None
    middle = median(known)
    return max(known), (max(known) / middle if middle > 0 else None)


class _Judge:
    def __init__(self, window: LagWindow, options: DiagnosisOptions) -> None:
        self.window = window
        self.options = options
        self.reasons: dict[str, str] = {}
        times = window.times_ms
        self.lags = [window.lag_at(i) for i in range(len(times))]
        known = [i for i, lag in enumerate(self.lags) if lag is not None]
        self.known = known
        self.lag = self.lags[known[-1]] if known else None
        last = known[-1] if known else None
        self.lost = None if last is None else window.lost_at(last)
        self.offset = None if last is None else window.next_unacked[last]
        self.age = unread_age(window, lag=self.lag, offset=self.offset, trimmed=bool(self.lost))

    # -- rates -----------------------------------------------------------------------------------------------

    def _rates(self) -> tuple[Slope | None, Slope | None, Slope | None]:
        """Slopes of head, of what is consumed, and of the lag, over the samples where both are known."""
        window, known = self.window, self.known
        times = [window.times_ms[i] for i in known]
        heads = [h for i in known if (h := window.next_offset[i]) is not None]
        lags = [lag for i in known if (lag := self.lags[i]) is not None]
        first = self._after_rewind(known)
        consumed = [head - lag for head, lag in zip(heads, lags, strict=True)][first:]
        produced = theil_sen(times, heads)
        if not first and min(consumed, default=0) == max(consumed, default=0):
            # Nothing is read: the lag grows as the head does. Many subscriptions are like that at once.
            return produced, theil_sen(times, consumed), produced
        return produced, theil_sen(times[first:], consumed), theil_sen(times[first:], lags[first:])

    def _after_rewind(self, known: Sequence[int]) -> int:
        """Where in `known` the cursor stands after it went back last: a step back is no rate of consumption."""
        cursors = self.window.next_unacked
        for at in range(len(known) - 1, 0, -1):
            now, before = cursors[known[at]], cursors[known[at - 1]]
            if now is not None and before is not None and now < before:
                return at
        return 0

    def _rewind(self) -> Rewind | None:
        at = self._after_rewind(self.known)
        if not at:
            return None
        before, after = (self.window.next_unacked[self.known[i]] for i in (at - 1, at))
        assert before is not None
        assert after is not None
        return Rewind(at_ms=self.window.times_ms[self.known[at]], from_offset=before, to_offset=after)

    # -- since when ------------------------------------------------------------------------------------------

    def _moved_ms(self) -> int | None:
        """When the cursor was seen to move last; the window's start where it did not, and nothing earlier is known."""
        cursors, times = self.window.next_unacked, self.window.times_ms
        for at in range(len(self.known) - 1, 0, -1):
            if cursors[self.known[at]] != cursors[self.known[at - 1]]:
                return times[self.known[at]]
        if self.window.cursor_moved_ms is not None:
            return self.window.cursor_moved_ms
        return times[self.known[0]] if self.known else None

    def _unread_ms(self) -> int | None:
        """Since when there has been unread mail."""
        window = self.window
        since: int | None = None
        for i in reversed(self.known):
            lag = self.lags[i]
            if lag is None or lag <= self.options.allowed_messages:
                break
            since = window.times_ms[i]
        else:
            if window.unread_since_ms is not None and since is not None:
                since = min(since, window.unread_since_ms)
        if since is not None and window.oldest_unread_append_ms is not None and not self.lost:
            since = min(since, window.oldest_unread_append_ms)
        return since

    # -- the statuses ----------------------------------------------------------------------------------------

    def judge(self) -> LagJudgement:
        window, options = self.window, self.options
        now = window.now_ms
        samples, expected = len(self.known), window.expected_samples
        produce, consume, velocity = self._rates()
        headroom_s = self._headroom()
        base: dict[str, Any] = {"samples": samples, "expected_samples": expected}
        eta_s = self._eta(velocity)
        for name, slope in (("produce_rate", produce), ("consume_rate", consume)):
            if slope is None:
                self.reasons[name] = "too_few_samples"
        if self.lag is None:
            why = "no_cursor" if any(head is not None for head in window.next_offset) else "no_head"
            self.reasons |= {"lag_messages": why, "lost_messages": why}

        def result(
            status: LagStatus, since_ms: int | None, stuck: StuckReason | None = None, **evidence: Any
        ) -> LagJudgement:
            if status is LagStatus.UNKNOWN:
                self.reasons["status"] = str(evidence.get("because"))
            return LagJudgement(
                status=status,
                since_ms=since_ms,
                evidence=base | evidence,
                lag_messages=self.lag,
                lost_messages=self.lost,
                age=self.age,
                produce_rate=None if produce is None else produce.per_s,
                consume_rate=None if consume is None else consume.per_s,
                velocity=velocity,
                eta_s=eta_s,
                retention_headroom_s=headroom_s,
                stuck_reason=stuck,
                rewind=self._rewind(),
                samples=samples,
                expected_samples=expected,
                reasons=self.reasons,
            )

        if samples < FEWEST_SAMPLES or 2 * samples < expected:
            return result(LagStatus.UNKNOWN, None, because="too_few_samples")
        newest_age_s = (now - window.times_ms[self.known[-1]]) / 1000
        if newest_age_s > 3 * window.interval_s:
            return result(
                LagStatus.UNKNOWN, None, because="samples_are_old", newest_sample_age_s=newest_age_s
            )
        assert self.lag is not None
        if self.lost:
            return result(
                LagStatus.DATA_LOST,
                self._first_of_run(lambda i: bool(window.lost_at(i))),
                lost_messages=self.lost,
                start_offset=window.start_offset[self.known[-1]],
                next_unacked=self.offset,
            )
        age_s = self.age.age_s
        young = age_s is not None and age_s <= options.allowed_age_s
        if self.lag <= options.allowed_messages or young:
            return result(
                LagStatus.CAUGHT_UP,
                self._first_of_run(lambda i: (self.lags[i] or 0) <= options.allowed_messages),
                lag_messages=self.lag,
                oldest_unread_age_s=age_s,
            )
        gaining = velocity is not None and velocity.per_s < 0 and velocity.high <= 0
        retention_s = window.retention.age_s if window.retention is not None else None
        if headroom_s is not None and (
            headroom_s < 2 * window.interval_s
            or (retention_s is not None and headroom_s < RISK_SHARE * retention_s and not gaining)
        ):
            return result(
                LagStatus.AT_RISK,
                None,
                retention_headroom_s=headroom_s,
                retention_age_s=retention_s,
                gaining=gaining,
                lag_messages=self.lag,
            )
        moved_ms, unread_ms = self._moved_ms(), self._unread_ms()
        stuck_ms = options.stuck_after_s * 1000
        if (
            moved_ms is not None
            and unread_ms is not None
            and now - moved_ms >= stuck_ms
            and now - unread_ms >= stuck_ms
        ):
            return result(
                LagStatus.STUCK,
                max(moved_ms, unread_ms),
                self._stuck_reason(),
                cursor_still_s=(now - moved_ms) / 1000,
                unread_for_s=(now - unread_ms) / 1000,
                lag_messages=self.lag,
                members=window.members[-1],
                in_flight=window.in_flight[-1],
            )
        if velocity is None:
            return result(LagStatus.UNKNOWN, None, because="too_few_samples_for_rates")
        growth: dict[str, Any] = {
            "lag_messages": self.lag,
            "lag_per_s": velocity.per_s,
            "lag_per_s_low": velocity.low,
            "lag_per_s_high": velocity.high,
        }
        span_s = (window.times_ms[self.known[-1]] - window.times_ms[self.known[0]]) / 1000
        if velocity.low > 0 and velocity.per_s * span_s > max(
            options.allowed_messages, GROWTH_SHARE * self.lag
        ):
            return result(LagStatus.FALLING_BEHIND, self._lowest_ms(), **growth)
        if gaining:
            slow = eta_s is not None and eta_s > options.slow_eta_s
            return result(LagStatus.SLOW if slow else LagStatus.CATCHING_UP, None, eta_s=eta_s, **growth)
        if not window.members[self.known[-1]]:
            # Nobody reads and nothing shrinks: that is no pace, however young the mail is.
            return result(LagStatus.SLOW, None, because="no_member", oldest_unread_age_s=age_s, **growth)
        if age_s is not None and age_s < options.stuck_after_s:
            return result(LagStatus.CATCHING_UP, None, keeping_pace=True, oldest_unread_age_s=age_s, **growth)
        return result(LagStatus.SLOW, None, keeping_pace=True, oldest_unread_age_s=age_s, **growth)

    def _first_of_run(self, holds: Any) -> int | None:
        """When the run of samples that ends with the newest, and of which all hold, began."""
        since: int | None = None
        for i in reversed(self.known):
            if not holds(i):
                break
            since = self.window.times_ms[i]
        return since

    def _lowest_ms(self) -> int | None:
        """When the lag was lowest last: it has grown since."""
        if not self.known:
            return None
        lowest = min(self.known, key=lambda i: (self.lags[i], -i))
        return self.window.times_ms[lowest]

    def _stuck_reason(self) -> StuckReason:
        window = self.window
        if window.blocked or window.head_of_line_failures >= POISON_FAILURES:
            return StuckReason.POISON
        if window.members[-1] == 0:
            return StuckReason.NO_MEMBER
        if window.acked_above[-1] > window.acked_above[self.known[0]]:
            return StuckReason.HEAD_OF_LINE
        if window.in_flight[-1] == 0:
            return StuckReason.NOTHING_IN_FLIGHT
        limit = window.in_flight_limit
        if limit is not None and window.in_flight[-1] >= limit:
            return StuckReason.IN_FLIGHT_AT_LIMIT
        return StuckReason.NO_ACK

    def _eta(self, velocity: Slope | None) -> float | None:
        if self.lag == 0:
            self.reasons["eta_s"] = "caught_up"
        elif velocity is None or self.lag is None:
            self.reasons["eta_s"] = "too_few_samples"
        elif velocity.per_s >= 0 or velocity.high > 0:
            self.reasons["eta_s"] = "not_gaining"
        else:
            return self.lag / -velocity.per_s
        return None

    def _headroom(self) -> float | None:
        """How long until retention takes the oldest unread message."""
        retention = self.window.retention
        found: list[float] = []
        if self.lag == 0:
            self.reasons["retention_headroom_s"] = "caught_up"
            return None
        if retention is None or (retention.age_s is None and retention.bytes is None):
            self.reasons["retention_headroom_s"] = "no_retention"
            return None
        if retention.waits_for_cursors:
            self.reasons["retention_headroom_s"] = "retention_waits_for_cursors"
            return None
        if retention.age_s is not None and self.age.age_s is not None:
            found.append(max(0.0, retention.age_s - self.age.age_s))
        if (
            retention.bytes is not None
            and retention.unread_bytes is not None
            and retention.bytes_per_s is not None
        ):
            room = max(0, retention.bytes - retention.unread_bytes)
            if room == 0:
                found.append(0.0)
            elif retention.bytes_per_s > 0:
                found.append(room / retention.bytes_per_s)
        if not found:
            self.reasons["retention_headroom_s"] = "not_known"
            return None
        return min(found)
