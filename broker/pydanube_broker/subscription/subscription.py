"""The subscription: one pure state machine for every type of delivery.

The contract
============

*Offsets.* Everything is said in half-open ranges of offsets. Everything below `floor` is acknowledged; between
`floor` and `next` each message is in exactly one state (`window`); what is at or above `next` was never sent. The
log may have holes: offsets without a message count as acknowledged.

*Sending* is plan, read, answer. `sending.next_plan()` proposes what to send to whom; the shell reads the log and says what
it found with `sent()` (or `routed()` when the plan names no consumer). Nothing is reserved by a plan: if anything
that matters changed in between, the answer is refused (False, None) and nothing has happened; plan again. Messages
that are ready again go before unseen ones, in offset order. A plan that is not answered costs nothing, so a rate
limit in the shell loses no message.

*Credit* is messages and bytes a consumer; see `Plan` for how bytes are cut. At most `span` messages lie between
`floor` and `next`; then only redeliveries are planned until the floor moves.

*Sessions.* Each join and each seek gives a consumer a new, higher session id. Answers (ack, nack, extend,
terminate) of another session or of an unknown consumer are ignored and counted as stale. An answer to a message
that consumer was never sent raises `NotDelivered`. An ack of what is acknowledged is a no-op, and so is a nack of
what the consumer no longer holds. An ack that comes late, after the message had come back, counts.

*Buffers.* A consumer that `reports` says what its application was handed. Until then a delivery has no time to be late:
it comes back, uncounted, when the consumer was not heard of for an ack timeout, when its application took nothing for so
long and another stands in (`set_aside`), and on request (`next_recall`, `given_back`) when another has nothing to do.

*Failures.* Nacks and ack timeouts count as failures, see `policy`; a lost consumer does not. Exhausted and
terminated messages are blocked, dropped or handed out as `DeadLetter` until the shell says `dead_lettered`.

*Moves.* What consumers hold goes along when the topic goes to another broker, where their places are kept for a moment.

*Types.* Exclusive: one consumer; another name is refused. Failover: the first by arrival is active, the next takes
over at once. Shared: slices in turn, or message by message if all consumers are `single`. Key-shared: `key_slots`.
In every type a second join of the same name takes over: its predecessor's session ends and what that held is ready
again. With `ordered_retry` nothing behind a message that waits for its retry is sent (key-shared: nothing of its
key); behind a blocked one nothing is sent in any case.

*Time* comes in as monotonic milliseconds that never fall. There are no timers: call `tick(now)` at
`next_deadline_ms()`. *Chance* (jitter) comes in as a callable.

*On error nothing has changed.* Methods that return effects list them in the order to carry them out.

*Durable* are snapshots and deltas (`snapshot`, `changes`, `restore`); sessions, credit and flights are not. What
was exhausted and not yet dropped or dead-lettered at a restart is delivered once more; its count goes on.
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
from pydanube_broker.subscription.kept_places import KeptPlaces
from pydanube_broker.subscription.members import Members, SubscriptionType
from pydanube_broker.subscription.planning import first_blocked, oldest_sent
from pydanube_broker.subscription.policy import FailurePolicy
from pydanube_broker.subscription.ranges import Range, check_ranges, normalise, subtract
from pydanube_broker.subscription.routes.key_slots import KeySlots
from pydanube_broker.subscription.sending import Sending
from pydanube_broker.subscription.set_aside import SettingAside
from pydanube_broker.subscription.sharing import Recall, next_recall
from pydanube_broker.subscription.statistics import BlockedBy, SubscriptionStatistics
from pydanube_broker.subscription.terms import ConsumerTerms
from pydanube_broker.subscription.window import Reopened, Window

# Messages between floor and next. Several times the SDK's usual credit, and 8 KiB were it one bitmap.
DEFAULT_SPAN_MESSAGES: Final = 65_536


class Subscription:
    """One subscription of one topic; see the module's text for the contract."""

    __slots__ = ("_aside", "_type", "answers", "failures", "members", "places", "sending", "window")

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
        """Open a subscription at a cursor; a new one has `CursorSnapshot(floor=start)`.

        Args:
            end: the topic's readable end, one past the last committed message.
            span_messages: most messages between floor and next, from 1.
            ordered_retry: None means the type's default: on for key-shared, else off.
            durable: False keeps no deltas (`changes` is None): plain readers.
            sessions: the ids to give, ascending, above those of an earlier life; None counts from 1.
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
        self.places = KeptPlaces(self.members, self.window, self._aside)

    @classmethod
    def restore(cls, type: SubscriptionType, cursor: CursorSnapshot, **options: object) -> Subscription:
        """Set the state after a restart: unacknowledged messages are to be sent, and counts continue."""
        return cls(type, cursor=cursor, **options)  # type: ignore[arg-type]

    @property
    def type(self) -> SubscriptionType:
        return self._type

    @property
    def floor(self) -> int:
        """The first message not acknowledged."""
        return self.window.floor

    @property
    def all_sent(self) -> bool:
        """Whether nothing is left to plan, whatever the credit."""
        return not self.window.ready and self.window.next >= self.sending.end

    @property
    def needs_keys(self) -> bool:
        """Whether `routed` needs the keys: key-shared while a consumer has key filters."""
        return self.members.slots is not None and self.members.slots.filtered

    def seats_of(self, slots: array[int]) -> bytearray | None:
        """Key-shared without filters: return the seat of each slot, one byte each; a hint, see `KeySlots`."""
        return None if self.members.slots is None else self.members.slots.seats_of(slots)

    def is_active(self, consumer_id: int) -> bool:
        """Return whether messages go to the consumer: for failover the first one, also after it took over its name."""
        if self._type is not SubscriptionType.FAILOVER:
            return True
        return (active := self.members.active) is not None and active.consumer_id == consumer_id

    def session_of(self, consumer_id: int) -> int | None:
        """The consumer's session, None if it is not attached."""
        consumer = self.members.find(consumer_id)
        return None if consumer is None else consumer.session

    def in_flight_of(self, consumer_id: int) -> int:
        """How many messages the consumer holds; 0 if it is not attached."""
        consumer = self.members.find(consumer_id)
        return 0 if consumer is None else consumer.in_flight

    def next_deadline_ms(self) -> int | None:
        """The next time at which `tick` has something to do; None if there is none."""
        times = (self.window.timers.next_ms(), self._aside.next_trial_ms, self.places.until_ms)
        return min((time for time in times if time is not None), default=None)

    def time_anew(self, wall_now_ms: int, now_ms: int) -> bool:
        """Shorten the waits of delayed messages that end earlier, after a step of the wall clock."""
        return self.window.time_anew(wall_now_ms, now_ms)

    # -- consumers -------------------------------------------------------------------------------------------

    def join(self, consumer_id: int, name: str, now_ms: int, terms: ConsumerTerms) -> list[Effect]:
        """Attach a consumer.

        Args:
            consumer_id: unique for this attachment.
            name: unique in the subscription; an attached consumer of the same name is taken over.
            terms: what it asks for.

        Raises:
            ConsumerBusy: exclusive, and a consumer of another name is attached.
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
        """Detach a consumer, for whatever reason; what it held is ready again at once. Unknown ids are ignored."""
        active = self.members.active
        self.members.leave(consumer_id)
        self._aside.settle(now_ms)
        return self._aside.activated(active)

    # -- sending ---------------------------------------------------------------------------------------------

    def grew(self, next_offset: int) -> None:
        """Set the topic's readable end; a smaller one is ignored."""
        if next_offset > self.sending.end:
            self.sending.end = next_offset

    def outlived(self, ranges: Sequence[Range]) -> None:
        """Acknowledge expired messages that nobody holds (`ttl_ms`); they count as dropped."""
        for start, end in ranges:
            self.failures.dropped += end - start
            self.window.close_range(start, end)

    def next_recall(self, now_ms: int) -> Recall | None:
        """Return what to take back from which consumer for one that has nothing to do; ask when `next_plan` gives nothing.

        Shared and key-shared only. Whoever was asked is not asked again for a moment, so it may be asked often.
        """
        return next_recall(self._type, self.members, now_ms)

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what is due: expire deliveries, make retries ready, ask again for dead letters. O(due)."""
        return self.places.due(now_ms) + self.failures.tick(now_ms)

    # -- moving the cursor -----------------------------------------------------------------------------------

    def seek(self, offset: int, now_ms: int) -> list[Effect]:
        """Begin a new generation at `offset`: counts, acknowledgements and flights are forgotten.

        Raises `InvalidArgument`: the offset is negative or beyond the end.
        """
        if not 0 <= offset <= self.sending.end:
            raise InvalidArgument(
                f"offset: {offset} is not in the topic; give 0 to {self.sending.end}",
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
        """Acknowledge the first `count` messages that are not acknowledged, delivered or not.

        Offsets that were never read are taken for messages. Sessions go on; late answers to what was skipped are
        no-ops.

        Returns:
            The range that was skipped over, None if there was nothing.
        """
        start, end = self.window.floor, self.end_of_oldest(count)
        if end <= start:
            return None
        self.window.close_range(start, end)
        return start, end

    def end_of_oldest(self, count: int) -> int:
        """Return one past the `count`-th message that is not acknowledged, or past the last; the floor if there is none."""
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
        """Deliver acknowledged messages once more, each at its own offset, and to this subscription only.

        A new generation begins, in which sessions, flights and counts of all other messages continue. In one generation
        the dead-letter topic takes one copy of a message: a message that fails again is copied again.

        Args:
            messages: ascending. What is not acknowledged is left out, and what the span has no room for.

        Returns:
            The offsets that are delivered again.

        Raises:
            Conflict: copies of dead letters are being written, whose answers name the present generation.
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
        """Return which redelivered messages are open and were not sent again."""
        return [each.offset for each in messages if self.window.is_unsent(each)]

    def skipped(self, start: int, end: int) -> int:
        """Acknowledge `[start, end)`: the log has no message there any more (retention, compaction).

        Returns:
            How many of them had been delivered and were open.
        """
        check_ranges([(start, end)])
        self.sending.end = max(self.sending.end, end)
        return self.window.close_range(start, end)

    # -- durable state ---------------------------------------------------------------------------------------

    def snapshot(self) -> CursorSnapshot:
        """Return everything that has to survive a restart."""
        return self.window.snapshot()

    def changes(self) -> CursorDelta | None:
        """Return the changes since the last `kept`, for the journal; None if there are none.

        Applied to the snapshot of then they make the snapshot of now. A record may find no room: `kept` is apart.
        """
        window = self.window
        if window.unsaved is None:
            return None
        if window.unsaved.whole:
            all_of_it = window.snapshot()
            return CursorDelta(
                generation=all_of_it.generation,
                floor=all_of_it.floor,
                acknowledged=all_of_it.acknowledged,
                attempts=all_of_it.attempts,
            )
        return window.unsaved.delta(window.generation, window.floor)

    def kept(self) -> None:
        """Note that the last `changes` were appended to the journal."""
        if self.window.unsaved is not None:
            self.window.unsaved.saved(self.window.floor)

    # -- looking ---------------------------------------------------------------------------------------------

    def marks(self) -> CursorState:
        """Return the part of the state that is counted here, which differs whenever anything here changed. O(1).

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
        """Facts at this moment. O(chunks)."""
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
