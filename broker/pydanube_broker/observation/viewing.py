"""Views for the rules of diagnosis: the current state joined with past samples."""

from __future__ import annotations

import itertools
import time
from bisect import bisect_right
from collections import Counter
from typing import Any, Final

from pydanube_core.cursor_state import CursorState
from pydanube_core.diagnosis.filling import Filling, filling
from pydanube_core.diagnosis.lag_status import LagJudgement, LagStatus, Rewind, judge_lag
from pydanube_core.diagnosis.lag_window import LagWindow, Retention
from pydanube_core.diagnosis.settled_status import counts_at_once
from pydanube_core.diagnosis.views import (
    BadObjectView,
    BrokerView,
    Count,
    Departure,
    Departures,
    KeySample,
    Production,
    SubscriptionView,
    Thresholds,
    TopicView,
)
from pydanube_core.facts import ConsumerFacts
from pydanube_core.names import TopicName

from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.observation.cluster_viewing import ClusterViewing
from pydanube_broker.observation.observed import Observed
from pydanube_broker.observation.sampler import Sampler
from pydanube_broker.observation.tracks import CursorTrack, LogTrack
from pydanube_broker.subscription.batch_columns import BatchColumns
from pydanube_broker.subscription.chunk import ACK_TIMEOUT
from pydanube_broker.tier.tier import Tier
from pydanube_broker.topics.topic import CLOCK, Topic, now_ms

SAMPLED_KEYS: Final = 2_000  # messages, of the oldest unread ones
VISITS: Final = 4  # departures of consumers, enough to show how often a periodic job connects
SAMPLED_BYTES: Final = 1 << 20
NOTICED_MS: Final = 60_000  # a cursor that moved back is sampled within this time


def thresholds_of(topic: Topic) -> Thresholds:
    """Return the thresholds above which the topic's unread messages raise an alert."""
    limits = topic.gate.limits
    return Thresholds(messages=limits.alert_unread_messages, age_s=limits.alert_unread_age_s)


