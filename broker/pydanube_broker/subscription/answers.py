"""Answers of consumers to messages they were sent: acknowledged, failed, more time, taken, given back.

The contract in `subscription` defines which answers count, which are stale, and which are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pydanube_core.errors import InvalidArgument

from pydanube_broker.subscription.chunk import ACK_TIMEOUT, Chunk, Flight
from pydanube_broker.subscription.consumer import Consumer, Standing
from pydanube_broker.subscription.effects import Effect
from pydanube_broker.subscription.failures import Failures
from pydanube_broker.subscription.members import Members
from pydanube_broker.subscription.ranges import Range, check_ranges
from pydanube_broker.subscription.set_aside import SettingAside
from pydanube_broker.subscription.window import Window

_REFRESHES: Final = 8  # refreshes of a consumer's deadlines in each ack timeout
# Minimum interval: each refresh costs O(in flight), and the timeout is the consumer's choice.
_REFRESH_MS: Final = 20


def refresh_every_ms(ack_timeout_ms: int) -> int:
    """Return the interval at which a consumer's answers extend the deadlines of the messages it holds."""
    return max(ack_timeout_ms // _REFRESHES, _REFRESH_MS)


class Answers:
    """Processes answers and counts them."""

    __slots__ = (
        "_aside",
        "_failures",
        "_members",
        "_window",
        "acknowledged",
        "after_expiry",
        "stale",
        "well_supplied",
    )

    def __init__(self, window: Window, members: Members, aside: SettingAside, failures: Failures) -> None:
        self._window = window
        self._members = members
        self._aside = aside
        self._failures = failures
        self.acknowledged = 0  # messages
        # Whether the consumers of the last `ack_delivered` have enough messages to wait a moment for more.
        self.well_supplied = False
        self.after_expiry = 0  # messages acknowledged after a delivery of them had expired
        self.stale = 0  # answers of another session, or of an unknown consumer

    def ack(
        self,
        consumer_id: int,
        session: int,
        ranges: Sequence[Range],
        masks: Sequence[tuple[int, int]] = (),
        *,
        now_ms: int | None = None,
    ) -> int:
        """Acknowledge messages in any order. Return how many were open. A mask is (its lowest offset, bits).

        Without a time, the handling of the messages is not measured.

        Raises:
            NotDelivered: names the first offset that the consumer was never sent.
            InvalidArgument: a range is empty or inverted.
        """
        check_ranges(ranges)
        consumer = self._current(consumer_id, session)
        if consumer is None:
            return 0
        window = self._window
        found = window.chunks.locate(ranges)
        window.chunks.locate_masks(found, masks)
        ends = [(first + mask.bit_length() - 1, first + mask.bit_length()) for first, mask in masks]
        window.check_delivered(found, [*ranges, *ends], consumer)
        self._aside.answered(consumer)
        closed = 0
        for chunk, mask in found.items():
            closed += mask.bit_count()
            if chunk.reasons:
                self._count_late(chunk, mask)
            if now_ms is not None:
                _measure(chunk.held(mask), now_ms)
            window.close(chunk, mask)
        window.raise_floor()
        self.acknowledged += closed
        return closed

    def ack_delivered(self, ranges: Sequence[Range], now_ms: int) -> int:
        """Acknowledge messages that were ever sent, regardless of their holder. Return how many were open.

        Messages that were never sent are ignored. For clients that name neither consumer nor session in an
        answer. They grant no credit either, so many messages are queued on the way to a slow client.
        Therefore its ack timeout for messages behind an answered one begins with the answer.

        Raises `InvalidArgument` if a range is empty or inverted.
        """
        check_ranges(ranges)
        window, closed = self._window, 0
        answered: list[tuple[Flight, int]] = []
        for chunk, mask in window.chunks.locate(ranges).items():
            held = chunk.held(mask)
            answered += held
            sent = chunk.returned() if chunk.history else 0
            for _, own in held:
                sent |= own
            self._aside.answered_late(chunk, mask)
            if hit := mask & sent:
                closed += hit.bit_count()
                if chunk.reasons:
                    self._count_late(chunk, hit)
                _measure(held, now_ms)
                window.close(chunk, hit)
        window.raise_floor()
        self.acknowledged += closed
        self._refresh(answered, now_ms)
        return closed

    def _count_late(self, chunk: Chunk, mask: int) -> None:
        """Count acknowledgements after a delivery had expired, also for the consumer whose delivery it was."""
        late = mask & chunk.reasons.get(ACK_TIMEOUT, 0)
        if not late:
            return
        self.after_expiry += late.bit_count()
        for consumer_id, came_back in chunk.not_first.items():
            consumer = self._members.find(consumer_id) if came_back & late else None
            if consumer is not None:
                consumer.handling.late_acks += (came_back & late).bit_count()

    def _refresh(self, answered: Iterable[tuple[Flight, int]], now_ms: int) -> None:
        """Restart the ack timeout of messages that consumers hold behind the answered ones.

        A message that was passed over keeps its deadline. This is done a few times per timeout, because it
        costs O(in flight).
        """
        ends: dict[Consumer, int] = {}
        for flight, mask in answered:
            self._aside.answered(flight.consumer)
            end = flight.chunk.start + mask.bit_length()
            ends[flight.consumer] = max(end, ends.get(flight.consumer, 0))
        self.well_supplied = bool(ends)
        for consumer, offset in ends.items():
            self.well_supplied &= consumer.well_supplied
            if consumer.ack_timeout_ms and now_ms >= consumer.refresh_at_ms:
                consumer.refresh_at_ms = now_ms + refresh_every_ms(consumer.ack_timeout_ms)
                self._refresh_behind(consumer, offset, now_ms + consumer.ack_timeout_ms)

    def _refresh_behind(self, consumer: Consumer, offset: int, deadline_ms: int) -> None:
        """Extend the deadlines of messages that a consumer holds from `offset` on. O(in flight)."""
        for chunk in self._window.chunks:
            if chunk.end <= offset:
                continue
            behind = -1 << max(offset - chunk.start, 0)
            for flight in tuple(chunk.flights):
                mask = flight.mask & behind
                if mask and flight.consumer is consumer and (flight.deadline_ms or deadline_ms) < deadline_ms:
                    self._window.extend(flight, mask, deadline_ms)

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
        """Return messages as failed, for redelivery after the policy's delay, or `delay_ms` if longer.

        Raises `NotDelivered` and `InvalidArgument` as `ack` does.
        """
        if delay_ms < 0:
            raise InvalidArgument(f"delay_ms: {delay_ms} is negative", field="delay_ms", value=delay_ms)
        return self._give_back(self._held(consumer_id, session, ranges), now_ms, delay_ms, reason)

    def nack_delivered(
        self, ranges: Sequence[Range], now_ms: int, *, delay_ms: int = 0, reason: str = ""
    ) -> list[Effect]:
        """Return messages in flight as failed, regardless of their holder. See `ack_delivered`.

        Other messages are ignored. Raises `InvalidArgument` if a range is empty or inverted, or the delay is
        negative.
        """
        if delay_ms < 0:
            raise InvalidArgument(f"delay_ms: {delay_ms} is negative", field="delay_ms", value=delay_ms)
        check_ranges(ranges)
        held = [
            each for chunk, mask in self._window.chunks.locate(ranges).items() for each in chunk.held(mask)
        ]
        effects = self._give_back(held, now_ms, delay_ms, reason)
        self._refresh(held, now_ms)
        return effects

    def _give_back(
        self, held: Sequence[tuple[Flight, int]], now_ms: int, delay_ms: int, reason: str
    ) -> list[Effect]:
        """Count messages in flight as failed."""
        random = self._failures.random() if held else 0.0
        for flight, mask in held:
            self._window.end_flight(flight, mask)
            flight.chunk.came_back(flight.consumer, mask)
            self._failures.fail(flight.chunk, mask, now_ms, delay_ms, reason or "nack", random)
        return self._failures.report()

    def terminate(
        self, consumer_id: int, session: int, ranges: Sequence[Range], now_ms: int, *, reason: str = ""
    ) -> list[Effect]:
        """Apply the poison policy to messages immediately, regardless of their count.

        Raises `NotDelivered` and `InvalidArgument` as `ack` does.
        """
        for flight, mask in self._held(consumer_id, session, ranges):
            self._window.end_flight(flight, mask)
            self._failures.failed += mask.bit_count()
            for part, deliveries, _ in self._window.count_return(flight.chunk, mask, failed=True):
                self._failures.poison(flight.chunk, part, deliveries, reason or "terminated", terminated=True)
        return self._failures.report()

    def taken(
        self, consumer_id: int, session: int, total: int, now_ms: int, *, busy: bool = False
    ) -> list[Effect]:
        """Note that a consumer's application has taken `total` messages of the session, in order of sending.

        Their ack timeout begins now. Messages in the buffer are not late, because this is a sign of life. But
        key-shared and failover set the consumer aside when its application takes nothing and holds nothing
        for a whole timeout. `busy`: the application takes messages of other topics.
        """
        consumer = self._current(consumer_id, session)
        if consumer is None or not consumer.reports:
            return []
        consumer.date_answers(now_ms)
        handed_out = consumer.unhandled.take(total)
        if handed_out or busy:
            consumer.took_at_ms = now_ms
        for chunk, mask in handed_out:
            for flight in tuple(chunk.flights):
                if flight.consumer is consumer and not flight.taken and (own := flight.mask & mask):
                    self._window.take(flight, own, now_ms)
        if consumer.ack_timeout_ms and now_ms >= consumer.refresh_at_ms:
            consumer.refresh_at_ms = now_ms + refresh_every_ms(consumer.ack_timeout_ms)
            self._extend_reporting(consumer, now_ms)
            return self._aside.reported(consumer, now_ms)
        return []

    def _extend_reporting(self, consumer: Consumer, now_ms: int) -> None:
        """Extend messages that a live, reporting consumer has not taken, or may keep longer. O(in flight)."""
        if consumer.standing is not Standing.ANSWERING:
            return  # its reports do not count until its application takes a message
        deadline_ms = now_ms + consumer.ack_timeout_ms
        for chunk in self._window.chunks:
            for flight in tuple(chunk.flights):
                if flight.consumer is not consumer or flight.deadline_ms is None:
                    continue
                until_ms = deadline_ms
                if flight.taken:
                    until_ms = min(deadline_ms, flight.sent_at_ms + consumer.max_extend_ms)
                if flight.deadline_ms < until_ms:
                    self._window.extend(flight, flight.mask, until_ms)

    def given_back(self, consumer_id: int, session: int, ranges: Sequence[Range]) -> int:
        """Take messages back from a consumer's buffer, as if they had never been sent. Return how many.

        Raises `NotDelivered` and `InvalidArgument` as `ack` does.
        """
        back: dict[Chunk, int] = {}
        for flight, mask in self._held(consumer_id, session, ranges, answers=False) if ranges else ():
            back[flight.chunk] = back.get(flight.chunk, 0) | mask
            self._window.end_flight(flight, mask)
            flight.chunk.came_back(flight.consumer, mask)
            self._window.make_ready(flight.chunk, mask)
        consumer = self._current(consumer_id, session)
        if consumer is not None and back:
            consumer.unhandled.given_back(back)
        return sum(mask.bit_count() for mask in back.values())

    def extend(
        self, consumer_id: int, session: int, ranges: Sequence[Range], extension_ms: int, now_ms: int
    ) -> int:
        """Let deliveries that have a deadline expire `extension_ms` from now. Return how many.

        Raises `NotDelivered` and `InvalidArgument` as `ack` does.
        """
        if extension_ms < 1:
            raise InvalidArgument(
                f"extension_ms: {extension_ms} is below 1", field="extension_ms", value=extension_ms
            )
        held = self._held(consumer_id, session, ranges)
        expiring = [(flight, mask) for flight, mask in held if flight.deadline_ms is not None]
        for flight, mask in expiring:
            self._window.extend(flight, mask, now_ms + extension_ms)
        return sum(mask.bit_count() for _, mask in expiring)

    def _held(
        self, consumer_id: int, session: int, ranges: Sequence[Range], *, answers: bool = True
    ) -> list[tuple[Flight, int]]:
        """Return the messages of the ranges that the consumer holds, by flight, and note its answer."""
        check_ranges(ranges)
        consumer = self._current(consumer_id, session)
        if consumer is None:
            return []
        found = self._window.chunks.locate(ranges)
        self._window.check_delivered(found, ranges, consumer)
        if answers:
            self._aside.answered(consumer)
        return [
            (flight, own)
            for chunk, mask in found.items()
            for flight, own in chunk.held(mask)
            if flight.consumer is consumer
        ]

    def _current(self, consumer_id: int, session: int) -> Consumer | None:
        consumer = self._members.find(consumer_id)
        if consumer is None or consumer.session != session:
            self.stale += 1
            return None
        return consumer


def _measure(held: Iterable[tuple[Flight, int]], now_ms: int) -> None:
    """Count the handling times of acknowledged messages for the consumers that hold them."""
    for flight, mask in held:
        flight.consumer.handling.acknowledged(mask.bit_count(), now_ms - flight.sent_at_ms, now_ms)
