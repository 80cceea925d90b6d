"""Requests and results of the operations: the field names of INTERFACE chapters 6 and 7.

Requests are strict: a JSON type must be the one the schema names, and unknown fields are refused. Results leave
out a `<field>_reason` while its field is known; a null that has a reason beside it is unknown, one without is
simply none. 64-bit ids are decimal strings, times RFC 3339 in UTC with milliseconds.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from pydanube_admin.policy_names import PolicyName

__all__ = [
    "BrokerStatus",
    "BrokerStatusRequest",
    "CreateNamespaceRequest",
    "CreateSubscriptionRequest",
    "CreateTopicRequest",
    "CreatedSubscription",
    "CreatedTopic",
    "DeleteTopicRequest",
    "DeletedSubscription",
    "DeletedTopic",
    "DescribeTopicRequest",
    "FailurePolicyResult",
    "LagItem",
    "LagRequest",
    "ListNamespacesRequest",
    "ListRequest",
    "ListSubscriptionsRequest",
    "ListTopicsRequest",
    "MovedCursor",
    "NamespaceItem",
    "NamespacePoliciesRequest",
    "NamespacePoliciesResult",
    "Page",
    "Policies",
    "Preview",
    "ReasonItem",
    "Request",
    "Result",
    "SeekSubscriptionRequest",
    "SetFailurePolicyRequest",
    "SetNamespacePoliciesRequest",
    "SetTopicPoliciesRequest",
    "SkipMessagesRequest",
    "SubscriptionItem",
    "SubscriptionRequest",
    "TopicDescription",
    "TopicItem",
    "TopicPart",
    "TopicPoliciesRequest",
    "TopicPoliciesResult",
]

MAX_LIMIT = 1000
DEFAULT_LIMIT = 50
MAX_FILTER_CHARS = 256  # a glob becomes a regular expression that is matched against every name
MAX_PARTITIONS = 1000


class Request(BaseModel):
    """Base of all arguments."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Result(BaseModel):
    """Base of all results; drops the reason of what is known."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    @model_serializer(mode="wrap")
    def _without_idle_reasons(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        body: dict[str, Any] = handler(self)
        return {
            key: value
            for key, value in body.items()
            if not (value is None and key.endswith("_reason") and key.removesuffix("_reason") in body)
        }


class ListRequest(Request):
    """Every list takes these."""

    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT, description="Items a page")] = DEFAULT_LIMIT
    page: Annotated[
        str | None,
        Field(max_length=4096, description="next_page of the answer before; other arguments unchanged"),
    ] = None
    filter: Annotated[
        str | None, Field(max_length=MAX_FILTER_CHARS, description="Glob over the name, e.g. orders*")
    ] = None


ItemT = TypeVar("ItemT", bound=Result)


class Page(Result, Generic[ItemT]):
    """A list: one page of it."""

    items: list[ItemT]
    next_page: str | None
    total: int | None
    as_of: str


TopicArgument = Annotated[
    str, Field(min_length=1, max_length=512, description="/namespace/topic; a bare name is in /default")
]
SubscriptionArgument = Annotated[str, Field(max_length=256, description="Name of the subscription")]
OptionalTopic = Annotated[
    str | None, Field(max_length=512, description="/namespace/topic; without it, all topics")
]


# Policies ---------------------------------------------------------------------------------------------------------

# A map and not a field each: models read the schema with every turn, and the names say what there is to say.
Policies = dict[PolicyName, Annotated[int, Field(ge=0)] | None]
PoliciesArgument = Annotated[
    Policies,
    Field(
        description="Limits to set; 0: none, null: not set here. Rates are messages a second. Retention waits for "
        "the slowest cursor unless drop_unread is 1"
    ),
]


class TopicPoliciesRequest(Request):
    topic: TopicArgument


class SetTopicPoliciesRequest(Request):
    topic: TopicArgument
    policies: PoliciesArgument


class TopicPoliciesResult(Result):
    topic: str
    policies: dict[str, int]  # set on the topic itself
    effective: dict[str, int]  # what holds: the topic's, else its namespace's, else the broker's settings


NamespaceArgument = Annotated[str, Field(max_length=256, description="Name of the namespace")]


class ListNamespacesRequest(ListRequest):
    pass


class NamespaceItem(Result):
    namespace: str
    topics: int  # a partitioned topic counts once
    policies: dict[str, int]
    created_at: str


class CreateNamespaceRequest(Request):
    namespace: NamespaceArgument
    policies: Annotated[
        Policies | None, Field(description="Limits of its topics; rates are messages a second")
    ] = None


class NamespacePoliciesRequest(Request):
    namespace: NamespaceArgument


class SetNamespacePoliciesRequest(Request):
    namespace: NamespaceArgument
    policies: PoliciesArgument


class NamespacePoliciesResult(Result):
    namespace: str
    policies: dict[str, int]  # set on the namespace
    effective: dict[str, int]  # what holds for a topic that sets nothing


# Topics -----------------------------------------------------------------------------------------------------------


class ListTopicsRequest(ListRequest):
    namespace: Annotated[str | None, Field(max_length=256, description="Only this namespace")] = None
    broker: Annotated[str | None, Field(max_length=64, description="Only topics this broker id owns")] = None


class TopicItem(Result):
    """A topic; a partitioned one is one item with its partitions' figures summed."""

    topic: str
    partitions: int  # 0: not partitioned
    dispatch_strategy: str
    messages: int  # next_offset - start_offset
    bytes: int
    producers: int  # sessions
    consumers: int  # sessions
    subscriptions: int  # how many
    owner: str | None  # broker id
    owner_reason: str | None = None  # partitioned | unassigned


