"""Messages for the application: light views of a delivered batch.

A delivery is decoded once. A `Message` holds its payload, its offset and its delivery, and reads everything else from
the delivery on demand.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, TypeVar, overload

from pydanube_core.batch.nulls import is_null
from pydanube_core.errors import InvalidArgument, Misuse

from pydanube.arguments import check_text, check_whole, with_null, with_timing
from pydanube.facts import SchemaRef, from_ms
from pydanube.keywords import keywords_named
from pydanube.sending.outgoing import OutgoingFields, outgoing_with

if TYPE_CHECKING:
    from pydanube_core.frames import DeliveryPart

    from pydanube.decoded_batch import DecodedBatch
    from pydanube.receiving.acks import AckGatherer
    from pydanube.receiving.lane_answers import LaneAnswers

T = TypeVar("T")

#: Attributes of a request: the inbox for the reply, and the request's id, which the reply has too.
REPLY_TO: Final = "danube-reply-to"
REQUEST: Final = "danube-request"
INBOX: Final = "/default/inbox-"  # prefix of the names of topics for replies, and of no others


class Lane(Protocol):
    """The stream that delivered a message, which takes its answers."""

    topic: str
    partition: int | None
    concrete_topic: str
    answers: LaneAnswers
    generation: int
    epoch: int
    decode: Callable[[Any, Callable[..., Any] | None], Coroutine[Any, Any, Any]]
    reply: Callable[[str, str, bytes], Coroutine[Any, Any, None]]

    def taken(self, delivered: Delivered, messages: int, *, more: bool = False) -> None:
        """Count messages that the application has taken. `more`: further deliveries wait for it."""

    def returned(self, delivered: Delivered, messages: int) -> None:
        """Some messages of a delivery were given back to the broker."""

    def drop(self, delivered: Delivered) -> None:
        """Drop the rest of a delivery, whose session is over."""


class Delivered:
    """The messages [low, high) of a batch, from one delivery."""

    __slots__ = (
        "acks", "batch", "delivery_count", "epoch", "generation", "high", "lane", "low", "offsets", "size_bytes", "taken",
    )  # fmt: skip

    def __init__(self, batch: DecodedBatch, part: DeliveryPart, lane: Lane, size_bytes: int) -> None:
        offsets = batch.offsets
        if isinstance(offsets, range):
            self.low = max(0, part.first - offsets.start)
            self.high = min(len(offsets), part.end - offsets.start)
        else:
            self.low, self.high = bisect_left(offsets, part.first), bisect_left(offsets, part.end)
        if self.low >= self.high:
            raise InvalidArgument(
                f"a delivery of offsets {part.first} to {part.end} names no message of its batch",
                field="first", value=part.first,
            )  # fmt: skip
        self.batch = batch
        self.offsets = offsets[self.low : self.high]
        self.delivery_count = part.delivery_count
        self.lane = lane
        self.acks: AckGatherer = lane.answers.acks
        self.generation = lane.generation
        self.epoch = lane.epoch
        # Stored bytes that were charged for it, 0 if its batch is charged to another part
        self.size_bytes = size_bytes
        self.taken = 0  # messages whose credit was given back

    def keep(self, start: int, end: int) -> None:
        """Keep only the messages [start, end): the others were given back to the broker."""
        self.low, self.high = self.low + start, self.low + end
        self.offsets = self.offsets[start:end]

    def part(self, start: int, end: int) -> Delivered:
        """Return the messages [start, end) as a separate delivery, without a charge of credit."""
        piece = copy(self)
        piece.keep(start, end)
        piece.taken = piece.size_bytes = 0
        return piece

    @property
    def current(self) -> bool:
        """Whether its session is still the present one."""
        return self.generation == self.lane.generation

    def __len__(self) -> int:
        return self.high - self.low

    def index(self, offset: int) -> int:
        """Return the row of the message with that offset in the batch."""
        offsets = self.batch.offsets
        return offset - offsets.start if isinstance(offsets, range) else bisect_left(offsets, offset)

    def ranges(self, low: int = 0) -> Iterator[tuple[int, int]]:
        """Return runs of consecutive offsets from the `low`-th message on, as [first, end)."""
        offsets = self.offsets[low:]
        if isinstance(offsets, range):
            yield offsets.start, offsets.stop
            return
        first = previous = offsets[0]
        for offset in offsets[1:]:
            if offset != previous + 1:
                yield first, previous + 1
                first = offset
            previous = offset
        yield first, previous + 1


@dataclass(slots=True)
class Answer:
    """The answer of a handler to its message. `sent`: the broker gets it."""

    kind: Literal["ack", "nack", "terminate"]
    delay_ms: int | None = None
    reason: str = ""
    sent: bool = False


class _Received:
    """The base of a message and a batch: where they came from, and how to answer them."""

    __slots__ = ()

    @property
    def _from(self) -> Delivered:
        raise NotImplementedError

    def _flat_ranges(self) -> tuple[int, ...]:
        raise NotImplementedError

    @property
    def topic(self) -> str:
        """The topic's full name. For a partition, the name of the partitioned topic."""
        return self._from.lane.topic

    @property
    def partition(self) -> int | None:
        """Index of the partition it came from, None for a topic without partitions."""
        return self._from.lane.partition

    @property
    def append_time(self) -> datetime:
        """When the broker stored it, by its clock, UTC. Never decreases within a partition."""
        return from_ms(self._from.batch.view.append_time_ms)

    @property
    def delivery_count(self) -> int:
        """1 for the first delivery."""
        return self._from.delivery_count

    @keywords_named
    async def nack(self, delay_ms: int | None = None, reason: str = "") -> None:
        """Request redelivery, after `delay_ms` or the subscription's back-off."""
        if delay_ms is not None:
            check_whole("delay_ms", delay_ms, 0)
        check_text("reason", reason)
        delivered = self._from
        await delivered.lane.answers.nack(delivered, self._flat_ranges(), delay_ms, reason)

    async def extend(self, ms: int) -> None:
        """Move the ack deadline to `ms` from now."""
        check_whole("ms", ms, 0)
        delivered = self._from
        await delivered.lane.answers.extend(delivered.acks, self._flat_ranges(), ms)

    async def terminate(self, reason: str = "") -> None:
        """Give the message up: no redelivery, whatever the policy. It goes to the dead-letter topic if there is one."""
        check_text("reason", reason)
        delivered = self._from
        await delivered.lane.answers.terminate(delivered.acks, self._flat_ranges(), reason)


