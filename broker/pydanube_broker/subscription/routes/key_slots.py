"""Key-shared: which consumer owns each slot, and which slots may be sent now.

A key hashes to one of 65 536 slots. Ownership, moves and order apply to slots. A slot is *free* when its next
message may go straight to its owner. It is not free while one of its messages

- is held, because it was read while its owner had no credit, or because it came back. It is sent before later ones,
- stops the slot, because it waits for its retry (with `ordered_retry`) or is blocked. Later messages wait behind it,
- drains: the slot has a new owner, and the former owner has not answered the message yet,
- is unanswered by a consumer that takes single messages (an official client). Such a client gives nothing back, so a
  second message would be handled before a failed one comes again.

A slot without an owner is assigned to the consumer with the fewest slots. A new consumer takes its fair share from the
others, idle slots first. If a consumer is lost, its slots have no owner, and the messages it held are ready again and are
sent first. So the messages of a key are sent in order, and never to two consumers concurrently, also through joins, leaves,
crashes and retries.

*Filters.* With key filters the owner depends on the slot and on the set of consumers that accept the key.
Whenever the consumers change while filters are in use, all owners are forgotten and every slot with messages
in flight drains. That is rare, simple, and keeps the order. A message whose key no consumer accepts when it
is first read is acknowledged. A message that was accepted once waits until a consumer accepts its key again,
because dropping it would lose messages that a crashed consumer had not processed.

State is kept only for slots that are not free. While all slots are free, a message costs one look-up in a table.

*Queues.* Consumers that are slower than the broker have no credit most of the time, so messages that wait
only for their owner's credit must cost no more than those that go straight. They are *queued*: their slots
stay free, and chunks keep one mask per owner, which is sent as a whole when credit comes. While an owner has
queued messages, later messages for it are queued behind them. Before any event about single slots (a message
comes back, a retry, a blocked message, members or filters change) the queues are dissolved: the messages
become held ones, slot by slot. Each message is moved so at most once.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence
from itertools import compress
from typing import Final

from pydanube_core.errors import InvalidArgument, LimitReached

from pydanube_broker.subscription.chunk import Chunk
from pydanube_broker.subscription.chunk_list import ChunkList
from pydanube_broker.subscription.consumer import Consumer
from pydanube_broker.subscription.planning import deliveries_at
from pydanube_broker.subscription.ranges import Range, digits_of, ranges_of
from pydanube_broker.subscription.routes.key_filters import key_pattern
from pydanube_broker.subscription.routes.key_lines import KeyLines, slots_of
from pydanube_broker.subscription.routes.key_queues import KeyQueues
from pydanube_broker.subscription.routes.spreading import MAX_ROUTED, NO_MEMBER, RouteTable
from pydanube_broker.subscription.window import Window

SLOTS: Final = 65_536
UNROUTED: Final = 254  # no consumer accepts the key
_CACHED_KEYS: Final = 65_536  # keys whose filters have been matched, then the cache is cleared

assert MAX_ROUTED <= UNROUTED < NO_MEMBER


def pack_slots(slots: Sequence[int]) -> array[int]:
    """Return the slots of a part as 16-bit numbers. Raises `InvalidArgument` if one is out of range."""
    try:
        return array("H", slots)
    except (OverflowError, TypeError) as error:
        raise InvalidArgument(f"slots: a slot is 0 to {SLOTS - 1}", field="slots") from error


class KeySlots:
    """The slots of one key-shared subscription. Its window reports all state changes of messages."""

    __slots__ = (
        "_accept", "_aside", "_draining", "_lines", "_members", "_owned", "_owner", "_patterns", "_route",
        "_stops", "_stops_by_retry", "queues", "recheck_held", "unanswered",
    )  # fmt: skip

    def __init__(self, *, ordered_retry: bool) -> None:
        self._members: list[Consumer | None] = []  # by slot index
        self._patterns: list[re.Pattern[str] | None] = []
        self._aside: set[int] = set()  # slot indices of members that are set aside
        self._owned: list[int] = []  # units owned, by slot index
        # A unit is a slot, or with filters slot + (accepting members << 16).
        self._owner: dict[int, int] = {}
        self._route = RouteTable()
        self._lines = KeyLines()
        self._stops: dict[int, list[int]] = {}  # slot -> offsets that stop it, ascending
        self._draining: dict[int, int] = {}  # slot -> messages in flight with its former owners
        self.unanswered: dict[int, int] = {}  # slot -> messages in flight with consumers of single messages
        self.queues = KeyQueues()
        self._accept: dict[str, int] = {}
        self._stops_by_retry = ordered_retry
        self.recheck_held = False  # an event may allow a held message to be sent

    @property
    def filtered(self) -> bool:
        """Return whether keys are needed to route."""
        return any(pattern is not None for pattern in self._patterns)

    def owned(self, consumer: Consumer) -> int:
        return self._owned[consumer.slot_index]

    # -- members --------------------------------------------------------------------------------------------------

    def check_room(self) -> None:
        """Check that another consumer fits: a part is routed with one byte a message.

        Raises `LimitReached`.
        """
        if sum(m is not None for m in self._members) >= MAX_ROUTED:
            raise LimitReached(
                f"a key-shared subscription takes {MAX_ROUTED} consumers. Use another subscription",
                field="consumer",
                value=MAX_ROUTED,
            )

    def add(self, consumer: Consumer, window: Window) -> None:
        """Add a consumer and give it its share of the slots."""
        before = self.filtered
        free = next((i for i, m in enumerate(self._members) if m is None), len(self._members))
        if free == len(self._members):
            self._members.append(None)
            self._patterns.append(None)
            self._owned.append(0)
            self.queues.add_member()
            self._lines.add_member()
        self._dissolve()
        self._set_member(free, consumer)
        if before or self.filtered:
            self._forget_owners(window)
        else:
            self._share(free, window)
        self.recheck_all()

    def own_in_flight(self, window: Window) -> None:
        """Give each slot with messages in flight to the consumer that holds them. O(in flight).

        The topic's former owner sent these messages.
        """
        if self.filtered:
            self._forget_owners(window)
            return
        flying = self._in_flight(window)
        for chunk in window.chunks:
            for flight in chunk.flights:
                member = flight.consumer.slot_index
                for slot in set(slots_of(chunk, flight.mask)):
                    owner = self._owner.setdefault(slot, member)
                    if owner != member:
                        self._draining[slot] = flying[slot]
        self._owned = [0] * len(self._members)
        for owner in self._owner.values():
            self._owned[owner] += 1

    def took_over(self, consumer: Consumer) -> None:
        """Note the messages that a consumer took over with a reserved place. O(its messages)."""
        if consumer.single:
            for flight in consumer.flights:
                self.flight_added(flight.chunk, flight.mask, consumer)

    def replace(self, old: Consumer, new: Consumer, window: Window) -> None:
        """Give a consumer the slot index and the slots of the consumer that it takes over."""
        before = self.filtered
        self._dissolve()
        self._set_member(old.slot_index, new)
        if old.set_aside:
            self.take_back(new, window)
        # With equal filters no key changes its owner, so a consumer that reconnects causes no draining.
        elif (before or self.filtered) and new.key_filters != old.key_filters:
            self._forget_owners(window)
        self.recheck_all()

    def set_aside(self, consumer: Consumer, window: Window) -> None:
        """Give a consumer's slots to others. Call it before the messages it holds are made ready."""
        self._dissolve()
        self._aside.add(consumer.slot_index)
        self._vacate(consumer.slot_index, window, filtered=self.filtered)

    def take_back(self, consumer: Consumer, window: Window) -> None:
        """Give a consumer that was set aside its share again."""
        self._dissolve()
        self._aside.discard(consumer.slot_index)
        if self.filtered:
            self._forget_owners(window)
        else:
            self._share(consumer.slot_index, window)
        self.recheck_all()

    def remove(self, consumer: Consumer, window: Window) -> None:
        """Remove a consumer. Call it before the messages it holds are made ready."""
        index = consumer.slot_index
        before = self.filtered
        self._dissolve()
        self._members[index] = None
        self._patterns[index] = None
        self._aside.discard(index)
        self._vacate(index, window, filtered=before)

    def _vacate(self, index: int, window: Window, *, filtered: bool) -> None:
        """Free the slots of a member."""
        if filtered:
            self._forget_owners(window)
        else:
            for slot in [s for s, owner in self._owner.items() if owner == index]:
                del self._owner[slot]
                self._route.unset(slot)
            self._owned[index] = 0
        if not self._owner:
            self._owner.clear()  # an emptied dictionary keeps its memory until it is cleared
            self._route.clear()
        self.recheck_all()

    def recheck_all(self) -> None:
        """Check all held messages again, because owners or known keys changed."""
        self._lines.recheck_all()
        self.recheck_held = True

    def _set_member(self, index: int, consumer: Consumer) -> None:
        consumer.slot_index = index
        self._members[index] = consumer
        self._patterns[index] = key_pattern(consumer.key_filters) if consumer.key_filters else None

    def _share(self, index: int, window: Window) -> None:
        """Move slots from the others until the new member has its share. O(slots + in flight)."""
        members = sum(m is not None for m in self._members) - len(self._aside)
        share = len(self._owner) // members
        if share == 0:
            return
        flying = self._in_flight(window)
        by_owner: dict[int, list[int]] = {}
        for slot, owner in self._owner.items():
            by_owner.setdefault(owner, []).append(slot)
        wanted = share
        for owner, slots in sorted(by_owner.items(), key=lambda item: -len(item[1])):
            surplus = min(len(slots) - share, wanted)
            if surplus <= 0:
                break
            slots.sort(key=lambda slot: slot in flying)  # stable: idle ones first
            for slot in slots[:surplus]:
                self._owner[slot] = index
                if slot in flying:
                    self._draining[slot] = flying[slot]
                    self._route.unset(slot)
                elif self._route.get(slot) != NO_MEMBER:
                    self._route.set(slot, index)
            self._owned[owner] -= surplus
            self._owned[index] += surplus
            wanted -= surplus

    def _forget_owners(self, window: Window) -> None:
        self._owner.clear()
        self._route.clear()
        self._accept.clear()
        self._owned = [0] * len(self._members)
        self._draining = self._in_flight(window)

    def _in_flight(self, window: Window) -> dict[int, int]:
        counts: dict[int, int] = {}
        for chunk in window.chunks:
            for flight in chunk.flights:
                for slot, count in Counter(slots_of(chunk, flight.mask)).items():
                    counts[slot] = counts.get(slot, 0) + count
        return counts

    def draining(self, chunk: Chunk, mask: int) -> int:
        """Return the messages of a mask, all in flight, for which a slot with a new owner waits."""
        if not self._draining:
            return 0
        found = 0
        for place in compress(range(mask.bit_length()), digits_of(mask)):
            if chunk.slots[place] in self._draining:
                found |= 1 << place
        return found

    def clear(self) -> None:
        """Forget the states of all messages, after a seek. Owners stay."""
        self.queues.clear()
        self._lines.clear()
        self._stops.clear()
        self._draining.clear()
        self.unanswered.clear()
        self._route.clear()
        if not self.filtered:
            for slot, owner in self._owner.items():
                self._route.set(slot, owner)
        self.recheck_held = True

    def members_of(self, slots: array[int]) -> bytearray | None:
        """Return the index of each free slot's owner, `NO_MEMBER` for other slots. None with filters.

        Used to lay messages out.
        """
        return None if self.filtered else self._route.look_up(slots)

    # -- routing unseen messages ----------------------------------------------------------------------------------

    def route(self, slots: array[int], keys: Sequence[str] | None) -> bytearray:
        """Assign each message of a part that is read for the first time to a consumer, regardless of credit.

        Returns:
            One byte a message: its consumer's slot index, `NO_MEMBER` to hold it, `UNROUTED` to acknowledge it.

        Raises:
            InvalidArgument: filters are in use and there are no keys. Nothing changed.
        """
        if self.filtered:
            if keys is None or len(keys) != len(slots):
                raise InvalidArgument(
                    "keys: key filters are in use. Give the key of every message", field="keys"
                )
            return self._route_by_key(slots, keys)
        assigned = self._route.look_up(slots)
        at = assigned.find(NO_MEMBER)
        while at >= 0:
            slot = slots[at]
            owner = self._route.get(slot)
            if owner == NO_MEMBER and not self._is_stopped(slot):
                found = self._owner.get(slot)
                owner = self._assign(slot, -1) if found is None else found
                self._route.set(slot, owner)
            assigned[at] = owner
            at = assigned.find(NO_MEMBER, at + 1)
        return self._one_a_slot(slots, assigned)

    def _route_by_key(self, slots: array[int], keys: Sequence[str]) -> bytearray:
        assigned = bytearray()
        for slot, key in zip(slots, keys, strict=True):
            accepting = self._accepting(key)
            if not accepting:
                assigned.append(UNROUTED)
            elif self._is_stopped(slot):
                assigned.append(NO_MEMBER)
            else:
                assigned.append(self._owner_of(slot, accepting))
        return self._one_a_slot(slots, assigned)

    def _one_a_slot(self, slots: array[int], assigned: bytearray) -> bytearray:
        """Hold the messages behind an unanswered one for consumers that take single messages."""
        single = {i for i, member in enumerate(self._members) if member is not None and member.single}
        if single:
            unanswered, sent = self.unanswered, set[int]()
            for at, (slot, member) in enumerate(zip(slots, assigned, strict=True)):
                if member in single:
                    if slot in sent or slot in unanswered:
                        assigned[at] = NO_MEMBER
                    else:
                        sent.add(slot)
        return assigned

    def _is_stopped(self, slot: int) -> bool:
        return slot in self._lines or slot in self._stops or slot in self._draining

    def _owner_of(self, slot: int, accepting: int) -> int:
        unit = slot | accepting << 16
        owner = self._owner.get(unit)
        return self._assign(unit, accepting) if owner is None else owner

    def _assign(self, unit: int, accepting: int) -> int:
        """Assign a unit without an owner to the accepting member with the fewest units, the first among equals.

        It is assigned to a member that is set aside only if no other accepts it. Its messages then wait.
        """
        members = [i for i, m in enumerate(self._members) if m is not None and accepting >> i & 1]
        if self._aside:
            members = [member for member in members if member not in self._aside] or members
        owner = min(members, key=self._owned.__getitem__)
        self._owner[unit] = owner
        self._owned[owner] += 1
        return owner

    def _accepting(self, key: str) -> int:
        """Return the members that accept a key, as a mask."""
        accepting = self._accept.get(key)
        if accepting is None:
            accepting = 0
            for index, (member, pattern) in enumerate(zip(self._members, self._patterns, strict=True)):
                if member is not None and (pattern is None or pattern.fullmatch(key)):
                    accepting |= 1 << index
            if len(self._accept) >= _CACHED_KEYS:
                self._accept.clear()
            self._accept[key] = accepting
        return accepting

    # -- sending held messages ------------------------------------------------------------------------------------

    def _dissolve(self) -> None:
        """Turn all queued messages into held ones."""
        if self.queues:
            for chunk, mask in self.queues.take_all():
                self._hold(chunk, mask)
            self.recheck_held = True

    def unknown_keys(self, window: Window) -> list[Range]:
        """Return held messages whose keys were not needed when they were read, but are needed now."""
        if not self.filtered:
            return []
        return [
            r
            for chunk in window.chunks
            if chunk.ready & ~chunk.keyed
            for r in ranges_of(chunk.ready & ~chunk.keyed, chunk.start)
        ]

    def next_held(self, window: Window, *, limit: int) -> tuple[Consumer, list[Range], int] | None:
        """Return the first held messages to send: to one consumer with credit, with one delivery count.

        O(log held) for each message that is found or changed its state since the last call.

        Returns:
            (consumer, ranges, how often they were delivered already), or None.
        """
        chunks, lines = window.chunks, self._lines
        for offset, slot in lines.changed(chunks):
            if self._may_go(slot, offset):
                member = self._member_of(slot, offset, chunks)
                if member is not None:
                    lines.put_due(member, offset, slot)
        for member, consumer in enumerate(self._members):
            if consumer is None or not consumer.has_credit:
                continue
            found: list[Range] = []
            delivered = 0
            left = min(limit, consumer.room_messages)
            chunk: Chunk | None = None
            while left and (due := lines.pop_due(member, chunks)) is not None:
                offset, slot = due
                if not self._may_go(slot, offset):
                    continue
                if chunk is None or offset >= chunk.end:
                    chunk = chunks.covering(offset)
                    assert chunk is not None, "a held message is in a chunk"
                count = deliveries_at(chunk, offset - chunk.start)[0] if chunk.history else 0
                if not found:
                    delivered = count
                elif count != delivered:
                    continue
                if found and found[-1][1] == offset:
                    found[-1] = (found[-1][0], offset + 1)
                else:
                    found.append((offset, offset + 1))
                left -= 1
                if not consumer.single:
                    behind = lines.next_of(slot, offset, chunks)
                    if behind is not None and self._member_of(slot, behind, chunks) == member:
                        lines.put_due(member, behind, slot)
            if found:
                return consumer, found, delivered
        return None

    def _may_go(self, slot: int, offset: int) -> bool:
        """Return whether a held message may be sent, regardless of its owner and credit."""
        stops = self._stops.get(slot)
        waits = slot in self._draining or slot in self.unanswered
        return not waits and (stops is None or stops[0] > offset)

    def _member_of(self, slot: int, offset: int, chunks: ChunkList) -> int | None:
        """Return the index of a held message's owner, None if no consumer takes it."""
        if self.filtered:
            chunk = chunks.covering(offset)
            key = None if chunk is None else chunk.keys.get(offset - chunk.start)
            accepting = 0 if key is None else self._accepting(key)
            return self._owner_of(slot, accepting) if accepting else None
        owner = self._owner.get(slot)
        if owner is None:
            if not any(m is not None for m in self._members):
                return None
            owner = self._assign(slot, -1)
        return owner

    # -- events of the window -------------------------------------------------------------------------------------

    def queued(self, chunk: Chunk, mask: int, member: int) -> None:
        self.queues.put(chunk, mask, member)
        # The bytes of credit left may be too few for the message, but enough for one alone
        self.recheck_held = True

    def ready_added(self, chunk: Chunk, mask: int) -> None:
        self._dissolve()
        self._hold(chunk, mask)
        self.recheck_held = True

    def _hold(self, chunk: Chunk, mask: int) -> None:
        for slot in self._lines.add(chunk, mask):
            self._route.unset(slot)

    def ready_removed(self, chunk: Chunk, mask: int) -> None:
        if chunk.queued:
            mask ^= self.queues.remove(chunk, mask)
            if not mask:
                return
        self._lines.remove(chunk, mask)

    def stop_added(self, chunk: Chunk, mask: int, *, retry: bool) -> None:
        if retry and not self._stops_by_retry:
            return
        self._dissolve()
        for start, end in ranges_of(mask, 0):
            for bit in range(start, end):
                slot = chunk.slots[bit]
                insort(self._stops.setdefault(slot, []), chunk.start + bit)
                self._route.unset(slot)

    def stop_removed(self, chunk: Chunk, mask: int, *, retry: bool) -> None:
        if retry and not self._stops_by_retry:
            return
        for start, end in ranges_of(mask, 0):
            for bit in range(start, end):
                slot = chunk.slots[bit]
                stops = self._stops[slot]
                del stops[bisect_left(stops, chunk.start + bit)]
                if not stops:
                    del self._stops[slot]
                self._lines.recheck(slot)
        self.recheck_held = True

    def flight_added(self, chunk: Chunk, mask: int, consumer: Consumer) -> None:
        if consumer.single:
            for slot in slots_of(chunk, mask):
                self.unanswered[slot] = self.unanswered.get(slot, 0) + 1

    def flight_removed(self, chunk: Chunk, mask: int, consumer: Consumer) -> None:
        if consumer.credit_returns and (self._lines or self.queues):
            self.recheck_held = True
        if consumer.single:
            self._answered(self.unanswered, chunk, mask)
        if self._draining:
            self._answered(self._draining, chunk, mask)

    def _answered(self, waiting: dict[int, int], chunk: Chunk, mask: int) -> None:
        for slot in slots_of(chunk, mask):
            left = waiting.get(slot, 0)
            if left > 1:
                waiting[slot] = left - 1
            elif left:
                del waiting[slot]
                self._lines.recheck(slot)
                self.recheck_held = True
