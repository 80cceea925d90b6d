"""The shell around one subscription: it attaches consumers, processes their answers, and keeps the cursor.

All decisions are in `Subscription`. The pump carries out its effects, holds the links to consumers, and owns
no state that must survive: the cursor goes to the journal, types and policies are in the catalog. Its
`Sender` sends messages.
"""

from __future__ import annotations

import asyncio
import logging
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from zlib import crc32

from pydanube_core.cursor_state import CursorState
from pydanube_core.diagnosis.views import Departure, HeadOfLine, Refusal
from pydanube_core.errors import ClusterError, ConsumerBusy, LimitReached
from pydanube_core.facts import Redelivery
from pydanube_core.refusals import mirrored_cursor, written_elsewhere

from pydanube_broker.delivery.attendance import Attendance
from pydanube_broker.delivery.cursor_moves import CursorMoves
from pydanube_broker.delivery.engine import DeliveryEngine
from pydanube_broker.delivery.link import ConsumerLink
from pydanube_broker.delivery.sender import Sender
from pydanube_broker.journal import RecordKind
from pydanube_broker.outcome import OutcomeCallback
from pydanube_broker.subscription.cursor import CursorDelta, CursorSnapshot, apply_deltas, encode_delta
from pydanube_broker.subscription.effects import (
    Activated,
    Blocked,
    DeadLetter,
    Dropped,
    Effect,
    Expired,
    SessionEnded,
    SessionStarted,
)
from pydanube_broker.subscription.handover import REJOIN_MS
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.planning import failing, worst_failure
from pydanube_broker.subscription.policy import PoisonPolicy
from pydanube_broker.subscription.ranges import Range, normalise, subtract
from pydanube_broker.subscription.routes.key_slots import SLOTS
from pydanube_broker.subscription.statistics import BlockedBy, SubscriptionStatistics
from pydanube_broker.subscription.subscription import Subscription
from pydanube_broker.subscription.subscription_policy import SubscriptionPolicy
from pydanube_broker.subscription.terms import ConsumerTerms
from pydanube_broker.subscription.window import Reopened
from pydanube_broker.topics.log_state import encode_cursor_body
from pydanube_broker.topics.topic import Topic, now_ms
from pydanube_broker.worker_threads import WorkerThreads

log = logging.getLogger("pydanube.delivery")

LOG_PAUSE_S: Final = 10.0  # between two log lines on exhausted messages


def _reopened(message: Redelivery) -> Reopened:
    slot = crc32(message.key.encode("utf-8", "surrogatepass")) % SLOTS
    return Reopened(offset=message.offset, deliveries=message.deliveries, slot=slot)