class Message(_Received):
    """A received message, made by consumers. `Message.new` makes one to send.

    `payload` and `offset` are plain attributes. The rest is looked up in the delivery. The payload stays valid as long
    as the message is held, and so does the memory of the whole delivery.
    """

    # only a handler loop sets `_answer`
    __slots__ = ("_answer", "_delivered", "offset", "payload")

    _answer: Answer | None
    payload: bytes
    offset: int

    def __init__(self, delivered: Delivered | OutgoingFields, offset: int, payload: bytes) -> None:
        self._delivered = delivered
        self.offset = offset
        self.payload = payload

    @classmethod
    def new(
        cls,
        payload: Any,
        *,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        delay_ms: int | None = None,
        ttl_ms: int | None = None,
    ) -> Self:
        """Make a message for `send_many`. The payload is bytes, a value for a producer with a schema, or None: null."""
        if payload is None:
            payload, attributes = b"", with_null(attributes, key)
        if delay_ms is not None or ttl_ms is not None:
            attributes = with_timing(attributes, delay_ms, ttl_ms)
        return cls(OutgoingFields(key, attributes) if attributes else outgoing_with(key), -1, payload)

    def __repr__(self) -> str:
        if isinstance(self._delivered, OutgoingFields):
            return f"<Message unsent, {len(self.payload)} bytes>"
        return (
            f"<Message {self._delivered.lane.concrete_topic} offset {self.offset}, {len(self.payload)} bytes>"
        )

    @property
    def _from(self) -> Delivered:
        if isinstance(self._delivered, OutgoingFields):
            raise Misuse(
                "this message was made to be sent. Only received messages have a place and can be acked"
            )
        return self._delivered

    def _flat_ranges(self) -> tuple[int, ...]:
        return self.offset, self.offset + 1

    @property
    def key(self) -> str | None:
        """The routing key, None without one. An empty key is not None."""
        delivered = self._delivered
        if isinstance(delivered, OutgoingFields):
            return delivered.key
        keys = delivered.batch.keys
        key = None if keys is None else keys[delivered.index(self.offset)]
        return None if key is None else key.decode("utf-8", "replace")

    @property
    def attributes(self) -> Mapping[str, str]:
        """The producer's attributes, text to text. Empty without any."""
        delivered = self._delivered
        if isinstance(delivered, OutgoingFields):
            return delivered.attributes
        table = delivered.batch.attributes
        return {} if table is None else table[delivered.index(self.offset)]

    @property
    def is_null(self) -> bool:
        """Whether the payload is null, which marks the key as deleted. `payload` is then empty, and `value()` None."""
        return not self.payload and is_null(self.payload, self.attributes)

    @property
    def producer(self) -> str:
        """Name of the producer that sent it."""
        delivered = self._from
        return delivered.batch.producer(delivered.index(self.offset))

    @property
    def publish_time(self) -> datetime:
        """The producer's time, UTC. In a batch, the time when its first message was handed over."""
        delivered = self._from
        return from_ms(delivered.batch.publish_times_ms[delivered.index(self.offset)])

    @property
    def schema(self) -> SchemaRef | None:
        """Id and version of the schema that it was written with, None without a schema."""
        delivered = self._from
        return delivered.batch.schema(delivered.index(self.offset))

    @overload
    async def value(self) -> Any: ...

    @overload
    async def value(self, into: Callable[..., T]) -> T: ...

    async def value(self, into: Callable[..., Any] | None = None) -> Any:
        """Return the payload decoded by its schema: text, JSON value, Avro datum. See `client.schemas.decode`.

        The version is the message's. Each version is read from the registry once per client.

        Args:
            into: a class made of the value: a dataclass, a pydantic model, a Protobuf message class.

        Raises:
            PayloadInvalid: it does not fit its schema or the class at `details["path"]`.
        """
        return await self._from.lane.decode(self, into)

    async def ack(self) -> None:
        """Acknowledge. Acks are gathered for milliseconds. `consumer.flush_acks()` waits until they are durable.

        An ack of a delivery from before a reconnect or a seek has no effect: the broker delivers the message again.

        Raises:
            ClusterError: the consumer has failed or is closed.
        """
        acks = self._delivered.acks
        offset = self.offset
        if offset == acks.next:
            acks.next = offset + 1
        else:
            acks.note(offset, offset + 1)

    @property
    def wants_reply(self) -> bool:
        """Whether it is a request (`client.request`) that waits for a reply.

        A reply topic that is no inbox does not count: the consumer may write to topics that the requester may not.
        """
        return self._asked is not None

    @property
    def _asked(self) -> tuple[str, str] | None:
        """Return the inbox for the reply and the request's id. None if it is no request."""
        attributes = self.attributes
        inbox, request = attributes.get(REPLY_TO, ""), attributes.get(REQUEST)
        return (inbox, request) if request is not None and inbox.startswith(INBOX) else None

    async def reply(self, payload: bytes) -> None:
        """Reply to a request, in the background. The reply is lost if the requester is gone.

        Raises:
            Misuse: the message is no request.
            InvalidArgument: the payload is not bytes.
        """
        asked = self._asked
        if asked is None:
            raise Misuse("this message is no request: only those of client.request() take a reply")
        if not isinstance(payload, bytes):
            what = type(payload).__name__
            raise InvalidArgument(f"a reply is bytes, got {what}. Encode it", field="payload", value=what)
        await self._from.lane.reply(*asked, payload)


