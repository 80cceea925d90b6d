"""Decide from the window which messages may be sent next. Nothing is changed here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pydanube_core.diagnosis.views import HeadOfLine

from pydanube_broker.subscription.chunk import ACK_TIMEOUT, Chunk, Poison
from pydanube_broker.subscription.chunk_masks import ChunkMasks
from pydanube_broker.subscription.consumer import Consumer
from pydanube_broker.subscription.ranges import Range, ranges_of
from pydanube_broker.subscription.window import Window


class Plan(NamedTuple):
    """A proposal to read the log inside `ranges` and send the messages found. It reserves nothing.

    The shell reads from `start` and takes messages in offset order while they are inside `ranges`, at most
    `max_messages` of them and at most `max_bytes` together, but always at least one, because a message larger
    than the credit must not be withheld for ever. Then it answers in the same turn of the loop:

    - `consumer_id` is an id: `Sending.sent(plan, ranges, ...)` with the messages it took.
    - `consumer_id` is None: `Sending.routed(plan, ranges, ...)`, which assigns the messages to consumers.

    `ranges` of a fresh plan is one range of unseen offsets, perhaps with holes. For a redelivery it is
    exactly the messages that are due, and may be a `ChunkMasks`. `delivery_count` counts from 1 and holds for all
    of them.

    A named tuple and not a frozen dataclass: one is made for every batch, and costs a tenth.
    """

    ticket: int
    consumer_id: int | None
    session: int | None
    ranges: Sequence[Range]
    max_messages: int
    max_bytes: int | None  # None: bytes are not limited
    delivery_count: int
    fresh: bool

    @property
    def start(self) -> int:
        return self.ranges.first if type(self.ranges) is ChunkMasks else self.ranges[0][0]

    @property
    def end_limit(self) -> int:
        return self.ranges.end if type(self.ranges) is ChunkMasks else self.ranges[-1][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The messages of a routed part for one consumer. `indices` count messages, not offsets, and ascend."""

    consumer_id: int
    session: int
    indices: Sequence[int]
    delivery_count: int


MOST_CHUNKS: Final = 64  # examined for failures: the messages at the front hold a subscription up


def first_blocked(window: Window) -> tuple[int, Poison] | None:
    """Return the first blocked message and its `Poison`."""
    if not window.blocked:
        return None
    found: tuple[int, Poison] | None = None
    for chunk in window.chunks:
        for poison in chunk.poisons:
            if poison.blocked:
                offset = chunk.start + lowest(poison.mask)
                if found is None or offset < found[0]:
                    found = (offset, poison)
        if found is not None:
            break
    return found


def oldest_sent(window: Window) -> dict[Consumer, int]:
    """Return for each consumer the earliest time of sending among the messages it holds. O(flights)."""
    oldest: dict[Consumer, int] = {}
    for chunk in window.chunks:
        for flight in chunk.flights:
            oldest[flight.consumer] = min(oldest.get(flight.consumer, flight.sent_at_ms), flight.sent_at_ms)
    return oldest


def only_untaken_since(window: Window, consumer: Consumer) -> int | None:
    """Return when the oldest message in a consumer's buffer was sent.

    None if its application holds a message, or the buffer is empty. O(flights).
    """
    oldest: int | None = None
    for chunk in window.chunks:
        for flight in chunk.flights:
            if flight.consumer is consumer:
                if flight.taken:
                    return None
                oldest = flight.sent_at_ms if oldest is None else min(oldest, flight.sent_at_ms)
    return oldest


