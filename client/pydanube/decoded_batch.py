"""A delivered batch whose columns are decoded once, for all messages and parts of it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from pydanube_core.batch import BROKER_PART_BYTES, PRODUCER_PART_BYTES, BatchView, Codec
from pydanube_core.batch.layout import padded
from pydanube_core.errors import InvalidArgument

from pydanube.facts import SchemaRef


class DecodedBatch:
    """A stored batch, verified. Columns are decoded at the first use and kept for its other parts."""

    def __init__(self, stored: bytes | memoryview) -> None:
        self.stored = stored  # as the log has it. The columns are views into it
        self.stored_bytes = len(stored)
        self.view = BatchView.stored(stored)
        self._attributes: list[dict[str, str]] | None = None  # where it has some, once they are read
        self._body = memoryview(stored)[BROKER_PART_BYTES:]
        self.offsets: Sequence[int] = self.view.offsets()

    @cached_property
    def _payloads(self) -> list[bytes]:
        return self.view.payloads()

    def payloads(self, low: int, high: int) -> list[bytes]:
        """Return the payloads of messages [low, high). A small part of a large plain batch is cut out without the rest."""
        part = self.view.part
        if high - low == part.count:
            return self._payloads if part.count > 1 else self.view.payloads()
        if part.codec is not Codec.NONE or "_payloads" in self.__dict__ or 4 * (high - low) > part.count:
            return self._payloads[low:high]
        try:
            ends = struct.unpack_from(f"<{high - low + 1}i", self._body, PRODUCER_PART_BYTES + 4 * low)
        except struct.error:
            raise InvalidArgument("a column reaches beyond the batch", field="batch", value=low) from None
        if any(a > b for a, b in pairwise((0, *ends))):
            raise InvalidArgument("payload offsets fall", field="batch", value=low)
        start = PRODUCER_PART_BYTES + padded(4 * (part.count + 1))
        data = bytes(self._body[start + ends[0] : start + ends[-1]])
        return [data[a - ends[0] : b - ends[0]] for a, b in pairwise(ends)]

    @cached_property
    def keys(self) -> list[bytes | None] | None:
        return self.view.keys()

    @property
    def attributes(self) -> list[dict[str, str]] | None:
        # Not a `cached_property`, which takes a lock up to Python 3.11: attributes of a request are read three times
        if self._attributes is None:
            self._attributes = self.view.attributes()
        return self._attributes

    @cached_property
    def publish_times_ms(self) -> list[int]:
        return self.view.publish_times_ms()

    def producer(self, index: int) -> str:
        """Return the producer's name, or its decimal id if the batch has no name."""
        table = self._producers
        if not table:
            return str(self.view.part.producer_id)
        rows = self._producer_index
        number, name = table[0 if rows is None else rows[index]]
        return name or str(number)

    def routing_keys(self, low: int, high: int) -> list[bytes | str]:
        """Return what a key-shared subscription routes messages [low, high) by: the key, else the producer's name."""
        keys = self.keys
        found = [None] * (high - low) if keys is None else keys[low:high]
        return [self.producer(low + at) if key is None else key for at, key in enumerate(found)]

    @cached_property
    def _producers(self) -> list[tuple[int, str]]:
        return self.view.producers()

    @cached_property
    def _producer_index(self) -> tuple[int, ...] | None:
        return self.view.producer_index()

    def schema(self, index: int) -> SchemaRef | None:
        """Return the schema that message `index` was written with."""
        table, rows = self._schemas
        return table[0 if rows is None else rows[index]]

    def schemas(self, low: int, high: int) -> list[SchemaRef | None]:
        """Return the schemas that messages [low, high) were written with."""
        table, rows = self._schemas
        return table * (high - low) if rows is None else [table[row] for row in rows[low:high]]

    @cached_property
    def _schemas(self) -> tuple[list[SchemaRef | None], tuple[int, ...] | None]:
        part, found = self.view.part, self.view.schemas()
        pairs, rows = ([(part.schema_id, part.schema_version)], None) if found is None else found
        return [SchemaRef(number, version) if number else None for number, version in pairs], rows