class DescribeTopicRequest(Request):
    topic: TopicArgument


class TopicPart(Result):
    """One partition of a partitioned topic."""

    topic: str
    partition: int
    owner: str | None
    owner_reason: str | None = None
    epoch: str
    start_offset: int
    next_offset: int
    messages: int
    bytes: int


class TopicDescription(Result):
    """Everything known of one topic. Offsets and epoch of a partitioned topic are those of its `parts`."""

    topic: str
    topic_id: str
    partitions: int
    dispatch_strategy: str
    durability: str
    messages: int
    bytes: int
    producers: int
    consumers: int
    subscriptions: list[str]
    owner: str | None
    owner_reason: str | None = None
    epoch: str | None
    epoch_reason: str | None = None
    start_offset: int | None
    start_offset_reason: str | None = None
    next_offset: int | None
    next_offset_reason: str | None = None
    tiered_offset: int | None  # below it everything is in the cold tier
    tiered_offset_reason: str | None = None
    journal_bytes: int
    object_bytes: int
    policies: dict[str, Any]
    topic_schema: Annotated[dict[str, Any] | None, Field(alias="schema")]  # None: no schema is bound
    created_at: str
    parts: list[TopicPart] = []


class CreateTopicRequest(Request):
    topic: TopicArgument
    partitions: Annotated[int, Field(ge=0, le=MAX_PARTITIONS, description="0: not partitioned")] = 0
    dispatch_strategy: Annotated[
        Literal["reliable", "non_reliable"],
        Field(description="reliable keeps messages; non_reliable only passes them on"),
    ] = "reliable"
    durability: Annotated[
        Literal["fsynced", "memory"],
        Field(description="What a publish waits for; memory only with non_reliable"),
    ] = "fsynced"
    policies: Annotated[Policies | None, Field(description="Limits; rates are messages a second")] = None
    schema_subject: Annotated[
        str | None, Field(min_length=1, max_length=256, description="Subject of its messages' schema")
    ] = None


class CreatedTopic(Result):
    topic: str
    topic_id: str
    partitions: int
    dispatch_strategy: str
    durability: str
    created_at: str


class DeleteTopicRequest(Request):
    topic: TopicArgument


class DeletedTopic(Result):
    """What went with the topic."""

    topic: str
    topic_id: str
    partitions: int
    messages: int
    bytes: int
    subscriptions: list[str]
    consumers: int


class Preview(Result):
    """What a change would do, worked out without doing it. Not yet a plan: nothing binds a later call to it."""

    operation: str
    arguments: dict[str, Any]
    effect: str
    reversible: bool
    diff: list[dict[str, Any]]  # {path, before, after}
    blast_radius: dict[str, int]  # topics, subscriptions, consumers, messages, bytes


# Subscriptions ----------------------------------------------------------------------------------------------------


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


class LagRequest(ListRequest):
    topic: OptionalTopic = None
    subscription: Annotated[str | None, Field(max_length=256, description="Only this subscription")] = None


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
    age_quality: str  # exact | unknown
    in_flight: int  # delivered, not yet acknowledged; non-reliable: waiting in the consumers' queues
    redelivered: int  # messages sent again since the broker started
    dead_lettered: int  # copied to the dead-letter topic since the broker started
    dropped: int  # lost on purpose since the broker started: poison policy drop, or non-reliable and no room
    blocked_by: str | None  # the message that stops the subscription, or its key


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


class CreatedSubscription(Result):
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


class MovedCursor(Result):
    """Where the subscription stands after a change."""

    topic: str
    subscription: str
    skipped_messages: int  # unacknowledged before, and not any more
    cursors: list[CursorPlace]


class DeletedSubscription(Result):
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

    def given(self) -> dict[str, Any]:
        """The fields to change."""
        own = set(SetFailurePolicyRequest.model_fields) - set(SubscriptionRequest.model_fields)
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


# Brokers ----------------------------------------------------------------------------------------------------------


class BrokerStatusRequest(Request):
    pass


class ReasonItem(Result):
    code: str
    message: str


class BrokerStatus(Result):
    """The broker as it is now; the same object as `GET /status`."""

    version: str
    broker_id: str
    pid: int
    uptime_s: float
    durability: str
    grpc_runtime: str
    data_dir: str | None
    data_dir_reason: str | None = None  # memory_only
    listen: dict[str, str]
    disk: dict[str, Any]
    journal: dict[str, Any]
    tier: dict[str, Any]
    topics: int
    read_only: bool
    ready: bool
    reasons: list[ReasonItem]
