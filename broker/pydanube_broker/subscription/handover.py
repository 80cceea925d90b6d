"""Messages that consumers hold while their topic moves: written by the old owner, restored by the new one.

A consumer that holds messages keeps its place at the next owner for `REJOIN_MS`: the consumer counts as
attached without a connection, is sent nothing, and its messages go to no other consumer. A consumer that
joins with its name and its session, or by the stream that was open (`ANY_SESSION`), continues with all of
them: nothing is sent again, and its answers count. If another consumer takes the name, or the time is over,
the result is as if the consumer had left: its messages are delivered again, and count as delivered once more,
not as failed.

A consumer that holds nothing has no place, so nothing waits for it. Its name and session are handed over (`idle`), so
that its session continues as well: its answers were all carried out, and none of them is lost.

Messages that wait for a time (delays, retries) wait at the new owner too. The others are unseen there, or
ready again.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pydanube_broker.subscription.chunk import Chunk
from pydanube_broker.subscription.consumer import Consumer
from pydanube_broker.subscription.ranges import ranges_of, subtract, total
from pydanube_broker.subscription.window import Window

# As long as a broker's lease: a client that looks for the topic has found it by then.
REJOIN_MS: Final = 10_000
MOST_RANGES: Final = 16_384  # per subscription: with more, all held messages are delivered again


class HandedRange(NamedTuple):
    """Messages `[start, end)`, and the milliseconds until they are delivered again. None: no timer."""

    start: int
    end: int
    left_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedConsumer:
    """Messages that one session of a consumer was sent and has not answered."""

    consumer: str
    session: int
    ranges: tuple[HandedRange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Messages of a subscription that consumers hold, and those that wait (delays, retries).

    `slots` is for key-shared: the slot of each unacknowledged message from the floor to the end of the
    handover, ascending, two bytes each, little-endian. `idle` has names and sessions of consumers that hold nothing.
    """

    subscription_id: int
    consumers: tuple[HandedConsumer, ...] = ()
    waiting: tuple[HandedRange, ...] = ()
    slots: bytes = b""
    idle: tuple[tuple[str, int], ...] = ()

    @property
    def end(self) -> int:
        """Return one past the last offset of the handover."""
        return max(
            (
                held.end
                for ranges in (*(each.ranges for each in self.consumers), self.waiting)
                for held in ranges
            ),
            default=0,
        )


def handover_of(
    subscription_id: int,
    window: Window,
    consumers: Collection[Consumer],
    idle: Mapping[str, int],
    now_ms: int,
    *,
    keyed: bool,
) -> Handover | None:
    """Return the state that the next owner needs. None if there is nothing, or too much. O(in flight).

    Args:
        consumers: those whose clients can continue a session.
        idle: sessions by name of consumers that held nothing at the former owner and have not reconnected.
        keyed: the subscription is key-shared.
    """
    by_consumer: dict[Consumer, list[HandedRange]] = {consumer: [] for consumer in consumers}
    waiting: list[HandedRange] = []
    for chunk in window.chunks:
        for flight in chunk.flights:
            if (held := by_consumer.get(flight.consumer)) is not None:
                # Messages in the buffer of a consumer that reports are not late.
                held += _held(chunk, flight.mask, flight.deadline_ms if flight.taken else None, now_ms)
        for wait in chunk.waits:
            waiting += _held(chunk, wait.mask, wait.due_ms, now_ms)
    found = Handover(
        subscription_id=subscription_id,
        consumers=tuple(
            HandedConsumer(consumer=consumer.name, session=consumer.session, ranges=tuple(sorted(held)))
            for consumer, held in by_consumer.items()
            if held
        ),
        waiting=tuple(sorted(waiting)),
        idle=(
            *((consumer.name, consumer.session) for consumer, held in by_consumer.items() if not held),
            *idle.items(),
        ),
    )
    ranges = sum(map(len, by_consumer.values())) + len(waiting)
    if ranges > MOST_RANGES or not (ranges or found.idle):
        return None
    if not keyed:
        return found
    return replace(found, slots=_slots_below(window, found.end))


def restore_handover(
    window: Window,
    handover: Handover,
    reserve_places: Callable[[Handover], Sequence[Consumer]],
    now_ms: int,
    *,
    keyed: bool,
) -> bool:
    """Put a handover into a window that has sent nothing yet. If it does not fit, change nothing, return False.

    Args:
        reserve_places: makes the absent consumers, in the order of `handover.consumers`.
    """
    end = handover.end
    unread = (
        subtract([(window.floor, end)], list(window.snapshot().acknowledged)) if end > window.floor else []
    )
    slots = _unpacked(handover.slots) if keyed else None
    if not unread or (slots is not None and len(slots) != total(unread)):
        return False
    rest = dict(window.place(unread, end, slots))
    for consumer, each in zip(reserve_places(handover), handover.consumers, strict=True):
        for chunk, mask in _taken_from(rest, window, each.ranges):
            window.launch(chunk, mask, consumer, now_ms)
            consumer.in_flight += mask.bit_count()
    for held in handover.waiting:
        for chunk, mask in _taken_from(rest, window, [held]):
            window.wait(chunk, mask, now_ms + (held.left_ms or 0), "retry")
    for chunk, mask in rest.items():
        if mask:
            window.make_ready(chunk, mask)
    return True


def go_on(window: Window, absent: Consumer, consumer: Consumer, now_ms: int) -> None:
    """Give a returning consumer the messages kept for it, with their remaining time. O(chunks)."""
    for chunk in window.chunks:
        for flight in tuple(chunk.flights):
            if flight.consumer is absent:
                flight.consumer = consumer
                consumer.flights[flight] = None
                consumer.in_flight += flight.mask.bit_count()
                if consumer.ack_timeout_ms:
                    window.extend(flight, flight.mask, now_ms + consumer.ack_timeout_ms)
    consumer.changed()
    absent.in_flight = 0
    absent.flights.clear()
    if consumer.credit_returns:
        consumer.credit_messages = max(0, consumer.credit_messages - consumer.in_flight)
    for start, end, left_ms in absent.keeps:
        if left_ms is None or not consumer.ack_timeout_ms:
            continue
        for chunk, mask in window.chunks.locate([(start, end)]).items():
            for flight in tuple(chunk.flights):
                if flight.consumer is consumer and (own := flight.mask & mask):
                    window.extend(flight, own, now_ms + min(left_ms, consumer.ack_timeout_ms))


def _held(chunk: Chunk, mask: int, at_ms: int | None, now_ms: int) -> Iterator[HandedRange]:
    left_ms = None if at_ms is None else max(0, at_ms - now_ms)
    for start, end in ranges_of(mask, chunk.start):
        yield HandedRange(start, end, left_ms)


def _taken_from(
    rest: dict[Chunk, int], window: Window, ranges: Sequence[HandedRange]
) -> Iterator[tuple[Chunk, int]]:
    for chunk, mask in window.chunks.locate([(start, end) for start, end, _ in ranges]).items():
        if own := rest.get(chunk, 0) & mask:
            rest[chunk] ^= own
            yield chunk, own


def _slots_below(window: Window, end: int) -> bytes:
    found = array("H")
    for chunk in window.chunks:
        for start, stop in ranges_of(chunk.open, 0):
            found.extend(chunk.slots[start : max(start, min(stop, end - chunk.start))])
    if sys.byteorder == "big":
        found.byteswap()
    return found.tobytes()


def _unpacked(slots: bytes) -> array[int]:
    found = array("H", slots)
    if sys.byteorder == "big":
        found.byteswap()
    return found