class SubscriptionPump:
    """One subscription of one topic. Its core is made when the first consumer attaches."""

    def __init__(
        self,
        name: str,
        subscription_id: int,
        type: SubscriptionType,
        topic: Topic,
        engine: DeliveryEngine,
        *,
        policy: SubscriptionPolicy,
        start_offset: int,
        created_at_ms: int,
    ) -> None:
        self.name = name
        self.subscription_id = subscription_id
        self.type = type
        self.topic = topic
        self.policy = policy
        self.created_at_ms = created_at_ms
        self.links: dict[int, ConsumerLink] = {}
        self.due_at_ms: int | None = None
        self.dirty = False
        self.closed: ClusterError | None = None
        self.follows = False  # the source's cursor, as long as the topic is a mirror
        self.delivered = 0
        self.attendance = Attendance(self.links)
        self.moves = CursorMoves()
        self.engine = engine
        self._core: Subscription | None = None
        self._handover = topic.state.handovers.pop(subscription_id, None)  # of the topic's former owner
        self._kept_until_ms = engine.deadlines.now_ms() + REJOIN_MS
        # Messages since the last log line, while another line would be too soon.
        self._unlogged: dict[PoisonPolicy, int] = {}
        self._refused: BlockedBy | None = None  # the message that the dead-letter topic refuses, and why
        self._snapshot_stale = False
        self._cursor_position = 0  # position of its newest record in the topic's log
        self.key = (topic.name, name)  # its key in lists
        self.sender = Sender(self, topic, engine, self.links)
        topic.state.cursors.setdefault(subscription_id, CursorSnapshot(floor=start_offset))
        topic.subscriptions[name] = self
        topic.changes.note(topic.name)
        topic.listeners.add(self.sender)

    # -- facts -----------------------------------------------------------------------------------------------

    @property
    def cursor(self) -> CursorSnapshot:
        """Return the present cursor."""
        if self._core is not None and self._snapshot_stale:
            self.store_snapshot()
        return self.topic.state.cursors[self.subscription_id]

    @property
    def floor(self) -> int:
        """Return the first offset that is not acknowledged, without building a whole cursor. O(1)."""
        if self._core is not None and self._snapshot_stale:
            return self._core.floor
        return self.topic.state.cursors[self.subscription_id].floor

    def store_snapshot(self) -> None:
        """Put the cursor into the log state, from which the journal's heads are built."""
        if self._core is not None and self._snapshot_stale:
            self.topic.state.cursors[self.subscription_id] = self._core.snapshot()
            self._snapshot_stale = False

    def statistics(self) -> SubscriptionStatistics | None:
        """Return the core's statistics, None if no consumer has attached since the start."""
        if self._core is None:
            return None
        found = self._core.statistics(self.engine.deadlines.now_ms())
        return (
            found if self._refused is None or found.blocked_by else replace(found, blocked_by=self._refused)
        )

    def marks(self) -> CursorState | None:
        """Return the core's marks for a sampler, None if no consumer has attached since the start."""
        return None if self._core is None else self._core.marks()

    def cursor_state(self, now_ms: int) -> CursorState:
        """Return the state of the cursor, which is read before the topic's end. O(chunks)."""
        start, members, core = self.topic.start_offset, len(self.links), self._core
        if core is None:
            floor, above = self.floor, self.cursor.acknowledged_from(start)
            return CursorState(now_ms, start, self.topic.commit, floor, above, 0, members)
        marks = core.marks()
        # Trimmed messages are not counted as acknowledged.
        above = (
            core.window.acked_above if marks.next_unacked >= start else self.cursor.acknowledged_from(start)
        )
        return marks._replace(
            taken_at_ms=now_ms,
            start_offset=start,
            next_offset=self.topic.commit,
            acked_above=above,
            members=members,
        )

    @property
    def stamp(self) -> Any:
        """Return a value for a sampler to compare with the last round's: it differs if anything happened."""
        return self.topic.commit, self.topic.start_offset, len(self.links), self.marks()

    def worst_failure(self) -> HeadOfLine | None:
        return None if self._core is None else worst_failure(self._core.window)

    def failing(self) -> int:
        """Return how many open messages a consumer has nacked, among the first ones."""
        return 0 if self._core is None else failing(self._core.window)

    def answered_late(self) -> int:
        """Return how many messages were acknowledged after a delivery of them had expired."""
        return 0 if self._core is None else self._core.answers.after_expiry

    def session_of(self, consumer_id: int) -> int:
        session = None if self._core is None else self._core.session_of(consumer_id)
        return 0 if session is None else session

    # -- consumers -------------------------------------------------------------------------------------------

    def core(self) -> Subscription:
        """Return the core, made if needed. Raises `MirrorReadOnly`: the cursor follows the source's."""
        if self._core is None:
            if self.follows and self.topic.link is not None:
                raise mirrored_cursor(self.topic.name, self.name, self.topic.link)
            self._core = Subscription.restore(
                self.type,
                self.topic.state.cursors[self.subscription_id],
                end=self.topic.commit,
                policy=self.policy.failure,
                sessions=self.topic.sessions,
                random=random.random,
            )
            if self._handover is not None:
                self._core.places.restore(self._handover, self.engine.deadlines.now_ms(), self._kept_until_ms)
                self._handover = None
                self.schedule_tick()
            if self.topic.start_offset > self._core.floor:
                self._core.skipped(self._core.floor, self.topic.start_offset)
            self.sender.core = self._core
        return self._core

    def join(self, link: ConsumerLink, name: str, terms: ConsumerTerms) -> int:
        """Attach a consumer. Return its session.

        Raises `ConsumerBusy`, `InvalidArgument`, `LimitReached`.
        """
        if self.closed is not None:
            raise self.closed
        if self.topic.failed_over_to is not None:
            raise written_elsewhere(self.topic.name, self.topic.failed_over_to)
        core = self.core()
        core.grew(self.topic.commit)
        try:
            holder = core.members.named(name)
            if holder is None or holder.absent:  # a take-over adds no consumer
                self.topic.check_consumer(len(self.links))
            effects = core.join(link.consumer_id, name, self.engine.deadlines.now_ms(), terms)
        except (ConsumerBusy, LimitReached) as error:
            other = error.details.get("holder")
            self.attendance.refused(Refusal(at_ms=now_ms(), name=name, code=error.code, holder=other))
            raise
        self._perform([effect for effect in effects if isinstance(effect, SessionEnded)])
        self.attendance.came(now_ms())
        self.links[link.consumer_id] = link
        self.topic.changes.note(self.topic.name)
        self.attendance.names[link.consumer_id] = name
        self._perform([effect for effect in effects if not isinstance(effect, SessionEnded)])
        self.wake()
        return self.session_of(link.consumer_id)

    def leave(self, consumer_id: int) -> None:
        name = self.attendance.leave(consumer_id)
        link = self.links.pop(consumer_id, None)
        self.sender.forget_ahead()
        self.topic.changes.note(self.topic.name)
        if link is not None and self._core is not None:
            now = now_ms()
            self.attendance.left(
                Departure(
                    at_ms=now,
                    name=name,
                    abrupt=not link.left_cleanly,
                    in_flight=self._core.in_flight_of(consumer_id),
                    unread=self.cursor_state(now).lag_messages,
                    floor=self._core.floor,
                )
            )
            self._perform(self._core.leave(consumer_id, self.engine.deadlines.now_ms()))
            self.wake()

    def grant(self, consumer_id: int, messages: int, size_bytes: int) -> None:
        self.core().members.grant(consumer_id, messages, size_bytes)
        self.wake()

    def flowing(self, consumer_id: int) -> None:
        """Resume: the consumer's connection takes messages again."""
        if self._core is not None:
            self._core.members.resume(consumer_id)
        self.wake()

    def resumed(self, consumer_id: int) -> bool:
        """Return whether the consumer continued with the messages it held at the topic's former owner."""
        return self.core().places.resumed(consumer_id)

    @property
    def needs_keys(self) -> bool:
        """Return whether messages could be skipped while a consumer with key filters is absent."""
        return self.core().needs_keys

    def is_active(self, consumer_id: int) -> bool:
        return self._core is not None and self._core.is_active(consumer_id)

    # -- answers ---------------------------------------------------------------------------------------------

    def ack(
        self, consumer_id: int, session: int, ranges: Sequence[Range], masks: Sequence[tuple[int, int]] = ()
    ) -> None:
        now = self.engine.deadlines.now_ms()
        if self.core().answers.ack(consumer_id, session, ranges, masks, now_ms=now):
            self._acknowledged(well_supplied=False)
        else:
            self.wake()  # a late ack shows that its consumer answers again

    def nack(
        self, consumer_id: int, session: int, ranges: Sequence[Range], delay_ms: int, reason: str
    ) -> None:
        now = self.engine.deadlines.now_ms()
        self._perform(
            self.core().answers.nack(consumer_id, session, ranges, now, delay_ms=delay_ms, reason=reason)
        )
        self.changed()

    def ack_delivered(self, ranges: Sequence[Range]) -> None:
        """Acknowledge without naming consumer or session. See `Answers.ack_delivered`."""
        answers = self.core().answers
        if answers.ack_delivered(ranges, self.engine.deadlines.now_ms()):
            self._acknowledged(well_supplied=answers.well_supplied)

    def _acknowledged(self, *, well_supplied: bool) -> None:
        """Note that the cursor moved. No deadline becomes earlier.

        If no consumer waits for a message, the next turn may be `REFILL_S` later.
        """
        self._snapshot_stale = True
        self.engine.cursors.note(self)
        if well_supplied or self.core().all_sent:
            self.topic.changes.note(self.key)
            self.engine.turns.wake_later(self.sender)
        else:
            self.wake()

    def nack_delivered(self, ranges: Sequence[Range], delay_ms: int, reason: str) -> None:
        now = self.engine.deadlines.now_ms()
        self._perform(self.core().answers.nack_delivered(ranges, now, delay_ms=delay_ms, reason=reason))
        self.changed()

    def extend(self, consumer_id: int, session: int, ranges: Sequence[Range], extension_ms: int) -> None:
        self.core().answers.extend(consumer_id, session, ranges, extension_ms, self.engine.deadlines.now_ms())
        self.schedule_tick()

    def taken(self, consumer_id: int, session: int, total: int, *, busy: bool) -> None:
        """Note that the consumer's application has taken `total` messages of its session."""
        now = self.engine.deadlines.now_ms()
        effects = self.core().answers.taken(consumer_id, session, total, now, busy=busy)
        if effects:
            self.changed()
        self._perform(effects)
        self.schedule_tick()
        self.wake()  # another consumer may wait for messages in this one's buffer

    def given_back(self, consumer_id: int, session: int, ranges: Sequence[Range]) -> None:
        """Process the consumer's answer to `ConsumerLink.recall`."""
        self.core().answers.given_back(consumer_id, session, ranges)
        self.wake()

    def ack_timeout_ms(self, requested_ms: int | None) -> int:
        """Return the ack timeout of a consumer: the one it requests, else the policy's."""
        return self.policy.failure.ack_timeout_ms if requested_ms is None else requested_ms

    def terminate(self, consumer_id: int, session: int, ranges: Sequence[Range], reason: str) -> None:
        now = self.engine.deadlines.now_ms()
        self._perform(self.core().answers.terminate(consumer_id, session, ranges, now, reason=reason))
        self.changed()

    def seek(self, offset: int, *, by: str | None = None) -> None:
        """Move the cursor. `by` is the client that requested it, None for an operation."""
        core = self.core()
        core.grew(self.topic.commit)
        before = self.cursor_state(now_ms())
        self._perform(core.seek(offset, self.engine.deadlines.now_ms()))
        self.moves.note(before, self.cursor_state(now_ms()), by=by)
        self.changed()

    def follow(self, cursor: CursorSnapshot) -> None:
        """Take the cursor of the source's subscription. Ignored if this one does not follow it, or no longer does."""
        known = self.topic.state.cursors[self.subscription_id]
        if not self.follows or self._core is not None or self.closed is not None or cursor == known:
            return
        same = cursor.generation == known.generation
        delta = CursorDelta(
            generation=cursor.generation,
            floor=cursor.floor,
            acknowledged=tuple(subtract(cursor.acknowledged, known.acknowledged if same else ())),
            attempts=cursor.attempts,
        )
        body = encode_cursor_body(self.subscription_id, encode_delta(delta))
        self._cursor_position = self.topic.append_record(RecordKind.CURSOR, body)
        self.topic.state.cursors[self.subscription_id] = apply_deltas(known, [delta])
        self.topic.changes.note(self.key)

    def take_terms(self, type: SubscriptionType, policy: SubscriptionPolicy) -> None:
        """Take type and failure policy of the source's subscription. Ignored as in `follow`."""
        if self.follows and self.topic.link is not None and self._core is None:
            self.type, self.policy = type, policy

    def restore_cursor(self, cursor: CursorSnapshot) -> None:
        """Restore a former state of the cursor. Messages trimmed since stay acknowledged."""
        self.seek(max(cursor.floor, self.topic.start_offset))
        for start, end in cursor.acknowledged:
            self.core().skipped(start, end)

    def skip(self, count: int) -> Range | None:
        """Acknowledge the first open messages, for an administrator. Return the skipped range."""
        core = self.core()
        core.grew(self.topic.commit)
        before = self.cursor_state(now_ms())
        skipped = core.skip(count)
        self.moves.note(before, self.cursor_state(now_ms()), "subscriptions.skip")
        self.changed()
        return skipped

    def unacknowledged(self, offsets: Sequence[int]) -> list[int]:
        """Return those of the offsets that are not acknowledged, ascending."""
        ordered = sorted(offsets)
        return self.core().window.open_of(ordered[bisect_left(ordered, self.topic.start_offset) :])

    def count_unacknowledged(self, ranges: Sequence[Range]) -> int:
        """Return how many offsets of the ranges are not acknowledged. O(chunks + ranges), not O(offsets)."""
        first = self.topic.start_offset
        return self.core().window.count_open(normalise((max(start, first), end) for start, end in ranges))

    def redeliver(self, messages: Sequence[Redelivery]) -> list[int]:
        """Deliver acknowledged messages again. Return their offsets. See `Subscription.redeliver`."""
        core = self.core()
        core.grew(self.topic.commit)
        before = self.cursor_state(now_ms())
        stored = [each for each in messages if each.offset >= self.topic.start_offset]
        found = core.redeliver([_reopened(each) for each in stored])
        if found:
            self.moves.redelivered(before)
            self.sender.forget_ahead()
            self.changed()
        return found

    def withdraw(self, messages: Sequence[Redelivery]) -> list[int]:
        """Acknowledge those redelivered messages that were not sent since. Return their offsets."""
        core = self.core()
        found = core.not_sent_since([_reopened(each) for each in messages])
        for offset in found:
            core.skipped(offset, offset + 1)
        if found:
            self.changed()
        return found

    def end_of_oldest(self, count: int) -> int:
        """Return one past the `count`-th unacknowledged message. See `Subscription.end_of_oldest`."""
        core = self.core()
        core.grew(self.topic.commit)
        return core.end_of_oldest(count)

    def acknowledge(self, ranges: Sequence[Range], operation: str) -> None:
        """Acknowledge offsets for an administrator, as far as there are messages.

        Args:
            operation: name for diagnosis.
        """
        core = self.core()
        core.grew(self.topic.commit)
        before = self.cursor_state(now_ms())
        for start, end in ranges:
            if start < (end := min(end, self.topic.commit)):
                core.skipped(start, end)
        self.moves.note(before, self.cursor_state(now_ms()), operation)
        self.changed()

    def purge(self) -> None:
        """Acknowledge everything published so far."""
        core = self.core()
        core.grew(self.topic.commit)
        before = self.cursor_state(now_ms())
        self._perform(core.purge(self.engine.deadlines.now_ms()))
        self.moves.note(before, self.cursor_state(now_ms()), "subscriptions.purge")
        self.changed()

    def exhausted_by(self, policy: SubscriptionPolicy) -> int:
        """Return how many messages `set_policy` with this policy would drop or dead-letter immediately."""
        return 0 if self._core is None else self._core.failures.exhausted_by(policy.failure)

    def set_policy(self, policy: SubscriptionPolicy) -> None:
        """Set the failure policy, and apply it to blocked messages immediately."""
        self.policy = policy
        if self._core is not None:
            self._perform(self._core.failures.set_policy(policy.failure))
            self.changed()

    @property
    def worker_threads(self) -> WorkerThreads:
        """Return the engine's limiter, with which the dead-letter publisher reads the log."""
        return self.engine.worker_threads

    def dead_lettered(self, generation: int, ranges: Sequence[Range]) -> None:
        """Acknowledge messages whose copies are durable."""
        if self.closed is None and self.core().failures.dead_lettered(generation, ranges):
            self._refused = None
            self.changed()

    def dead_letter_failed(self, generation: int, ranges: Sequence[Range], why: str) -> bool:
        """Note that messages could not be copied. The core retries later. Return whether `why` is new."""
        news = self._refused is None or self._refused.reason != why
        if self.closed is None and ranges:
            self._refused = BlockedBy(offset=ranges[0][0], reason=why)
            self.core().failures.dead_letter_failed(generation, ranges, self.engine.deadlines.now_ms())
            self.topic.changes.note(self.key)
            self.schedule_tick()
        return news

    def confirm(self, done: OutcomeCallback) -> None:
        """Call `done` when everything acknowledged so far is as durable as the topic promises."""
        try:
            self.write_cursor()
        except ClusterError as error:
            done(error)
            return
        self.topic.when_safe(self._cursor_position, done)

    def changed(self) -> None:
        self._snapshot_stale = True
        self.engine.cursors.note(self)
        self.schedule_tick()
        self.wake()

    @property
    def may_be_written(self) -> bool:
        return self.topic.is_writable

    def write_cursor(self) -> None:
        """Append the cursor's delta to the journal."""
        if self._core is None or self.closed is not None:
            return
        self.topic.check_writable()
        delta = self._core.changes()
        if delta is not None:
            body = encode_cursor_body(self.subscription_id, encode_delta(delta))
            self._cursor_position = self.topic.append_record(RecordKind.CURSOR, body)
            self._core.changes_written()  # not before the append: a record without room is written with the next try

    # -- deliver ---------------------------------------------------------------------------------------------

    def build_ahead(self) -> None:
        """Wake the sender to build the frame of a lone message while the disk writes it."""
        if self._core is not None and self.links:
            self.engine.turns.wake(self.sender)

    def wake(self) -> None:
        """Request a turn, and note the change for lists."""
        self.topic.changes.note(self.key)
        self.engine.turns.wake(self.sender)

    def tick(self) -> None:
        if self._core is not None:
            effects = self._core.tick(self.engine.deadlines.now_ms())
            if effects:
                self.changed()
            self._perform(effects)
            self.schedule_tick()
            self.wake()

    def time_anew(self, wall_now_ms: int) -> None:
        """Recompute the waits of delayed messages, after a step of the wall clock."""
        if self._core is not None and self._core.time_anew(wall_now_ms, self.engine.deadlines.now_ms()):
            self.schedule_tick()

    def schedule_tick(self) -> None:
        if self._core is not None:
            self.engine.deadlines.schedule(self, self._core.next_deadline_ms())

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case SessionStarted():
                    link = self.links.get(effect.consumer_id)
                    if link is not None:
                        link.session_changed(effect.session, effect.offset, effect.reason.value)
                case SessionEnded():
                    link = self.links.pop(effect.consumer_id, None)
                    self.topic.changes.note(self.topic.name)
                    self.attendance.names.pop(effect.consumer_id, None)
                    if link is not None:
                        link.end(
                            ConsumerBusy(
                                f"another connection took the consumer's place in {self.name}",
                                field="consumer",
                                reason="taken_over",
                            )
                        )
                case Activated():
                    link = self.links.get(effect.consumer_id)
                    if link is not None:
                        link.activated()
                case Expired():
                    pass  # the core plans them again, and counts them in its statistics
                case Blocked():
                    self._exhausted(effect.ranges, effect.reason, PoisonPolicy.BLOCK)
                case Dropped():
                    self.engine.dropped[self.topic.name, "poison"] += sum(b - a for a, b in effect.ranges)
                    self._exhausted(effect.ranges, effect.reason, PoisonPolicy.DROP)
                case DeadLetter():
                    self._exhausted(effect.ranges, effect.reason, PoisonPolicy.DEAD_LETTER)
                    self.engine.dead_letters.submit(self, effect)

    def _exhausted(self, ranges: Sequence[Range], reason: str, policy: PoisonPolicy) -> None:
        """Log these messages, or count them for the next log line, because thousands of lines would block the loop."""
        if policy in self._unlogged:
            self._unlogged[policy] += sum(end - start for start, end in ranges)
            return
        self._unlogged[policy] = 0
        log.warning(
            "messages_exhausted",
            extra={
                "topic": self.topic.name,
                "subscription": self.name,
                "ranges": list(ranges)[:8],
                "policy": policy.value,
                "reason": reason,
            },
        )
        asyncio.get_running_loop().call_later(LOG_PAUSE_S, self._log_exhausted, policy)

    def _log_exhausted(self, policy: PoisonPolicy) -> None:
        messages = self._unlogged.pop(policy)
        if messages:
            facts = {"topic": self.topic.name, "subscription": self.name, "policy": policy.value}
            log.warning("messages_exhausted", extra=facts | {"more_messages": messages})

    def give_up(self, error: ClusterError) -> None:
        """End all consumers, because the log cannot be read. The subscription stays until it can be."""
        links = list(self.links.values())
        for link in links:
            self.leave(link.consumer_id)
            link.end(error)
        self.attendance.departure = None  # the consumers did not leave by their own choice

    def store_handover(self) -> None:
        """Store the handover in the log state: the topic's next owner continues the delivery from it."""
        handover = self._handover
        if self._core is not None:
            handover = self._core.places.hand_over(self.subscription_id, self.engine.deadlines.now_ms())
            self._snapshot_stale = True
        if handover is not None:
            self.topic.state.handovers[self.subscription_id] = handover

    def close(self, error: ClusterError) -> None:
        """End all consumers: the topic or the subscription is gone."""
        if self.closed is None:
            self.sender.close()
        self.closed = error
        self.topic.changes.note(self.key)
        self.topic.listeners.discard(self.sender)
        for link in list(self.links.values()):
            link.end(error)
        self.links.clear()
