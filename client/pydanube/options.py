"""The options of producers, consumers and readers, as values.

Each is a frozen dataclass that validates its fields, and a `TypedDict` with the same keys. `client.consumer(topic,
subscription, type="shared")` and `client.consumer(topic, subscription, ConsumerOptions(type="shared"))` are the same
call, and `client.consumer(topic, subscription, usual, name="b")` uses `usual` with another name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, TypeVar

from pydanube_core.batch import BATCH_TARGET_BYTES
from pydanube_core.errors import InvalidArgument
from pydanube_core.names import SubscriptionType as SubscriptionType
from pydanube_core.names import check_client_name
from pydanube_core.positions import Position, PositionKind

from pydanube.arguments import check_choice, check_flag, check_number, check_texts, check_whole
from pydanube.facts import ClientEventKind, SchemaRef
from pydanube.failure_policy import FailurePolicy, check_failure_policy
from pydanube.keywords import unknown_keyword
from pydanube.retry import Retry
from pydanube.schemas import Schema, SchemaLike, schema_of
from pydanube.topic_watch import MOST_TOPICS, Partitions
from pydanube.tracing import Tracing
from pydanube.wire.transport import Pause, Transport, sleep

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

DispatchStrategy = Literal["reliable", "non_reliable"]
AccessMode = Literal["shared", "exclusive", "named"]
RoutingMode = Literal["key", "round-robin", "explicit"]
Compression = Literal["none", "lz4", "zstd"]

BATCH_BYTES: Final = 262_144  # unless the topic is stored
CREDIT_MESSAGES: Final = 10_000
CREDIT_BYTES: Final = 33_554_432
SHARED_CREDIT_MESSAGES: Final = 2_000  # low, because other consumers could handle the messages that wait here
# Higher, because keys stay with their consumer. A piece of a batch costs more than its messages, so there must be room
# for pieces of several batches, also while half of the credit is not granted again.
KEYED_CREDIT_MESSAGES: Final = 8_000
MAX_EXTEND_S: Final = 7 * 86_400
MAX_LINGER_MS: Final = 60_000
MOST_KEY_FILTERS: Final = 100  # maximum of a broker


class ProducerArguments(TypedDict, total=False):
    """The fields of `ProducerOptions`, as keywords of `client.producer(…)`."""

    name: str | None
    partitions: int | None
    dispatch_strategy: DispatchStrategy | None
    routing: RoutingMode
    access_mode: AccessMode
    schema: SchemaLike | None
    compression: Compression
    linger_ms: float
    batch_bytes: int
    window_messages: int
    window_bytes: int
    unused_ttl_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How a producer writes.

    Attributes:
        name: shown with each message, need not be unique. None: the broker generates one.
        partitions: number of partitions of a topic to create. An existing topic must agree.
            None: any number.
        dispatch_strategy: of a topic to create. An existing one must agree. None: any.
        routing: `key` (messages without a key in turn), `round-robin`, or `explicit` (`partition=` in each send).
        access_mode: `shared`, or `exclusive`: no other producer writes while this one is connected. Opening another
            then raises `ProducerFenced`. Opening the same `name` again takes over and fences the former. `named`:
            others may write, and opening the same `name` again also takes over, with the same session:
            `producer.stored_before` is the number of its messages in each partition. For a topic with partitions its
            name ends with their number, so that it is another producer after partitions were added.
        schema: subject whose latest version the messages carry, (subject, version), or a schema of `client.schemas`.
            Values are serialised by it, and values that do not fit are refused. The first producer with a subject
            makes it the topic's. Another subject is refused with `SchemaMismatch`.
        compression: of payloads.
        linger_ms: time to wait for more messages. At 0 a lone message leaves immediately, and batches form under load:
            while 5 are in flight, the next one gathers.
        batch_bytes: size at which a batch is closed, at most 1 MiB. The default is 1 MiB for a topic with durability
            `stored`: five batches wait for the object store together, so smaller ones would limit the rate.
        window_messages: maximum number of messages handed over and unanswered.
        window_bytes: maximum of their bytes.
        unused_ttl_s: time to live of a created topic: it is deleted, with its messages, when no client has produced,
            consumed or read for so long. 0: it stays.
    """

    name: str | None = None
    partitions: int | None = None
    dispatch_strategy: DispatchStrategy | None = "reliable"
    routing: RoutingMode = "key"
    access_mode: AccessMode = "shared"
    schema: SchemaLike | None = None
    compression: Compression = "none"
    linger_ms: float = 0.0
    batch_bytes: int = BATCH_BYTES
    window_messages: int = 100_000
    window_bytes: int = 67_108_864
    unused_ttl_s: int = 0

    def __post_init__(self) -> None:
        check_whole("unused_ttl_s", self.unused_ttl_s, 0, (1 << 32) - 1)
        if self.name is not None:
            check_client_name(self.name, field="name")
        if self.partitions is not None:
            check_whole("partitions", self.partitions, 1, (1 << 32) - 1)
        if self.dispatch_strategy is not None:
            check_choice("dispatch_strategy", self.dispatch_strategy, DispatchStrategy)
        check_choice("routing", self.routing, RoutingMode)
        check_choice("access_mode", self.access_mode, AccessMode)
        check_choice("compression", self.compression, Compression)
        schema_of(self.schema)
        check_number("linger_ms", self.linger_ms, 0, MAX_LINGER_MS)
        check_whole("batch_bytes", self.batch_bytes, 1, BATCH_TARGET_BYTES)
        check_whole("window_messages", self.window_messages, 1)
        check_whole("window_bytes", self.window_bytes, 1)

    def among(self, partitions: int) -> ProducerOptions:
        """Return the options for a topic with so many partitions.

        A named producer is another after partitions were added, because its messages are then spread differently.
        """
        if self.access_mode != "named" or self.name is None or partitions == 1:
            return self
        return replace(self, name=f"{self.name}-of-{partitions}")


