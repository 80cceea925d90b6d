"""The subscription: a pure state machine that decides who gets which message; `delivery` acts on it."""

from pydanube_broker.subscription.consumer import ConsumerStatistics
from pydanube_broker.subscription.cursor import (
    Attempts,
    CursorDelta,
    CursorSnapshot,
    apply_delta,
    apply_deltas,
)
from pydanube_broker.subscription.effects import (
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
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.plan import Plan, Selection
from pydanube_broker.subscription.policy import Backoff, FailurePolicy, PoisonPolicy
from pydanube_broker.subscription.statistics import BlockedBy, SubscriptionStatistics
from pydanube_broker.subscription.subscription import Subscription

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