class Viewer:
    """Creates views from memory, without waiting."""

    def __init__(self, observed: Observed, sampler: Sampler) -> None:
        self._observed = observed
        self._sampler = sampler
        self._cluster = ClusterViewing(
            observed.registry,
            observed.health,
            observed.tier,
            observed.chain,
            observed.balance,
            None if observed.relay is None else observed.relay.dials,
        )

    # -- subscriptions ---------------------------------------------------------------------------------------

    def judgement(
        self,
        topic: Topic,
        pump: AnyPump,
        track: LogTrack,
        cursor: CursorTrack,
        state: CursorState,
        *,
        oldest_unread_append_ms: int | None = None,
    ) -> LagJudgement:
        """Judge the lag of a subscription over its window. `oldest_unread_append_ms`: None reads it from the topic."""
        sampler = self._sampler
        worst = pump.worst_failure() if state.failed else None
        head_times, heads = track.heads()
        window = LagWindow(
            states=cursor.window(sampler.rounds, state),
            now_ms=state.taken_at_ms,
            interval_s=sampler.rounds.interval_s,
            window_s=sampler.rounds.window_s,
            oldest_unread_append_ms=sampler.oldest_unread_ms(topic, state)
            if oldest_unread_append_ms is None
            else oldest_unread_append_ms,
            cursor_moved_ms=cursor.cursor_moved_ms
            or self._stuck_since_ms(topic, pump, state)
            or sampler.started_ms,
            unread_since_ms=cursor.unread_since_ms,
            first_ms=cursor.first_ms,
            moved_ms=_moved_ms(pump),
            joined_ms=_joined_ms(pump),
            before=(lambda: self._before(topic, pump)) if sampler.past.times else None,
            head_times_ms=head_times,
            head_offsets=heads,
            head_of_line_failures=0 if worst is None or worst.reason == ACK_TIMEOUT else worst.failures,
            blocked=worst is not None and worst.blocked,
            retention=self._retention(topic, track, state),
        )
        return judge_lag(window, sampler.options)

    def _stuck_since_ms(self, topic: Topic, pump: AnyPump, state: CursorState) -> int | None:
        """Return when the cursor last moved before this start of the broker, if it was stuck by then. Else return None."""
        past = self._sampler.past
        if not past.times:
            return None
        since_ms = past.stood_since_ms(topic.topic_id, pump.subscription_id, state.next_unacked)
        stuck_ms = self._sampler.options.stuck_after_s * 1000
        return None if since_ms is None or past.times[-1] - since_ms < stuck_ms else since_ms

    def _before(self, topic: Topic, pump: AnyPump) -> LagWindow | None:
        """Return the window at the end of the broker's previous run, from telemetry."""
        sampler, options = self._sampler, self._sampler.options
        until_ms, key = sampler.past.times[-1], (topic.topic_id, pump.subscription_id)
        times = [time for time in sampler.past.times if until_ms - time <= options.window_s * 1000]
        seen = [each for each in sampler.past.states(*key, times) if each is not None]
        if not seen:
            return None
        states = [state for state, _ in seen]
        return LagWindow(
            states=states,
            now_ms=states[-1].taken_at_ms,
            interval_s=max(
                sampler.options.sample_interval_s, self._observed.settings.telemetry.sample_interval
            ),
            window_s=options.window_s,
            oldest_unread_append_ms=seen[-1][1],
            cursor_moved_ms=sampler.past.stood_since_ms(*key, states[-1].next_unacked),
            first_ms=states[0].taken_at_ms,
        )

    def _production(self, track: LogTrack, now: int, next_offset: int) -> Production:
        options = self._sampler.options
        return track.production(
            now, next_offset, window_s=options.window_s, interval_s=options.sample_interval_s
        )

    def takes_unread(self, topic: Topic) -> bool:
        """Return whether retention may delete unread messages."""
        settings = self._observed.settings.journal
        hard = settings.retention_age is not None or settings.retention_bytes is not None
        return bool(topic.gate.limits.drop_unread) or (hard and self._observed.tier.missing is not None)

    def _retention(self, topic: Topic, track: LogTrack, state: CursorState) -> Retention | None:
        limits = topic.gate.limits
        age_s = limits.retention_age_s or None
        size = limits.retention_bytes or None
        settings = self._observed.settings.journal
        hard = settings.retention_age is not None or settings.retention_bytes is not None
        if age_s is None and size is None and not hard:
            return None
        if hard and self._observed.tier.missing is not None:
            # The journal's own limits ignore cursors, and without a cold tier their deletions are final.
            return Retention(age_s=settings.retention_age, waits_for_cursors=False)
        if age_s is None and size is None:
            return None
        waits = not limits.drop_unread
        rate = self._production(track, state.taken_at_ms, state.next_offset).rate
        mean = topic.bytes_in / topic.messages_in if topic.messages_in else None
        return Retention(
            age_s=age_s,
            bytes=size,
            unread_bytes=None if mean is None else int(state.lag_messages * mean),
            bytes_per_s=None if mean is None else rate * mean,
            waits_for_cursors=waits,
        )

    def subscription(
        self, topic: Topic, pump: AnyPump, track: LogTrack, cursor: CursorTrack, *, keys: bool
    ) -> SubscriptionView:
        """Create the view of a subscription. `keys`: sample the keys of unread messages if the type is key-shared."""
        sampler, now = self._sampler, now_ms()
        state = pump.cursor_state(now)
        lag = self.judgement(topic, pump, track, cursor, state)
        settled = settled_status(sampler, cursor, lag)[0]
        window_ms = int(sampler.options.window_s * 1000)
        policy, quotas = pump.policy, self._observed.registry.quotas
        rewind, cause = self._rewind(pump, cursor)
        consumers = consumers_of(pump)
        wants_keys = (
            keys
            and topic.stores
            and pump.type.value == "key-shared"
            and len(consumers) > 1
            and state.lag_messages > 0
        )
        return SubscriptionView(
            topic=base_of(topic),
            log=topic.name,
            partition=topic.options.partition,
            subscription=pump.name,
            type=pump.type.value,
            now_ms=now,
            lag=lag,
            state=state,
            consumers=consumers,
            created_ms=pump.created_at_ms,
            departure=None if consumers else pump.attendance.departure,
            cursor_moved_ms=cursor.cursor_moved_ms,
            acknowledged=cursor.count("acknowledged", state, window_ms),
            failed=cursor.count("failed", state, window_ms),
            dead_lettered=cursor.count("dead_lettered", state, window_ms),
            dropped=cursor.count("dropped", state, window_ms),
            redelivered=cursor.count("redelivered", state, window_ms),
            poison_policy=policy.failure.poison_policy.value,
            max_redelivery_count=policy.failure.max_redelivery_count,
            dead_letter_topic=str(policy.target(topic.options.topic, pump.name))
            if policy.failure.poison_policy.value == "dead_letter"
            else None,
            dispatch_rate_limit=topic.gate.limits.max_subscription_dispatch_rate,
            head_of_line=pump.worst_failure(),
            keys=self.keys(topic, pump) if wants_keys else None,
            rewind=rewind,
            rewind_cause=cause,
            moved_forward=pump.moves.forward,
            production=self._production(track, now, state.next_offset),
            refusals=tuple(one for one in pump.attendance.refusals if now - one.at_ms <= window_ms),
            failing=pump.failing() if state.failed else 0,
            unanswered=cursor.count("unanswered", state, window_ms),
            answered_late=pump.answered_late() if state.unanswered else 0,
            thresholds=thresholds_of(topic),
            settled=settled,
            slowed=quotas.slowed.of(topic.name, window_ms),
            departures=_departures(pump, state, 3 * window_ms),
            visits=() if consumers else _visits(pump),
            unrouted=cursor.count("unrouted", state, window_ms),
        )

    @staticmethod
    def _rewind(pump: AnyPump, cursor: CursorTrack) -> tuple[Rewind | None, str | None]:
        seek = pump.moves.back
        if seek is not None:
            back = Rewind(
                at_ms=seek.at_ms, from_offset=seek.from_offset, to_offset=seek.to_offset, by=seek.by
            )
            return back, "seek"
        if cursor.rewound is not None:
            at, before, after = cursor.rewound
            again_ms = pump.moves.redelivered_ms
            if again_ms is not None and 0 <= at - again_ms <= NOTICED_MS:
                return None, None
            return Rewind(at_ms=at, from_offset=before, to_offset=after), None
        return None, None

    def keys(self, topic: Topic, pump: AnyPump) -> KeySample | None:
        """Return the distribution of the oldest unread messages over keys. None if they are not in memory."""
        cursor = pump.cursor
        acknowledged = cursor.acknowledged
        starts = [start for start, _ in acknowledged]
        at = max(cursor.floor, topic.start_offset)
        counts: Counter[str] = Counter()
        left, until = SAMPLED_KEYS, time.perf_counter() + 0.02  # at most 20 ms, for messages of any size
        while left > 0 and at < topic.commit and time.perf_counter() < until:
            batches = topic.read(at, topic.commit, SAMPLED_BYTES)
            if not batches:
                break
            for batch in batches:
                columns = BatchColumns(batch)
                for offset, key in zip(columns.offsets.tolist(), columns.keys, strict=True):
                    if offset < at or left <= 0:
                        continue
                    place = bisect_right(starts, offset) - 1
                    if place >= 0 and offset < acknowledged[place][1]:
                        continue
                    counts[key] += 1
                    left -= 1
                at = batch.end
                if left <= 0:
                    break
        if not counts:
            return None
        key, messages = counts.most_common(1)[0]
        return KeySample(key=key, messages=messages, sampled=counts.total(), keys=len(counts))

    # -- topics ----------------------------------------------------------------------------------------------

    def topic(self, topic: Topic, track: LogTrack) -> TopicView:
        sampler, metrics, now = self._sampler, self._observed.metrics, now_ms()
        window_ms = int(sampler.options.window_s * 1000)

        def counts(rises: Any, counter: Any) -> dict[str, Count]:
            return {
                code: rises.count((name, code), total, now, window_ms)
                for (name, code), total in counter.items()
                if name == topic.name
            }

        left, quotas = topic.producer_left, self._observed.registry.quotas
        binding = None if topic.schema is None else topic.schema.binding
        return TopicView(
            topic=base_of(topic),
            log=topic.name,
            partition=topic.options.partition,
            now_ms=now,
            production=self._production(track, now, topic.commit),
            producers=topic.producers_connected,
            producer_seen=topic.producer_seen,
            departure=None
            if left is None or topic.producers_connected
            else Departure(at_ms=left.at_ms, name=left.name, abrupt=left.abrupt, in_flight=0, unread=0),
            refused=counts(sampler.refused, metrics.rejected),
            refused_messages=counts(sampler.refused_messages, metrics.rejected_messages),
            violations=counts(sampler.violations, metrics.validation_failures),
            validation_policy=None if binding is None else binding.validation_policy.value,
            schema_subject=None if binding is None else binding.subject,
            max_publish_rate=topic.gate.limits.max_publish_rate,
            sessions=track.sessions_since(now - window_ms),
            max_message_size=topic.gate.limits.max_message_size,
            max_producers=topic.gate.limits.max_producers_per_topic,
            slowed=quotas.slowed.of(topic.name, window_ms),
            tail=track.tail,
            refused_by=quotas.refused.of(topic.name, window_ms),
        )

    # -- the broker ------------------------------------------------------------------------------------------

    def broker(self) -> BrokerView:
        observed, sampler, now = self._observed, self._sampler, now_ms()
        health, tier = observed.health, observed.tier
        disk = health.disk
        off = None if tier.missing is None else tier.missing.message
        store_error = None if tier.missing is not None else tier.flusher.store_error()
        errors = 0 if tier.missing is not None else tier.errors
        window_ms = int(sampler.options.window_s * 1000)
        seen = sampler.tier_errors
        before = max((total for at, total in seen if at <= now - window_ms), default=0)
        journal_error, away = health.journal_error, health.metadata_away
        links, gaps = observed.links.seen()
        return BrokerView(
            broker_id=str(observed.data_dir.broker_id),
            now_ms=now,
            memory_only=observed.data_dir.memory,
            disk_free_bytes=disk.get("free_bytes"),
            disk_total_bytes=disk.get("total_bytes"),
            disk_guard_bytes=disk.get("guard_bytes"),
            disk_refuses=any(reason.code == "DISK_GUARD" for reason in health.reasons()),
            disk_filling=self._filling(disk.get("free_bytes"), disk.get("guard_bytes")),
            journal_error=None if journal_error is None else journal_error.message,
            journal_error_since_ms=sampler.journal_error_ms,
            store_error=None if store_error is None else store_error.message,
            store_error_since_ms=sampler.store_error_ms,
            store_url=None if tier.missing is not None else tier.options.url,
            tier_backlog_bytes=tier.backlog_bytes,
            tier_errors=Count(
                total=errors,
                in_window=max(0, errors - before),
                last_ms=seen[-1][0] if errors and seen else None,
            ),
            tier_off=off,
            late_store=self._cluster.late_store(),
            given_up=dict(observed.registry.deleted.given_up),
            quarantined=tuple(observed.registry.catalog.restorable.quarantined()),
            pressure=sampler.pressure.over(now, window_ms),
            metadata_error=None if away is None else away.message,
            metadata_full=away is not None and away.details.get("reason") == "nospace",
            metadata_since_ms=None if away is None else sampler.metadata_away_ms or now,
            cluster=self._cluster.view(now),
            clock=CLOCK.reason(),
            clock_step_s=round(CLOCK.last_step_ms / 1000, 1),
            clock_steps=CLOCK.steps,
            clocks_apart=CLOCK.contradiction(),
            clock_ahead_s=round((CLOCK.apart_most() or ("", 0))[1] / 1000, 1),
            links=links,
            mirror_gaps=gaps,
            credentials=observed.credentials(),
            refused_changes=observed.registry.quotas.refused_changes(window_ms),
            bad_objects=() if tier.missing is not None else _bad_objects(tier),
            objects_checked=0 if tier.missing is not None else tier.checks.checked,
        )

    def _filling(self, free: int | None, guard: int | None) -> Filling | None:
        """Return how fast the disk fills."""
        if free is None or guard is None:
            return None
        seen = [*self._sampler.disk_free_before, *self._sampler.disk_free]
        return filling(seen, room=max(0, free - guard), least_s=max(60.0, self._sampler.options.window_s / 3))


