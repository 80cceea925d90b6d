"""A producer or consumer registered by name, and the client that is attached under the name now."""

from __future__ import annotations

from dataclasses import dataclass, field
from sys import getsizeof
from typing import Final, Protocol

from pydanube_core.errors import ClusterError
from pydanube_core.names import TopicName

from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.records.json_record import JsonRecord
from pydanube_broker.rpc.caller import ClientSeen
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.tenants.quotas import Share
from pydanube_broker.topics.gate import AccessMode, Published
from pydanube_broker.topics.topic import Topic, now_ms

QUIET_MS: Final = 10_000
FIRST_DELAY_MS: Final = 250
LONGEST_DELAY_MS: Final = 4_000

assert LONGEST_DELAY_MS < QUIET_MS, "else rivals would be forgotten between two rounds"


class Takeovers:
    """Decides when a consumer may take over the stream of another with the same name. Pure: the caller passes the time.

    Two running processes with one name take the stream from each other: the loser opens it again immediately, Rust and
    Python without any delay (docs/research/data-plane.md#105-recipes). The first takeover is immediate, because it may
    be a client that returned before its broken connection was detected. Later ones within `QUIET_MS` wait longer each
    time, so two rivals settle at one takeover every four seconds, and receive messages in between.
    """

    __slots__ = ("_count", "_last_ms")

    def __init__(self) -> None:
        self._last_ms: int | None = None
        self._count = 0

    def wait_ms(self, now_ms: int) -> int:
        """Return the milliseconds until a newcomer may take over. 0 if it may now."""
        if self._last_ms is None or now_ms - self._last_ms >= QUIET_MS:
            return 0
        delay = min(FIRST_DELAY_MS << min(self._count - 1, 10), LONGEST_DELAY_MS)
        return max(0, self._last_ms + delay - now_ms)

    def happened(self, now_ms: int) -> None:
        """Count a takeover, which delays the next one."""
        if self._last_ms is not None and now_ms - self._last_ms >= QUIET_MS:
            self._count = 0
        self._count += 1
        self._last_ms = now_ms


KNOWN_BYTES: Final = 1024  # memory per producer or consumer, without its names
SWEEPS_WITHOUT_A_CALL: Final = 3  # sweeps, 5 s apart, until a client counts as gone


class AttachedStream(Protocol):
    """A consumer's open stream, or one that waits to take over from another."""

    @property
    def topic_name(self) -> TopicName: ...

    def told_close(self) -> None:
        """End the stream soon, because the consumer's health check was answered with CLOSE."""

    def stop_waiting(self) -> None:
        """Refuse this waiting stream, because a newer one waits instead."""

    def place_is_free(self) -> None:
        """Attach, because the previous stream has ended."""


class PlaceholderLink(Protocol):
    """The place of a consumer that has no stream (`placeholder`)."""

    def give_up(self) -> None:
        """Leave the subscription for good."""

    def swept(self, now_s: float) -> None:
        """Leave the subscription if the time to return has expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRecord(JsonRecord):
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRecord(JsonRecord):
    subscription: str
    type: str
    name: str
    key_filters: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class KnownProducer:
    """A producer's name on a topic."""

    producer_id: int
    topic: Topic
    name: str
    signs: int = 0
    here: bool = False  # counted in the topic's `producers_connected`
    mode: AccessMode = AccessMode.SHARED  # its latest mode
    admitted: AccessMode | None = None  # the mode in which the topic's gate admitted it
    fenced: ClusterError | None = None  # an exclusive producer has the topic for itself
    recorded: bool = False  # its id is on stable storage
    share: Share | None = None  # the quota share in which it counts as a producer
    seen: ClientSeen | None = None  # who created it, or sent its first message after a restart
    connected_at_ms: int = field(default_factory=now_ms)
    published: Published = field(default_factory=Published)

    @property
    def size(self) -> int:
        """Return the approximate bytes that it takes in memory."""
        return KNOWN_BYTES + getsizeof(self.name)

    @property
    def idle(self) -> bool:
        """Return whether no recent call used this name."""
        return not self.signs

    def client(self) -> ClientSeen | None:
        return self.seen

    def touch(self) -> None:
        """Note that the client called."""
        self.signs = SWEEPS_WITHOUT_A_CALL
        if not self.here:
            self.here = True
            self.topic.producer_attached()
            if self.share is not None:
                self.share.producers(1)

    def admit(self, mode: AccessMode) -> None:
        """Attach the producer through the topic's gate, beside others or in their place.

        Raises `ProducerFenced`, `LimitReached`: nothing has changed.
        """
        gate, present = self.topic.gate, self.topic.producers_connected - self.here
        if self.admitted is mode:
            gate.check_producer(self.name, mode, present)
        else:
            gate.detach(self)
            gate.attach(self, self.name, mode, present)
            self.mode = self.admitted = mode
        self.fenced = None

    def end(self, error: ClusterError) -> None:
        """Detach, because the gate revoked the right to write (`AttachedProducer`)."""
        self.fenced = error
        self.admitted = None

    def leave(self) -> None:
        """Detach, because the client has no recent calls, or its topic is gone."""
        self.topic.gate.detach(self)
        self.admitted = None
        if self.here:
            self.here = False
            self.topic.producer_detached()
            if self.share is not None:
                self.share.producers(-1)


@dataclass(slots=True, eq=False, kw_only=True)
class KnownConsumer:
    """A consumer's name in a subscription, and its stream while it has one."""

    consumer_id: int
    topic: Topic
    record: ConsumerRecord
    signs: int = 0
    placeholder: PlaceholderLink | None = None  # while it has no stream
    stream: AttachedStream | None = None
    waiting: AttachedStream | None = None  # waits to take over from the stream
    takeovers: Takeovers = field(default_factory=Takeovers)
    not_before_ms: int = 0  # no stream is opened earlier (the loop's clock)

    @property
    def size(self) -> int:
        """Return the approximate bytes that it takes in memory."""
        return KNOWN_BYTES + getsizeof(self.name) + sum(map(getsizeof, self.record.key_filters))

    @property
    def idle(self) -> bool:
        """Return whether it has no stream, and the client has no recent calls."""
        return self.stream is None and not self.signs

    def touch(self) -> None:
        """Note that the client called."""
        self.signs = SWEEPS_WITHOUT_A_CALL

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def subscription(self) -> str:
        return self.record.subscription

    @property
    def gone(self) -> bool:
        """Return whether its topic or subscription is gone."""
        return self.topic.closed is not None or self.subscription not in self.topic.subscriptions

    def filters_for(self, pump: AnyPump) -> tuple[str, ...]:
        """Return its key filters, if the subscription's type has any."""
        return tuple(self.record.key_filters) if pump.type is SubscriptionType.KEY_SHARED else ()
