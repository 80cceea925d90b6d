"""Judge the samples: findings kept for answers, alerts with hysteresis, statuses that settle.

An idle subscription without unread messages costs nothing. A subscription is judged again when it changed, when a time
limit is reached, or while an alert of it may open or close. Judgements are made in slices under a budget. The rest
waits for the next round, and `waiting` is its number.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from pydanube_core.diagnosis.alerts import Alerts
from pydanube_core.diagnosis.causes.consumers import IN_DANGER
from pydanube_core.diagnosis.causes.topics import MANY_SESSIONS
from pydanube_core.diagnosis.findings import Finding
from pydanube_core.diagnosis.lag_status import LagStatus
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.rules import check_view
from pydanube_core.diagnosis.settled_status import SettledStatus
from pydanube_core.diagnosis.views import SubscriptionView, Thresholds
from pydanube_core.errors import ClusterError

from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.delivery.pump import SubscriptionPump
from pydanube_broker.observation.charted import HOUR_MS, ReadCharted
from pydanube_broker.observation.loop_stops import LoopStops
from pydanube_broker.observation.observed import Observed
from pydanube_broker.observation.past import ReadPast, RunBefore
from pydanube_broker.observation.sampler import Sampler
from pydanube_broker.observation.tail import FEWEST_MESSAGES, tail_of
from pydanube_broker.observation.tracks import CursorTrack, LogTrack
from pydanube_broker.observation.viewing import Viewer, settled_status, thresholds_of
from pydanube_broker.slices import Slices
from pydanube_broker.topics.topic import Topic, now_ms

log = logging.getLogger("pydanube.observation")

SLICE_S: Final = 0.003
BUDGET_SHARE: Final = 0.01  # share of a core for judging
LEAST_BUDGET_S: Final = 0.005
PRESENT_S: Final = 0.2  # processor time that an answer of `present` spends on changes since the last look
TAILS: Final = 8  # topics of a round whose newest messages are looked at, a millisecond each
LATER_ROUNDS: Final = 12  # unchanged subscriptions are judged again after so many
RECALL_AFTER_S: Final = 1.0  # clients connect first: the process that reads takes most of a second of a core
NEVER_MS: Final = 1 << 62
STEP_S: Final = 1.0  # step of a clock that was set back, not merely slowed by NTP

BROKER: Final = "broker"
_Scope = tuple[str, str]  # (log, subscription or "")


class Present(NamedTuple):
    """All findings of a moment about topics and subscriptions."""

    findings: list[Finding]
    unknown: int  # subscriptions with unread messages whose status is unknown
    late: int  # subscriptions that changed since the last look and were not looked at again


class Observation:
    """The sampler, its judge, and the task that runs both."""

    def __init__(self, observed: Observed) -> None:
        settings = observed.settings.diagnosis
        self.options = DiagnosisOptions(
            sample_interval_s=settings.sample_interval,
            window_s=settings.window,
            stuck_after_s=settings.stuck_after,
            open_after=settings.open_after,
            close_after=settings.close_after,
        )
        self.sampler = Sampler(observed, self.options)
        self.viewer = Viewer(observed, self.sampler)
        self.alerts = Alerts(self.options)
        self.stops = LoopStops()
        self.observe = self.sampler.observe  # the subscriber interface, called after every round
        self._observed = observed
        self._findings: dict[_Scope, tuple[Finding, ...]] = {}
        self._unsettled: set[_Scope] = set()  # an alert of it may open or close with the next look
        self._topics_with_news: set[str] = set()  # logs with a finding, or with an alert that may change
        self._queue: dict[_Scope, tuple[Topic, LogTrack]] = {}  # to be judged, in order, each once
        self._grown: list[tuple[Topic, LogTrack]] = []  # since their tails were looked at
        self._looking = asyncio.Lock()
        self._ahead_s = now_ms() / 1000 - time.monotonic()  # the broker's clock
        self.sampler.gone = self._gone
        self.sampler.gone_subscription = self._gone_subscription

    # -- running ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run rounds until cancelled. A round that fails is logged, and the next one is tried."""
        interval = self.options.sample_interval_s
        due = time.monotonic()
        with self.stops.watching():
            while True:
                try:
                    await self.look_once()
                except Exception:
                    log.exception("round_failed")
                due = max(due + interval, time.monotonic())
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                self.sampler.pressure.late_ms = (time.monotonic() - due) * 1000

    async def recall(self, read: ReadPast, read_charted: ReadCharted) -> None:
        """Read the run before this one: its samples, if there are subscriptions, and its charts. Its absence is logged."""
        await asyncio.sleep(RECALL_AFTER_S)
        sampler, begun_ms = self.sampler, self.sampler.started_ms
        span_ms = int(1000 * (self.options.window_s + self.options.stuck_after_s))
        try:
            if any(topic.subscriptions for topic in self._observed.registry.topics):
                times, rings = await read(begun_ms - span_ms, begun_ms)
                sampler.remember(
                    RunBefore(times, rings, interval_s=self._observed.settings.telemetry.sample_interval)
                )
                for track in sampler.tracks.values():
                    for cursor in track.cursors.values():
                        cursor.look_at_ms = 0
            sampler.charted.precede(await read_charted(begun_ms - HOUR_MS, begun_ms))
        except ClusterError as error:
            log.info("past_not_read", extra={"error": error.message})
        except Exception:  # the task that reads goes on to write telemetry
            log.exception("past_not_read")

    async def look_once(self) -> None:
        """Run one round: sample, then judge. A caller during a round waits, and gets the next."""
        async with self._looking:
            self._time_anew()
            self._grown.clear()
            await self.sampler.round(self._consider)
            self._queue_tails()
            await self._judge_waiting()
            self._judge_broker()

    def _time_anew(self) -> None:
        """Judge everything again if the broker's clock went back, because pending times would be delayed by as much."""
        ahead_s = now_ms() / 1000 - time.monotonic()
        if ahead_s < self._ahead_s - STEP_S:
            for track in self.sampler.tracks.values():
                track.look_at_ms = 0
                for cursor in track.cursors.values():
                    cursor.look_at_ms = 0
        self._ahead_s = ahead_s

    @property
    def waiting(self) -> int:
        """Return how many subscriptions and topics wait to be judged."""
        return len(self._queue)

    # -- selection -------------------------------------------------------------------------------------------

    def _queue_tails(self) -> None:
        """Queue some topics that grew, those first whose newest messages were looked at longest ago."""
        for topic, track in heapq.nsmallest(TAILS, self._grown, key=lambda one: one[1].tail_round):
            track.tail_round, track.tail_offset = self.sampler.number, track.last_offset
            self._queue.setdefault((topic.name, ""), (topic, track))

    def _consider(self, topic: Topic, track: LogTrack, now: int) -> None:
        name = topic.name
        if track.last_offset - track.tail_offset >= FEWEST_MESSAGES:
            self._grown.append((topic, track))
        refused_ms = self.sampler.refusing.get(name) if self.sampler.refusing else None
        if refused_ms is not None and now - refused_ms > int(self.options.window_s * 1000):
            del self.sampler.refusing[name]
            refused_ms = None
        if (
            refused_ms is not None
            or (track.steady_from_ms is not None and self._silent(track, now))
            or (track.burst_ms is not None and now - track.burst_ms <= self.options.window_s * 1000)
            or topic.producers_connected >= MANY_SESSIONS
            or name in self._topics_with_news
        ):
            self._queue.setdefault((name, ""), (topic, track))
        if track.limits is not topic.gate.limits:  # other thresholds, perhaps
            track.limits = topic.gate.limits
            for cursor in track.cursors.values():
                cursor.look_at_ms = 0
        for subscription, cursor in track.cursors.items():
            self._tell_lists(name, subscription, track, cursor, now)
            if now < cursor.look_at_ms:
                continue
            scope = (name, subscription)
            if scope in self._queue:  # a queued one is not considered again
                continue
            if scope in self._unsettled or scope in self._findings or self._news(topic, cursor, now):
                self._queue.setdefault(scope, (topic, track))
            else:
                cursor.look_at_ms = self._quiet_until(topic, cursor, now)
                cursor.settled = None

    def _tell_lists(
        self, log_name: str, subscription: str, track: LogTrack, cursor: CursorTrack, now: int
    ) -> None:
        """Record a change for lists: another settled status, or messages in the window, so that rates change."""
        settled = settled_status(self.sampler, cursor)
        moved_ms = max(track.last_growth_ms or 0, cursor.cursor_moved_ms or 0)
        # One round more than the window, in which the rates come to rest.
        lively_ms = (self.options.window_s + 2 * self.options.sample_interval_s) * 1000
        if settled != cursor.noted_status or now - moved_ms <= lively_ms:
            cursor.noted_status = settled
            self._observed.registry.list_changes.note((log_name, subscription))

    def _silent(self, track: LogTrack, now: int) -> bool:
        """Return whether a steady flow has stopped for a while. A rule decides whether that is a fault."""
        steady = track.steady_ms()
        return (
            steady >= self.options.window_s * 500
            and track.last_growth_ms is not None
            and now - track.last_growth_ms >= 4 * track.longest_gap_ms
            and now >= track.look_at_ms
        )

    def _news(self, topic: Topic, cursor: CursorTrack, now: int) -> bool:
        """Return whether a subscription has to be judged: it is late, or a counter of failures rose in the window."""
        state = cursor.last
        assert state is not None
        window_ms = int(self.options.window_s * 1000)
        if any(now - at <= window_ms for name, at in cursor.risen_ms.items() if name != "acknowledged"):
            return True
        if cursor.rewound is not None and now - cursor.rewound[0] <= window_ms:
            return True
        if cursor.unread_since_ms is None:
            return False
        thresholds = thresholds_of(topic)
        if 0 < thresholds.messages < state.lag_messages:
            return True
        oldest_ms = self.sampler.oldest_unread_ms(topic, state)
        return oldest_ms is None or now - oldest_ms > 1000 * self._patience_s(thresholds)

    def _patience_s(self, thresholds: Thresholds) -> float:
        """Return the age up to which unread messages are not late."""
        allowed_s = self.options.allowed_age_s
        return min(allowed_s, thresholds.age_s) if thresholds.age_s else allowed_s

    def _quiet_until(self, topic: Topic, cursor: CursorTrack, now: int) -> int:
        """Return the time of the next judgement of a healthy subscription. A change brings it forward."""
        if cursor.unread_since_ms is None:
            return NEVER_MS
        return now + int(1000 * self._patience_s(thresholds_of(topic)))

    # -- judging ---------------------------------------------------------------------------------------------

    async def _judge_waiting(self) -> None:
        # The thread's own processor time, because wall-clock time on a busy machine includes other processes' work.
        budget_s = max(LEAST_BUDGET_S, BUDGET_SHARE * self.options.sample_interval_s)
        spent_s, own_from = 0.0, time.thread_time()
        slice_from = time.perf_counter()
        while self._queue and spent_s + time.thread_time() - own_from < budget_s:
            scope = next(iter(self._queue))
            topic, track = self._queue.pop(scope)
            if topic.closed is None:
                if scope[1]:
                    self._judge_subscription(scope, topic, track)
                else:
                    self._judge_topic(scope, topic, track)
            took = time.perf_counter() - slice_from
            if took > SLICE_S:
                self.sampler.longest_slice_s = max(self.sampler.longest_slice_s, took)
                spent_s += time.thread_time() - own_from
                await asyncio.sleep(0)
                slice_from, own_from = time.perf_counter(), time.thread_time()
        self._observed.metrics.observation_s["judge"] += spent_s + time.thread_time() - own_from

    def _judge_subscription(self, scope: _Scope, topic: Topic, track: LogTrack) -> None:
        pump = topic.subscriptions.get(scope[1])
        cursor = track.cursors.get(scope[1])
        if pump is None or cursor is None or not topic.stores:
            if cursor is not None:
                cursor.look_at_ms = NEVER_MS
            return
        if (
            scope not in self._findings
            and scope not in self._unsettled
            and (wait_ms := self._unread_by_nobody(topic, pump, cursor)) is not None
        ):
            cursor.look_at_ms = now_ms() + wait_ms
            return
        view = self.viewer.subscription(topic, pump, track, cursor, keys=True)
        if cursor.settled is None:
            cursor.settled = SettledStatus(view.lag, view.now_ms)
        else:
            cursor.settled.observe(view.lag, view.now_ms, self.options)
        view = replace(view, settled=cursor.settled.status)
        self._tell_lists(scope[0], scope[1], track, cursor, view.now_ms)
        findings = check_view(view, self.options)
        # A new consumer has to begin before it is missed, so its standing cursor raises no alert.
        came_s = min((view.now_ms - one.connected_at_ms for one in view.consumers), default=0) / 1000
        new = bool(view.consumers) and came_s < self.options.patience_s
        alarming = [one for one in self._lasting(view, findings) if not new or one.rule != "cursor_stuck"]
        self._note(scope, findings, view.now_ms, alarming=alarming)
        if scope in self._unsettled or cursor.settled.pending:
            cursor.look_at_ms = 0
        else:
            cursor.look_at_ms = self._look_again(view)

    def _unread_by_nobody(self, topic: Topic, pump: SubscriptionPump, cursor: CursorTrack) -> int | None:
        """Return the milliseconds until a subscription that was never read is to be reported. None: judge it now.

        Ten thousand new subscriptions without consumers cost a comparison each, not a judgement.
        """
        state = cursor.last
        if pump.links or pump.marks() is not None or cursor.rewound is not None or state is None:
            return None
        if self.viewer.takes_unread(topic):
            return None
        thresholds = thresholds_of(topic)
        oldest_ms = self.sampler.oldest_unread_ms(topic, state)
        if oldest_ms is None or 0 < thresholds.messages < state.lag_messages:
            return None
        worth_s = min(self.options.patience_s, thresholds.age_s or self.options.patience_s)
        left_ms = oldest_ms + int(worth_s * 1000) - now_ms()
        return left_ms if left_ms > 0 else None

    def _look_again(self, view: SubscriptionView) -> int:
        """Return the time at which the passing of time alone may change the findings."""
        now = view.now_ms
        step = int(LATER_ROUNDS * self.options.sample_interval_s * 1000)
        soonest = now + step
        moments = [view.cursor_moved_ms, None if view.departure is None else view.departure.at_ms]
        if view.lag.age.age_s is not None:
            moments.append(now - int(view.lag.age.age_s * 1000))
        moments += [one.heard_at_ms for one in view.consumers]
        spans_ms = (int(self.options.stuck_after_s * 1000), int(self.options.patience_s * 1000))
        turns = [moment + span for moment in moments if moment is not None for span in spans_ms]
        if view.thresholds.age_s and view.lag.age.age_s is not None:
            turns.append(now + int(1000 * (view.thresholds.age_s - view.lag.age.age_s)) + 1)
        return min([soonest, *(turn for turn in turns if turn > now)])

    def _lasting(self, view: SubscriptionView, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """Return findings worth an alert. A lack of consumers counts only after it has lasted."""
        found = []
        for one in findings:
            if one.rule == "no_consumers" and view.status not in IN_DANGER:
                stuck_s = self.options.stuck_after_s
                age_s = view.lag.age.age_s
                gone_s = None if view.departure is None else (view.now_ms - view.departure.at_ms) / 1000
                if (age_s is not None and age_s < stuck_s) or (gone_s is not None and gone_s < stuck_s):
                    continue
            found.append(one)
        return tuple(found)

    def _judge_topic(self, scope: _Scope, topic: Topic, track: LogTrack) -> None:
        track.tail = tail_of(topic)
        view = self.viewer.topic(topic, track)
        findings = check_view(view, self.options)
        self._note(scope, findings, view.now_ms)
        track.look_at_ms = view.now_ms + int(self.options.sample_interval_s * 1000)

    def _judge_broker(self) -> None:
        view = self.viewer.broker()
        self._note((BROKER, ""), check_view(view, self.options), view.now_ms)

    def _note(
        self,
        scope: _Scope,
        findings: tuple[Finding, ...],
        now: int,
        *,
        alarming: Sequence[Finding] | None = None,
    ) -> None:
        """Keep the findings. `alarming`: those that may open an alert. None: all."""
        if findings:
            self._findings[scope] = findings
        else:
            self._findings.pop(scope, None)
        if self.alerts.look("\0".join(scope), findings if alarming is None else alarming, now):
            self._unsettled.add(scope)
        else:
            self._unsettled.discard(scope)
        if not scope[1]:
            if findings or scope in self._unsettled:
                self._topics_with_news.add(scope[0])
            else:
                self._topics_with_news.discard(scope[0])

    # -- results ---------------------------------------------------------------------------------------------

    async def present(self) -> Present:
        """Return the findings of the last look, updated for later changes within `PRESENT_S` of processor time.

        So the verdict on the cluster is the worst of those on its topics and subscriptions. O(subscriptions), in slices.
        """
        slices, begun = Slices(), time.thread_time()
        found = {scope: each for scope, each in self._findings.items() if scope[0] != BROKER}
        late, unknown, spent_s = 0, 0, 0.0
        for topic in self._observed.registry.topics:
            track = self.sampler.tracks.get(topic.topic_id)
            for name, pump in list(topic.subscriptions.items()):
                cursor = None if track is None else track.cursors.get(name)
                changed = cursor is None or pump.stamp != cursor.stamp
                if not changed and cursor is not None and cursor.unread_since_ms is None:
                    continue
                spent_s += time.thread_time() - begun
                await slices()
                begun = time.thread_time()
                scope = (topic.name, name)
                if name not in topic.subscriptions or not topic.stores:
                    continue
                if spent_s > PRESENT_S:
                    late += changed or scope in self._queue
                    continue
                if not changed and scope in found and scope not in self._queue:
                    unknown += self.status_of(topic, pump)[0] is LagStatus.UNKNOWN
                    continue
                if scope not in found and not self._overdue(topic, pump):
                    continue
                view = self.viewer.subscription(
                    topic,
                    pump,
                    track or LogTrack(topic.name, topic.commit, topic.start_offset, now_ms()),
                    cursor or CursorTrack(pump.subscription_id, now_ms()),
                    keys=True,
                )
                found[scope] = check_view(view, self.options)
                unknown += view.status is LagStatus.UNKNOWN and view.unread > self.options.allowed_messages
        return Present([one for each in found.values() for one in each], unknown=unknown, late=late)

    def _overdue(self, topic: Topic, pump: AnyPump) -> bool:
        """Return whether a subscription has unread messages that are not young, lost some, or has failures."""
        state = pump.cursor_state(now_ms())
        if state.failed or state.lost_messages or state.dead_lettered or state.dropped:
            return True
        if state.lag_messages <= self.options.allowed_messages:
            return pump.moves.back is not None or pump.moves.forward is not None
        oldest_ms = self.sampler.oldest_unread_ms(topic, state)
        young = oldest_ms is not None and now_ms() - oldest_ms <= 1000 * self.options.allowed_age_s
        return not young

    def status_of(self, topic: Topic, pump: AnyPump) -> tuple[LagStatus, int | None]:
        """Return the settled status, and its begin. Unread messages that were not judged yet are judged now."""
        track = self.sampler.tracks.get(topic.topic_id)
        cursor = None if track is None else track.cursors.get(pump.name)
        judged = None
        if (
            track is not None
            and cursor is not None
            and cursor.settled is None
            and cursor.unread_since_ms is not None
        ):
            judged = self.viewer.judgement(topic, pump, track, cursor, pump.cursor_state(now_ms()))
        return settled_status(self.sampler, cursor, judged)

    # -- ends ------------------------------------------------------------------------------------------------

    def _gone(self, topic_id: int, track: LogTrack) -> None:
        self._forget((track.name, ""))
        for name in track.cursors:
            self._forget((track.name, name))

    def _gone_subscription(self, topic_id: int, name: str) -> None:
        track = self.sampler.tracks.get(topic_id)
        if track is not None:
            self._forget((track.name, name))

    def _forget(self, scope: _Scope) -> None:
        self._findings.pop(scope, None)
        self._unsettled.discard(scope)
        if not scope[1]:
            self._topics_with_news.discard(scope[0])
        self._queue.pop(scope, None)
        self.alerts.forget("\0".join(scope), now_ms())