def _bad_objects(tier: Tier) -> tuple[BadObjectView, ...]:
    return tuple(
        BadObjectView(
            topic=one.topic.name,
            path=f"{tier.options.url.rstrip('/')}/{one.key}",
            start=one.start,
            end=one.end,
            state=one.state,
            since_ms=one.since_ms,
            by_reader=one.by_reader,
            ahead_of=tuple(sorted(n for n, pump in one.topic.subscriptions.items() if pump.floor < one.end)),
        )
        for one in tier.checks.statistics()
    )


def _moved_ms(pump: AnyPump) -> int | None:
    """Return when an operation or a client last moved the cursor."""
    moves = (pump.moves.back, pump.moves.forward)
    return max((one.at_ms for one in moves if one is not None), default=None)


def _joined_ms(pump: AnyPump) -> int | None:
    """Return when a consumer last connected or disconnected."""
    came = [link.connected_at_ms for link in pump.links.values()]
    return max((*came, *(one.at_ms for one in pump.attendance.departures[-1:])), default=None)


def _visits(pump: AnyPump) -> tuple[Departure, ...]:
    """Return the last departures after which no consumer was attached."""
    gone = pump.attendance.departures
    ended = [one for one in gone[:-1] if one.back_at_ms is not None]
    return (*ended[1 - VISITS :], *gone[-1:])


