"""Facts about one stored batch that routing and cutting need."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pydanube_core.batch import (
    BROKER_PART_BYTES,
    BatchView,
    BrokerPart,
    broker_part,
    read_broker_part,
    read_producer_part,
)
from pydanube_core.batch.select import Cutter

from pydanube_broker.journal.tail_cache import CachedBatch
from pydanube_broker.subscription.ranges import runs_of

Buffer = bytes | memoryview
Ints = npt.NDArray[Any]
OBJECT_BYTES: Final = 200  # of a decoded message, beside its payload


def producer_bytes(batch: CachedBatch) -> Buffer:
    """Return the producer part and body of a stored batch."""
    if len(batch.buffers) == 2:
        return batch.buffers[1]
    return memoryview(batch.buffers[0])[BROKER_PART_BYTES:]


def view_of(batch: CachedBatch) -> BatchView:
    """Return a view of a stored batch. Its checksum was verified on receipt or on reading the journal."""
    data = producer_bytes(batch)
    return BatchView(data, base_offset=batch.base, part=read_producer_part(data, verify=False))


def messages_between(
    batch: CachedBatch, first: int, end: int, most: int
) -> tuple[Sequence[int], int, Sequence[tuple[int, int]]]:
    """Find the messages with first ≤ offset < end, at most `most` (≥ 1) of them.

    Returns:
        Their indices in the batch, the end of the offsets that were searched, and their offsets as ranges.
    """
    if batch.end - batch.base == batch.count:
        end = min(end, batch.end, first + most)
        return range(first - batch.base, end - batch.base), end, ((first, end),)
    offsets = view_of(batch).offsets()
    inside = [i for i, offset in enumerate(offsets) if first <= offset < end]
    if len(inside) > most:
        end = offsets[inside[most]]
        inside = inside[:most]
    return inside, end, runs_of(offsets[i] for i in inside)


class BatchColumns:
    """Facts about one batch, computed once, because a batch is routed in several parts as credit arrives."""

    def __init__(self, batch: CachedBatch) -> None:
        self.batch = batch

    @cached_property
    def weight(self) -> int:
        """Return the maximum bytes that this holds: the stored batch and its arranged copy."""
        part = read_producer_part(producer_bytes(self.batch), verify=False)
        return 2 * max(self.batch.stored_bytes, part.raw_bytes)

    @cached_property
    def head(self) -> BrokerPart:
        """Return the broker's part in front of the batch."""
        buffers = self.batch.buffers
        return read_broker_part(
            buffers[0] if len(buffers) == 2 else memoryview(buffers[0])[:BROKER_PART_BYTES]
        )

    @cached_property
    def offsets(self) -> Ints:
        batch = self.batch
        if batch.end - batch.base == batch.count:
            return np.arange(batch.base, batch.end, dtype=np.int64)
        deltas = view_of(batch).offset_deltas()
        return batch.base + np.asarray(deltas, dtype=np.int64)

    def indices_of(self, offsets: Ints) -> Ints:
        """Return the ascending indices of messages with these offsets. Offsets in holes are left out."""
        batch = self.batch
        if batch.end - batch.base == batch.count:
            return offsets - batch.base
        own = self.offsets
        at = np.searchsorted(own, offsets)
        at = at[at < len(own)]
        found: Ints = at[own[at] == offsets[: len(at)]]
        return found

    @cached_property
    def slots(self) -> npt.NDArray[np.uint16]:
        return self.cutter.slots().astype(np.uint16)

    def arrange(self, order: Ints) -> None:
        """Lay out (some of) the messages in this order, in which cuts will be contiguous. See `Cutter`."""
        self.cutter.arrange(order)

    @cached_property
    def cutter(self) -> Cutter:
        return Cutter(producer_bytes(self.batch))

    @cached_property
    def sizes(self) -> Ints:
        return self.cutter.sizes()

    @cached_property
    def keys(self) -> list[str]:
        """Return the key of each message: its routing key, else its producer's name."""
        view = view_of(self.batch)
        keys = view.keys() or [None] * self.batch.count
        names = [name for _, name in view.producers()] or [""]
        which = view.producer_index() or (0,) * self.batch.count
        return [
            names[producer] if key is None else key.decode("utf-8", "replace")
            for key, producer in zip(keys, which, strict=True)
        ]


def rest_of(data: Buffer, at: int) -> bytes:
    """Return the messages of a stored batch from an offset on, as a batch. Empty: it has none there."""
    head = read_broker_part(data[:BROKER_PART_BYTES])
    count = read_producer_part(data[BROKER_PART_BYTES:], verify=False).count
    batch = CachedBatch(
        head.base_offset, head.last_offset + 1, count, head.append_time_ms, len(data), (data,)
    )
    indices, _, _ = messages_between(batch, at, batch.end, count)
    if not len(indices):
        return b""
    cut = BatchColumns(batch).cutter.select(indices)
    sealed = broker_part(
        base_offset=batch.base + cut.first_delta,
        last_offset=batch.base + cut.last_delta,
        epoch=head.epoch,
        append_time_ms=head.append_time_ms,
        resealed=True,
    )
    return sealed + bytes(cut.batch)


class DecodedBatch:
    """The messages of a batch, decoded once, column by column."""

    __slots__ = (
        "_producers", "_schemas", "_which_producer", "_which_schema", "attributes", "cost_bytes", "keys", "offsets",
        "payloads", "publish_times_ms", "sequences",
    )  # fmt: skip

    def __init__(self, batch: CachedBatch) -> None:
        view = view_of(batch)
        part = view.part
        self.payloads = view.payloads()
        self.offsets = view.offsets()
        self.keys = view.keys()
        self.attributes = view.attributes()
        self.publish_times_ms = view.publish_times_ms()
        self.sequences = view.sequences()
        self._producers = view.producers() or [(part.producer_id, "")]
        self._which_producer = view.producer_index()
        self._schemas = [(part.schema_id, part.schema_version)]
        self._which_schema: tuple[int, ...] | None = None
        if (table := view.schemas()) is not None:
            self._schemas, self._which_schema = table
        self.cost_bytes = part.raw_bytes + len(batch.buffers[-1]) + part.count * OBJECT_BYTES

    def producer(self, index: int) -> tuple[int, str]:
        """Return id and name of a message's producer."""
        return self._producers[self._which_producer[index] if self._which_producer else 0]

    def schema(self, index: int) -> tuple[int, int]:
        """Return id and version of a message's schema."""
        return self._schemas[self._which_schema[index] if self._which_schema else 0]
