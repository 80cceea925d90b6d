"""Topics of the in-memory cluster: batches in order, and the sessions of idempotent producers."""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from pydanube_core.batch import BatchView, broker_part, read_producer_part
from pydanube_core.errors import (
    InvalidArgument,
    MessageTooLarge,
    OutOfSequence,
    ProducerFenced,
    ProducerUnknown,
    SchemaMismatch,
)
from pydanube_core.positions import Position, PositionKind

_REMEMBERED: Final = 8  # batches a producer, as in the broker


@dataclass(frozen=True, slots=True)
class Stored:
    """A batch with its broker part; offsets [base, end)."""

    base: int
    end: int
    append_time_ms: int
    data: bytes


@dataclass(slots=True)
class ProducerState:
    producer_id: int
    epoch: int
    name: str
    token: int = field(default_factory=lambda: random.getrandbits(64) or 1)
    next_sequence: int = 0
    recent: deque[tuple[int, Stored]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))


class ProducerConnection(Protocol):
    """Whose stream it is that holds a producer."""

    def fence(self, name: str) -> None: ...


class MemoryTopic:
    """One concrete topic (a partition is one). Its offsets have no gaps."""

    def __init__(self, name: str, topic_id: int, *, dispatch_strategy: str, max_message_bytes: int) -> None:
        self.name = name
        self.topic_id = topic_id
        self.dispatch_strategy = dispatch_strategy
        self.max_message_bytes = max_message_bytes
        self.log: list[Stored] = []
        self._bases: list[int] = []
        self.next_offset = 0
        self.producers: dict[int, ProducerState] = {}
        self.listeners: set[Callable[[], None]] = set()
        self._attached: dict[ProducerConnection, str] = {}  # connection → producer's name
        self._subject = ""
        self._holder: ProducerConnection | None = None  # the exclusive producer's

    # -- producers -------------------------------------------------------------------------------------------

    def open_producer(
        self, name: str, earlier: tuple[int, int, int, int], *, new_id: int, exclusive: bool
    ) -> ProducerState:
        """A session; `earlier` is topic id, producer id, epoch and token of one to go on with, zeros for none."""
        topic_id, producer_id, epoch, token = earlier
        if producer_id:
            state = self._session(producer_id, epoch)
            if (topic_id, token) != (self.topic_id, state.token):
                raise ProducerUnknown(f"{self.name} does not know producer {producer_id}", outcome="unknown")
            return state
        known = next((state for state in self.producers.values() if state.name == name), None)
        if exclusive and known is not None:
            known.epoch += 1
            known.token = random.getrandbits(64) or 1
            return known
        state = self.producers[new_id] = ProducerState(new_id, 1, name or f"producer-{new_id}")
        return state

    def check_access(self, name: str, *, exclusive: bool) -> None:
        """Raise `ProducerFenced` where somebody has the topic for himself, or exclusive access is not to be had."""
        held_by = None if self._holder is None else self._attached[self._holder]
        others = {other for other in self._attached.values() if other != name}
        if (held_by is not None and held_by != name) or (exclusive and others):
            raise ProducerFenced(f"{self.name} has the producer {held_by or min(others)}", holder=held_by)

    def bind_schema(self, subject: str) -> None:
        """The first subject that a producer names is the topic's; raises `SchemaMismatch` for another."""
        if self._subject not in ("", subject):
            raise SchemaMismatch(f"{self.name} has the schema {self._subject}", field="schema", value=subject)
        self._subject = subject

    def attach(
        self, server: ProducerConnection, name: str, *, exclusive: bool, named: bool
    ) -> list[ProducerConnection]:
        """A producer's connection is there; returns those whose place it takes."""
        takes_over = named or (self._holder is not None and self._attached[self._holder] == name)
        former = [one for one, other in self._attached.items() if other == name] if takes_over else []
        for one in former:
            self.detach(one)
        self._attached[server] = name
        if exclusive:
            self._holder = server
        return former

    def detach(self, server: ProducerConnection) -> None:
        self._attached.pop(server, None)
        if self._holder is server:
            self._holder = None

    def _session(self, producer_id: int, epoch: int) -> ProducerState:
        state = self.producers.get(producer_id)
        if state is None or epoch > state.epoch:
            raise ProducerUnknown(f"{self.name} does not know producer {producer_id}", outcome="unknown")
        if epoch < state.epoch:
            raise ProducerFenced(f"producer {state.name} was opened again", outcome="unknown")
        return state

    def append(self, data: memoryview) -> tuple[Stored, bool]:
        """Store a batch; returns it, and whether it was there before."""
        part = read_producer_part(data)
        state = self._session(part.producer_id, part.producer_epoch)
        for first_sequence, stored in state.recent:
            if first_sequence == part.first_sequence and stored.end - stored.base == part.count:
                return stored, True
        if part.first_sequence != state.next_sequence:
            raise OutOfSequence(
                f"sequence {part.first_sequence} came, {state.next_sequence} is next", field="first_sequence"
            )
        largest = max(map(len, BatchView(data, part=part).payloads()))
        if largest > self.max_message_bytes:
            raise MessageTooLarge(
                f"{self.name}: a message of {largest} bytes, the topic takes {self.max_message_bytes}",
                field="payload", value=largest,
            )  # fmt: skip
        base, end = self.next_offset, self.next_offset + part.count
        now_ms = max(time.time_ns() // 1_000_000, self.log[-1].append_time_ms if self.log else 0)
        head = broker_part(base_offset=base, last_offset=end - 1, epoch=1, append_time_ms=now_ms)
        stored = Stored(base, end, now_ms, head + data)
        self.log.append(stored)
        self._bases.append(base)
        self.next_offset = end
        state.next_sequence += part.count
        state.recent.append((part.first_sequence, stored))
        for listener in list(self.listeners):
            listener()
        return stored, False

    # -- reading ---------------------------------------------------------------------------------------------

    def batch_at(self, offset: int) -> Stored | None:
        """The batch that holds `offset`; None at the end."""
        if offset >= self.next_offset:
            return None
        return self.log[bisect_right(self._bases, offset) - 1]

    def offset_of(self, text: str) -> int:
        """The offset a position stands for now."""
        position = Position.parse(text, now_ms=time.time_ns() // 1_000_000)
        match position.kind:
            case PositionKind.EARLIEST:
                return 0
            case PositionKind.LATEST:
                return self.next_offset
            case PositionKind.OFFSET:
                if position.value > self.next_offset:
                    raise InvalidArgument(
                        f"offset {position.value} is beyond the end of {self.name}: {self.next_offset} is next",
                        field="position",
                        value=text,
                        next_offset=self.next_offset,
                    )
                return position.value
            case PositionKind.TIME:
                return next(
                    (b.base for b in self.log if b.append_time_ms >= position.value), self.next_offset
                )