def worst_failure(window: Window) -> HeadOfLine | None:
    """Return the open message that failed most often, the first of them, among the first chunks."""
    best: tuple[int, int, int, Chunk, int] | None = None  # failures, -offset, deliveries, chunk, bit
    for chunk in window.chunks[:MOST_CHUNKS]:
        for (deliveries, failures), mask in chunk.history.items():
            hit = mask & chunk.open
            if failures and hit:
                bit = lowest(hit)
                if best is None or (failures, -(chunk.start + bit)) > best[:2]:
                    best = (failures, -(chunk.start + bit), deliveries, chunk, bit)
    if best is None:
        return None
    failures, offset, deliveries, chunk, bit = best
    one = 1 << bit
    poison = next((poison for poison in chunk.poisons if poison.mask & one), None)
    wait = next((wait for wait in chunk.waits if wait.mask & one), None)
    holder = poison or wait
    # A message on its way again has no holder, but the same reason
    earlier = next((reason for reason, mask in chunk.reasons.items() if mask & one), "")
    return HeadOfLine(
        offset=-offset,
        deliveries=deliveries,
        failures=failures,
        blocked=poison is not None and poison.blocked,
        reason=earlier if holder is None else holder.reason,
    )


def failing(window: Window) -> int:
    """Return how many open messages were given back as failed, among the first chunks."""
    count = 0
    for chunk in window.chunks[:MOST_CHUNKS]:
        failed = 0
        for (_, failures), mask in chunk.history.items():
            failed |= mask if failures else 0
        count += (failed & chunk.open & ~chunk.reasons.get(ACK_TIMEOUT, 0)).bit_count()
    return count


def barrier(window: Window, *, ordered_retry: bool) -> int | None:
    """Return the first offset behind which nothing may be sent, None if there is none.

    O(chunks), but only after failures.
    """
    if not window.blocked and not (ordered_retry and window.waiting):
        return None
    for chunk in window.chunks:
        mask = 0
        for poison in chunk.poisons:
            if poison.blocked:
                mask |= poison.mask
        if ordered_retry:
            for wait in chunk.waits:
                mask |= wait.mask
        if mask:
            return chunk.start + lowest(mask)
    return None


def first_ready(window: Window) -> tuple[Chunk, int] | None:
    """Return the chunk and bit of the first message that is ready again. O(chunks before it)."""
    for chunk in window.chunks:
        if chunk.ready:
            return chunk, 1 << lowest(chunk.ready)
    return None


def next_ready(
    window: Window, *, limit: int, barrier: int | None, consumer_id: int | None = None
) -> tuple[list[Range], int] | None:
    """Return the first messages that are ready again, in offset order, all with the same delivery count.

    Args:
        limit: maximum messages, from 1.
        barrier: end before this offset.
        consumer_id: end before the first message that came back from this consumer.

    Returns:
        (ranges, how often they were delivered already), or None.
    """
    found: list[Range] = []
    left = limit
    delivered = -1
    for chunk in window.chunks:
        if barrier is not None and chunk.start >= barrier:
            break
        mask = chunk.ready
        if not mask:
            continue
        if barrier is not None:
            mask &= chunk.local(chunk.start, barrier)
            if not mask:
                break
        count, alike = deliveries_at(chunk, lowest(mask))
        if delivered < 0:
            delivered = count
        elif delivered != count:
            break
        other = mask & ~alike
        if consumer_id is not None:
            other |= mask & chunk.not_first.get(consumer_id, 0)
        if other:
            mask &= (other & -other) - 1  # only up to the first message with another count
        for start, end in ranges_of(mask, chunk.start):
            end = min(end, start + left)
            left -= end - start
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], end)
            else:
                found.append((start, end))
            if not left:
                return found, delivered
        if other:
            break
    return (found, delivered) if found else None


def deliveries_at(chunk: Chunk, bit: int) -> tuple[int, int]:
    """Return how often a message came back, and the mask of the chunk's messages with the same count."""
    one = 1 << bit
    count = 0
    for (deliveries, _), mask in chunk.history.items():
        if mask & one:
            count = deliveries
    if not count:
        return 0, ~chunk.returned()
    alike = 0
    for (deliveries, _), mask in chunk.history.items():
        if deliveries == count:
            alike |= mask
    return count, alike


def lowest(mask: int) -> int:
    """Return the lowest set bit of a mask that is not 0."""
    return (mask & -mask).bit_length() - 1
