"""Subscriptions of the in-memory cluster: which message goes to whom, and what comes again.

A cursor is ranges: what is in flight per consumer, what waits for redelivery, and `position`, the first offset that
was never sent. Everything else below `position` is acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from pydanube_core.errors import ConsumerBusy, NotDelivered
from pydanube_core.frames import encode_delivery

from pydanube.testing.log import MemoryTopic

_FRAME_BYTES: Final = 262_144

Part = tuple[int, int, int]  # first offset, end, delivery count


def pairs(flat: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


class Attached(Protocol):
    """A consumer's stream as its subscription sees it."""

    name: str
    session: int
    credit_messages: int
    credit_bytes: int

    def send(self, message: bytes) -> None: ...

    def session_changed(self, session: int, offset: int, reason: str, *, active: bool) -> None: ...

    def later(self, delay_s: float, call: Callable[[], None]) -> None: ...


def build_frame(
    topic: MemoryTopic, take: Callable[[int], Part | None], consumer: Attached
) -> tuple[bytes | None, list[Part]]:
    """Take parts within the consumer's credit; `take(limit)` gives a range of at most `limit` messages."""
    parts: list[tuple[int, int, int, Sequence[bytes]]] = []
    taken: list[Part] = []
    size = 0
    last = None
    while consumer.credit_messages > 0 and consumer.credit_bytes > 0 and size < _FRAME_BYTES:
        part = take(consumer.credit_messages)
        if part is None:
            break
        first, end, count = part
        stored = topic.batch_at(first)
        assert stored is not None
        assert end <= stored.end
        again = stored is last
        parts.append((first, end, count, () if again else (stored.data,)))
        cost = 0 if again else len(stored.data)
        last = stored
        size += cost
        consumer.credit_messages -= end - first
        consumer.credit_bytes -= cost
        taken.append(part)
    return (encode_delivery(consumer.session, parts) if parts else None), taken


