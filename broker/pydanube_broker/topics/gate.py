"""Access to a topic: its limits, its publish rate, its exclusive producer.

One for each concrete topic, reliable or not. Changes of policy apply from the next call.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, Protocol

from pydanube_core.errors import ClusterError, InvalidArgument, ProducerFenced, RateLimited

from pydanube_broker.recent import SHORTEST_S, Recent
from pydanube_broker.rpc.caller import ClientSeen
from pydanube_broker.topics.limits import Limits
from pydanube_broker.topics.rate_limit import TokenBucket

BATCHES_A_SECOND: Final = 10  # maximum for a topic with a publish rate


class AccessMode(StrEnum):
    """`exclusive`: no other producer writes. `named`: others do, but only one connection at a time has the name.

    A named producer resumes its session like an exclusive one, and gets the end of its stored messages.
    """

    SHARED = "shared"
    EXCLUSIVE = "exclusive"
    NAMED = "named"

    @classmethod
    def parse(cls, text: str) -> AccessMode:
        """Return the mode of a producer's request. Empty means shared."""
        try:
            return cls(text or "shared")
        except ValueError:
            raise InvalidArgument(
                f"access_mode {text!r}: use shared, exclusive or named", field="access_mode", value=text
            ) from None


class Published:
    """The messages and bytes of a producer in the last one to two minutes."""

    __slots__ = ("_recent",)

    def __init__(self) -> None:
        self._recent = Recent(2, monotonic_ms())

    def count(self, messages: int, size_bytes: int) -> None:
        now = monotonic_ms()
        self._recent.add(0, messages, now)
        self._recent.add(1, size_bytes, now)

    def per_s(self) -> tuple[float, float]:
        """Return messages and bytes a second."""
        (messages, size), covered_s = self._recent.read(monotonic_ms())
        seconds = max(covered_s, SHORTEST_S)
        return round(messages / seconds, 3), round(size / seconds, 1)


class AttachedProducer(Protocol):
    """A connection through which a producer writes."""

    connected_at_ms: int
    published: Published

    def client(self) -> ClientSeen | None:
        """Return the client at the other end, None if it is unknown."""

    def end(self, error: ClusterError) -> None:
        """End the connection, which may no longer write."""