class Batch(_Received):
    """Messages of one partition that arrived together, with the same `delivery_count`.

    Columns are parallel lists. A batch here need not be a batch as the producer sent it.
    """

    __slots__ = ("_delivered", "_low", "payloads")

    def __init__(self, delivered: Delivered, low: int = 0) -> None:
        self._delivered = delivered
        self._low = low  # the messages before were taken one by one
        self.payloads: list[bytes] = delivered.batch.payloads(delivered.low + low, delivered.high)

    def __len__(self) -> int:
        return len(self.payloads)

    def __repr__(self) -> str:
        return f"<Batch {self._delivered.lane.concrete_topic} of {len(self)} from offset {self.offsets[0]}>"

    @property
    def _from(self) -> Delivered:
        return self._delivered

    @property
    def offsets(self) -> Sequence[int]:
        """The offsets, ascending. A `range` unless some are missing."""
        return self._delivered.offsets[self._low :]

    @property
    def keys(self) -> list[str | None]:
        """The routing key of each message, None without one."""
        delivered = self._delivered
        keys = delivered.batch.keys
        if keys is None:
            return [None] * len(self)
        own = keys[delivered.low + self._low : delivered.high]
        return [None if key is None else key.decode("utf-8", "replace") for key in own]

    @property
    def attributes(self) -> list[Mapping[str, str]]:
        """The attributes of each message."""
        delivered = self._delivered
        table = delivered.batch.attributes
        return [{}] * len(self) if table is None else [*table[delivered.low + self._low : delivered.high]]

    @property
    def nulls(self) -> list[bool]:
        """Whether each payload is null. See `Message.is_null`."""
        delivered = self._delivered
        table = delivered.batch.attributes
        if table is None:
            return [False] * len(self)
        return [*map(is_null, self.payloads, table[delivered.low + self._low : delivered.high])]

    @property
    def schemas(self) -> list[SchemaRef | None]:
        """The schema that each message was written with, None without one."""
        return self._delivered.batch.schemas(self._delivered.low + self._low, self._delivered.high)

    def messages(self) -> list[Message]:
        """Return each message as a `Message`, to answer them one by one."""
        return [*map(Message, repeat(self._delivered), self.offsets, self.payloads)]

    def part(self, start: int, end: int) -> Batch:
        """Return the messages [start, end) as a batch, to answer them without the others.

        Raises:
            InvalidArgument: there are no such messages.
        """
        if not 0 <= start < end <= len(self):
            raise InvalidArgument(
                f"a batch of {len(self)} messages has no part {start} to {end}", field="start", value=start
            )
        return Batch(self._delivered.part(self._low + start, self._low + end))

    def _flat_ranges(self) -> tuple[int, ...]:
        return tuple(edge for run in self._delivered.ranges(self._low) for edge in run)

    async def ack(self) -> None:
        """Acknowledge all messages. See `Message.ack`."""
        acks = self._delivered.acks
        if not acks.note_mask(self.offsets):
            for first, end in self._delivered.ranges(self._low):
                acks.note(first, end)