def _departures(pump: AnyPump, state: CursorState, span_ms: int) -> Departures | None:
    """Return the departures of consumers within `span_ms`, None if there are none."""
    found = [one for one in pump.attendance.departures if state.taken_at_ms - one.at_ms <= span_ms]
    if not found:
        return None
    standing = itertools.takewhile(lambda one: one.floor == state.next_unacked, reversed(found))
    return Departures(
        count=len(found),
        abrupt=sum(one.abrupt for one in found),
        fruitless=len(list(standing)),
        since_ms=found[0].at_ms,
    )


def settled_status(
    sampler: Sampler, cursor: CursorTrack | None, lag: LagJudgement | None = None
) -> tuple[LagStatus, int | None]:
    """Return the reported status, and its begin. CAUGHT_UP for a subscription at rest without a record.

    Args:
        lag: the current judgement, if available. It counts immediately if its status needs no confirmation, or if no
            round has judged the subscription yet.
    """
    if cursor is None:
        status, since_ms = LagStatus.UNKNOWN, None
    elif cursor.settled is not None:
        status, since_ms = cursor.settled.status, cursor.settled.since_ms
    elif not sampler.rounds.enough(cursor.first_ms):
        status, since_ms = LagStatus.UNKNOWN, None
    elif lag is not None:
        return lag.status, lag.since_ms
    else:
        status, since_ms = LagStatus.CAUGHT_UP, cursor.cursor_moved_ms or cursor.first_ms
    if lag is not None and counts_at_once(lag, after=status):
        return lag.status, lag.since_ms
    return status, since_ms


