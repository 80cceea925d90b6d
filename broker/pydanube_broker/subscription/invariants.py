"""What must always be so in a window; the tests ask after every step."""

from __future__ import annotations

from pydanube_broker.subscription.window import Window


def check_window(window: Window) -> None:
    """Assert the invariants; O(everything), for tests."""
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
    first = window.open_ranges()
    assert window.floor == (first[0][0] if first else window.next)
    for low, high in window.gaps.ranges():
        assert window.floor <= low
        assert high <= window.next
        assert not any(c.open & c.local(low, high) for c in window.chunks)