class WithLinks(Protocol):
    """A subscription, whose consumers are counted."""

    links: Mapping[int, Any]


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class TopicGate:
    """See the module. Single user: the loop."""

    __slots__ = (
        "_attached", "_bucket", "_connections", "_exclusive", "_numbers", "limits", "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        limits: Limits,
        connections: Iterator[int],
    ) -> None:
        self.topic = topic
        self.limits = Limits()
        self._connections = connections  # ids of this broker's
        self._bucket: TokenBucket | None = None
        self._attached: dict[AttachedProducer, str] = {}  # connection → producer's name
        self._numbers: dict[AttachedProducer, int] = {}  # connection → an id for administrators
        self._exclusive: AttachedProducer | None = None
        self.set_limits(limits)

    def set_limits(self, limits: Limits) -> None:
        """Set other limits. Attached clients stay, even if they are now too many."""
        self.limits = limits
        rate = limits.max_publish_rate
        if not rate:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = TokenBucket(rate, monotonic_ms())
        else:
            self._bucket.set_rate(rate, monotonic_ms())

    # -- producers -------------------------------------------------------------------------------------------

    @property
    def held_by(self) -> str | None:
        """The name of the exclusive producer, or None if there is none."""
        return None if self._exclusive is None else self._attached[self._exclusive]

    def attached(self) -> list[tuple[int, str, bool, AttachedProducer]]:
        """Return the attached producers: (id, name, whether it is exclusive, the connection)."""
        return [
            (self._numbers[one], name, one is self._exclusive, one) for one, name in self._attached.items()
        ]

    def check_producer(self, name: str, mode: AccessMode, present: int) -> None:
        """Check that a producer of that name may attach.

        Args:
            present: producers connected to the topic, those of other protocols included.

        Raises:
            ProducerFenced: the topic has an exclusive producer, or exclusive access is requested beside others.
            LimitReached: `max_producers_per_topic`.
        """
        holder = self.held_by
        if holder is not None and holder != name:
            raise ProducerFenced(
                f"{self.topic} is held by the exclusive producer {holder!r}: wait until it is gone, or use its name "
                "to take over",
                field="access_mode",
                value=mode.value,
                topic=self.topic,
                holder=holder,
                reason="exclusive",
            )
        replaced = self._replaced(name, mode)
        if mode is AccessMode.EXCLUSIVE and present > len(replaced):
            others = sorted(set(self._attached.values()) - {name})
            raise ProducerFenced(
                f"{self.topic} has {present - len(replaced)} other producers connected: exclusive access needs a "
                "topic without any",
                field="access_mode",
                value=mode.value,
                topic=self.topic,
                holder=others[0] if others else None,
                reason="not_alone",
            )
        self.limits.check_room(
            "max_producers_per_topic", present - len(replaced), what="producers", topic=self.topic
        )

    def _replaced(self, name: str, mode: AccessMode) -> list[AttachedProducer]:
        """Return the connections that a new one replaces, because its name may have only one."""
        if mode is not AccessMode.SHARED or self.held_by == name:
            return [one for one, other in self._attached.items() if other == name]
        return []

    def attach(self, producer: AttachedProducer, name: str, mode: AccessMode, present: int) -> None:
        """Attach a producer. An exclusive or named one ends earlier connections of its name.

        Raises `ProducerFenced`, `LimitReached`, as `check_producer`, without a change.
        """
        self.check_producer(name, mode, present)
        former = self._replaced(name, mode)
        self._attached[producer] = name
        self._numbers[producer] = next(self._connections)
        if mode is AccessMode.EXCLUSIVE:
            self._exclusive = producer
        for one in former:
            self.detach(one)
            one.end(
                ProducerFenced(
                    f"another connection opened the producer {name!r} of {self.topic}",
                    field="producer_name",
                    value=name,
                    topic=self.topic,
                    reason="taken_over",
                    outcome="unknown",
                )
            )

    def detach(self, producer: AttachedProducer) -> None:
        """Detach a producer. Unknown ones are ignored."""
        self._attached.pop(producer, None)
        self._numbers.pop(producer, None)
        if self._exclusive is producer:
            self._exclusive = None

    # -- consumers -------------------------------------------------------------------------------------------

    def check_consumer(self, pumps: Iterable[WithLinks], readers: int, of_subscription: int) -> None:
        """Check that another consumer may attach beside `of_subscription` consumers of its subscription.

        Plain readers count as consumers of the topic.

        Raises `LimitReached`: `max_consumers_per_subscription`, `max_consumers_per_topic`.
        """
        limits = self.limits
        limits.check_room(
            "max_consumers_per_subscription",
            of_subscription,
            what="consumers on the subscription",
            topic=self.topic,
        )
        if limits.max_consumers_per_topic:
            present = sum(len(pump.links) for pump in pumps) + readers
            limits.check_room("max_consumers_per_topic", present, what="consumers", topic=self.topic)

    # -- publish rate ----------------------------------------------------------------------------------------

    @property
    def batch_messages(self) -> int:
        """Return the maximum messages that a producer should send in one batch, for an even pace. 0: any number."""
        rate = self.limits.max_publish_rate
        return max(1, rate // BATCHES_A_SECOND) if rate else 0

    def take(self, count: int) -> None:
        """Count messages that are about to be appended.

        Raises `RateLimited`, with `retry_after_ms`. Nothing was counted.
        """
        bucket = self._bucket
        if bucket is None:
            return
        now_ms = monotonic_ms()
        wait_ms = bucket.wait_ms(count, now_ms)
        if wait_ms:
            raise RateLimited(
                f"{self.topic} takes {bucket.rate_per_s} messages a second (max_publish_rate): try again in {wait_ms} ms",
                field="max_publish_rate",
                value=count,
                limit=bucket.rate_per_s,
                topic=self.topic,
                retry_after_ms=wait_ms,
            )
        bucket.take(count, now_ms)
