"""Requests and results of the operations on subscriptions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pydanube_admin.models import (
    Change,
    ListRequest,
    OptionalTopic,
    Request,
    Result,
    SubscriptionArgument,
    TopicArgument,
)


class ListSubscriptionsRequest(ListRequest):
    topic: OptionalTopic = None


class SubscriptionItem(Result):
    """A subscription of a topic, its partitions taken together."""

    topic: str
    subscription: str
    type: str
    partitions: int
    consumers: int
    lag_messages: int
    in_flight: int
    created_at: str | None
    created_at_reason: str | None = None


LagStatusName = Literal[
    "UNKNOWN",
    "DATA_LOST",
    "CAUGHT_UP",
    "AT_RISK",
    "STUCK",
    "FALLING_BEHIND",
    "SLOW",
    "CATCHING_UP",
]


class LagRequest(ListRequest):
    topic: OptionalTopic = None
    subscription: Annotated[str | None, Field(max_length=256, description="Only this subscription")] = None
    status: Annotated[LagStatusName | None, Field(description="Only those of this status")] = None


class LagItem(Result):
    """How far one subscription is behind on one topic, or on one partition of it."""

    topic: str
    partition: int | None  # None: the topic is not partitioned
    subscription: str
    type: str
    consumers: int
    next_offset: int  # one past the last committed message
    next_unacked: int  # everything below is acknowledged
    lag_messages: int
    lag_bytes: int | None
    lag_bytes_reason: str | None = None
    oldest_unread_age_s: float | None  # by the broker's append time
    oldest_unread_age_s_reason: str | None = None  # caught_up | not_known
    age_quality: str  # exact | bounded | interpolated | unknown
    in_flight: int  # delivered, not yet acknowledged; non-reliable: waiting in the consumers' queues
    redelivered: int  # messages sent again since the broker started
    dead_lettered: int  # copied to the dead-letter topic since the broker started
    dropped: int  # lost on purpose since the broker started: poison policy drop, or non-reliable and no room
    blocked_by: str | None  # the message that stops the subscription, or its key
    produce_rate: float | None  # messages a second over the window of [diagnosis]
    produce_rate_reason: str | None = None
    consume_rate: float | None
    consume_rate_reason: str | None = None
    eta_s: float | None  # until caught up
    eta_s_reason: str | None = None  # caught_up | not_gaining | too_few_samples
    retention_headroom_s: float | None  # until retention takes the oldest unread message
    retention_headroom_s_reason: str | None = None
    lost_messages: int  # trimmed before they were read
    status: str
    since: str | None
    since_reason: str | None = None
    evidence: dict[str, Any]  # the numbers that decided the status


class CreateSubscriptionRequest(Request):
    topic: TopicArgument
    subscription: SubscriptionArgument
    type: Annotated[
        Literal["exclusive", "shared", "failover", "key-shared"], Field(description="Who gets what")
    ] = "exclusive"
    start: Annotated[
        str,
        Field(max_length=64, description="earliest, latest, offset:42, time:2026-01-31T12:00:00Z, time:-15m"),
    ] = "earliest"


class CreatedSubscription(Change):
    topic: str
    subscription: str
    type: str
    partitions: int
    lag_messages: int


class SubscriptionRequest(Request):
    topic: TopicArgument
    subscription: SubscriptionArgument


class SeekSubscriptionRequest(SubscriptionRequest):
    to: Annotated[
        str,
        Field(max_length=64, description="earliest, latest, offset:42, time:2026-01-31T12:00:00Z, time:-15m"),
    ]


class SkipMessagesRequest(SubscriptionRequest):
    count: Annotated[int, Field(ge=1, le=2**53 - 1, description="Unacknowledged messages, from the oldest")]


class CursorPlace(Result):
    topic: str
    partition: int | None
    next_unacked: int
    lag_messages: int


class MovedCursor(Change):
    """Where the subscription stands after a change."""

    topic: str
    subscription: str
    skipped_messages: int  # unacknowledged before, and not any more
    cursors: list[CursorPlace]


class DeletedSubscription(Change):
    """What went with the subscription."""

    topic: str
    subscription: str
    partitions: int
    lag_messages: int
    consumers: int


class SetFailurePolicyRequest(SubscriptionRequest):
    max_redelivery_count: Annotated[
        int | None, Field(ge=0, description="Redeliveries before the poison policy applies")
    ] = None
    ack_timeout_ms: Annotated[
        int | None,
        Field(ge=0, description="An unacknowledged message returns after this; 0: never"),
    ] = None
    base_redelivery_delay_ms: Annotated[
        int | None, Field(ge=0, description="Delay after the first failure")
    ] = None
    max_redelivery_delay_ms: Annotated[int | None, Field(ge=0, description="Longest delay")] = None
    backoff_strategy: Annotated[
        Literal["fixed", "exponential"] | None, Field(description="How the delay grows")
    ] = None
    poison_policy: Annotated[
        Literal["block", "drop", "dead_letter"] | None,
        Field(description="What becomes of a message that fails too often"),
    ] = None
    dead_letter_topic: Annotated[
        str | None,
        Field(max_length=512, description="Where dead letters go; empty: <topic>-dlq-<subscription>"),
    ] = None

    keep: Annotated[
        bool, Field(description="Of a subscription that is not there yet: keep it for when it is made")
    ] = False

    def given(self) -> dict[str, Any]:
        """The fields to change."""
        own = set(SetFailurePolicyRequest.model_fields) - set(SubscriptionRequest.model_fields) - {"keep"}
        return {name: value for name in sorted(own) if (value := getattr(self, name)) is not None}


class FailurePolicyResult(Result):
    topic: str
    subscription: str
    max_redelivery_count: int
    ack_timeout_ms: int
    base_redelivery_delay_ms: int
    max_redelivery_delay_ms: int
    backoff_strategy: str
    poison_policy: str
    dead_letter_topic: str | None  # None: nothing is dead-lettered


class ChangedFailurePolicy(FailurePolicyResult, Change):
    pass


class SubscriptionPart(Result):
    """A subscription on one concrete topic."""

    topic: str
    partition: int | None
    subscription_id: str
    next_offset: int
    next_unacked: int
    acked_above: int  # acknowledged above next_unacked
    lag_messages: int
    in_flight: int
    redelivered: int
    dead_lettered: int
    dropped: int
    blocked_by: str | None
    consumers: list[dict[str, Any]]  # {id, name, active, in_flight, standing, credit_messages, connected_at}


class SubscriptionDescription(Result):
    topic: str
    subscription: str
    type: str
    lag_messages: int
    consumers: int
    created_at: str | None
    created_at_reason: str | None = None
    failure_policy: dict[str, Any]
    parts: list[SubscriptionPart]
