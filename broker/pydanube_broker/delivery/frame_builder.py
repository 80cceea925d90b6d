"""Put messages of stored batches into one delivery frame.

A part is the whole stored batch with the wanted range beside it (its producer's checksum stays intact). If
most of the batch is not wanted, the wanted messages are cut out and sealed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from pydanube_core.batch import broker_part
from pydanube_core.batch.select import Cut
from pydanube_core.frames import encode_delivery

from pydanube_broker.journal import CachedBatch
from pydanube_broker.subscription.batch_columns import BatchColumns, messages_between
from pydanube_broker.subscription.planning import Plan
from pydanube_broker.subscription.ranges import Range

Buffer = bytes | memoryview
Ints = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Taken:
    """Messages that were added to a frame: their offsets up to `end` (exclusive), and their bytes in it.

    `ranges` are the messages' own, without the holes between them.
    """

    messages: int
    stored_bytes: int
    end: int
    ranges: Sequence[tuple[int, int]]


class Frame(Protocol):
    """One frame for one consumer. The consumer's link makes and sends it, the pump fills it."""

    messages: int
    stored_bytes: int

    def add(self, batch: CachedBatch, first: int, end: int, max_messages: int, delivery_count: int) -> Taken:
        """Add the messages with first ≤ offset < end, at most `max_messages` (≥ 1) of them."""

    def add_selected(self, columns: BatchColumns, indices: Sequence[int] | Ints, delivery_count: int) -> int:
        """Add the messages at these ascending indices of the batch. Return their bytes in the frame."""


def fill(frame: Frame, plan: Plan, batches: Sequence[CachedBatch]) -> tuple[list[Range], int]:
    """Fill a frame with messages that were read for a plan of few ranges.

    Returns:
        The ranges of its messages, and the offset up to which the log was read.
    """
    ranges: list[Range] = []
    left, left_bytes = plan.max_messages, plan.max_bytes
    next_offset = plan.start
    wanted = iter(plan.ranges)
    current = next(wanted, None)
    for batch in batches:
        full = False
        while current is not None and current[0] < batch.end:
            first, end = max(current[0], batch.base), min(current[1], batch.end)
            if first < end:
                if left <= 0 or (left_bytes is not None and left_bytes <= 0 and ranges):
                    full = True
                    break
                taken = frame.add(batch, first, end, left, plan.delivery_count)
                left -= taken.messages
                if left_bytes is not None:
                    left_bytes -= taken.stored_bytes
                for piece in taken.ranges:
                    if ranges and ranges[-1][1] == piece[0]:
                        ranges[-1] = (ranges[-1][0], piece[1])
                    else:
                        ranges.append(piece)
                next_offset = taken.end
                if taken.end < end:
                    full = True
                    break
            if current[1] > batch.end:
                break
            current = next(wanted, None)
        if full or current is None:
            break
        next_offset = max(next_offset, min(batch.end, plan.end_limit))
    else:
        if not batches:
            next_offset = plan.end_limit  # no message is left there
    return ranges, min(next_offset, plan.end_limit)


class FrameBuilder:
    """One frame of whole and cut batches for one session of `danube.stream`."""

    __slots__ = ("_last", "_parts", "_session", "messages", "stored_bytes")

    def __init__(self, session: int) -> None:
        self._session = session
        self._parts: list[tuple[int, int, int, Sequence[Buffer]]] = []
        self._last: CachedBatch | None = None
        self.messages = 0
        self.stored_bytes = 0

    def add(self, batch: CachedBatch, first: int, end: int, max_messages: int, delivery_count: int) -> Taken:
        """Add the messages with first ≤ offset < end, at most `max_messages` (≥ 1) of them."""
        inside, end, ranges = messages_between(batch, first, end, max_messages)
        if not inside:
            return Taken(0, 0, end, ())
        start, messages = inside[0], len(inside)
        if messages * 2 >= batch.count or batch is self._last:
            cost = self._whole(batch, first, end, messages, delivery_count)
        else:
            columns = BatchColumns(batch)
            cut = columns.cutter.slice(start, start + messages)
            cost = self._cut(columns, cut, messages, delivery_count)
        return Taken(messages, cost, end, ranges)

    def add_selected(self, columns: BatchColumns, indices: Sequence[int] | Ints, delivery_count: int) -> int:
        """Add the messages at these ascending indices of the batch. Return their bytes in the frame."""
        batch = columns.batch
        if len(indices) == batch.count:
            return self._whole(batch, batch.base, batch.end, batch.count, delivery_count)
        cutter = columns.cutter
        cut = (
            cutter.slice(indices.start, indices.stop)
            if isinstance(indices, range)
            else cutter.select(indices)
        )
        return self._cut(columns, cut, len(indices), delivery_count)

    def _whole(self, batch: CachedBatch, first: int, end: int, messages: int, delivery_count: int) -> int:
        again = batch is self._last
        self._parts.append((first, end, delivery_count, () if again else batch.buffers))
        self._last = batch
        cost = 0 if again else batch.stored_bytes
        self.messages += messages
        self.stored_bytes += cost
        return cost

    def _cut(self, columns: BatchColumns, cut: Cut, messages: int, delivery_count: int) -> int:
        head, base = columns.head, columns.batch.base
        base, last = base + cut.first_delta, base + cut.last_delta
        sealed = broker_part(
            base_offset=base,
            last_offset=last,
            epoch=head.epoch,
            append_time_ms=head.append_time_ms,
            resealed=True,
        )
        self._parts.append((base, last + 1, delivery_count, (sealed, cut.batch)))
        self._last = None
        self.messages += messages
        cost = len(sealed) + len(cut.batch)
        self.stored_bytes += cost
        return cost

    def encode(self) -> bytes:
        return encode_delivery(self._session, self._parts)
