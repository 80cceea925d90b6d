"""Invariants of a subscription's state; the tests check them after every step."""

from __future__ import annotations

from bisect import insort

from pydanube_broker.subscription.chunk import NOTHING_QUEUED
from pydanube_broker.subscription.cursor import CursorDelta
from pydanube_broker.subscription.ranges import ranges_of
from pydanube_broker.subscription.routes.key_queues import KeyQueues
from pydanube_broker.subscription.routes.key_slots import KeySlots, slots_of
from pydanube_broker.subscription.subscription import Subscription
from pydanube_broker.subscription.window import Window


def check(subscription: Subscription) -> None:
    """Assert the invariants of a subscription; O(everything)."""
    window, members = subscription.window, subscription.members
    check_window(window)
    assert window.room(subscription.sending._span) >= 0
    if members.slots is not None:
        check_slots(members.slots, window)
    for consumer in members.consumers:
        flights = [f for chunk in window.chunks for f in chunk.flights if f.consumer is consumer]
        assert consumer.in_flight == sum(flight.mask.bit_count() for flight in flights)
        assert consumer.credit_messages >= 0


def take_changes(subscription: Subscription) -> CursorDelta | None:
    """Return what changed since the call before, as it is appended to the journal; None if nothing did."""
    delta = subscription.changes()
    subscription.changes_written()
    return delta


def check_window(window: Window) -> None:
    """Assert the invariants of a window; O(everything)."""
    at = window.floor
    ready = waiting = blocked = in_flight = 0
    for chunk in window.chunks:
        assert chunk.open, "an empty chunk stayed"
        assert chunk is window.chunks[0] or chunk.start >= at
        assert chunk.open >> (chunk.end - chunk.start) == 0
        at = chunk.end
        states = [chunk.ready, *(f.mask for f in chunk.flights), *(w.mask for w in chunk.waits)]
        states += [p.mask for p in chunk.poisons]
        union = 0
        for mask in states:
            assert union & mask == 0, "a message in two states"
            union |= mask
        assert union == chunk.open, "a message in no state"
        assert chunk.returned() & ~chunk.open == 0
        ready += chunk.ready.bit_count()
        in_flight += sum(f.mask.bit_count() for f in chunk.flights)
        waiting += sum(w.mask.bit_count() for w in chunk.waits)
        blocked += sum(p.mask.bit_count() for p in chunk.poisons if p.blocked)
    assert at <= window.next
    assert (ready, waiting, blocked, in_flight) == (
        window.ready,
        window.waiting,
        window.blocked,
        window.in_flight,
    )
    first = window.chunks.open_ranges()
    assert window.floor == (first[0][0] if first else window.next)
    for low, high in window.gaps.ranges():
        assert window.floor <= low
        assert high <= window.next
        assert not any(c.open & c.local(low, high) for c in window.chunks)


def check_slots(table: KeySlots, window: Window) -> None:
    """Assert the invariants of key-shared."""
    held: dict[int, int] = {}
    stops: dict[int, list[int]] = {}
    check_queues(table.queues, window)
    for chunk in window.chunks:
        waiting = 0
        for member, mask in chunk.queued.items():
            waiting |= mask
            for slot in slots_of(chunk, mask):
                assert table._owner[slot] == member
                assert not table._is_stopped(slot)
        for slot in slots_of(chunk, chunk.ready ^ waiting):
            held[slot] = held.get(slot, 0) + 1
        stopping = [p.mask for p in chunk.poisons if p.blocked]
        stopping += [w.mask for w in chunk.waits if table._stops_by_retry]
        for mask in stopping:
            for start, end in ranges_of(mask, 0):
                for bit in range(start, end):
                    insort(stops.setdefault(chunk.slots[bit], []), chunk.start + bit)
    assert held == table._lines.counts()
    assert stops == table._stops
    flying = table._in_flight(window)
    for slot, count in table._draining.items():
        assert flying[slot] == count
    for chunk in window.chunks:
        for flight in chunk.flights:
            for slot in slots_of(chunk, flight.mask):
                if slot not in table._draining and not table.filtered:
                    assert table._owner[slot] == flight.consumer.slot_index
    unanswered: dict[int, int] = {}
    for chunk in window.chunks:
        for flight in chunk.flights:
            for slot in slots_of(chunk, flight.mask) if flight.consumer.single else ():
                unanswered[slot] = unanswered.get(slot, 0) + 1
    assert unanswered == table.unanswered
    for slot, index in table._route.items():
        assert not table._is_stopped(slot)
        assert table._owner[slot] == index
    counts = [0] * len(table._members)
    for index in table._owner.values():
        counts[index] += 1
    assert counts == table._owned


def check_queues(queues: KeyQueues, window: Window) -> None:
    """Assert the invariants of what waits for the members of key-shared."""
    waiting = [0] * len(queues._waiting)
    for chunk in window.chunks:
        together = 0
        for member, mask in chunk.queued.items():
            assert mask
            assert not mask & together
            assert mask & chunk.ready == mask
            together |= mask
            waiting[member] += mask.bit_count()
        assert (chunk.queued is NOTHING_QUEUED) is (chunk.start not in queues._chunks)
    assert waiting == queues._waiting
    assert list(queues._chunks.values()) == [chunk for chunk in window.chunks if chunk.queued]


def runs(offsets: list[int]) -> list[tuple[int, int]]:
    """Return the ranges of ascending offsets."""
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found