class ConsumerArguments(TypedDict, total=False):
    """The fields of `ConsumerOptions`, as keywords of `client.consumer(…)`."""

    type: SubscriptionType
    name: str | None
    start: str | datetime
    start_must_apply: bool
    key_filters: Sequence[str]
    create: bool
    max_topics: int
    refresh_s: float
    credit_messages: int | None
    credit_bytes: int
    ack_timeout_ms: int | None
    max_extend_s: float | None
    failure_policy: FailurePolicy | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """How a consumer takes part in its subscription.

    Attributes:
        type: of the subscription.
        name: of this consumer. Opening the same name again takes over. None: the broker generates one.
        start: start of a new subscription: a position or a datetime with its time zone. An existing one continues where
            it is.
        start_must_apply: refuse an existing subscription, instead of ignoring `start`.
        key_filters: glob patterns, only for key-shared.
        create: create the topic if it does not exist, reliable and without partitions, if the broker permits that to
            producers. So a consumer may come before the first producer.
        max_topics: maximum number of topics of a consumer of several, at most 1000.
        refresh_s: time between checks for added partitions and, with several topics, for new ones.
        credit_messages: maximum number of messages delivered and not taken, over all topics and partitions. None:
            10 000, 8 000 for key-shared, and 2 000 for shared. Messages that wait here do not time out, and are given back
            when another consumer is idle. For handlers of a second or more, a few are enough.
        credit_bytes: maximum of their bytes.
        ack_timeout_ms: time until an unacknowledged message is redelivered, from when it was handed out. None: the
            subscription's policy.
        max_extend_s: a message that was handed out is kept so long while this process lives, whatever its ack timeout.
            None: for its ack timeout, unless `extend` is called.
        failure_policy: of the subscription, set when the consumer opens it, if it differs: when failed messages are
            redelivered, and what happens to those that fail too often. None: unchanged.
    """

    type: SubscriptionType = "exclusive"
    name: str | None = None
    start: str | datetime = "earliest"
    start_must_apply: bool = False
    key_filters: Sequence[str] = ()
    create: bool = False
    max_topics: int = 100
    refresh_s: float = 2.0
    credit_messages: int | None = None
    credit_bytes: int = CREDIT_BYTES
    ack_timeout_ms: int | None = None
    max_extend_s: float | None = None
    failure_policy: FailurePolicy | None = None

    def __post_init__(self) -> None:
        if self.failure_policy is not None:
            check_failure_policy(self.failure_policy)
        check_choice("type", self.type, SubscriptionType)
        check_flag("create", self.create)
        check_flag("start_must_apply", self.start_must_apply)
        if self.name is not None:
            check_client_name(self.name, field="name")
        check_whole("max_topics", self.max_topics, 1, MOST_TOPICS)
        check_texts("key_filters", self.key_filters, MOST_KEY_FILTERS)
        check_number("refresh_s", self.refresh_s, 0.1, 3600)
        if self.credit_messages is not None:
            check_whole("credit_messages", self.credit_messages, 1)
        check_whole("credit_bytes", self.credit_bytes, 1)
        if self.ack_timeout_ms is not None:
            check_whole("ack_timeout_ms", self.ack_timeout_ms, 1)
        if self.max_extend_s is not None:
            check_number("max_extend_s", self.max_extend_s, 0.1, MAX_EXTEND_S)

    def receiver(self, topic: str, subscription: str) -> ReceiverOptions:
        """Return the options in the form of the wire."""
        return ReceiverOptions(
            topic=topic,
            subscription=subscription,
            type=self.type,
            name=self.name or "",
            start=wire_position(self.start, "start"),
            start_given=self.start_must_apply,
            key_filters=tuple(self.key_filters),
            credit_messages=self.credit_messages or _usual_credit(self.type),
            credit_bytes=self.credit_bytes,
            ack_timeout_ms=self.ack_timeout_ms or 0,
            max_extend_ms=round((self.max_extend_s or 0) * 1000),
        )


