"""Requests and results of the operations on topics."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pydanube_admin.brokers.models import Metrics
from pydanube_admin.models import (
    Change,
    ListRequest,
    Policies,
    PoliciesArgument,
    Request,
    Result,
    TopicArgument,
)

MAX_PARTITIONS = 1000


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
    kept_failure_policies: dict[str, dict[str, Any]]  # of subscriptions that are not there yet, by name
    topic_schema: Annotated[dict[str, Any] | None, Field(alias="schema")]  # None: no schema is bound
    created_at: str
    parts: list[TopicPart] = Field(default_factory=list)


class ChartTopicRequest(Request):
    topic: TopicArgument
    subscription: Annotated[str | None, Field(max_length=256)] = None  # None: those furthest behind


class ChartedSubscription(Result):
    """A subscription over time; a value each moment of `age_s`."""

    subscription: str
    lag_messages: list[int | None]  # None: it was not seen then
    acknowledge_rate: list[float | None]  # messages a second since the moment before


class TopicChart(Result):
    """A topic over the window that the broker keeps."""

    topic: str
    as_of: str
    age_s: list[float]  # of each moment, oldest first; the last is as_of
    publish_rate: list[float | None]  # messages a second since the moment before
    subscriptions: list[ChartedSubscription]  # furthest behind first
    more_subscriptions: int  # that are not shown


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


class CreatedTopic(Change):
    topic: str
    topic_id: str
    partitions: int
    dispatch_strategy: str
    durability: str
    created_at: str


class DeleteTopicRequest(Request):
    topic: TopicArgument


class DeletedTopic(Change):
    """What went with the topic."""

    topic: str
    topic_id: str
    partitions: int
    messages: int
    bytes: int
    subscriptions: list[str]
    consumers: int


class TopicPoliciesRequest(Request):
    topic: TopicArgument


class SetTopicPoliciesRequest(Request):
    topic: TopicArgument
    policies: PoliciesArgument


class TopicPoliciesResult(Result):
    topic: str
    policies: dict[str, int]  # set on the topic itself
    effective: dict[str, int]  # what holds: the topic's, else its namespace's, else the broker's settings


class ChangedTopicPolicies(TopicPoliciesResult, Change):
    pass


class TruncateTopicRequest(Request):
    topic: TopicArgument
    before: Annotated[
        str,
        Field(max_length=64, description="Position: what lies before it goes; offset:42, time:-24h, latest"),
    ]


class TruncatedTopic(Change):
    topic: str
    start_offsets: dict[str, int]  # concrete topic → its first offset now
    messages: int  # that went


class UnloadTopicRequest(Request):
    topic: TopicArgument


class UnloadedTopic(Change):
    topic: str


class TopicMetricsRequest(Request):
    topic: TopicArgument


class TopicMetrics(Metrics):
    topic: str
