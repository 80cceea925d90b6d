"""Plans and their answers: which consumer gets which messages next, for each type."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

from pydanube_core.errors import InvalidArgument

from pydanube_broker.subscription.chunk import Chunk
from pydanube_broker.subscription.chunk_masks import ChunkMasks
from pydanube_broker.subscription.consumer import Consumer, Standing
from pydanube_broker.subscription.members import Members, SubscriptionType
from pydanube_broker.subscription.planning import Plan, Selection, barrier, first_ready, next_ready
from pydanube_broker.subscription.ranges import Range, head_of_mask, normalise, subtract, total
from pydanube_broker.subscription.routes.key_slots import UNROUTED, KeySlots, pack_slots
from pydanube_broker.subscription.routes.spreading import (
    MAX_ROUTED,
    NO_MEMBER,
    affordable,
    bytes_by_member,
    head_of,
    indices_for,
    indices_of,
    learn_keys,
    masks_for,
    round_robin,
)
from pydanube_broker.subscription.takers import NO_RANK
from pydanube_broker.subscription.window import Window

# Messages of one slice of a shared subscription: about one full batch, so that batches are seldom cut and
# turns are fair.
SLICE_MESSAGES: Final = 4_096
PLENTY_MESSAGES: Final = 256
# Key-shared: messages of one routed part. Each consumer gets its pieces of all batches in one frame.
ROUTED_MESSAGES: Final = 8_192
# Key-shared: messages that are read but held for their consumer. With more, slow consumers would cost fast
# ones too much.
HELD_MESSAGES: Final = 16_384


def _came_back_from(consumer: Consumer, chunk: Chunk, bit: int) -> bool:
    """Return whether other consumers are preferred for a message: this one gave it back, or does not answer."""
    on_trial = consumer.standing is not Standing.ANSWERING
    return on_trial or bool(chunk.not_first.get(consumer.consumer_id, 0) & bit)


class Sending:
    """Moves messages of a `Subscription` from unseen and ready to in flight, by plans and their answers."""

    __slots__ = (
        "_ordered_retry", "_span", "_turn", "_type", "end", "members", "redelivered", "unrouted", "window",
    )  # fmt: skip

    def __init__(
        self,
        type: SubscriptionType,
        window: Window,
        members: Members,
        *,
        end: int,
        span_messages: int,
        ordered_retry: bool,
    ) -> None:
        self._type = type
        self.window = window
        self.members = members
        self.end = end
        self._span = span_messages
        self._ordered_retry = ordered_retry
        self._turn = NO_RANK  # shared: rank of the consumer that was sent to last
        self.redelivered = 0
        self.unrouted = 0

    @property
    def room(self) -> int:
        """Return how many more messages fit between the floor and the next one."""
        return max(0, self.window.room(self._span))

    def next_plan(self, *, max_messages: int | None = None, end: int | None = None) -> Plan | None:
        """Propose the next messages to send. Return None if there is no message, no credit, or no room.

        Call it again after every answer until it returns None.

        Args:
            max_messages: maximum for this one plan (dispatch rate).
            end: plan as if the topic's readable end were here. Not for key-shared.
        """
        if max_messages is not None and max_messages < 1:
            return None
        if self.members.slots is not None:
            return self._plan_by_key(self.members.slots, max_messages)
        window = self.window
        again = None
        if self._type is SubscriptionType.SHARED:
            again = first_ready(window) if window.ready else None
            consumer = self._whose_turn(again)
        else:
            consumer = self.members.active
        if consumer is None or not consumer.has_credit:
            return None
        limit = consumer.room_messages
        if self._type is SubscriptionType.SHARED:
            limit = min(limit, 1 if consumer.single else self._share(consumer))
        if max_messages is not None and max_messages < limit:
            limit = max_messages
        stop = barrier(window, ordered_retry=self._ordered_retry)
        if window.ready:
            others_first = again is not None and not _came_back_from(consumer, *again)
            found = next_ready(
                window, limit=limit, barrier=stop, consumer_id=consumer.consumer_id if others_first else None
            )
            if found is not None:
                return self._plan(consumer, tuple(found[0]), limit, found[1] + 1, fresh=False)
        if stop is not None:
            return None  # all unseen messages lie behind the barrier
        if consumer.single and self._type is SubscriptionType.SHARED and not self.members.batched:
            return self._plan_routed(window.room(self._span), max_messages)
        end = window.unread_state.limit(window.next, self.end if end is None else end)
        room = window.room(self._span)
        if window.next >= end or room < 1:
            return None
        count = window.unread_state.count(window.next)
        return self._plan(consumer, ((window.next, end),), min(limit, room), count, fresh=True)

    def _plan_by_key(self, slots: KeySlots, max_messages: int | None) -> Plan | None:
        window = self.window
        if window.ready and slots.recheck_held:
            unknown = slots.unknown_keys(window)
            if unknown:
                unknown = head_of(unknown, max_messages or SLICE_MESSAGES)
                return self._plan(None, tuple(unknown), total(unknown), 1, fresh=False)
            queued = slots.queues.next(self.members.consumers, limit=max_messages or SLICE_MESSAGES)
            if queued is not None:
                consumer, picked = queued
                return self._plan(consumer, picked, picked.messages, 1, fresh=False)
            found = slots.next_held(window, limit=max_messages or SLICE_MESSAGES)
            if found is not None:
                consumer, ranges, delivered = found
                return self._plan(consumer, tuple(ranges), total(ranges), delivered + 1, fresh=False)
            slots.recheck_held = False
        room = min(window.room(self._span), HELD_MESSAGES - window.ready)
        return self._plan_routed(room, max_messages)

    def _plan_routed(self, room: int, max_messages: int | None) -> Plan | None:
        """Plan unseen messages to spread over all consumers with credit."""
        window = self.window
        end = window.unread_state.limit(window.next, self.end)
        takers = self._takers(end - window.next)
        if not takers or window.next >= end or room < 1:
            return None
        credit = sum(c.room_messages for c in takers)
        if self.members.slots is not None and not self.members.slots.filtered:
            # Messages read for consumers without credit are queued at little cost. With a limit equal to the
            # credit, one of four consumers would get a quarter of it, then a quarter of the rest: thirty
            # parts instead of one.
            credit *= len(self.members.consumers)
        most = SLICE_MESSAGES if self.members.slots is None else ROUTED_MESSAGES
        limit = min(credit, room, max_messages or most, most)
        sizes = [c.credit_bytes for c in takers]
        limited = [size for size in sizes if size is not None]
        plan = self._plan(
            None, ((window.next, end),), limit, window.unread_state.count(window.next), fresh=True
        )
        return plan._replace(max_bytes=sum(limited) if len(limited) == len(sizes) else None)

    def _plan(
        self, consumer: Consumer | None, ranges: Sequence[Range], limit: int, count: int, *, fresh: bool
    ) -> Plan:
        return Plan(
            ticket=self.window.version,
            consumer_id=None if consumer is None else consumer.consumer_id,
            session=None if consumer is None else consumer.session,
            ranges=ranges,
            max_messages=limit,
            max_bytes=None if consumer is None else consumer.credit_bytes,
            delivery_count=count,
            fresh=fresh,
        )

    def _takers(self, messages: int) -> Sequence[Consumer]:
        """Return the consumers with credit for one routed part of so many messages, the next in turn first.

        One more than messages, so that the turn goes on behind the last of them.
        """
        if self.members.slots is None:
            return self.members.takers.in_turn(self._turn, min(messages + 1, MAX_ROUTED))
        return [c for c in self.members.consumers if c.has_credit]

    def _share(self, consumer: Consumer) -> int:
        """Return the maximum messages of the next slice: the consumer's fair share."""
        takers = self.members.takers
        count = takers.count()
        if count < 2:
            return SLICE_MESSAGES
        window = self.window
        unseen = window.unread_state.limit(window.next, self.end) - window.next
        available = window.ready + min(unseen, window.room(self._span))
        fair = -(-(available + takers.in_flight) // count)
        # A consumer that holds plenty gets no small slice, because a slice costs more than its messages.
        least = 1 if consumer.in_flight < PLENTY_MESSAGES else PLENTY_MESSAGES
        return min(SLICE_MESSAGES, max(least, fair - consumer.in_flight))

    def _whose_turn(self, again: tuple[Chunk, int] | None) -> Consumer | None:
        """Return the consumer with credit that holds the fewest messages, or among equals the next in turn.

        A message that came back goes to a consumer that did not return it and is not on trial, if there is
        one.
        """
        returned = None if again is None else partial(_came_back_from, chunk=again[0], bit=again[1])
        return self.members.takers.least_loaded(self._turn, returned)

    def sent(
        self, plan: Plan, ranges: Sequence[Range], size_bytes: int, next_offset: int, now_ms: int
    ) -> bool:
        """Record the messages that were read and sent for a plan with a consumer.

        Args:
            ranges: the messages, ascending, inside the plan's ranges and within its limits. May be empty.
            size_bytes: bytes to charge to the consumer's credit.
            next_offset: end of the part of the log that was read, exclusive. Offsets of the plan below it
                that are in no range hold no message.

        Returns:
            False if the plan is no longer valid: do not send, plan again.

        Raises:
            InvalidArgument: the answer does not fit the plan, which is a bug of the shell.
        """
        window = self.window
        if plan.ticket != window.version:
            return False
        consumer = None if plan.consumer_id is None else self.members.find(plan.consumer_id)
        if consumer is None:
            raise InvalidArgument("a plan without consumer is answered by routed()", field="plan")
        messages = self._check_answer(plan, ranges, next_offset)
        if plan.fresh:
            for chunk, mask in window.place(ranges, next_offset):
                window.launch(chunk, mask, consumer, now_ms)
        elif type(ranges) is ChunkMasks:
            for chunk, mask in ranges.masks:
                window.take_ready(chunk, mask)
                window.launch(chunk, mask, consumer, now_ms)
        else:
            for chunk, mask in window.chunks.locate(ranges).items():
                window.take_ready(chunk, mask)
                window.launch(chunk, mask, consumer, now_ms)
            self._close_missing(plan, ranges, next_offset)
        if plan.delivery_count > 1:
            self.redelivered += messages
        consumer.launched(messages, size_bytes)
        if self._type is SubscriptionType.SHARED:
            self._turn = consumer.rank
        return True

    def hold(
        self,
        plan: Plan,
        ranges: Sequence[Range],
        next_offset: int,
        waits: Sequence[tuple[Range, int]],
        *,
        wall_ms: Sequence[int | None] | None = None,
        slots: Sequence[int] | None = None,
        keys: Sequence[str] | None = None,
    ) -> bool:
        """Answer a plan of unseen messages without sending. Those in `waits` are ready when due, others now.

        Return False if the plan is no longer valid. `wall_ms` has the end of each wait by the wall clock.
        Other arguments are as for `sent` and `routed`.
        """
        walls = [None] * len(waits) if wall_ms is None else wall_ms
        window, table = self.window, self.members.slots
        if plan.ticket != window.version:
            return False
        self._check_answer(plan, ranges, next_offset)
        placed = window.place(ranges, next_offset, None if slots is None else pack_slots(slots))
        if keys is not None and table is not None and table.filtered:
            learn_keys(placed, keys)
        for chunk, mask in placed:
            for ((start, end), due_ms), wall in zip(waits, walls, strict=True):
                if part := chunk.local(start, end) & mask:
                    mask ^= part
                    window.wait(chunk, part, due_ms, "delay", wall_ms=wall)
            if mask:
                window.make_ready(chunk, mask)
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
        """Assign each message of a part that was read for a plan without a consumer, and record it as sent.

        Args:
            ranges, next_offset: as for `sent`.
            slots: key-shared: the slot of each message, from the hash of its key.
            keys: key-shared, while `needs_keys`: each message's key (routing key, else producer name).
            sizes: bytes of each message, charged to byte credits. None charges nothing.

        Returns:
            The messages to send to each consumer, in order. Messages in no selection are held, acknowledged
            or planned again, and the shell discards them. None if the plan is no longer valid.

        Raises:
            InvalidArgument: the answer does not fit the plan, which is a bug of the shell.
        """
        window = self.window
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
        if self.members.slots is not None:
            if slots is None:
                raise InvalidArgument("slots: a key-shared subscription needs them", field="slots")
            return self._routed_by_key(
                self.members.slots, plan, ranges, next_offset, now_ms, slots, keys, sizes
            )
        consumers = self._takers(messages)
        assigned, turn = round_robin(consumers, messages, sizes)
        if len(assigned) < messages:
            ranges = head_of(ranges, len(assigned))
            next_offset = ranges[-1][1] if ranges else plan.start
        placed = window.place(ranges, next_offset)
        selections = [
            self._launch(plan, placed, assigned, index, indices_for(assigned, index), consumer, sizes, now_ms)
            for index, consumer in enumerate(consumers)
            if index in assigned
        ]
        if assigned:
            self._turn = consumers[turn].rank - 1  # the next one is that consumer
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
        window = self.window
        if not plan.fresh:
            self._learn_keys(table, plan, ranges, next_offset, keys)
            return []
        packed = pack_slots(slots)
        assigned = table.route(packed, keys)
        queues = not table.filtered and plan.delivery_count == 1
        member_bytes = bytes_by_member(assigned, sizes)
        chosen: list[tuple[Consumer, MutableSequence[int], int]] = []
        for consumer in self.members.consumers:
            if consumer.slot_index not in assigned:
                continue
            indices = indices_of(assigned, consumer.slot_index)
            together = None if member_bytes is None else member_bytes[consumer.slot_index]
            # A queue is sent as a whole, but a consumer of single messages is sent one of each slot.
            may_queue = queues and not consumer.single
            fitting = 0 if table.queues.has(consumer) else affordable(consumer, indices, sizes, together)
            if not may_queue:
                for index in indices[fitting:]:
                    assigned[index] = NO_MEMBER
                del indices[fitting:]
            if indices:
                chosen.append((consumer, indices, fitting))
        placed = window.place(ranges, next_offset, packed)
        if keys is not None and table.filtered:
            learn_keys(placed, keys)
        selections: list[Selection] = []
        queued: list[tuple[Chunk, int, int]] = []
        for consumer, indices, fitting in chosen:
            member = consumer.slot_index
            if fitting == len(indices):
                together = (
                    None if member_bytes is None or not queues or consumer.single else member_bytes[member]
                )
                selections.append(
                    self._launch(plan, placed, assigned, member, indices, consumer, sizes, now_ms, together)
                )
                continue
            left = fitting
            for chunk, mask in masks_for(placed, assigned, member):
                first = head_of_mask(mask, left) if left else 0
                left -= first.bit_count()
                if first:
                    window.launch(chunk, first, consumer, now_ms)
                if mask ^ first:
                    queued.append((chunk, mask ^ first, member))
            if fitting:
                selections.append(self._selected(plan, consumer, indices[:fitting], sizes))
        for chunk, mask, member in queued:
            window.queue(chunk, mask, member)
        if NO_MEMBER in assigned:
            for chunk, mask in masks_for(placed, assigned, NO_MEMBER):
                window.make_ready(chunk, mask)
        if UNROUTED in assigned:
            for chunk, mask in masks_for(placed, assigned, UNROUTED):
                self.unrouted += mask.bit_count()
                window.close(chunk, mask)
            window.raise_floor()
        return selections

    def _learn_keys(
        self,
        table: KeySlots,
        plan: Plan,
        ranges: Sequence[Range],
        next_offset: int,
        keys: Sequence[str] | None,
    ) -> None:
        """Store the keys of held messages, which were read again for their keys."""
        if keys is None:
            raise InvalidArgument("keys: key filters are in use. Give the key of every message", field="keys")
        at = 0
        for start, end in ranges:
            for chunk, mask in self.window.chunks.locate([(start, end)]).items():
                learn_keys([(chunk, mask)], keys[at : at + mask.bit_count()])
                at += mask.bit_count()
        self._close_missing(plan, ranges, next_offset)
        table.recheck_all()
        self.window.version += 1

    def _launch(
        self,
        plan: Plan,
        placed: list[tuple[Chunk, int]],
        assigned: bytearray,
        index: int,
        indices: Sequence[int],
        consumer: Consumer,
        sizes: Sequence[int] | None,
        now_ms: int,
        size_bytes: int | None = None,
    ) -> Selection:
        for chunk, mask in masks_for(placed, assigned, index):
            self.window.launch(chunk, mask, consumer, now_ms)
        return self._selected(plan, consumer, indices, sizes, size_bytes)

    def _selected(
        self,
        plan: Plan,
        consumer: Consumer,
        indices: Sequence[int],
        sizes: Sequence[int] | None,
        size_bytes: int | None = None,
    ) -> Selection:
        """Charge a consumer for its messages and return its selection. `size_bytes`: their sum, if known."""
        if size_bytes is None:
            size_bytes = 0 if sizes is None else sum(map(sizes.__getitem__, indices))
        consumer.launched(len(indices), size_bytes)
        if plan.delivery_count > 1:
            self.redelivered += len(indices)
        return Selection(
            consumer_id=consumer.consumer_id,
            session=consumer.session,
            indices=indices,
            delivery_count=plan.delivery_count,
        )

    def _check_answer(self, plan: Plan, ranges: Sequence[Range], next_offset: int) -> int:
        """Check that an answer fits its plan. Return its number of messages."""
        if type(ranges) is ChunkMasks:
            # Nothing is missing in such an answer: it contains all that the plan has below its end.
            fits = type(plan.ranges) is ChunkMasks and ranges.masks == plan.ranges.below(next_offset)
            messages, last = ranges.messages, ranges.end
        elif len(ranges) == len(plan.ranges) and list(ranges) == list(plan.ranges):
            # The answer is the whole plan: thousands of ranges, where a key-shared consumer is sent its held
            # messages.
            fits, messages, last = True, total(ranges), ranges[-1][1]
        elif len(ranges) == 1 and len(plan.ranges) == 1:
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
        """Acknowledge messages that are due for redelivery but no longer in the log."""
        if list(ranges) == list(plan.ranges):
            return
        looked_at = [(s, min(e, next_offset)) for s, e in plan.ranges if s < next_offset]
        missing = subtract(looked_at, normalise(ranges))
        if missing:
            for chunk, mask in self.window.chunks.locate(missing).items():
                self.window.close(chunk, mask)
            self.window.raise_floor()