def base_of(topic: Topic) -> str:
    """Return the name of a topic. For a partition, return the name of the whole topic."""
    return topic.name if topic.options.partition is None else str(TopicName.parse(topic.name).base)


def consumers_of(pump: AnyPump) -> tuple[ConsumerFacts, ...]:
    """Return the attached consumers of a subscription."""
    statistics = pump.statistics() if pump.links else None
    if statistics is None:
        return ()
    found = []
    for one in statistics.consumers:
        link = pump.links.get(one.consumer_id)
        if link is not None:
            age_ms, handling = one.oldest_in_flight_age_ms, one.handling
            found.append(
                ConsumerFacts(
                    consumer_id=str(one.consumer_id),
                    name=one.name,
                    active=one.active,
                    credit_messages=one.credit_messages,
                    in_flight=one.in_flight,
                    delivered=one.delivered,
                    connected_at_ms=link.connected_at_ms,
                    oldest_in_flight_s=None if age_ms is None else age_ms / 1000,
                    heard_at_ms=link.heard_at_ms,
                    answered_at_ms=link.answered_at_ms,
                    standing=one.standing.value,
                    standing_s=None if one.standing_ms is None else one.standing_ms / 1000,
                    expired=one.expired,
                    dropped=one.dropped,
                    acked=0 if handling is None else handling.acked,
                    handling_p50_ms=None if handling is None else handling.p50_ms,
                    handling_from_taken=handling is not None and handling.from_taken,
                )
            )
    return tuple(found)
