"""The counters and states of one subscription, as screens, metrics and tests read them."""

from __future__ import annotations

from dataclasses import dataclass

from pydanube_broker.subscription.consumer import ConsumerStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedBy:
    """The first message that blocks delivery."""

    offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStatistics:
    """Facts for lag reports and screens. Counters start when the subscription's object is made."""

    floor: int
    next_offset: int
    end: int
    generation: int
    in_flight: int
    ready: int  # came back, or held for the consumer of its key, to be sent now
    pending_retries: int  # wait for their delay
    redelivered: int  # messages sent again
    acknowledged: int
    dead_lettered: int
    dropped: int
    expired: int
    stale_answers: int
    unrouted: int  # key-shared: acknowledged because no consumer accepts their key
    blocked_by: BlockedBy | None
    consumers: tuple[ConsumerStatistics, ...]
