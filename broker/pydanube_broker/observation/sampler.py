"""The sampler of a broker: a round every few seconds, in slices, that records changes.

Cost: comparing an idle topic with a subscription takes 3 µs, reading and keeping an active one 20 µs. A slice gives the
loop back after `SLICE_S`, so that ten thousand topics do not delay a publish. Rounds do not pile up: one that took
longer than the interval is followed immediately by the next, without the missed ones. Their times show it.

The samples are kept in `tracks`. An observer gets every round (telemetry). `Watch` judges.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

import psutil
from pydanube_core.cursor_state import CursorState
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import Pressure
from pydanube_core.observation import (
    BrokerSample,
    ConsumerSample,
    CursorSample,
    HeadSample,
    Round,
    RoundObserver,
)

from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.observation.charted import Charted
from pydanube_broker.observation.observed import Observed
from pydanube_broker.observation.past import RunBefore
from pydanube_broker.observation.tracks import CursorTrack, LogTrack, Rises, Rounds
from pydanube_broker.status.metrics import FSYNC_BUCKETS_S, BrokerMetrics
from pydanube_broker.topics.topic import Topic, now_ms

log = logging.getLogger("pydanube.observation")

MOST_ROUNDS: Final = 128
SLOW_FROM: Final = FSYNC_BUCKETS_S.index(0.5) + 1  # the first bucket of more than half a second


class _Seen(NamedTuple):
    at_ms: int
    syncs: tuple[int, ...]  # since the start, by bucket
    waits: tuple[int, ...]  # before them
    opened: int  # connections, since the start
    cpu_s: float
    late_ms: float
    bytes_in: int  # since the round before
    busiest: str | None
    busiest_bytes: int
    grew: int  # logs


class Pressures:
    """Pressure on the whole broker over the last rounds: syncs, connections, processor time, the busiest log."""

    def __init__(self) -> None:
        self._seen: deque[_Seen] = deque(maxlen=MOST_ROUNDS)
        self._bytes: int = 0
        self._busiest: tuple[int, str | None] = (0, None)
        self._grew = 0
        self._open_now = 0
        self.late_ms = 0.0  # of the round that begins

    def grew(self, name: str, size_bytes: int) -> None:
        """Count bytes that a log got since the last round."""
        self._bytes += size_bytes
        self._grew += 1
        if size_bytes > self._busiest[0]:
            self._busiest = (size_bytes, name)

    def note(self, now_ms: int, metrics: BrokerMetrics, cpu_s: float) -> None:
        """Record the round that ends."""
        most, name = self._busiest
        opened = metrics.connections["opened"]
        self._open_now = opened - metrics.connections["ended"]
        syncs, waits = metrics.fsyncs(), metrics.fsync_waits()
        self._seen.append(
            _Seen(now_ms, syncs, waits, opened, cpu_s, self.late_ms, self._bytes, name, most, self._grew)
        )
        self._bytes, self._busiest, self._grew = 0, (0, None), 0

    def over(self, now_ms: int, window_ms: int) -> Pressure:
        """Return the pressures over the window that ends now, as far as rounds are kept."""
        seen = [one for one in self._seen if now_ms - one.at_ms <= window_ms]
        if len(seen) < 2:
            return Pressure(window_s=0.0, open_now=self._open_now)
        first, last, rounds = seen[0], seen[-1], seen[1:]
        span_s = max(0.001, (last.at_ms - first.at_ms) / 1000)
        syncs = [after - before for before, after in zip(first.syncs, last.syncs, strict=True)]
        waits = [after - before for before, after in zip(first.waits, last.waits, strict=True)]
        most: Counter[str] = Counter()
        for one in rounds:
            if one.busiest is not None:
                most[one.busiest] += one.busiest_bytes
        name, size = most.most_common(1)[0] if most else (None, 0)
        return Pressure(
            window_s=span_s,
            syncs=sum(syncs),
            slow_syncs=sum(syncs[SLOW_FROM:]),
            sync_p50_ms=_within_ms(syncs, 0.5),
            sync_p99_ms=_within_ms(syncs, 0.99),
            slow_waits=sum(waits[SLOW_FROM:]),
            wait_p50_ms=_within_ms(waits, 0.5),
            wait_p99_ms=_within_ms(waits, 0.99),
            opened=last.opened - first.opened,
            open_now=self._open_now,
            busy=(last.cpu_s - first.cpu_s) / span_s,
            late_ms=median(one.late_ms for one in rounds),
            bytes_in=sum(one.bytes_in for one in rounds),
            busiest=name,
            busiest_bytes=size,
            others=max(one.grew for one in rounds) - 1,
        )


def _within_ms(counts: Sequence[int], share: float) -> float | None:
    """Return the upper bound of the bucket that holds this share of all. For the last bucket, its lower bound."""
    if not any(counts):
        return None
    place = bisect_left(list(itertools.accumulate(counts)), share * sum(counts))
    return 1000 * (*FSYNC_BUCKETS_S, FSYNC_BUCKETS_S[-1])[place]


def head_sample(topic: Topic, now_ms: int, refused: int) -> HeadSample:
    return HeadSample(
        topic.name,
        topic.topic_id,
        topic.options.partition,
        now_ms,
        topic.start_offset,
        topic.commit,
        topic.messages_in,
        topic.bytes_in,
        topic.messages_out,
        topic.bytes_out,
        topic.producers_connected,
        sum(len(pump.links) for pump in topic.subscriptions.values()) + topic.readers,
        refused,
        topic.gate.limits.retention_age_s or None,
        topic.gate.limits.retention_bytes or None,
        bool(topic.gate.limits.drop_unread),
    )


def cursor_sample(topic: Topic, pump: AnyPump, state: CursorState, oldest_ms: int | None) -> CursorSample:
    return CursorSample(
        topic.name,
        topic.topic_id,
        topic.options.partition,
        pump.name,
        pump.subscription_id,
        state,
        oldest_ms,
        pump.type.value,
    )


def consumer_samples(topic: Topic, pump: AnyPump, now_ms: int) -> list[ConsumerSample]:
    """Return a sample of each attached consumer."""
    if not pump.links:
        return []
    statistics = pump.statistics()
    if statistics is None:
        return []
    found = []
    for one in statistics.consumers:
        link = pump.links.get(one.consumer_id)
        if link is not None:
            found.append(
                ConsumerSample(
                    topic.name,
                    topic.topic_id,
                    pump.name,
                    pump.subscription_id,
                    one.consumer_id,
                    one.name,
                    now_ms,
                    one.active,
                    link.connected_at_ms,
                    one.credit_messages,
                    one.in_flight,
                    one.delivered,
                    one.oldest_in_flight_age_ms,
                    link.heard_at_ms,
                )
            )
    return found


SLICE_S: Final = 0.002
HEARTBEAT: Final = 12  # rounds after which observers get unchanged samples, too: a minute by default
DISK_SAMPLES: Final = 24
DISK_STEP_MS: Final = 400_000  # DISK_SAMPLES of them are the time that a day's forecast needs
CHECK_EVERY: Final = 16  # topics between two looks at the clock

Look = Callable[[Topic, LogTrack, int], None]


class Sampler:
    """See the module. Single user: the loop."""

    def __init__(self, observed: Observed, options: DiagnosisOptions) -> None:
        self._observed = observed
        self.options = options
        self.rounds = Rounds(interval_s=options.sample_interval_s, window_s=options.window_s)
        self.past = RunBefore()  # of the broker's run before this one
        self.charted = Charted()  # for charts of hours
        self.tracks: dict[int, LogTrack] = {}  # by topic id
        self.refused = Rises()  # (topic, code): batches
        self.refused_messages = Rises()
        self.violations = Rises()  # (topic, reason): messages
        # Topic → time of the last refused publish or counted message.
        self.refusing: dict[str, int] = {}
        self.number = 0
        self.took_s = 0.0  # of the last round, without the turns it gave away
        self.longest_slice_s = 0.0
        self.started_ms = now_ms()
        self.pressure = Pressures()
        self.tier_errors: list[tuple[int, int]] = []  # (time, total), when it rose
        self.disk_free: list[tuple[int, int]] = []  # (time, bytes) of the last looks
        self.disk_free_before: list[tuple[int, int]] = []  # and of hours before, more seldom
        self.journal_error_ms: int | None = None
        self.store_error_ms: int | None = None
        self.metadata_away_ms: int | None = None
        self.gone: Callable[[int, LogTrack], None] = lambda topic_id, track: None
        self.gone_subscription: Callable[[int, str], None] = lambda topic_id, name: None
        self._gone: list[tuple[int, int]] = []
        self._topics: dict[int, Topic] = {}  # those of the tracks
        # Traffic of topics that are gone, so that totals only rise.
        self._ended: tuple[int, ...] = (0, 0, 0, 0)
        self._observers: list[RoundObserver] = []
        self._process = psutil.Process()

    # -- observers -------------------------------------------------------------------------------------------

    def observe(self, observer: RoundObserver) -> Callable[[], None]:
        """Call an observer after every round, in the loop. Return a function that ends that. Its errors are logged."""
        self._observers.append(observer)
        for track in self.tracks.values():  # its first round has everything
            track.emitted = -1
            for cursor in track.cursors.values():
                cursor.emitted = -1

        def end() -> None:
            if observer in self._observers:
                self._observers.remove(observer)

        return end

    def remember(self, past: RunBefore) -> None:
        """Take the run before this one, which answers for the time before `started_ms`."""
        self.past = past
        self.rounds.precede(past.times)

    # -- rounds ----------------------------------------------------------------------------------------------

    async def round(self, look: Look) -> None:
        """Sample everything once. Then `look` is called for each log, and may judge it."""
        self.number += 1
        begun_ms = now_ms()
        keep = self.rounds.note(self.number, begun_ms)
        if self.past.times and begun_ms - self.past.times[-1] > self.options.window_s * 1000:
            self.past = RunBefore()
        telling, charting, unread = bool(self._observers), self.charted.due(begun_ms), 0
        heads: list[HeadSample] = []
        cursors: list[CursorSample] = []
        consumers: list[ConsumerSample] = []
        totals = [0, 0, 0, 0, 0]  # messages and bytes in and out, subscriptions
        refused = self._refused_by_topic() if telling else {}
        busy, own_from = 0.0, time.thread_time()  # of this thread, without the turns of other tasks
        slice_from = time.perf_counter()
        self._see_refusals(begun_ms)
        now = begun_ms
        for index, topic in enumerate(self._observed.registry.topics):
            if index % CHECK_EVERY == 0:
                spent = time.perf_counter() - slice_from
                if spent > SLICE_S:
                    self.longest_slice_s = max(self.longest_slice_s, spent)
                    busy += time.thread_time() - own_from
                    await asyncio.sleep(0)
                    slice_from, own_from = time.perf_counter(), time.thread_time()
                now = now_ms()
            if topic.closed is None:
                track = self._see(topic, now, keep=keep)
                if telling:
                    self._tell(topic, track, now, heads, cursors, consumers, refused)
                for place, count in enumerate(_traffic(topic)):
                    totals[place] += count
                totals[4] += len(topic.subscriptions)
                if charting:
                    unread += self.charted.note(begun_ms, topic.topic_id, track)
                look(topic, track, begun_ms)
        gone_topics = self._sweep()
        for place, count in enumerate(self._ended):
            totals[place] += count
        gone_subscriptions, self._gone = self._gone, []
        self.charted.forget(gone_topics, gone_subscriptions)
        self.charted.note_broker(begun_ms, totals[:4], unread if charting else None)
        broker = self._see_broker(begun_ms, totals)
        told_from = time.thread_time()
        busy += told_from - own_from
        self.took_s = busy
        self._observed.metrics.observation_s["sample"] += busy
        if telling:
            found = Round(
                number=self.number,
                taken_at_ms=begun_ms,
                interval_s=self.options.sample_interval_s,
                broker=broker,
                heads=heads,
                cursors=cursors,
                consumers=consumers,
                gone_topics=gone_topics,
                gone_subscriptions=gone_subscriptions,
            )
            self._hand_out(found)
            self._observed.metrics.observation_s["tell"] += time.thread_time() - told_from

    def _hand_out(self, found: Round) -> None:
        """Call every observer. One that fails does not affect the others."""
        for observer in tuple(self._observers):
            try:
                observer(found)
            except Exception:
                log.exception("observer_failed")

    def _see(self, topic: Topic, now: int, *, keep: bool) -> LogTrack:
        """Sample one log and its subscriptions. An unchanged one costs a few comparisons."""
        topic_id, commit, start_offset = topic.topic_id, topic.commit, topic.start_offset
        track = self.tracks.get(topic_id)
        if track is None:
            track = self.tracks[topic_id] = LogTrack(topic.name, commit, start_offset, now)
            track.bytes_in = topic.bytes_in
            self._topics[topic_id] = topic
        track.round = self.number
        cursors, subscriptions = track.cursors, topic.subscriptions
        for name, pump in subscriptions.items():
            cursor = cursors.get(name)
            if cursor is None or cursor.subscription_id != pump.subscription_id:
                cursor = cursors[name] = CursorTrack(pump.subscription_id, now)
            stamp = pump.stamp
            if stamp != cursor.stamp or cursor.last is None:
                cursor.stamp = stamp
                cursor.see(pump.cursor_state(now), keep=keep)
                cursor.look_at_ms = 0
                cursor.emitted = -1
        if len(cursors) > len(subscriptions):
            for name in set(cursors) - set(subscriptions):
                cursor = cursors.pop(name)
                self._gone.append((topic_id, cursor.subscription_id))
                self.gone_subscription(topic_id, name)
        track.producers(now, topic.producers_connected)
        if commit != track.last_offset or start_offset != track.last_start:
            interval_ms = int(self.options.sample_interval_s * 1000)
            if commit != track.last_offset:
                self.pressure.grew(topic.name, topic.bytes_in - track.bytes_in)
                track.bytes_in = topic.bytes_in
            track.grew(now, commit, start_offset, interval_ms, keep=keep)
            track.emitted = -1
        return track

    def _tell(
        self,
        topic: Topic,
        track: LogTrack,
        now: int,
        heads: list[HeadSample],
        cursors: list[CursorSample],
        consumers: list[ConsumerSample],
        refused: Mapping[str, int],
    ) -> None:
        due = self.number - HEARTBEAT
        stamp = (topic.producers_connected, topic.messages_in, topic.messages_out, topic.readers)
        if track.emitted <= due or track.emitted < 0 or stamp != track.stamp:
            track.stamp = stamp
            track.emitted = self.number
            heads.append(head_sample(topic, now, refused.get(topic.name, 0)))
        for name, cursor in track.cursors.items():
            if cursor.emitted > due and cursor.emitted >= 0:
                continue
            pump = topic.subscriptions.get(name)
            if pump is None or cursor.last is None:
                continue
            cursor.emitted = self.number
            state = cursor.last
            oldest = self.oldest_unread_ms(topic, state)
            cursors.append(cursor_sample(topic, pump, CursorState(now, *state[1:]), oldest))
            consumers += consumer_samples(topic, pump, now)

    def oldest_unread_ms(self, topic: Topic, state: CursorState) -> int | None:
        """Return the append time of the oldest unread message. None if it is not in memory, or nothing is unread."""
        if not state.lag_messages:
            return None
        return self._observed.append_time_ms(topic, state.oldest_unread)

    def _refused_by_topic(self) -> Mapping[str, int]:
        found: Counter[str] = Counter()
        for (topic, _), count in self._observed.metrics.rejected.items():
            found[topic] += count
        return found

    def _sweep(self) -> list[int]:
        """Forget the logs that this round did not find."""
        gone = [topic_id for topic_id, track in self.tracks.items() if track.round != self.number]
        if gone:
            here = {track.name for track in self.tracks.values() if track.round == self.number}
            self._observed.metrics.forget({self.tracks[topic_id].name for topic_id in gone} - here)
        for topic_id in gone:
            track = self.tracks.pop(topic_id)
            counts = _traffic(self._topics.pop(topic_id))
            self._ended = tuple(map(sum, zip(self._ended, counts, strict=True)))
            self.refusing.pop(track.name, None)
            for rises in (self.refused, self.refused_messages, self.violations):
                rises.forget(track.name)
            self.gone(topic_id, track)
        return gone

    # -- the broker ------------------------------------------------------------------------------------------

    def _see_refusals(self, now: int) -> None:
        metrics = self._observed.metrics
        for rises, counter in (
            (self.refused, metrics.rejected),
            (self.refused_messages, metrics.rejected_messages),
            (self.violations, metrics.validation_failures),
        ):
            for key, total in counter.items():
                if rises.see(key, total, now):
                    self.refusing[key[0]] = now

    def _see_broker(self, now: int, totals: Sequence[int]) -> BrokerSample:
        observed = self._observed
        health, tier, journal = observed.health, observed.tier, observed.journal.statistics()
        store_error = None if tier.missing is not None else tier.flusher.store_error()
        self.journal_error_ms = None if health.journal_error is None else self.journal_error_ms or now
        self.store_error_ms = None if store_error is None else self.store_error_ms or now
        self.metadata_away_ms = None if health.metadata_away is None else self.metadata_away_ms or now
        errors = 0 if tier.missing is not None else tier.errors
        if not self.tier_errors or self.tier_errors[-1][1] != errors:
            self.tier_errors = [*self.tier_errors[-63:], (now, errors)]
        free = health.disk.get("free_bytes")
        if free is not None:
            self.disk_free.append((now, free))
            if len(self.disk_free) > DISK_SAMPLES:
                oldest, before = self.disk_free.pop(0), self.disk_free_before
                if not before or oldest[0] - before[-1][0] >= DISK_STEP_MS:
                    self.disk_free_before = [*before[-DISK_SAMPLES:], oldest]
        memory, cpu_s = self._process.memory_info(), sum(os.times()[:2])
        self.pressure.note(now, observed.metrics, cpu_s)
        return BrokerSample(
            now,
            str(observed.data_dir.broker_id),
            round(time.monotonic() - observed.started_at, 3),
            len(self.tracks),
            totals[4],
            cpu_s,
            memory.rss,
            free,
            health.disk.get("total_bytes"),
            health.disk.get("guard_bytes"),
            journal.bytes,
            journal.read_only,
            tier.backlog_bytes,
            errors,
            None if store_error is None else store_error.message,
            totals[0],
            totals[1],
            totals[2],
            totals[3],
        )


def _traffic(topic: Topic) -> tuple[int, int, int, int]:
    """Return (messages in, bytes in, messages out, bytes out) since the broker started."""
    return topic.messages_in, topic.bytes_in, topic.messages_out, topic.bytes_out
