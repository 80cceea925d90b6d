"""The rate limit of one subscription: the topic's current `max_subscription_dispatch_rate`."""

from __future__ import annotations

from pydanube_broker.delivery.engine import Deadlines, Ticked
from pydanube_broker.topics.rate_limit import TokenBucket
from pydanube_broker.topics.topic import Topic


class DispatchRate:
    """Checked before each step. No bucket exists while there is no limit."""

    __slots__ = ("_bucket", "_deadlines", "_topic")

    def __init__(self, topic: Topic, deadlines: Deadlines) -> None:
        self._topic = topic
        self._deadlines = deadlines
        self._bucket: TokenBucket | None = None

    def allowed(self, pump: Ticked) -> int | None:
        """Return how many messages may be sent now, None for no limit. At 0, schedule a tick of the pump."""
        rate = self._topic.gate.limits.max_subscription_dispatch_rate
        if not rate:
            self._bucket = None
            return None
        now = self._deadlines.now_ms()
        if self._bucket is None:
            self._bucket = TokenBucket(rate, now)
        elif self._bucket.rate_per_s != rate:
            self._bucket.set_rate(rate, now)
        allowed = self._bucket.available(now)
        if not allowed:
            self._deadlines.schedule(pump, now + self._bucket.wait_ms(1, now))
        return allowed

    def sent(self, messages: int) -> None:
        """Count messages that were sent."""
        if self._bucket is not None:
            self._bucket.take(messages, self._deadlines.now_ms())
