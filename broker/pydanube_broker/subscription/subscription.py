"""The subscription: one pure state machine for every type of delivery.

The contract
============

*Offsets.* Messages are given as half-open ranges of offsets. Everything below `floor` is acknowledged.
Between `floor` and `next` each message is in exactly one state (`window`). Messages at or above `next` were
never sent. The log may have holes: offsets without a message count as acknowledged.

*Sending* is plan, read, answer. `sending.next_plan()` proposes messages and their consumer. The shell reads
the log and passes its result to `sent()`, or to `routed()` if the plan names no consumer. A plan reserves
nothing: if relevant state has changed since, the answer is refused (False, None) without effect, and the
shell plans again. Messages that are ready again go before unseen ones, in offset order. An unanswered plan
costs nothing, so a rate limit in the shell loses no message.

*Credit* is counted in messages and bytes per consumer. `Plan` describes how bytes are cut. At most `span`
messages lie between `floor` and `next`. At that limit only redeliveries are planned until the floor moves.

*Sessions.* Each join and each seek gives a consumer a new, higher session id. Answers (ack, nack, extend,
terminate) of another session or of an unknown consumer are ignored and counted as stale. An answer to a
message that the consumer was never sent raises `NotDelivered`. An ack of an acknowledged message is a no-op,
and so is a nack of a message that the consumer no longer holds. An ack that comes late, after the message had
come back, counts.

*Buffers.* A consumer that `reports` sends how many messages its application has taken. Until it takes a
message, the delivery cannot be late. The message comes back, without a failure, when the consumer is silent
for an ack timeout, when its application takes nothing for as long and another consumer stands in
(`set_aside`), or on request (`next_recall`, `given_back`) when another consumer is idle.

*Failures.* Nacks and ack timeouts count as failures (see `policy`), the loss of a consumer does not.
Exhausted and terminated messages are blocked, dropped, or handed out as `DeadLetter` until the shell calls
`dead_lettered`.

*Moves.* When the topic moves to another broker, the messages that consumers hold move with it. The new owner
keeps the consumers' places for a limited time.

*Types.* Exclusive: one consumer, and another name is refused. Failover: the first by arrival is active, and
the next takes over immediately. Shared: slices in turn, or message by message if all consumers are `single`.
Key-shared: see `key_slots`. In every type a second join of the same name takes over: its predecessor's
session ends and the messages it held are ready again. With `ordered_retry` nothing behind a message that
waits for its retry is sent (key-shared: nothing of its key). Behind a blocked message nothing is sent in any
case.

*Time* comes in as monotonic milliseconds that never fall. There are no timers: call `tick(now)` at
`next_deadline_ms()`. *Chance* (jitter) comes in as a callable.

*On error nothing has changed.* Methods that return effects list them in the order to carry them out.

*Durable* are snapshots and deltas (`snapshot`, `changes`, `restore`), but not sessions, credit and flights. A
message that was exhausted but not yet dropped or dead-lettered at a restart is delivered once more, and its
count goes on.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from pydanube_core.cursor_state import CursorState
from pydanube_core.errors import Conflict, InvalidArgument

from pydanube_broker.subscription.answers import Answers
from pydanube_broker.subscription.cursor import CursorDelta, CursorSnapshot
from pydanube_broker.subscription.effects import Effect
from pydanube_broker.subscription.failures import Failures
from pydanube_broker.subscription.members import Members, SubscriptionType
from pydanube_broker.subscription.planning import first_blocked, oldest_sent
from pydanube_broker.subscription.policy import FailurePolicy
from pydanube_broker.subscription.ranges import Range, check_ranges, normalise, subtract
from pydanube_broker.subscription.reserved_places import ReservedPlaces
from pydanube_broker.subscription.routes.key_slots import KeySlots
from pydanube_broker.subscription.sending import Sending
from pydanube_broker.subscription.set_aside import SettingAside
from pydanube_broker.subscription.sharing import Recall, next_recall
from pydanube_broker.subscription.statistics import BlockedBy, SubscriptionStatistics
from pydanube_broker.subscription.terms import ConsumerTerms
from pydanube_broker.subscription.window import Reopened, Window

# Messages between floor and next: several times the SDK's usual credit, and 8 KiB as one bitmap.
DEFAULT_SPAN_MESSAGES: Final = 65_536
# After a check for a recall, the next one waits 1 ms for each 64 consumers.
CHECKED_PER_MS: Final = 64


class Subscription:
    """One subscription of one topic. The module's docstring has the contract."""

    __slots__ = (
        "_aside",
        "_next_recall_ms",
        "_type",
        "answers",
        "failures",
        "members",
        "places",
        "recall_deferred",
        "sending",
        "window",
    )  # fmt: skip

    def __init__(
        self,
        type: SubscriptionType,
        *,
        cursor: CursorSnapshot,
        end: int = 0,
        policy: FailurePolicy | None = None,
        span_messages: int = DEFAULT_SPAN_MESSAGES,
        ordered_retry: bool | None = None,
        durable: bool = True,
        sessions: Iterator[int] | None = None,
        random: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Open a subscription at a cursor. A new one has `CursorSnapshot(floor=start)`.

        Args:
            end: the topic's readable end, one past the last committed message.
            span_messages: maximum messages between floor and next, from 1.
            ordered_retry: None means the type's default: on for key-shared, else off.
            durable: False keeps no deltas (`changes` is None), for plain readers.
            sessions: the session ids to give, ascending, above those of an earlier life. None counts from 1.
            random: uniform in [0, 1), for jitter.
        """
        if span_messages < 1:
            raise InvalidArgument(
                f"span_messages: {span_messages} is below 1", field="span_messages", value=span_messages
            )
        ordered = type is SubscriptionType.KEY_SHARED if ordered_retry is None else ordered_retry
        window = Window(cursor, durable=durable)
        slots = None
        if type is SubscriptionType.KEY_SHARED:
            slots = window.listener = KeySlots(ordered_retry=ordered)
        members = Members(type, window, slots, itertools.count(1) if sessions is None else sessions)
        self._type = type
        self.window = window
        self.members = members
        self.sending = Sending(
            type,
            window,
            members,
            end=max(end, cursor.floor),
            span_messages=span_messages,
            ordered_retry=ordered,
        )
        self._aside = SettingAside(type, self.members, self.window)
        self.failures = Failures(self.window, policy or FailurePolicy(), random, self._aside)
        self.answers = Answers(window, members, self._aside, self.failures)
        self.recall_deferred = False  # the next check for a recall is due at `_next_recall_ms`
        self._next_recall_ms = 0
        self.places = ReservedPlaces(self.members, self.window, self._aside)

    @classmethod
    def restore(cls, type: SubscriptionType, cursor: CursorSnapshot, **options: object) -> Subscription:
        """Restore the state after a restart: unacknowledged messages will be sent, and counts continue."""
        return cls(type, cursor=cursor, **options)  # type: ignore[arg-type]

    @property
    def type(self) -> SubscriptionType:
        return self._type

    @property
    def floor(self) -> int:
        """Return the first message not acknowledged."""
        return self.window.floor

    @property
    def all_sent(self) -> bool:
        """Return whether no message is left to plan, regardless of credit."""
        return not self.window.ready and self.window.next >= self.sending.end

    @property
    def needs_keys(self) -> bool:
        """Return whether `routed` needs the keys: key-shared while a consumer has key filters."""
        return self.members.slots is not None and self.members.slots.filtered

    def members_of(self, slots: array[int]) -> bytearray | None:
        """Key-shared without filters: return the member of each slot, one byte each. A hint, see `KeySlots.members_of`."""
        return None if self.members.slots is None else self.members.slots.members_of(slots)

    def is_active(self, consumer_id: int) -> bool:
        """Return whether messages go to the consumer: in failover only to the first that is not set aside."""
        if self._type is not SubscriptionType.FAILOVER:
            return True
        return (active := self.members.active) is not None and active.consumer_id == consumer_id

    def session_of(self, consumer_id: int) -> int | None:
        """Return the consumer's session, None if it is not attached."""
        consumer = self.members.find(consumer_id)
        return None if consumer is None else consumer.session

    def in_flight_of(self, consumer_id: int) -> int:
        """Return how many messages the consumer holds, 0 if it is not attached."""
        consumer = self.members.find(consumer_id)
        return 0 if consumer is None else consumer.in_flight

    def next_deadline_ms(self) -> int | None:
        """Return the next time at which `tick` has something to do, None if there is none."""
        due, trial, until = self.window.timers.next_ms(), self._aside.next_trial_ms, self.places.until_ms
        look = self._next_recall_ms if self.recall_deferred else None
        if trial is None and until is None and look is None:
            return due
        return min((time for time in (due, trial, until, look) if time is not None), default=None)

    def time_anew(self, wall_now_ms: int, now_ms: int) -> bool:
        """After a step of the wall clock, shorten the waits of delayed messages that now end earlier."""
        return self.window.time_anew(wall_now_ms, now_ms)

    # -- consumers -------------------------------------------------------------------------------------------

    def join(self, consumer_id: int, name: str, now_ms: int, terms: ConsumerTerms) -> list[Effect]:
        """Attach a consumer.

        Args:
            consumer_id: unique for this attachment.
            name: unique in the subscription. An attached consumer of the same name is taken over.
            terms: the terms it requests.

        Raises:
            ConsumerBusy: the type is exclusive, and a consumer of another name is attached.
            InvalidArgument: the id is taken by another name, or the type has no key filters.
        """
        timeout_ms = terms.ack_timeout_ms
        effects = self.members.join(
            consumer_id,
            name,
            terms,
            ack_timeout_ms=self.failures.policy.ack_timeout_ms if timeout_ms is None else timeout_ms,
            now_ms=now_ms,
        )
        self._aside.settle(now_ms)
        return effects

    def leave(self, consumer_id: int, now_ms: int) -> list[Effect]:
        """Detach a consumer. The messages it held are ready again immediately. Unknown ids are ignored."""
        active = self.members.active
        self.members.leave(consumer_id)
        self._aside.settle(now_ms)
        return self._aside.activated(active)

    # -- sending ---------------------------------------------------------------------------------------------

    def grew(self, next_offset: int) -> None:
        """Set the topic's readable end. A smaller one is ignored."""
        if next_offset > self.sending.end:
            self.sending.end = next_offset

    def outlived(self, ranges: Sequence[Range]) -> None:
        """Acknowledge expired messages that no consumer holds (`ttl_ms`). They count as dropped."""
        for start, end in ranges:
            self.failures.dropped += end - start
            self.window.close_range(start, end)

    def next_recall(self, now_ms: int) -> Recall | None:
        """Return the messages to recall from one consumer for another that is idle. None if there are none.

        Shared and key-shared only. Call it when `next_plan` returns None. Each consumer is recalled at most
        once per 100 ms, so polling is cheap.
        """
        self.recall_deferred = now_ms < self._next_recall_ms
        if self.recall_deferred:
            return None
        # A check costs about a third of a microsecond for each consumer, so at most 2 % of the time.
        self._next_recall_ms = now_ms + len(self.members.consumers) // CHECKED_PER_MS
        return next_recall(self._type, self.members, now_ms)

    def tick(self, now_ms: int) -> list[Effect]:
        """Process due timers: expire deliveries, make retries ready, submit dead letters again. O(due)."""
        self.recall_deferred = self.recall_deferred and now_ms < self._next_recall_ms
        return self.places.due(now_ms) + self.failures.tick(now_ms)

    # -- moving the cursor -----------------------------------------------------------------------------------

    def seek(self, offset: int, now_ms: int) -> list[Effect]:
        """Begin a new generation at `offset`: counts, acknowledgements and flights are discarded.

        Raises `InvalidArgument` if the offset is negative or beyond the end.
        """
        if not 0 <= offset <= self.sending.end:
            raise InvalidArgument(
                f"offset: {offset} is not in the topic. Give 0 to {self.sending.end}",
                field="offset",
                value=offset,
            )
        self.window.reset(offset)
        if self.members.slots is not None:
            self.members.slots.clear()
        return self.members.renew_sessions()

    def purge(self, now_ms: int) -> list[Effect]:
        """Seek to the end: everything published so far counts as acknowledged."""
        return self.seek(self.sending.end, now_ms)

    def skip(self, count: int) -> Range | None:
        """Acknowledge the first `count` unacknowledged messages, delivered or not.

        Offsets that were never read count as messages. Sessions go on, and late answers to skipped messages
        are no-ops.

        Returns:
            The skipped range, None if there was nothing to skip.
        """
        start, end = self.window.floor, self.end_of_oldest(count)
        if end <= start:
            return None
        self.window.close_range(start, end)
        return start, end

    def end_of_oldest(self, count: int) -> int:
        """Return one past the `count`-th unacknowledged message, or past the last one.

        If there is none, return the floor.
        """
        if count < 1:
            raise InvalidArgument(f"count: {count} is below 1", field="count", value=count)
        window = self.window
        end, left = window.floor, count
        closed = normalise(window.snapshot().acknowledged)
        for low, high in subtract([(window.floor, self.sending.end)], closed):
            take = min(left, high - low)
            end = low + take
            left -= take
            if not left:
                break
        return end

    def redeliver(self, messages: Sequence[Reopened]) -> list[int]:
        """Deliver acknowledged messages once more, each at its own offset, to this subscription only.

        A new generation begins, in which sessions, flights and counts of all other messages continue. The
        dead-letter topic takes one copy of a message per generation, so a message that fails again is copied
        again.

        Args:
            messages: ascending. Unacknowledged ones are left out, and those for which the span has no room.

        Returns:
            The offsets that are delivered again.

        Raises:
            Conflict: copies of dead letters are being written, and their answers name the present generation.
        """
        window = self.window
        if window.leaving:
            raise Conflict(
                "dead letters of this subscription are being written at this moment: try again",
                retry_after_ms=1000,
            )
        found = [
            each for each in messages if each.offset < self.sending.end and not window.is_open(each.offset)
        ]
        known = [each for each in found if each.offset < window.next][: self.sending.room]
        found = [*known, *(each for each in found if each.offset >= window.next)]
        if found:
            window.reopen(found)
        return [each.offset for each in found]

    def not_sent_since(self, messages: Sequence[Reopened]) -> list[int]:
        """Return the offsets of redelivered messages that are open and were not sent again."""
        return [each.offset for each in messages if self.window.is_unsent(each)]

    def skipped(self, start: int, end: int) -> int:
        """Acknowledge `[start, end)`, where the log no longer has a message (retention, compaction).

        Returns:
            How many of these offsets had been delivered and were open.
        """
        check_ranges([(start, end)])
        self.sending.end = max(self.sending.end, end)
        return self.window.close_range(start, end)

    # -- durable state ---------------------------------------------------------------------------------------

    def snapshot(self) -> CursorSnapshot:
        """Return the state that must survive a restart."""
        return self.window.snapshot()

    def changes(self) -> CursorDelta | None:
        """Return the changes since the last `changes_written`, for the journal. None if there are none.

        Applied to the snapshot of that time, they give the present snapshot. `changes_written` is a call of its own
        because the journal may have no room for the record.
        """
        window = self.window
        if window.unsaved is None:
            return None
        if window.unsaved.whole:
            whole = window.snapshot()
            return CursorDelta(
                generation=whole.generation,
                floor=whole.floor,
                acknowledged=whole.acknowledged,
                attempts=whole.attempts,
            )
        return window.unsaved.delta(window.generation, window.floor)

    def changes_written(self) -> None:
        """Note that the last `changes` were appended to the journal."""
        if self.window.unsaved is not None:
            self.window.unsaved.saved(self.window.floor)

    # -- looking ---------------------------------------------------------------------------------------------

    def marks(self) -> CursorState:
        """Return the counters of this subscription. They differ whenever anything in it changed. O(1).

        The time, the log's offsets, `acked_above` and `members` are 0.
        """
        window, failures = self.window, self.failures
        return CursorState(
            0,
            0,
            0,
            window.floor,
            0,
            window.in_flight,
            0,
            self.sending.redelivered,
            failures.failed,
            failures.dead_lettered_messages,
            failures.dropped,
            window.generation,
            self.answers.acknowledged,
            self.sending.unrouted,
            failures.expired,
        )

    def statistics(self, now_ms: int) -> SubscriptionStatistics:
        """Return the statistics at this moment. O(chunks)."""
        window = self.window
        oldest = oldest_sent(window)
        blocked = first_blocked(window)
        return SubscriptionStatistics(
            floor=window.floor,
            next_offset=window.next,
            end=self.sending.end,
            generation=window.generation,
            in_flight=window.in_flight,
            ready=window.ready,
            pending_retries=window.waiting,
            redelivered=self.sending.redelivered,
            acknowledged=self.answers.acknowledged,
            dead_lettered=self.failures.dead_lettered_messages,
            dropped=self.failures.dropped,
            expired=self.failures.expired,
            stale_answers=self.answers.stale,
            unrouted=self.sending.unrouted,
            blocked_by=None if blocked is None else BlockedBy(offset=blocked[0], reason=blocked[1].reason),
            consumers=tuple(
                c.statistics(
                    now_ms,
                    active=self.is_active(c.consumer_id),
                    oldest_age_ms=now_ms - oldest[c] if c in oldest else None,
                    slots=None if self.members.slots is None else self.members.slots.owned(c),
                )
                for c in self.members.consumers
                if not c.absent
            ),
        )