class ReaderArguments(TypedDict, total=False):
    """The fields of `ReaderOptions`, as keywords of `client.reader(…)`."""

    start: str | datetime
    stop: str | datetime | None
    credit_messages: int
    credit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """The options of a plain reader.

    Attributes:
        start: position of the first message, or a datetime with its time zone.
        stop: position to end before. `head`: the end of the topic when the reader opens. None: follow the topic for
            ever.
        credit_messages: maximum number of messages delivered and not taken, over all partitions.
        credit_bytes: maximum of their bytes.
    """

    start: str | datetime = "earliest"
    stop: str | datetime | None = None
    credit_messages: int = CREDIT_MESSAGES
    credit_bytes: int = CREDIT_BYTES

    def __post_init__(self) -> None:
        check_whole("credit_messages", self.credit_messages, 1)
        check_whole("credit_bytes", self.credit_bytes, 1)

    def receiver(self, topic: str) -> ReceiverOptions:
        """Return the options in the form of the wire."""
        stop = (
            "" if self.stop is None else "head" if self.stop == "head" else wire_position(self.stop, "stop")
        )
        return ReceiverOptions(
            topic=topic,
            start=wire_position(self.start, "start"),
            start_given=True,
            stop=stop,
            credit_messages=self.credit_messages,
            credit_bytes=self.credit_bytes,
        )


Options = TypeVar("Options", bound="DataclassInstance")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverOptions:
    """A consumer's or reader's options in the form of the wire: times are absolute, fields not given are empty.

    `subscription` is empty for a reader.
    """

    topic: str
    subscription: str = ""
    type: str = ""
    name: str = ""
    start: str
    start_given: bool
    stop: str = ""
    key_filters: tuple[str, ...] = ()
    credit_messages: int
    credit_bytes: int
    ack_timeout_ms: int = 0
    max_extend_ms: int = 0

    @property
    def role(self) -> str:
        """The role at the broker: `consumer` or `reader`."""
        return "consumer" if self.subscription else "reader"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSide:
    """The part of its client that a producer or receiver uses.

    Attributes:
        prepare: returns its topic's full name, and (index, concrete topic) of each partition. Index None: not
            partitioned.
        locate: returns the transport to the owner of a concrete topic.
        pause: waits before a retry: (concrete topic, failure, delay, time until the retry gives up).
        emit: sends (kind, role, concrete topic, url, attempt, reason) to the listeners of `client.events()`.
        retry: how long retryable failures are retried.
        schema: returns a version of a subject.
        decode: decodes a message's payload by its schema, into an object of a class.
        reply: answers a request: (inbox, request, payload).
        tracing: makes the spans of producers. None: no spans.
    """

    prepare: Callable[[], Coroutine[Any, Any, tuple[str, Partitions]]]
    locate: Callable[[str], Coroutine[Any, Any, Transport]]
    pause: Pause = sleep
    emit: Callable[[ClientEventKind, str, str, str, int, str], None]
    retry: Retry
    schema: Callable[[SchemaRef], Coroutine[Any, Any, Schema]]
    decode: Callable[[Any, Callable[..., Any] | None], Coroutine[Any, Any, Any]]
    reply: Callable[[str, str, bytes], Coroutine[Any, Any, None]]
    tracing: Tracing | None = None


def _usual_credit(type: SubscriptionType) -> int:
    if type == "key-shared":
        return KEYED_CREDIT_MESSAGES
    return SHARED_CREDIT_MESSAGES if type == "shared" else CREDIT_MESSAGES


def wire_position(position: str | datetime, field: str) -> str:
    """Return a position in the form of the wire, in which times are absolute.

    Raises:
        InvalidArgument: it is no position, or a datetime without a time zone.
    """
    if not isinstance(position, datetime):
        return str(Position.parse(position, now_ms=time.time_ns() // 1_000_000, field=field))
    if position.tzinfo is None:
        raise InvalidArgument(
            f"{field}: {position.isoformat()} has no time zone, so it is no point in time. Write datetime.now(UTC)",
            field=field,
            value=position.isoformat(),
        )
    since_ms = (position - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
    return str(Position(PositionKind.TIME, max(0, since_ms)))


def changed(options: Options, changes: Mapping[str, Any], call: str, *named: str) -> Options:
    """Return the options with other values for some fields. `named` are further keywords of the call.

    Raises:
        TypeError: there is no such field. The text suggests the one that may be meant.
    """
    known = [*named, *(field.name for field in fields(options))]
    for name in changes:
        if name not in known:
            raise unknown_keyword(call, name, known)
    return replace(options, **changes)
