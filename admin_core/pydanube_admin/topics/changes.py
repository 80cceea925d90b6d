"""Creating and deleting topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydanube_core.errors import AlreadyExists, InvalidArgument, InvalidName
from pydanube_core.names import TopicName
from pydanube_core.refusals import single_partition, topic_taken
from pydanube_core.units import format_time

from pydanube_admin.context import Context
from pydanube_admin.models import Preview
from pydanube_admin.next_calls import next_call
from pydanube_admin.previews import blast_radius
from pydanube_admin.topics.models import CreatedTopic, CreateTopicRequest, DeletedTopic, DeleteTopicRequest
from pydanube_admin.topics.reading import Topic, find_topic

__all__ = ["create_topic", "delete_topic", "preview_create", "preview_delete"]


def _creation(request: CreateTopicRequest) -> tuple[str, str]:
    """Name and durability of the topic to create; refuses what does not go together."""
    name = TopicName.parse(request.topic)
    if name.partition is not None:
        raise InvalidName(
            f"{name}: names that end in -part-<number> are those of partitions; create {name.base} with "
            "partitions instead, or choose another name",
            field="topic",
            value=str(name),
        )
    durability: str = request.durability
    if request.dispatch_strategy == "non_reliable":
        if request.durability == "fsynced" and "durability" in request.model_fields_set:
            raise InvalidArgument(
                "durability: a non_reliable topic stores nothing, so it cannot be fsynced; leave durability out, "
                "or make the topic reliable",
                field="durability",
                value=request.durability,
            )
        durability = "memory"
    elif durability == "memory":
        raise InvalidArgument(
            "durability: a reliable topic never gives less than fsynced; leave durability out, or make the topic "
            "non_reliable",
            field="durability",
            value=durability,
        )
    return str(name), durability


async def create_topic(context: Context, request: CreateTopicRequest) -> CreatedTopic:
    name, durability = _creation(request)
    try:
        await context.port.create_topic(
            name,
            partitions=request.partitions,
            dispatch_strategy=request.dispatch_strategy,
            durability=durability,
            options=_options(request),
        )
    except AlreadyExists as error:
        raise _taken(name) from error
    own = (await context.port.topic(name))[0]
    return CreatedTopic(
        topic=own.topic,
        topic_id=str(own.topic_id),
        partitions=own.partitions,
        dispatch_strategy=own.dispatch_strategy,
        durability=own.durability,
        created_at=format_time(own.created_at_ms),
    )


def _options(request: CreateTopicRequest) -> dict[str, Any]:
    """What was given beyond the topic's kind."""
    given: dict[str, Any] = {"policies": _policies(request)} if request.policies else {}
    if request.schema_subject is not None:
        given["schema_subject"] = request.schema_subject
    return given


def _policies(request: CreateTopicRequest) -> dict[str, int]:
    """The limits of a topic that is new: there is nothing yet that null could take away."""
    return {name: value for name, value in (request.policies or {}).items() if value is not None}


def _taken(name: str) -> AlreadyExists:
    return topic_taken(name).followed_by(
        next_call("topics.describe", {"topic": name}, "shows the topic that has the name")
    )


async def preview_create(context: Context, request: CreateTopicRequest) -> Preview:
    name, durability = _creation(request)
    if any(facts.topic == name for facts in await context.port.topics()):
        raise _taken(name)
    after: dict[str, Any] = {
        "partitions": request.partitions,
        "dispatch_strategy": request.dispatch_strategy,
        "durability": durability,
    }
    if request.policies:
        after["policies"] = _policies(request)
    return Preview(
        operation="topics.create",
        arguments=request.model_dump(mode="json", exclude_unset=True),
        effect="create",
        reversible=True,
        diff=[{"path": f"topics{name}", "before": None, "after": after}],
        blast_radius=blast_radius(topics=1),
    )


async def _doomed(context: Context, request: DeleteTopicRequest) -> Topic:
    """The topic to delete; a single partition is refused."""
    topic = await find_topic(context, request.topic)
    if topic.own.parent is not None:
        raise single_partition(topic.own.topic).followed_by(
            next_call("topics.describe", {"topic": topic.own.parent}, "shows the whole topic")
        )
    return topic


async def delete_topic(context: Context, request: DeleteTopicRequest) -> DeletedTopic:
    topic = await _doomed(context, request)
    await context.port.delete_topic(topic.own.topic)
    return DeletedTopic(
        topic=topic.own.topic,
        topic_id=str(topic.own.topic_id),
        partitions=topic.own.partitions,
        messages=topic.messages,
        bytes=topic.bytes,
        subscriptions=topic.subscriptions,
        consumers=topic.consumers,
    )


async def preview_delete(context: Context, request: DeleteTopicRequest) -> Preview:
    topic = await _doomed(context, request)
    before: Mapping[str, Any] = {
        "topic_id": str(topic.own.topic_id),
        "partitions": topic.own.partitions,
        "messages": topic.messages,
        "bytes": topic.bytes,
    }
    return Preview(
        operation="topics.delete",
        arguments=request.model_dump(mode="json"),
        effect="destroy",
        reversible=False,
        diff=[
            {"path": f"topics{topic.own.topic}", "before": dict(before), "after": None},
            *(
                {"path": f"topics{topic.own.topic}/subscriptions/{name}", "before": {}, "after": None}
                for name in topic.subscriptions
            ),
        ],
        blast_radius=blast_radius(
            topics=1,
            subscriptions=len(topic.subscriptions),
            consumers=topic.consumers,
            messages=topic.messages,
            bytes=topic.bytes,
        ),
    )