class MemorySubscription:
    """One subscription of one concrete topic."""

    def __init__(
        self, topic: MemoryTopic, name: str, kind: str, start: int, sessions: Callable[[], int]
    ) -> None:
        self.topic = topic
        self.name = name
        self.kind = kind
        self.position = start
        self._sessions = sessions
        self.consumers: list[Attached] = []
        self._flights: dict[Attached, list[Part]] = {}
        self._again: list[Part] = []
        self._timeouts_s: dict[Attached, float] = {}
        self._untaken: dict[Attached, deque[Part]] = {}  # of those who report what they take
        self._taken: dict[Attached, int] = {}
        self.terminated = 0
        self._turn = 0
        topic.listeners.add(self.deliver)

    # -- consumers -------------------------------------------------------------------------------------------

    def join(self, consumer: Attached, ack_timeout_ms: int, *, reports: bool = False) -> bool:
        """Attach a consumer; returns whether it is active.

        Args:
            reports: it says what it takes; the ack timeout of a message begins then.
        """
        for other in list(self.consumers):
            if other.name == consumer.name:
                self.leave(other)
        if self.kind == "exclusive" and self.consumers:
            raise ConsumerBusy(
                f"{self.topic.name}: {self.consumers[0].name} has the exclusive subscription {self.name}",
                subscription=self.name, consumer=self.consumers[0].name,
            )  # fmt: skip
        self.consumers.append(consumer)
        self._flights[consumer] = []
        if ack_timeout_ms:
            self._timeouts_s[consumer] = ack_timeout_ms / 1000
        if reports:
            self._untaken[consumer], self._taken[consumer] = deque(), 0
        consumer.session = self._sessions()
        return self._active(consumer)

    def taken(self, consumer: Attached, session: int, total: int) -> None:
        """The consumer has been handed `total` messages of its session, in the order they were sent."""
        if session != consumer.session or consumer not in self._untaken:
            return
        parts = self._untaken[consumer]
        new: list[Part] = []
        while parts and self._taken[consumer] < total:
            first, end, count = parts.popleft()
            cut = min(end, first + total - self._taken[consumer])
            if cut < end:
                parts.appendleft((cut, end, count))
            self._taken[consumer] += cut - first
            new.append((first, cut, count))
        if new and consumer in self._timeouts_s:
            self._watch(consumer, new, self._timeouts_s[consumer])

    def _active(self, consumer: Attached) -> bool:
        return self.kind != "failover" or self.consumers[0] is consumer

    def leave(self, consumer: Attached) -> None:
        if consumer not in self._flights:
            return
        first = self.consumers[0] is consumer
        self.consumers.remove(consumer)
        self._timeouts_s.pop(consumer, None)
        self._untaken.pop(consumer, None)
        self._put_back(self._flights.pop(consumer))
        if self.kind == "failover" and first and self.consumers:
            promoted = self.consumers[0]
            promoted.session = self._sessions()
            promoted.session_changed(promoted.session, self.floor, "promoted", active=True)
        self.deliver()

    # -- delivery --------------------------------------------------------------------------------------------

    def deliver(self) -> None:
        """Send what there is to whoever has credit, in turn."""
        idle = 0
        while self.consumers and idle < len(self.consumers):
            self._turn = (self._turn + 1) % len(self.consumers)
            consumer = self.consumers[self._turn]
            if not self._active(consumer):
                idle += 1
                continue
            frame, taken = build_frame(self.topic, partial(self._take, consumer), consumer)
            if frame is None:
                idle += 1
                continue
            idle = 0
            self._flights[consumer] += taken
            if consumer in self._untaken:
                self._untaken[consumer] += taken
            elif consumer in self._timeouts_s:
                self._watch(consumer, taken, self._timeouts_s[consumer])
            consumer.send(frame)

    def _take(self, consumer: Attached, limit: int) -> Part | None:
        if self._again:
            first, end, count = self._again.pop(0)
            stored = self.topic.batch_at(first)
            assert stored is not None
            cut = min(end, stored.end, first + limit)
            if cut < end:
                self._again.insert(0, (cut, end, count))
            return first, cut, count
        stored = self.topic.batch_at(self.position)
        if stored is None:
            return None
        first = self.position
        self.position = min(stored.end, first + limit)
        return first, self.position, 1

    def _put_back(self, parts: Sequence[Part]) -> None:
        self._again = sorted([*self._again, *((first, end, count + 1) for first, end, count in parts)])

    def _watch(self, consumer: Attached, parts: list[Part], delay_s: float) -> None:
        session = consumer.session

        def expire() -> None:
            if consumer in self._flights and consumer.session == session:
                late = [p for first, end, _ in parts for p in self._remove(consumer, first, end)]
                self._put_back(late)
                self.deliver()

        consumer.later(delay_s, expire)

    # -- acknowledgements ------------------------------------------------------------------------------------

    def _remove(self, consumer: Attached, first: int, end: int) -> list[Part]:
        """Take [first, end) out of the consumer's flight; returns what was there."""
        removed: list[Part] = []
        kept: list[Part] = []
        for low, high, count in self._flights[consumer]:
            a, b = max(low, first), min(high, end)
            if a >= b:
                kept.append((low, high, count))
                continue
            removed.append((a, b, count))
            if low < a:
                kept.append((low, a, count))
            if b < high:
                kept.append((b, high, count))
        self._flights[consumer] = kept
        return removed

    def acked(self, consumer: Attached, session: int, ranges: Sequence[tuple[int, int]]) -> int:
        """Returns how many messages it acknowledged; those of an older session none."""
        if session != consumer.session:
            return 0
        removed = 0
        for first, end in ranges:
            if end > self.position:
                raise NotDelivered(
                    f"{self.topic.name}: offset {end - 1} was never delivered", offset=end - 1, field="ranges"
                )
            removed += sum(b - a for a, b, _ in self._remove(consumer, first, end))
        return removed

    def nacked(
        self, consumer: Attached, session: int, ranges: Sequence[tuple[int, int]], delay_ms: int
    ) -> None:
        if session != consumer.session:
            return
        back = [part for first, end in ranges for part in self._remove(consumer, first, end)]
        if not delay_ms:
            self._put_back(back)
            self.deliver()
            return
        # they stay in flight, of nobody in particular, until their time has come
        waiting = self._flights[consumer]
        waiting += back

        def due() -> None:
            if consumer in self._flights and consumer.session == session:
                self._put_back([p for first, end, _ in back for p in self._remove(consumer, first, end)])
                self.deliver()

        consumer.later(delay_ms / 1000, due)

    def extended(self, consumer: Attached, session: int, ranges: Sequence[tuple[int, int]], ms: int) -> None:
        if session == consumer.session:
            parts = [p for first, end in ranges for p in self._remove(consumer, first, end)]
            # a new range: the old deadline, which looks for the old one, finds it too; so it gets a session's guard
            self._flights[consumer] += parts
            self._watch(consumer, parts, ms / 1000)

    def seek(self, position: str) -> None:
        self.position = self.topic.offset_of(position)
        self._again.clear()
        for consumer in self.consumers:
            self._flights[consumer] = []
            if consumer in self._untaken:
                self._untaken[consumer].clear()
                self._taken[consumer] = 0
            consumer.session = self._sessions()
            consumer.session_changed(consumer.session, self.position, "seek", active=self._active(consumer))
        self.deliver()

    @property
    def floor(self) -> int:
        """Everything below is acknowledged."""
        open_ = [first for parts in self._flights.values() for first, _, _ in parts]
        open_ += [first for first, _, _ in self._again]
        return min([self.position, *open_])
