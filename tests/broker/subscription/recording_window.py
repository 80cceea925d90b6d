"""A window that notes every change of a message's state, for comparison with the table of states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydanube_broker.subscription.chunk import Chunk, Flight, Poison, Wait
from pydanube_broker.subscription.consumer import Consumer
from pydanube_broker.subscription.ranges import Range
from pydanube_broker.subscription.window import Reopened, Window

from tests.broker.subscription.states import MESSAGE_MOVES, MessageState

Move = tuple[MessageState, MessageState]


class RecordingWindow(Window):
    """`between` holds the messages that are in no state for the moment, with the state they come from."""

    __slots__ = ("between",)

    seen: ClassVar[set[Move]] = set()  # by all windows of the run

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.between: dict[int, MessageState] = {}

    @staticmethod
    def offsets(chunk: Chunk, mask: int) -> list[int]:
        return [chunk.start + bit for bit in range(mask.bit_length()) if mask >> bit & 1]

    def leave(self, chunk: Chunk, mask: int, state: MessageState) -> None:
        for offset in self.offsets(chunk, mask):
            assert offset not in self.between, "left two states at once"
            self.between[offset] = state

    def enter(self, chunk: Chunk, mask: int, state: MessageState) -> None:
        for offset in self.offsets(chunk, mask):
            move = (self.between.pop(offset), state)
            assert move in MESSAGE_MOVES, move
            self.seen.add(move)

    def place(self, ranges: Sequence[Range], *args: Any, **named: Any) -> list[tuple[Chunk, int]]:
        placed = super().place(ranges, *args, **named)
        for chunk, mask in placed:
            self.leave(chunk, mask, MessageState.UNSEEN)
        return placed

    def launch(self, chunk: Chunk, mask: int, consumer: Consumer, now_ms: int) -> None:
        self.enter(chunk, mask, MessageState.IN_FLIGHT)
        super().launch(chunk, mask, consumer, now_ms)

    def make_ready(self, chunk: Chunk, mask: int) -> None:
        self.enter(chunk, mask, MessageState.READY)
        super().make_ready(chunk, mask)

    def queue(self, chunk: Chunk, mask: int, member: int) -> None:
        self.enter(chunk, mask, MessageState.READY)
        super().queue(chunk, mask, member)

    def take_ready(self, chunk: Chunk, mask: int) -> None:
        self.leave(chunk, mask, MessageState.READY)
        super().take_ready(chunk, mask)

    def wait(self, chunk: Chunk, mask: int, due_ms: int, reason: str) -> None:
        self.enter(chunk, mask, MessageState.WAITING)
        super().wait(chunk, mask, due_ms, reason)

    def poison(self, chunk: Chunk, mask: int, reason: str, deliveries: int, *, blocked: bool) -> Poison:
        self.enter(chunk, mask, MessageState.BLOCKED if blocked else MessageState.LEAVING)
        return super().poison(chunk, mask, reason, deliveries, blocked=blocked)

    def end_flight(self, flight: Flight, mask: int) -> None:
        self.leave(flight.chunk, mask, MessageState.IN_FLIGHT)
        super().end_flight(flight, mask)

    def end_wait(self, wait: Wait, mask: int) -> None:
        self.leave(wait.chunk, mask, MessageState.WAITING)
        super().end_wait(wait, mask)

    def end_poison(self, poison: Poison, mask: int) -> None:
        self.leave(poison.chunk, mask, MessageState.BLOCKED if poison.blocked else MessageState.LEAVING)
        super().end_poison(poison, mask)

    def close(self, chunk: Chunk, mask: int) -> None:
        super().close(chunk, mask)  # ends the state of each first
        self.enter(chunk, mask, MessageState.ACKNOWLEDGED)

    def close_range(self, start: int, end: int) -> int:
        if end > max(start, self.next):
            self.seen.add((MessageState.UNSEEN, MessageState.ACKNOWLEDGED))
        return super().close_range(start, end)

    def reopen(self, messages: Sequence[Reopened]) -> None:
        for each in messages:
            if each.offset < self.next:
                self.between[each.offset] = MessageState.ACKNOWLEDGED
            else:
                self.seen.add((MessageState.ACKNOWLEDGED, MessageState.UNSEEN))
        super().reopen(messages)

    def reset(self, offset: int) -> None:
        self.between.clear()
        super().reset(offset)
