"""The subscription: one pure state machine for every type of delivery.

The contract
============

*Offsets.* Everything is said in half-open ranges of offsets. Everything below `floor` is acknowledged; between
`floor` and `next` each message is in exactly one state (`window`); what is at or above `next` was never sent. The
log may have holes: offsets without a message count as acknowledged.

*Sending* is plan, read, answer. `next_plan()` proposes what to send to whom; the shell reads the log and says what
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

*Failures.* Nacks and ack timeouts count as failures, see `policy`; a lost consumer does not. Exhausted and
terminated messages are blocked, dropped or handed out as `DeadLetter` until the shell says `dead_lettered`.

*Types.* Exclusive: one consumer; another name is refused. Failover: the first by arrival is active, the next takes
over at once. Shared: slices in turn, or message by message if all consumers are `single`. Key-shared: `key_slots`.
In every type a second join of the same name takes over: its predecessor's session ends and what that held is ready
again. With `ordered_retry` nothing behind a message that waits for its retry is sent (key-shared: nothing of its
key); behind a blocked one nothing is sent in any case.

*Time* comes in as monotonic milliseconds that never fall. There are no timers: call `tick(now)` at
`next_deadline_ms()`. *Chance* (jitter) comes in as a callable.

*On error nothing has changed.* Methods that return effects list them in the order to carry them out.

*Durable* are snapshots and deltas (`snapshot`, `take_dirty`, `restore`); sessions, credit and flights are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Final, assert_never

from pydanube_core.errors import ConsumerBusy, InvalidArgument

from pydanube_broker.delivery import events as ev
from pydanube_broker.delivery.consumer import Consumer, ConsumerStatistics
from pydanube_broker.delivery.cursor import CursorDelta, CursorSnapshot
from pydanube_broker.delivery.effects import (
    Activated,
    Blocked,
    DeadLetter,
    Dropped,
    Effect,
    Expired,
    SessionEnded,
    SessionReason,
    SessionStarted,
)
from pydanube_broker.delivery.key_slots import UNROUTED, KeySlots
from pydanube_broker.delivery.plan import Plan, Selection
from pydanube_broker.delivery.planning import barrier, first_blocked, next_ready
from pydanube_broker.delivery.policy import FailurePolicy, PoisonPolicy
from pydanube_broker.delivery.ranges import Range, check_ranges, normalise, ranges_of, subtract, total
from pydanube_broker.delivery.routing import (
    MAX_ROUTED,
    NOBODY,
    affordable,
    head_of,
    indices_for,
    learn_keys,
    masks_for,
    round_robin,
)
from pydanube_broker.delivery.window import Chunk, Flight, Poison, Wait, Window

__all__ = ["BlockedBy", "Subscription", "SubscriptionStatistics", "SubscriptionType"]

# Messages between floor and next. Four times the SDK's largest usual credit, and 8 KiB were it one bitmap.
DEFAULT_SPAN_MESSAGES: Final = 65_536
# One slice of a shared subscription: about one full batch, so that batches are seldom cut and turns are fair.
SLICE_MESSAGES: Final = 4_096
# Key-shared: messages read but held for their consumer; more would make slow consumers expensive for fast ones.
HELD_MESSAGES: Final = 16_384
ACK_TIMEOUT: Final = "ack timeout"


class SubscriptionType(StrEnum):
    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    FAILOVER = "failover"
    KEY_SHARED = "key-shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedBy:
    """The first message that blocks."""

    offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStatistics:
    """Facts for lag reports and screens; counters count since this object was made."""

    floor: int
    next_offset: int
    head: int
    generation: int
    in_flight: int
    ready: int  # came back, or held for its key's consumer; to be sent now
    pending_retries: int  # wait for their delay
    redelivered: int  # messages sent again
    acknowledged: int
    dead_lettered: int
    dropped: int
    expired: int
    stale_answers: int
    unrouted: int  # key-shared: acknowledged because no consumer accepts their key
    blocked_by: BlockedBy | None
    consumers: tuple[ConsumerStatistics, ...]


class Subscription:
    """One subscription of one topic; see the module's text for the contract."""

    __slots__ = (
        "_acknowledged",
        "_consumers",
        "_dead_lettered",
        "_dropped",
        "_expired",
        "_head",
        "_ordered_retry",
        "_poisoned",
        "_policy",
        "_random",
        "_redelivered",
        "_sessions",
        "_slots",
        "_span",
        "_stale",
        "_turn",
        "_type",
        "_unrouted",
        "_window",
    )

    def __init__(
        self,
        type: SubscriptionType,
        *,
        cursor: CursorSnapshot,
        head: int = 0,
        policy: FailurePolicy | None = None,
        span_messages: int = DEFAULT_SPAN_MESSAGES,
        ordered_retry: bool | None = None,
        durable: bool = True,
        first_session: int = 1,
        random: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Open a subscription at a cursor; a new one has `CursorSnapshot(floor=start)`.

        Args:
            head: the topic's readable end, one past the last committed message.
            span_messages: most messages between floor and next, from 1.
            ordered_retry: None means the type's default: on for key-shared, else off.
            durable: False keeps no deltas (`take_dirty` is None): plain readers.
            first_session: the first session id to give; seed it above those of an earlier life.
            random: uniform in [0, 1), for jitter.
        """
        if span_messages < 1:
            raise InvalidArgument(
                f"span_messages: {span_messages} is below 1", field="span_messages", value=span_messages
            )
        self._type = type
        self._window = Window(cursor, durable=durable)
        self._head = max(head, cursor.floor)
        self._policy = policy or FailurePolicy()
        self._span = span_messages
        self._ordered_retry = type is SubscriptionType.KEY_SHARED if ordered_retry is None else ordered_retry
        self._slots: KeySlots | None = None
        if type is SubscriptionType.KEY_SHARED:
            self._slots = self._window.listener = KeySlots(ordered_retry=self._ordered_retry)
        self._random = random
        self._sessions = first_session
        self._consumers: list[Consumer] = []  # by arrival
        self._turn = 0  # shared: the consumer whose turn is next
        self._poisoned: list[tuple[Chunk, int, int, str]] = []  # during one call: what to report
        self._acknowledged = self._redelivered = self._dead_lettered = self._dropped = 0
        self._expired = self._stale = self._unrouted = 0

    @classmethod
    def restore(cls, type: SubscriptionType, cursor: CursorSnapshot, **options: object) -> Subscription:
        """The subscription after a restart: what was unacknowledged is to be sent, counts go on."""
        return cls(type, cursor=cursor, **options)  # type: ignore[arg-type]

    # -- what is so -----------------------------------------------------------------------------------------------

    @property
    def type(self) -> SubscriptionType:
        return self._type

    @property
    def floor(self) -> int:
        """The first message not acknowledged."""
        return self._window.floor

    @property
    def head(self) -> int:
        return self._head

    @property
    def generation(self) -> int:
        """Rises with every seek."""
        return self._window.generation

    @property
    def policy(self) -> FailurePolicy:
        return self._policy

    @property
    def needs_keys(self) -> bool:
        """Whether `routed` needs the keys: key-shared while a consumer has key filters."""
        return self._slots is not None and self._slots.filtered

    def session_of(self, consumer_id: int) -> int | None:
        """The consumer's session, None if it is not attached."""
        consumer = self._find(consumer_id)
        return None if consumer is None else consumer.session

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None while there is nothing."""
        return self._window.next_timer_ms()

    # -- consumers ------------------------------------------------------------------------------------------------

    def join(
        self,
        consumer_id: int,
        name: str,
        now_ms: int,
        *,
        credit_messages: int = 0,
        credit_bytes: int | None = 0,
        window_messages: int | None = None,
        ack_timeout_ms: int | None = None,
        single: bool = False,
        key_filters: tuple[str, ...] = (),
    ) -> list[Effect]:
        """Attach a consumer.

        Args:
            consumer_id: unique for this attachment.
            name: unique in the subscription; an attached consumer of the same name is taken over.
            credit_messages, credit_bytes: first credit; bytes None: not limited.
            window_messages: for clients that grant nothing: so many messages in flight at most, credit comes back
                by itself when one leaves flight. The two credits above are then not used.
            ack_timeout_ms: None: the policy's; 0: deliveries do not expire.
            single: takes single messages (shared: strict round robin).
            key_filters: key-shared: globs with `*` and `?`; empty accepts every key.

        Raises:
            ConsumerBusy: exclusive, and a consumer of another name is attached.
            InvalidArgument: the id is taken by another name, or a number is negative.
        """
        for field, value in (
            ("credit_messages", credit_messages),
            ("credit_bytes", credit_bytes),
            ("ack_timeout_ms", ack_timeout_ms),
        ):
            if value is not None and value < 0:
                raise InvalidArgument(
                    f"{field}: {value} is negative; give 0 or more", field=field, value=value
                )
        if window_messages is not None and window_messages < 1:
            raise InvalidArgument(
                f"window_messages: {window_messages} is below 1",
                field="window_messages",
                value=window_messages,
            )
        if key_filters and self._type is not SubscriptionType.KEY_SHARED:
            raise InvalidArgument(
                f"key_filters: a {self._type.value} subscription has none; subscribe as key-shared",
                field="key_filters",
                value=list(key_filters),
            )
        same_id = self._find(consumer_id)
        if same_id is not None and same_id.name != name:
            raise InvalidArgument(
                f"consumer_id: {consumer_id} is attached as {same_id.name!r}",
                field="consumer_id",
                value=consumer_id,
            )
        place = next((i for i, c in enumerate(self._consumers) if c.name == name), None)
        if self._type is SubscriptionType.EXCLUSIVE and self._consumers and place is None:
            holder = self._consumers[0].name
            raise ConsumerBusy(
                f"the exclusive subscription is held by consumer {holder!r}; disconnect it, use its name to take "
                f"over, or subscribe as failover",
                field="consumer",
                value=name,
                holder=holder,
            )
        if self._slots is not None and place is None:
            self._slots.check_room()
        effects: list[Effect] = []
        old: Consumer | None = None
        if place is not None:
            old = self._consumers.pop(place)
            effects.append(
                SessionEnded(
                    consumer_id=old.consumer_id, session=old.session, reason=SessionReason.TAKEN_OVER
                )
            )
        consumer = Consumer(
            consumer_id=consumer_id,
            name=name,
            session=self._next_session(),
            ack_timeout_ms=self._policy.ack_timeout_ms if ack_timeout_ms is None else ack_timeout_ms,
            single=single,
            credit_messages=credit_messages if window_messages is None else window_messages,
            credit_bytes=credit_bytes if window_messages is None else None,
            credit_returns=window_messages is not None,
            key_filters=key_filters,
        )
        # A take-over keeps its place: a standby that reconnects does not go to the end of the line.
        self._consumers.insert(len(self._consumers) if place is None else place, consumer)
        if self._slots is not None:
            if old is None:
                self._slots.add(consumer, self._window)
            else:
                self._slots.replace(old, consumer, self._window)
        if old is not None:
            self._release(old)
        self._window.version += 1
        effects.append(self._session_started(consumer, SessionReason.JOINED))
        if self._type is SubscriptionType.FAILOVER and self._consumers[0] is consumer:
            effects.append(Activated(consumer_id=consumer_id))
        return effects

    def leave(self, consumer_id: int, now_ms: int) -> list[Effect]:
        """Detach a consumer, however it went; what it held is ready again at once. Unknown ids are ignored."""
        consumer = self._find(consumer_id)
        if consumer is None:
            return []
        was_active = self._consumers[0] is consumer
        self._consumers.remove(consumer)
        if self._slots is not None:
            self._slots.remove(consumer, self._window)
        self._release(consumer)
        self._window.version += 1
        if self._type is SubscriptionType.FAILOVER and was_active and self._consumers:
            return [Activated(consumer_id=self._consumers[0].consumer_id)]
        return []

    def grant(self, consumer_id: int, messages: int, size_bytes: int) -> None:
        """Add credit. Unknown ids are ignored: the consumer has left meanwhile."""
        if messages < 0 or size_bytes < 0:
            raise InvalidArgument(
                "credit is added, never taken away; give 0 or more", field="messages", value=messages
            )
        consumer = self._find(consumer_id)
        if consumer is not None:
            had_credit = consumer.has_credit
            consumer.credit_messages += messages
            if consumer.credit_bytes is not None:
                consumer.credit_bytes += size_bytes
            if self._slots is not None and not had_credit and consumer.has_credit:
                self._slots.stirred = True

    def pause(self, consumer_id: int) -> None:
        """Plan nothing more for a consumer until `resume`: its connection is full. Unknown ids are ignored."""
        consumer = self._find(consumer_id)
        if consumer is not None:
            consumer.paused = True

    def resume(self, consumer_id: int) -> None:
        """Plan for a paused consumer again. Unknown ids are ignored."""
        consumer = self._find(consumer_id)
        if consumer is not None and consumer.paused:
            consumer.paused = False
            if self._slots is not None and consumer.has_credit:
                self._slots.stirred = True

    def _find(self, consumer_id: int) -> Consumer | None:
        for consumer in self._consumers:
            if consumer.consumer_id == consumer_id:
                return consumer
        return None

    def _current(self, consumer_id: int, session: int) -> Consumer | None:
        consumer = self._find(consumer_id)
        if consumer is None or consumer.session != session:
            self._stale += 1
            return None
        return consumer

    def _next_session(self) -> int:
        session = self._sessions
        self._sessions += 1
        return session

    def _session_started(self, consumer: Consumer, reason: SessionReason) -> SessionStarted:
        return SessionStarted(
            consumer_id=consumer.consumer_id, session=consumer.session, offset=self.floor, reason=reason
        )

    def _release(self, consumer: Consumer) -> None:
        """Make everything ready that a consumer holds. O(chunks)."""
        for chunk in self._window.chunks:
            for flight in chunk.flights.copy():
                if flight.consumer is consumer:
                    mask = flight.mask
                    self._window.end_flight(flight, mask)
                    self._window.count_return(chunk, mask, failed=False)
                    self._window.make_ready(chunk, mask)
        if self._turn >= len(self._consumers):
            self._turn = 0

    # -- sending --------------------------------------------------------------------------------------------------

    def grew(self, next_offset: int) -> None:
        """The topic's readable end is `next_offset` now; a smaller one is ignored."""
        if next_offset > self._head:
            self._head = next_offset

    def next_plan(self, *, max_messages: int | None = None) -> Plan | None:
        """Propose what to send next; None while there is nothing, no credit, or no room.

        Call it again after every answer, until None. `max_messages` bounds this one plan (dispatch rate).
        """
        if max_messages is not None and max_messages < 1:
            return None
        if self._slots is not None:
            return self._plan_by_key(self._slots, max_messages)
        window = self._window
        if self._type is SubscriptionType.SHARED:
            consumer = self._whose_turn()
        else:
            consumer = self._consumers[0] if self._consumers and self._consumers[0].has_credit else None
        if consumer is None:
            return None
        limit = consumer.credit_messages
        if self._type is SubscriptionType.SHARED:
            limit = min(limit, 1 if consumer.single else SLICE_MESSAGES)
        if max_messages is not None and max_messages < limit:
            limit = max_messages
        stop = barrier(window, ordered_retry=self._ordered_retry)
        if window.ready:
            found = next_ready(window, limit=limit, barrier=stop)
            if found is not None:
                return self._plan(consumer, tuple(found[0]), limit, found[1] + 1, fresh=False)
        if stop is not None:
            return None  # whatever is unseen lies behind the barrier
        if self._type is SubscriptionType.SHARED and all(c.single for c in self._consumers):
            return self._plan_routed(window.room(self._span), max_messages)
        end = window.fresh_limit(self._head)
        room = window.room(self._span)
        if window.next >= end or room < 1:
            return None
        limit = min(limit, room)
        return self._plan(consumer, ((window.next, end),), limit, window.fresh_count(), fresh=True)

    def _plan_by_key(self, slots: KeySlots, max_messages: int | None) -> Plan | None:
        window = self._window
        if window.ready and slots.stirred:
            unknown = slots.unknown_keys(window)
            if unknown:
                return self._plan(None, tuple(unknown), total(unknown), 1, fresh=False)
            found = slots.next_held(window, limit=max_messages or SLICE_MESSAGES)
            if found is not None:
                consumer, ranges, delivered = found
                return self._plan(consumer, tuple(ranges), total(ranges), delivered + 1, fresh=False)
            slots.stirred = False
        room = min(window.room(self._span), HELD_MESSAGES - window.ready)
        return self._plan_routed(room, max_messages)

    def _plan_routed(self, room: int, max_messages: int | None) -> Plan | None:
        """A plan for unseen messages that are then spread over all consumers with credit."""
        window = self._window
        end = window.fresh_limit(self._head)
        dealt = self._dealt()
        if not dealt or window.next >= end or room < 1:
            return None
        limit = min(
            sum(c.credit_messages for c in dealt), room, max_messages or SLICE_MESSAGES, SLICE_MESSAGES
        )
        sizes = [c.credit_bytes for c in dealt]
        limited = [size for size in sizes if size is not None]
        return replace(
            self._plan(None, ((window.next, end),), limit, window.fresh_count(), fresh=True),
            max_bytes=sum(limited) if len(limited) == len(sizes) else None,
        )

    def _plan(
        self, consumer: Consumer | None, ranges: tuple[Range, ...], limit: int, count: int, *, fresh: bool
    ) -> Plan:
        return Plan(
            ticket=self._window.version,
            consumer_id=None if consumer is None else consumer.consumer_id,
            session=None if consumer is None else consumer.session,
            ranges=ranges,
            max_messages=limit,
            max_bytes=None if consumer is None else consumer.credit_bytes,
            delivery_count=count,
            fresh=fresh,
        )

    def _dealt(self) -> list[Consumer]:
        """The consumers with credit that one routed part may be dealt to, the next in turn first."""
        turns = self._consumers[self._turn :] + self._consumers[: self._turn]
        return [c for c in turns if c.has_credit][:MAX_ROUTED]

    def _whose_turn(self) -> Consumer | None:
        count = len(self._consumers)
        for step in range(count):
            consumer = self._consumers[(self._turn + step) % count]
            if consumer.has_credit:
                return consumer
        return None

    def sent(
        self, plan: Plan, ranges: Sequence[Range], size_bytes: int, next_offset: int, now_ms: int
    ) -> bool:
        """Take note of what was read and is being sent for a plan with a consumer.

        Args:
            ranges: the messages, ascending, inside the plan's ranges and within its limits; may be empty.
            size_bytes: what to charge to the consumer's credit.
            next_offset: how far the log was looked at, exclusive; offsets of the plan below it that are in no range
                hold no message.

        Returns:
            False if the plan no longer holds: do not send, plan again.

        Raises:
            InvalidArgument: the answer does not fit the plan; a bug of the shell.
        """
        window = self._window
        if plan.ticket != window.version:
            return False
        consumer = None if plan.consumer_id is None else self._find(plan.consumer_id)
        if consumer is None:
            raise InvalidArgument("a plan without consumer is answered by routed()", field="plan")
        messages = self._check_answer(plan, ranges, next_offset)
        if plan.fresh:
            for chunk, mask in window.place(ranges, next_offset):
                window.launch(chunk, mask, consumer, now_ms)
        else:
            for chunk, mask in window.locate(ranges).items():
                window.take_ready(chunk, mask)
                window.launch(chunk, mask, consumer, now_ms)
            self._close_missing(plan, ranges, next_offset)
        if plan.delivery_count > 1:
            self._redelivered += messages
        consumer.launched(messages, size_bytes)
        if self._type is SubscriptionType.SHARED:
            self._turn = (self._consumers.index(consumer) + 1) % len(self._consumers)
        return True

    def routed(
        self,
        plan: Plan,
        ranges: Sequence[Range],
        next_offset: int,
        now_ms: int,
        *,
        slots: Sequence[int] | None = None,
        keys: Sequence[str] | None = None,
        sizes: Sequence[int] | None = None,
    ) -> list[Selection] | None:
        """Decide who gets which message of a part read for a plan without consumer, and take note of it.

        Args:
            ranges, next_offset: as for `sent`.
            slots: key-shared: the slot of each message, from the hash of its key.
            keys: key-shared, while `needs_keys`: each message's key (routing key, else producer name).
            sizes: bytes of each message, to be charged to byte credits; None charges nothing.

        Returns:
            What to send to whom, in order. Messages in no selection are held, acknowledged or planned again; the
            shell forgets them. None if the plan no longer holds.

        Raises:
            InvalidArgument: the answer does not fit the plan; a bug of the shell.
        """
        window = self._window
        if plan.ticket != window.version:
            return None
        if plan.consumer_id is not None:
            raise InvalidArgument("a plan with a consumer is answered by sent()", field="plan")
        messages = self._check_answer(plan, ranges, next_offset)
        for field, column in (("slots", slots), ("keys", keys), ("sizes", sizes)):
            if column is not None and len(column) != messages:
                raise InvalidArgument(
                    f"{field}: {len(column)} for {messages} messages", field=field, value=len(column)
                )
        if self._slots is not None:
            if slots is None:
                raise InvalidArgument("slots: a key-shared subscription needs them", field="slots")
            return self._routed_by_key(self._slots, plan, ranges, next_offset, now_ms, slots, keys, sizes)
        consumers = self._dealt()
        who, turn = round_robin(consumers, messages, sizes)
        if len(who) < messages:
            ranges = head_of(ranges, len(who))
            next_offset = ranges[-1][1] if ranges else plan.start
        placed = window.place(ranges, next_offset)
        selections = [
            self._launch(plan, placed, who, index, indices_for(who, index), consumer, sizes, now_ms)
            for index, consumer in enumerate(consumers)
            if index in who
        ]
        if who:
            self._turn = self._consumers.index(consumers[turn])
        return selections

    def _routed_by_key(
        self,
        table: KeySlots,
        plan: Plan,
        ranges: Sequence[Range],
        next_offset: int,
        now_ms: int,
        slots: Sequence[int],
        keys: Sequence[str] | None,
        sizes: Sequence[int] | None,
    ) -> list[Selection]:
        window = self._window
        if not plan.fresh:
            self._learn_keys(plan, ranges, next_offset, keys)
            return []
        who = table.route(slots, keys)
        chosen: list[tuple[Consumer, list[int]]] = []
        for consumer in self._consumers:
            if consumer.slot_index not in who:
                continue
            indices = indices_for(who, consumer.slot_index)
            fitting = affordable(consumer, indices, sizes)
            for index in indices[fitting:]:
                who[index] = NOBODY
            if fitting:
                chosen.append((consumer, indices[:fitting]))
        placed = window.place(ranges, next_offset, slots)
        if keys is not None and table.filtered:
            learn_keys(placed, keys)
        selections = [
            self._launch(plan, placed, who, consumer.slot_index, indices, consumer, sizes, now_ms)
            for consumer, indices in chosen
        ]
        if NOBODY in who:
            for chunk, mask in masks_for(placed, who, NOBODY):
                window.make_ready(chunk, mask)
        if UNROUTED in who:
            for chunk, mask in masks_for(placed, who, UNROUTED):
                self._unrouted += mask.bit_count()
                window.close(chunk, mask)
            window.settle()
        return selections

    def _learn_keys(
        self, plan: Plan, ranges: Sequence[Range], next_offset: int, keys: Sequence[str] | None
    ) -> None:
        """Held messages were read again because their keys are needed now."""
        if keys is None:
            raise InvalidArgument("keys: key filters are in use; give the key of every message", field="keys")
        at = 0
        for start, end in ranges:
            for chunk, mask in self._window.locate([(start, end)]).items():
                learn_keys([(chunk, mask)], keys[at : at + mask.bit_count()])
                at += mask.bit_count()
        self._close_missing(plan, ranges, next_offset)
        self._window.version += 1

    def _launch(
        self,
        plan: Plan,
        placed: list[tuple[Chunk, int]],
        who: bytearray,
        index: int,
        indices: list[int],
        consumer: Consumer,
        sizes: Sequence[int] | None,
        now_ms: int,
    ) -> Selection:
        for chunk, mask in masks_for(placed, who, index):
            self._window.launch(chunk, mask, consumer, now_ms)
        consumer.launched(len(indices), 0 if sizes is None else sum(map(sizes.__getitem__, indices)))
        if plan.delivery_count > 1:
            self._redelivered += len(indices)
        return Selection(
            consumer_id=consumer.consumer_id,
            session=consumer.session,
            indices=indices,
            delivery_count=plan.delivery_count,
        )

    def _check_answer(self, plan: Plan, ranges: Sequence[Range], next_offset: int) -> int:
        """The number of messages in an answer that fits its plan."""
        if len(ranges) == 1 and len(plan.ranges) == 1:
            start, end = ranges[0]
            fits = plan.ranges[0][0] <= start < end <= plan.ranges[0][1]
            messages, last = end - start, end
        else:
            ascending = all(s < e for s, e in ranges) and all(a[1] <= b[0] for a, b in pairwise(ranges))
            fits = ascending and not subtract(normalise(ranges), plan.ranges)
            messages, last = total(ranges), ranges[-1][1] if ranges else plan.start
        if not fits or messages > plan.max_messages or not last <= next_offset <= plan.end_limit:
            raise InvalidArgument(
                f"the answer {list(ranges)[:4]}, next_offset {next_offset}, does not fit the plan: {plan}",
                field="ranges",
                value=[list(r) for r in ranges][:4],
            )
        return messages

    def _close_missing(self, plan: Plan, ranges: Sequence[Range], next_offset: int) -> None:
        """Messages that were due again and are no longer in the log count as acknowledged."""
        looked_at = [(s, min(e, next_offset)) for s, e in plan.ranges if s < next_offset]
        missing = subtract(looked_at, normalise(ranges))
        if missing:
            for chunk, mask in self._window.locate(missing).items():
                self._window.close(chunk, mask)
            self._window.settle()

    # -- answers of consumers -------------------------------------------------------------------------------------

    def ack(self, consumer_id: int, session: int, ranges: Sequence[Range]) -> int:
        """Acknowledge messages, in any order; how many of them were open.

        Raises:
            NotDelivered: names the first offset the consumer was never sent.
            InvalidArgument: a range is empty or inverted.
        """
        check_ranges(ranges)
        consumer = self._current(consumer_id, session)
        if consumer is None:
            return 0
        window = self._window
        found = window.locate(ranges)
        window.check_delivered(found, ranges, consumer)
        closed = 0
        for chunk, mask in found.items():
            closed += mask.bit_count()
            window.close(chunk, mask)
        window.settle()
        self._acknowledged += closed
        return closed

    def ack_delivered(self, ranges: Sequence[Range]) -> int:
        """Acknowledge what was ever sent to anyone, whoever holds it now; how many were open. The rest is ignored.

        For clients that name neither consumer nor session with an answer.

        Raises:
            InvalidArgument: a range is empty or inverted.
        """
        check_ranges(ranges)
        window, closed = self._window, 0
        for chunk, mask in window.locate(ranges).items():
            sent = chunk.returned()
            for flight in chunk.flights:
                sent |= flight.mask
            if hit := mask & sent:
                closed += hit.bit_count()
                window.close(chunk, hit)
        window.settle()
        self._acknowledged += closed
        return closed

    def nack_delivered(
        self, ranges: Sequence[Range], now_ms: int, *, delay_ms: int = 0, reason: str = ""
    ) -> list[Effect]:
        """Give back as failed what is in flight, whoever holds it; the rest is ignored. See `ack_delivered`.

        Raises:
            InvalidArgument: a range is empty or inverted, or the delay is negative.
        """
        if delay_ms < 0:
            raise InvalidArgument(f"delay_ms: {delay_ms} is negative", field="delay_ms", value=delay_ms)
        check_ranges(ranges)
        held = [
            (flight, flight.mask & mask)
            for chunk, mask in self._window.locate(ranges).items()
            for flight in chunk.flights
            if flight.mask & mask
        ]
        random = self._random() if held else 0.0
        for flight, mask in held:
            self._window.end_flight(flight, mask)
            self._fail(flight.chunk, mask, now_ms, delay_ms, reason or "nack", random)
        return self._report()

    def nack(
        self,
        consumer_id: int,
        session: int,
        ranges: Sequence[Range],
        now_ms: int,
        *,
        delay_ms: int = 0,
        reason: str = "",
    ) -> list[Effect]:
        """Give messages back as failed; they come again after the policy's delay or `delay_ms`, if that is longer.

        Raises:
            NotDelivered, InvalidArgument: as for `ack`.
        """
        if delay_ms < 0:
            raise InvalidArgument(f"delay_ms: {delay_ms} is negative", field="delay_ms", value=delay_ms)
        held = self._held(consumer_id, session, ranges)
        random = self._random() if held else 0.0
        for flight, mask in held:
            self._window.end_flight(flight, mask)
            self._fail(flight.chunk, mask, now_ms, delay_ms, reason or "nack", random)
        return self._report()

    def terminate(
        self, consumer_id: int, session: int, ranges: Sequence[Range], now_ms: int, *, reason: str = ""
    ) -> list[Effect]:
        """Give messages back as hopeless: the poison policy takes them now, whatever their count.

        Raises:
            NotDelivered, InvalidArgument: as for `ack`.
        """
        for flight, mask in self._held(consumer_id, session, ranges):
            self._window.end_flight(flight, mask)
            for part, deliveries, _ in self._window.count_return(flight.chunk, mask, failed=True):
                self._poison(flight.chunk, part, deliveries, reason or "terminated", terminated=True)
        return self._report()

    def extend(
        self, consumer_id: int, session: int, ranges: Sequence[Range], extension_ms: int, now_ms: int
    ) -> int:
        """Let deliveries expire only `extension_ms` from now; how many. Those that do not expire are left alone.

        Raises:
            NotDelivered, InvalidArgument: as for `ack`.
        """
        if extension_ms < 1:
            raise InvalidArgument(
                f"extension_ms: {extension_ms} is below 1", field="extension_ms", value=extension_ms
            )
        extended = 0
        for flight, mask in self._held(consumer_id, session, ranges):
            if flight.deadline_ms is not None:
                self._window.extend(flight, mask, now_ms + extension_ms)
                extended += mask.bit_count()
        return extended

    def _held(self, consumer_id: int, session: int, ranges: Sequence[Range]) -> list[tuple[Flight, int]]:
        """The messages of the ranges that the consumer holds, by flight."""
        check_ranges(ranges)
        consumer = self._current(consumer_id, session)
        if consumer is None:
            return []
        found = self._window.locate(ranges)
        self._window.check_delivered(found, ranges, consumer)
        return [
            (flight, flight.mask & mask)
            for chunk, mask in found.items()
            for flight in chunk.flights
            if flight.consumer is consumer and flight.mask & mask
        ]

    # -- failures -------------------------------------------------------------------------------------------------

    def _fail(self, chunk: Chunk, mask: int, now_ms: int, asked_ms: int, reason: str, random: float) -> None:
        for part, deliveries, failures in self._window.count_return(chunk, mask, failed=True):
            if self._policy.exhausted(failures):
                self._poison(chunk, part, deliveries, reason)
                continue
            delay = self._policy.delay_ms(failures, asked_ms=asked_ms, random=random)
            if delay:
                self._window.wait(chunk, part, now_ms + delay, reason)
            else:
                self._window.make_ready(chunk, part)

    def _poison(
        self,
        chunk: Chunk,
        mask: int,
        deliveries: int,
        reason: str,
        *,
        terminated: bool = False,
        attempts: int = 0,
    ) -> None:
        """Deal with stateless messages by the poison policy."""
        match self._policy.poison_policy:
            case PoisonPolicy.BLOCK | PoisonPolicy.DEAD_LETTER as policy:
                poison = self._window.poison(
                    chunk, mask, reason, deliveries, blocked=policy is PoisonPolicy.BLOCK
                )
                poison.terminated = terminated
                poison.attempts = attempts
            case PoisonPolicy.DROP:
                self._dropped += mask.bit_count()
                self._window.close(chunk, mask)
            case _:
                assert_never(self._policy.poison_policy)
        self._poisoned.append((chunk, mask, deliveries, reason))

    def _report(self) -> list[Effect]:
        """The effects of what was poisoned in this call; settles the floor."""
        if not self._poisoned:
            return []
        self._window.settle()
        groups: dict[tuple[int, str], list[Range]] = {}
        for chunk, mask, deliveries, reason in self._poisoned:
            groups.setdefault((deliveries, reason), []).extend(ranges_of(mask, chunk.start))
        self._poisoned.clear()
        effects: list[Effect] = []
        for (deliveries, reason), found in groups.items():
            ranges = tuple(normalise(found))
            match self._policy.poison_policy:
                case PoisonPolicy.BLOCK:
                    effects.append(Blocked(ranges=ranges, reason=reason, delivery_count=deliveries))
                case PoisonPolicy.DROP:
                    effects.append(Dropped(ranges=ranges, reason=reason, delivery_count=deliveries))
                case PoisonPolicy.DEAD_LETTER:
                    effects.append(
                        DeadLetter(
                            generation=self.generation,
                            ranges=ranges,
                            reason=reason,
                            delivery_count=deliveries,
                        )
                    )
                case _:
                    assert_never(self._policy.poison_policy)
        return effects

    def dead_lettered(self, generation: int, ranges: Sequence[Range]) -> int:
        """The dead-letter copies are durable: acknowledge the originals; how many."""
        if generation != self.generation:
            return 0
        done = 0
        for poison, mask in self._dying(ranges):
            self._window.close(poison.chunk, mask)
            done += mask.bit_count()
        self._window.settle()
        self._dead_lettered += done
        return done

    def dead_letter_failed(self, generation: int, ranges: Sequence[Range], now_ms: int) -> None:
        """The copies could not be made: `tick` asks for them again after the policy's delay."""
        if generation != self.generation:
            return
        for poison, mask in self._dying(ranges):
            attempts = poison.attempts + 1
            self._window.end_poison(poison, mask)
            again = self._window.poison(poison.chunk, mask, poison.reason, poison.deliveries, blocked=False)
            again.attempts = attempts
            again.terminated = poison.terminated
            delay = self._policy.delay_ms(attempts, asked_ms=0, random=self._random())
            self._window.retry_dead_letter_at(again, now_ms + delay)

    def _dying(self, ranges: Sequence[Range]) -> list[tuple[Poison, int]]:
        return [
            (poison, poison.mask & mask)
            for chunk, mask in self._window.locate(ranges).items()
            for poison in chunk.poisons
            if not poison.blocked and poison.mask & mask
        ]

    def set_policy(self, policy: FailurePolicy, now_ms: int) -> list[Effect]:
        """Apply a new policy at once; what is blocked is judged again by it.

        Ack timeouts of consumers that are attached stay as they are.
        """
        self._policy = policy
        for chunk in self._window.chunks.copy():
            for poison in chunk.poisons.copy():
                if not poison.blocked:
                    continue
                mask = poison.mask
                self._window.end_poison(poison, mask)
                for (deliveries, failures), part in chunk.by_history(mask):
                    if poison.terminated or policy.exhausted(failures):
                        self._poison(chunk, part, deliveries, poison.reason, terminated=poison.terminated)
                    else:
                        self._window.make_ready(chunk, part)
        return self._report()

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what is due: expire deliveries, make retries ready, ask again for dead letters. O(due)."""
        due = self._window.due(now_ms)
        if not due:
            return []
        expired: dict[int, list[Range]] = {}
        random: float | None = None
        for timer in due:
            mask = timer.mask
            match timer:
                case Flight():
                    random = self._random() if random is None else random
                    found = expired.setdefault(timer.consumer.consumer_id, [])
                    found += ranges_of(mask, timer.chunk.start)
                    self._expired += mask.bit_count()
                    self._window.end_flight(timer, mask)
                    self._fail(timer.chunk, mask, now_ms, 0, ACK_TIMEOUT, random)
                case Wait():
                    self._window.end_wait(timer, mask)
                    self._window.make_ready(timer.chunk, mask)
                case Poison():
                    self._window.end_poison(timer, mask)
                    self._poison(
                        timer.chunk,
                        mask,
                        timer.deliveries,
                        timer.reason,
                        terminated=timer.terminated,
                        attempts=timer.attempts,
                    )
                case _:
                    assert_never(timer)
        effects: list[Effect] = [
            Expired(consumer_id=consumer_id, ranges=tuple(normalise(ranges)))
            for consumer_id, ranges in expired.items()
        ]
        return effects + self._report()

    # -- moving the cursor ----------------------------------------------------------------------------------------

    def seek(self, offset: int, now_ms: int) -> list[Effect]:
        """Begin a new generation at `offset`, back or forth: counts, acknowledgements and flights are forgotten.

        Raises:
            InvalidArgument: the offset is negative or beyond the head.
        """
        if not 0 <= offset <= self._head:
            raise InvalidArgument(
                f"offset: {offset} is not in the topic; give 0 to {self._head}", field="offset", value=offset
            )
        self._window.reset(offset)
        if self._slots is not None:
            self._slots.clear()
        effects: list[Effect] = []
        for consumer in self._consumers:
            consumer.session = self._next_session()
            effects.append(self._session_started(consumer, SessionReason.SEEK))
        return effects

    def purge(self, now_ms: int) -> list[Effect]:
        """Seek to the head: everything published so far counts as acknowledged."""
        return self.seek(self._head, now_ms)

    def skip(self, count: int) -> Range | None:
        """Acknowledge the first `count` messages that are not acknowledged, delivered or not.

        Offsets that were never read are taken for messages. Sessions go on; late answers to what was skipped are
        no-ops.

        Returns:
            The range that was skipped over, None if there was nothing.
        """
        if count < 1:
            raise InvalidArgument(f"count: {count} is below 1", field="count", value=count)
        window = self._window
        start, end, left = window.floor, window.floor, count
        for low, high in subtract([(window.floor, self._head)], normalise(self._closed_ranges())):
            take = min(left, high - low)
            end = low + take
            left -= take
            if not left:
                break
        if end <= start:
            return None
        window.close_range(start, end)
        return start, end

    def _closed_ranges(self) -> list[Range]:
        return list(self._window.snapshot().acknowledged)

    def skipped(self, start: int, end: int) -> int:
        """The log holds no message in `[start, end)` any more (retention, compaction): they count as acknowledged.

        Returns:
            How many of them had been delivered and were open.
        """
        check_ranges([(start, end)])
        self._head = max(self._head, end)
        return self._window.close_range(start, end)

    # -- durable state --------------------------------------------------------------------------------------------

    def snapshot(self) -> CursorSnapshot:
        """All that must survive a restart."""
        return self._window.snapshot()

    def take_dirty(self) -> CursorDelta | None:
        """What changed since the last call, for the journal; None if nothing did.

        `apply_delta(last snapshot, delta)` is the snapshot now.
        """
        return self._window.take_dirty()

    # -- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: ev.Event, now_ms: int) -> list[Effect]:
        """Advance the subscription by one event; the same as calling the method the event names."""
        match event:
            case ev.LogGrew():
                self.grew(event.next_offset)
            case ev.CreditGranted():
                self.grant(event.consumer_id, event.messages, event.size_bytes)
            case ev.Acked():
                self.ack(event.consumer_id, event.session, event.ranges)
            case ev.Nacked():
                return self.nack(
                    event.consumer_id,
                    event.session,
                    event.ranges,
                    now_ms,
                    delay_ms=event.delay_ms,
                    reason=event.reason,
                )
            case ev.Extended():
                self.extend(event.consumer_id, event.session, event.ranges, event.extension_ms, now_ms)
            case ev.Terminated():
                return self.terminate(
                    event.consumer_id, event.session, event.ranges, now_ms, reason=event.reason
                )
            case ev.ConsumerJoined():
                return self.join(
                    event.consumer_id,
                    event.name,
                    now_ms,
                    credit_messages=event.credit_messages,
                    credit_bytes=event.credit_bytes,
                    window_messages=event.window_messages,
                    ack_timeout_ms=event.ack_timeout_ms,
                    single=event.single,
                    key_filters=event.key_filters,
                )
            case ev.ConsumerLeft():
                return self.leave(event.consumer_id, now_ms)
            case ev.Skipped():
                self.skipped(event.start, event.end)
            case ev.Sought():
                return self.seek(event.offset, now_ms)
            case ev.SkippedMessages():
                self.skip(event.count)
            case ev.Purged():
                return self.purge(now_ms)
            case ev.PolicyChanged():
                return self.set_policy(event.policy, now_ms)
            case ev.DeadLettered():
                self.dead_lettered(event.generation, event.ranges)
            case ev.DeadLetterFailed():
                self.dead_letter_failed(event.generation, event.ranges, now_ms)
            case ev.Tick():
                return self.tick(now_ms)
            case _:
                assert_never(event)
        return []

    # -- looking --------------------------------------------------------------------------------------------------

    def statistics(self, now_ms: int) -> SubscriptionStatistics:
        """Facts at this moment. O(chunks)."""
        window = self._window
        oldest: dict[int, int] = {}
        for chunk in window.chunks:
            for flight in chunk.flights:
                key = flight.consumer.consumer_id
                oldest[key] = min(oldest.get(key, flight.sent_at_ms), flight.sent_at_ms)
        blocked = first_blocked(window)
        return SubscriptionStatistics(
            floor=window.floor,
            next_offset=window.next,
            head=self._head,
            generation=window.generation,
            in_flight=window.in_flight,
            ready=window.ready,
            pending_retries=window.waiting,
            redelivered=self._redelivered,
            acknowledged=self._acknowledged,
            dead_lettered=self._dead_lettered,
            dropped=self._dropped,
            expired=self._expired,
            stale_answers=self._stale,
            unrouted=self._unrouted,
            blocked_by=None if blocked is None else BlockedBy(offset=blocked[0], reason=blocked[1].reason),
            consumers=tuple(
                ConsumerStatistics(
                    consumer_id=c.consumer_id,
                    name=c.name,
                    session=c.session,
                    active=self._type is not SubscriptionType.FAILOVER or c is self._consumers[0],
                    credit_messages=c.credit_messages,
                    credit_bytes=c.credit_bytes,
                    in_flight=c.in_flight,
                    delivered=c.delivered,
                    oldest_in_flight_age_ms=now_ms - oldest[c.consumer_id]
                    if c.consumer_id in oldest
                    else None,
                    slots=None if self._slots is None else self._slots.owned(c),
                )
                for c in self._consumers
            ),
        )

    def check(self) -> None:
        """Assert the invariants; for tests."""
        self._window.check()
        if self._slots is not None:
            self._slots.check(self._window)
        assert self._window.room(self._span) >= 0
        for consumer in self._consumers:
            held = sum(
                f.mask.bit_count() for c in self._window.chunks for f in c.flights if f.consumer is consumer
            )
            assert consumer.in_flight == held
            assert consumer.credit_messages >= 0
