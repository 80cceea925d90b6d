"""A batch to be sent, and the light handle that each of its messages gives to the sender.

A batch gathers columns in plain lists, is encoded once, and is answered once. A handle is two references. No asyncio
object is created per message unless it is awaited, and then one answer wakes all waiters of its batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Self

from pydanube_core.batch import BatchView, Codec, LoneBatches, PackedColumn, encode_batch
from pydanube_core.errors import ClusterError, NameReused, ProducerUnknown
from pydanube_core.frames import PUBLISH_BATCH_FIELD, write_bytes_field

from pydanube.facts import Receipt, from_ms
from pydanube.wire.transport import copy_of

# A message's share of the offset columns. It also bounds a batch of empty messages
MESSAGE_OVERHEAD_BYTES: Final = 16

_ATTRIBUTE_BYTES: Final = 8  # two offsets per entry
assert _ATTRIBUTE_BYTES == 2 * 4


@dataclass(slots=True, eq=False, kw_only=True)
class Session:
    """A producer session as the broker opened it. Batches carry its sequence numbers."""

    producer_id: int
    epoch: int
    next_sequence: int
    producer_name: str
    durability: str
    schema: tuple[int, int]
    token: int  # with the id, identifies the session
    topic_id: int  # a topic created again under the same name has another, and not this session
    _lone: LoneBatches = field(init=False)

    def __post_init__(self) -> None:
        self._lone = LoneBatches(
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            name=self.producer_name,
            schema=self.schema,
        )

    @classmethod
    def of(cls, opened: Any, topic: str, name: str | None, *, before: Session | None) -> Session:
        """Return the session of the broker's `ProducerOpened`, after an earlier one of the same producer.

        Raises `NameReused` if the earlier one's topic was deleted.
        """
        if before is not None and before.topic_id != opened.topic_id:
            raise NameReused(
                f"topic {topic} was deleted, and another topic has its name now: nothing more is sent. Open a new producer",
                field="topic",
                value=topic,
                topic_id=str(before.topic_id),
                other_topic_id=str(opened.topic_id),
            )
        return cls(
            producer_id=opened.producer_id,
            epoch=opened.producer_epoch,
            next_sequence=opened.next_sequence,
            producer_name=opened.producer_name or name or "",
            durability=opened.durability,
            token=opened.producer_token,
            topic_id=opened.topic_id,
            schema=(opened.schema_id, opened.schema_version),
        )

    def check_resumed(self, opened: Any, topic: str) -> None:
        """Check that the broker resumed this session. Raises `ProducerUnknown`."""
        came = (opened.topic_id, opened.producer_id, opened.producer_epoch, opened.producer_token)
        if came != (self.topic_id, self.producer_id, self.epoch, self.token):
            raise ProducerUnknown(
                f"{topic}: the broker resumed another session than this producer's", topic=topic
            )

    def lone(
        self, payload: bytes, publish_time_ms: int, key: bytes | None, attributes: Mapping[str, str] | None
    ) -> bytes:
        """Return the bytes that `OutBatch.encode` would make of this message alone. Uses no sequence number yet."""
        return write_bytes_field(
            PUBLISH_BATCH_FIELD,
            self._lone.encode(payload, self.next_sequence, publish_time_ms, key, attributes),
        )


@dataclass(frozen=True, slots=True)
class PackedMessages:
    """Messages that came as columns, and make one batch.

    Attributes:
        bytes: charged to the window.
    """

    payloads: PackedColumn
    keys: PackedColumn | None
    bytes: int

    def __len__(self) -> int:
        return len(self.payloads)


class OutBatch:
    """Messages of one partition that are sent together.

    Life: gathering (`payloads` grows) → encoded (`wire`, sequence taken) → answered (`base_offset` ≥ 0 or `error`).
    A refusal further ahead may send an encoded batch back to be encoded again for a new session (`reopen`).

    `bytes` counts payloads, keys and attributes, and is charged to the window.
    """

    __slots__ = (
        "_on_failure", "_waiters", "append_time", "attributes", "base_offset", "bound", "bytes", "count", "duplicate", "durability",
        "error", "error_seen", "first_sequence", "keys", "packed", "partition", "payloads",
        "publish_time_ms", "topic", "wire", "writes",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int | None) -> None:
        self.topic = topic
        self.partition = partition
        self.payloads: list[bytes] = []
        self.keys: list[bytes | None] | None = None  # of the first messages; the others have none
        self.attributes: dict[int, Mapping[str, str]] | None = None
        self.packed: PackedMessages | None = None  # in place of the columns above
        self.bound = False  # a key or the caller chose the partition of a message
        self.bytes = 0
        self.count = 0  # set when encoded
        self.publish_time_ms = 0
        self.wire = b""
        self.first_sequence = -1
        self.writes = 0  # how often it was handed to a transport
        self.base_offset = -1
        self.append_time: datetime | None = None
        self.durability = ""
        self.duplicate = False
        self.error: ClusterError | None = None
        self.error_seen = False
        self._waiters: list[asyncio.Future[None]] | None = None
        self._on_failure: list[Callable[[ClusterError], None]] | None = None  # if it is not stored

    @classmethod
    def of(cls, topic: str, partition: int | None, packed: PackedMessages) -> Self:
        """Return a full batch of columns."""
        batch = cls(topic, partition)
        batch.packed, batch.count, batch.bytes = packed, len(packed), packed.bytes
        batch.publish_time_ms = time.time_ns() // 1_000_000
        return batch

    def __len__(self) -> int:
        return self.count or len(self.payloads)

    @property
    def answered(self) -> bool:
        return self.base_offset >= 0 or self.error is not None

    def add_keys(self, keys: Sequence[bytes | None]) -> None:
        """Add the keys of the messages whose payloads are added next."""
        if self.keys is None:
            self.keys = []
        if missing := len(self.payloads) - len(self.keys):
            self.keys += [None] * missing
        self.keys += keys

    def add_attributes(self, attributes: Sequence[Mapping[str, str] | None]) -> None:
        """Add the attributes of the messages whose payloads are added next. They are not copied."""
        first = len(self.payloads)
        given = {at: each for at, each in enumerate(attributes, first) if each}
        if given:
            self.attributes = given if self.attributes is None else self.attributes | given

    def add(self, payload: bytes, key: bytes | None, attributes: Mapping[str, str] | None) -> PendingSend:
        """Add a message and return its handle."""
        index = len(self.payloads)
        if key is not None:
            self.add_keys((key,))
        self.payloads.append(payload)
        if attributes:
            if self.attributes is None:
                self.attributes = {}
            self.attributes[index] = dict(attributes)
        return PendingSend.of(self, index)

    # -- out -------------------------------------------------------------------------------------------------

    def encode(self, session: Session, codec: Codec) -> None:
        """Take the session's next sequence numbers, and make the bytes that every retry sends."""
        count = len(self)
        attributes, packed = self.attributes, self.packed
        keys: Sequence[bytes | None] | PackedColumn | None
        if packed is not None:
            keys = packed.keys
        else:
            keys = None if self.keys is None else self.keys + [None] * (count - len(self.keys))
        batch = encode_batch(
            self.payloads if packed is None else packed.payloads,
            producer_id=session.producer_id,
            producer_epoch=session.epoch,
            first_sequence=session.next_sequence,
            publish_time_ms=self.publish_time_ms,
            keys=keys,
            attributes=None if attributes is None else [attributes.get(i) for i in range(count)],
            producers=((session.producer_id, session.producer_name),),
            schema=session.schema,
            codec=codec,
        )
        self.wire = write_bytes_field(PUBLISH_BATCH_FIELD, (batch,))
        self.count = count
        self.first_sequence = session.next_sequence
        session.next_sequence += count
        self.payloads = []
        self.keys = self.attributes = self.packed = None

    def reopen(self) -> None:
        """Undo `encode`. Only for a batch that is certainly not stored."""
        view = BatchView(self.wire[-self._batch_bytes() :])
        self.payloads = view.payloads()
        keys = view.keys()
        if keys is not None:
            self.keys = list(keys)
        attributes = view.attributes()
        if attributes is not None:
            self.attributes = {i: entry for i, entry in enumerate(attributes) if entry}
        self.wire = b""
        self.count = self.writes = 0
        self.first_sequence = -1

    def _batch_bytes(self) -> int:
        size = len(self.wire) - 1
        # `wire` is a tag of one byte, the batch's length as a varint of 1 to 4 bytes (up to 4 MiB), and the batch
        for varint in range(1, 5):
            if (size - varint).bit_length() <= 7 * varint:
                return size - varint
        raise AssertionError("a batch beyond the frame limit was encoded")

    # -- answered --------------------------------------------------------------------------------------------

    def store(self, base_offset: int, append_time_ms: int, durability: str, *, duplicate: bool) -> None:
        assert self.base_offset < 0
        assert self.error is None
        self.base_offset = base_offset
        self.append_time = from_ms(append_time_ms)
        self.durability = durability
        self.duplicate = duplicate
        self._finish()

    def fail(self, error: ClusterError) -> None:
        assert not self.answered
        self.error = error
        if self._on_failure is not None:
            self.error_seen = True
            for callback in self._on_failure:
                asyncio.get_running_loop().call_soon(callback, error)
        self._finish()

    def _finish(self) -> None:
        self.count = self.count or len(self.payloads)
        self.wire = b""
        self.payloads = []
        self.keys = self.attributes = self.packed = None
        if self._waiters is not None:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters = None

    def waiter(self) -> asyncio.Future[None]:
        """Return a future for one waiter, so that cancelling it leaves the others. Not for answered batches."""
        assert self.base_offset < 0
        assert self.error is None
        # not loop.create_future(): on asyncio's own loop that is one more Python frame for each awaited send
        waiter: asyncio.Future[None] = asyncio.Future(loop=asyncio.get_running_loop())
        if self._waiters is None:
            self._waiters = [waiter]
        else:
            self._waiters.append(waiter)
        return waiter

    def when_failed(self, callback: Callable[[ClusterError], None]) -> None:
        """Call `callback` with the error if the batch is not stored. Not for answered batches."""
        assert not self.answered
        if self._on_failure is None:
            self._on_failure = [callback]
        else:
            self._on_failure.append(callback)

    async def wait(self) -> None:
        """Wait until the batch is answered. Does not raise its error."""
        if not self.answered:
            await self.waiter()
        assert self.answered

    def receipt(self, index: int) -> Receipt:
        """Return the receipt of one message, or raise its error."""
        if self.error is not None:
            self.error_seen = True
            raise copy_of(self.error)
        assert self.append_time is not None
        return tuple.__new__(  # as Receipt(…), but a frame less: the main allocation of an awaited send
            Receipt,
            (self.topic, self.partition, self.base_offset + index, self.append_time, self.durability, self.duplicate),
        )  # fmt: skip


class PendingSend:
    """A message that was handed over. Await it for its receipt, as often as needed, or ignore it.

    Awaiting raises the message's `ClusterError`. A failure that is not awaited is raised by `flush()` and by leaving
    the producer's block. Cancelling the await does not take the message back: it will be stored.
    """

    __slots__ = ("_batch", "_index")

    # Set by the code that creates it: an `__init__` would take a third of the time of `send_nowait`
    _batch: OutBatch
    _index: int

    @classmethod
    def of(cls, batch: OutBatch, index: int) -> Self:
        handle = cls()
        handle._batch = batch
        handle._index = index
        return handle

    def when_failed(self, callback: Callable[[ClusterError], None]) -> None:
        """Call `callback` with the error if the message is not stored. Cheaper than a task that waits."""
        self._batch.when_failed(callback)

    def done(self) -> bool:
        """Whether the receipt, or an error, has arrived."""
        return self._batch.answered

    def __await__(self) -> Generator[Any, None, Receipt]:
        batch = self._batch
        if batch.base_offset < 0 and batch.error is None:
            yield from batch.waiter()
        return batch.receipt(self._index)
