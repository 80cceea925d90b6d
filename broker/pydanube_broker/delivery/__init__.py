"""Delivery: the pure subscription core. The I/O shell that drives it is `pump`."""

from pydanube_broker.delivery.consumer import ConsumerStatistics
from pydanube_broker.delivery.cursor import Attempts, CursorDelta, CursorSnapshot, apply_delta, apply_deltas
from pydanube_broker.delivery.effects import (
    Activated,
    Blocked,
    DeadLetter,
    Dropped,
    Effect,
    Expired,
    SessionEnded,
    SessionReason,
    SessionStarted,
)
from pydanube_broker.delivery.events import Event
from pydanube_broker.delivery.plan import Plan, Selection
from pydanube_broker.delivery.policy import Backoff, FailurePolicy, PoisonPolicy
from pydanube_broker.delivery.subscription import (
    BlockedBy,
    Subscription,
    SubscriptionStatistics,
    SubscriptionType,
)

__all__ = [
    "Activated",
    "Attempts",
    "Backoff",
    "Blocked",
    "BlockedBy",
    "ConsumerStatistics",
    "CursorDelta",
    "CursorSnapshot",
    "DeadLetter",
    "Dropped",
    "Effect",
    "Event",
    "Expired",
    "FailurePolicy",
    "Plan",
    "PoisonPolicy",
    "Selection",
    "SessionEnded",
    "SessionReason",
    "SessionStarted",
    "Subscription",
    "SubscriptionStatistics",
    "SubscriptionType",
    "apply_delta",
    "apply_deltas",
]
