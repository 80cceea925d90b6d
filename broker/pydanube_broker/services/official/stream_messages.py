"""Extracts messages for official consumers from stored batches.

A frame records the batches and indices of its messages, and encodes them as `StreamMessage`s when it is sent. Decoded
batches are cached, bounded in bytes, because a strict round robin takes one message at a time, and decoding a batch of
thousands for each would cost a millisecond per message.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pydanube_core.batch import BROKER_PART_BYTES

from pydanube_broker.cluster.records import DispatchStrategy
from pydanube_broker.delivery.frame_builder import Taken
from pydanube_broker.journal import CachedBatch
from pydanube_broker.services.official.hot_messages import encode_delivery
from pydanube_broker.subscription.batch_columns import BatchColumns, DecodedBatch, messages_between
from pydanube_broker.topics.topic import Topic

Ints = npt.NDArray[np.integer[Any]]
CACHE_BYTES: Final = 32 << 20


class DecodedBatches:
    """The broker's cache of recently decoded batches, bounded in bytes."""

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self._limit = limit_bytes
        self._batches: OrderedDict[tuple[int, bytes], DecodedBatch] = OrderedDict()
        self.used_bytes = 0

    def get(self, topic: Topic, batch: CachedBatch) -> DecodedBatch:
        if batch.count == 1:
            return DecodedBatch(batch)  # not cached, because it is not used again soon
        # The broker part, which has a checksum, identifies the stored batch, also when it is read again.
        key = (topic.topic_id, bytes(batch.buffers[0][:BROKER_PART_BYTES]))
        decoded = self._batches.get(key)
        if decoded is not None:
            self._batches.move_to_end(key)
            return decoded
        decoded = self._batches[key] = DecodedBatch(batch)
        self.used_bytes += decoded.cost_bytes
        while self.used_bytes > self._limit and len(self._batches) > 1:
            _, oldest = self._batches.popitem(last=False)
            self.used_bytes -= oldest.cost_bytes
        return decoded


class MessageFrame:
    """One delivery to an official consumer (a `Frame`)."""

    __slots__ = ("_pieces", "messages", "stored_bytes")

    def __init__(self) -> None:
        self._pieces: list[tuple[CachedBatch, Sequence[int]]] = []
        self.messages = 0
        self.stored_bytes = 0

    def add(self, batch: CachedBatch, first: int, end: int, max_messages: int, delivery_count: int) -> Taken:
        inside, end, ranges = messages_between(batch, first, end, max_messages)
        if not inside:
            return Taken(0, 0, end, ())
        return Taken(len(inside), self._take(batch, inside), end, ranges)

    def add_selected(self, columns: BatchColumns, indices: Sequence[int] | Ints, delivery_count: int) -> int:
        return self._take(columns.batch, indices.tolist() if isinstance(indices, np.ndarray) else indices)

    def _take(self, batch: CachedBatch, inside: Sequence[int]) -> int:
        cost = batch.stored_bytes * len(inside) // batch.count
        self._pieces.append((batch, inside))
        self.messages += len(inside)
        self.stored_bytes += cost
        return cost

    def encode(self, topic: Topic, decoded: DecodedBatches, broker_url: str) -> Iterator[bytes]:
        """Yield the encoded messages in order, each encoded on demand."""
        name = topic.name
        stored = topic.options.dispatch_strategy is DispatchStrategy.RELIABLE
        for batch, inside in self._pieces:
            columns = decoded.get(topic, batch)
            for index in inside:
                yield _delivery(columns, index, name, broker_url, stored=stored)


def _delivery(columns: DecodedBatch, index: int, topic: str, broker_url: str, *, stored: bool) -> bytes:
    """Return one message in the official clients' form. Absent fields stay absent.

    Args:
        stored: whether the topic stores its messages. Otherwise their offsets are 0, on which the original's command
            line relies.
    """
    producer_id, producer_name = columns.producer(index)
    schema_id, version = columns.schema(index)
    return encode_delivery(
        columns.sequences[index],
        producer_id,
        topic,
        broker_url,
        columns.offsets[index] if stored else 0,
        columns.payloads[index],
        columns.publish_times_ms[index],
        producer_name,
        None if columns.attributes is None else columns.attributes[index],
        schema_id,
        version,
        None if columns.keys is None else columns.keys[index],
    )
