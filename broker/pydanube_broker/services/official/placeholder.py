"""The place that is kept for a consumer in its subscription while it has no stream.

Official clients subscribe first and open their stream later, but count from the moment of subscribing: an exclusive
subscription is in use, and a failover follows the order of subscribing. A key-shared subscription must not treat a key as
unaccepted because the consumer with its filter has no stream yet (a message that no consumer accepts is skipped
permanently). So a placeholder joins the subscription and receives nothing, and the later stream takes it over.

How long a placeholder is kept:

* exclusive: while its consumer is alive (health checks)
* failover, key-shared: `OPENING_S` after subscribing, because others wait for it
* non-reliable topics: the same for every type. Messages published in that time are queued for it, within bounds
* key-shared with filters: `LOST_S` after its stream was lost, `RESTART_S` after a restart of the broker
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from pydanube_core.errors import ClusterError

from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.services.official.known_clients import KnownConsumer
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.terms import ConsumerTerms
from pydanube_broker.topics.topic import now_ms

log = logging.getLogger("pydanube.official")

OPENING_S: Final = 15.0
LOST_S: Final = 5.0
RESTART_S: Final = 30.0


class Placeholder:
    """A `ConsumerLink` that receives nothing."""

    __slots__ = (
        "_known",
        "_pump",
        "answered_at_ms",
        "connected_at_ms",
        "consumer_id",
        "heard_at_ms",
        "left_cleanly",
        "name",
        "until_s",
    )  # fmt: skip

    def __init__(self, known: KnownConsumer, pump: AnyPump, until_s: float | None) -> None:
        """Join the subscription, taking over from a predecessor of the same name.

        Args:
            until_s: the loop's time until which it is kept. None: while the consumer is alive.

        Raises:
            ConsumerBusy, LimitReached: nothing has changed.
        """
        self.consumer_id = known.consumer_id
        self.name = known.name
        self.connected_at_ms = now_ms()
        self.heard_at_ms: int | None = None
        self.answered_at_ms: int | None = None
        self.left_cleanly = True
        self.until_s = until_s
        self._known = known
        self._pump = pump
        pump.join(self, known.name, ConsumerTerms(key_filters=known.filters_for(pump), single=True))
        known.placeholder = self

    def client(self) -> None:
        """Return None, because a placeholder has no client."""

    @property
    def writable(self) -> bool:
        return False

    def frame(self, session: int) -> Any:
        raise AssertionError("a placeholder has no credit and is sent nothing")

    def deliver(self, frame: Any) -> None:
        raise AssertionError("a placeholder has no credit and is sent nothing")

    def session_changed(self, session: int, offset: int, reason: str) -> None:
        """Do nothing, because a placeholder has no client."""

    def recall(self, session: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Do nothing, because a placeholder holds no messages."""

    def activated(self) -> None:
        """Do nothing, because a placeholder has no client."""

    def end(self, error: ClusterError) -> None:
        """End the placeholder, because the consumer's stream has taken over, or the subscription is gone."""
        if self._known.placeholder is self:
            self._known.placeholder = None

    def give_up(self) -> None:
        """Leave the subscription for good."""
        if self._known.placeholder is self:
            self._known.placeholder = None
        if self._pump.links.get(self.consumer_id) is self:
            self._pump.leave(self.consumer_id)

    def swept(self, now_s: float) -> None:
        """Leave the subscription if the time to return has expired."""
        if not self._known.signs if self.until_s is None else now_s >= self.until_s:
            self.give_up()


def placeholder_after_subscribing(known: KnownConsumer, pump: AnyPump, now_s: float) -> None:
    """Keep a place for a stream that will follow, unless the consumer has its stream already.

    Raises:
        ConsumerBusy: the subscription is exclusive and in use under another name.
        LimitReached: the maximum number of consumers is reached.
    """
    if known.stream is not None:
        return
    if pump.type is SubscriptionType.SHARED and known.topic.stores:
        known.topic.check_consumer(len(pump.links))
        return
    exclusive = pump.type is SubscriptionType.EXCLUSIVE and known.topic.stores
    Placeholder(known, pump, None if exclusive else now_s + OPENING_S)


def placeholder_after_loss(known: KnownConsumer, pump: AnyPump, now_s: float) -> bool:
    """Keep the place of a consumer that may return, if messages would be skipped in its absence."""
    if not pump.needs_keys:
        return False
    return keep_place(known, pump, now_s + LOST_S)


def keep_place(known: KnownConsumer, pump: AnyPump, until_s: float) -> bool:
    """Keep a place if the subscription accepts the consumer."""
    if pump.closed is not None or known.gone:
        return False
    try:
        Placeholder(known, pump, until_s)
    except ClusterError as error:
        log.warning("placeholder_refused", extra={"error": str(error)})
        return False
    return True
