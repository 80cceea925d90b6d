"""The operations on topics."""

from __future__ import annotations

from typing import Final

from pydanube_admin.effect import Effect
from pydanube_admin.models import Page
from pydanube_admin.operation import Example, Operation
from pydanube_admin.topics.changes import (
    create_topic,
    delete_topic,
    forecast_create,
    forecast_delete,
    undo_create,
    undo_delete,
)
from pydanube_admin.topics.models import (
    ChangedTopicPolicies,
    CreatedTopic,
    CreateTopicRequest,
    DeletedTopic,
    DeleteTopicRequest,
    DescribeTopicRequest,
    ListTopicsRequest,
    SetTopicPoliciesRequest,
    TopicDescription,
    TopicItem,
    TopicPoliciesRequest,
    TopicPoliciesResult,
)
from pydanube_admin.topics.policies import (
    forecast_set_topic_policies,
    get_topic_policies,
    set_topic_policies,
    undo_set_topic_policies,
)
from pydanube_admin.topics.reading import describe_topic, list_topics

__all__ = ["TOPIC_OPERATIONS"]

TOPIC_OPERATIONS: Final = (
    Operation(
        name="topics.list",
        tool="list_topics",
        title="List topics",
        effect=Effect.READ,
        permission="topics:read",
        reversible=None,
        summary="List topics with message counts, bytes, sessions and owner.",
        request=ListTopicsRequest,
        result=Page[TopicItem],
        handler=list_topics,
        examples=(
            Example(arguments={}, note="every topic"),
            Example(arguments={"namespace": "default", "filter": "orders*"}, note="by namespace and name"),
        ),
        default_profile=True,
    ),
    Operation(
        name="topics.describe",
        tool="describe_topic",
        title="Describe a topic",
        effect=Effect.READ,
        permission="topics:read",
        reversible=None,
        summary="Show one topic: offsets, sizes, durability, owner, policies, subscriptions, partitions.",
        request=DescribeTopicRequest,
        result=TopicDescription,
        handler=describe_topic,
        examples=(Example(arguments={"topic": "orders"}, note="/default/orders"),),
        default_profile=True,
    ),
    Operation(
        name="topics.create",
        tool="create_topic",
        title="Create a topic",
        effect=Effect.CREATE,
        permission="topics:create",
        reversible=True,
        summary="Create a topic, optionally partitioned. Fails if the name is taken.",
        request=CreateTopicRequest,
        result=CreatedTopic,
        handler=create_topic,
        forecast=forecast_create,
        undo=undo_create,
        examples=(
            Example(arguments={"topic": "orders"}, note="one reliable, fsynced topic"),
            Example(arguments={"topic": "orders", "partitions": 3}, note="three partitions"),
        ),
        default_profile=True,
        later_arguments={
            "compaction": "tier",
            "typed_columns": "tier",
        },
    ),
    Operation(
        name="topics.delete",
        tool="delete_topic",
        title="Delete a topic",
        effect=Effect.DESTROY,
        permission="topics:delete",
        reversible=True,
        summary="Delete a topic with its messages, subscriptions and all partitions.",
        request=DeleteTopicRequest,
        result=DeletedTopic,
        handler=delete_topic,
        forecast=forecast_delete,
        undo=undo_delete,
        examples=(Example(arguments={"topic": "orders"}, note="shows what would go, then asks"),),
        default_profile=False,
    ),
    Operation(
        name="topics.get_policies",
        tool="get_topic_policies",
        title="Policies of a topic",
        effect=Effect.READ,
        permission="topics:read",
        reversible=None,
        summary="Show the limits set on a topic, and those that hold: its own, its namespace's, the broker's.",
        request=TopicPoliciesRequest,
        result=TopicPoliciesResult,
        handler=get_topic_policies,
        examples=(Example(arguments={"topic": "orders"}, note="set and effective"),),
        default_profile=False,
    ),
    Operation(
        name="topics.set_policies",
        tool="set_topic_policies",
        title="Set policies of a topic",
        effect=Effect.CHANGE,
        permission="topics:change",
        reversible=True,
        summary="Set limits of a topic, live at once. What is not named stays; null takes a limit away, 0 lifts it.",
        request=SetTopicPoliciesRequest,
        result=ChangedTopicPolicies,
        handler=set_topic_policies,
        forecast=forecast_set_topic_policies,
        undo=undo_set_topic_policies,
        required_flags=("policies",),
        examples=(
            Example(
                arguments={"topic": "orders", "policies": {"max_publish_rate": 1000}},
                note="at most 1000 messages a second",
            ),
        ),
        default_profile=False,
    ),
)
