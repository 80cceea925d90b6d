"""Operations on topics, over the cluster port.

A partitioned topic is one item: its partitions' figures are summed, its subscriptions united. Sessions are counted
as they are, one a partition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydanube_core.errors import AlreadyExists, InvalidArgument, InvalidName, TopicNotFound
from pydanube_core.facts import TopicFacts
from pydanube_core.names import TopicName, check_namespace
from pydanube_core.units import format_time

from pydanube_admin.arguments import close_names
from pydanube_admin.context import Context
from pydanube_admin.models import (
    CreatedTopic,
    CreateTopicRequest,
    DeletedTopic,
    DeleteTopicRequest,
    DescribeTopicRequest,
    ListTopicsRequest,
    Page,
    Preview,
    TopicDescription,
    TopicItem,
    TopicPart,
)
from pydanube_admin.paging import cut, glob
from pydanube_admin.previews import blast_radius
from pydanube_admin.registry import next_call

__all__ = [
    "Topic",
    "create_topic",
    "delete_topic",
    "describe_topic",
    "find_topic",
    "list_topics",
    "preview_create",
    "preview_delete",
]

PARTITIONED = "partitioned"
UNASSIGNED = "unassigned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic with its partitions, ascending; without any if it is a log of its own."""

    own: TopicFacts
    parts: tuple[TopicFacts, ...]

    @property
    def logs(self) -> tuple[TopicFacts, ...]:
        """What holds messages."""
        return self.parts or (self.own,)

    @property
    def messages(self) -> int:
        return sum(log.messages for log in self.logs)

    @property
    def bytes(self) -> int:
        return sum(log.bytes for log in self.logs)

    @property
    def producers(self) -> int:
        return sum(log.producers for log in self.logs)

    @property
    def consumers(self) -> int:
        return sum(log.consumers for log in self.logs)

    @property
    def subscriptions(self) -> list[str]:
        return sorted({name for log in self.logs for name in log.subscriptions})

    @property
    def owner_reason(self) -> str | None:
        if self.own.partitions:
            return PARTITIONED
        return UNASSIGNED if self.own.owner is None else None


async def find_topic(context: Context, text: str) -> Topic:
    """The topic a caller named.

    Raises:
        InvalidName: not a name.
        TopicNotFound: names topics that are spelled alike, and the call that would create it.
    """
    name = str(TopicName.parse(text))
    try:
        own, *parts = await context.port.topic(name)
    except TopicNotFound as error:
        raise await _not_found(context, name) from error
    return Topic(own=own, parts=tuple(sorted(parts, key=_partition)))


async def _not_found(context: Context, name: str) -> TopicNotFound:
    known = [facts.topic for facts in await context.port.topics() if facts.parent is None]
    close = close_names(name, known)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return TopicNotFound(
        f"there is no topic {name}{hint}",
        field="topic",
        value=name,
        topic=name,
        did_you_mean=close,
        next=[
            *(next_call("topics.describe", {"topic": other}, "a topic spelled alike") for other in close),
            next_call("topics.create", {"topic": name}, "creates it"),
            next_call("topics.list", {}, "shows the topics there are"),
        ],
    )


def _partition(facts: TopicFacts) -> int:
    return -1 if facts.partition is None else facts.partition


def _gather(facts: Sequence[TopicFacts]) -> list[Topic]:
    """Partitions under their topic. One whose topic is not in sight (it is just being deleted) is left out."""
    parts: defaultdict[str, list[TopicFacts]] = defaultdict(list)
    for item in facts:
        if item.parent is not None:
            parts[item.parent].append(item)
    return [
        Topic(own=item, parts=tuple(sorted(parts[item.topic], key=_partition)))
        for item in facts
        if item.parent is None
    ]


async def list_topics(context: Context, request: ListTopicsRequest) -> Page[TopicItem]:
    namespace = None if request.namespace is None else check_namespace(request.namespace)
    matches = glob(request.filter)
    topics = [
        topic
        for topic in _gather(await context.port.topics())
        if matches(topic.own.topic)
        and (namespace is None or TopicName.parse(topic.own.topic).namespace == namespace)
        and (request.broker is None or any(log.owner == request.broker for log in topic.logs))
    ]
    page = cut(topics, key=lambda topic: (topic.own.topic,), operation="topics.list", request=request)
    return Page[TopicItem](
        items=[_item(topic) for topic in page.items],
        next_page=page.next_page,
        total=page.total,
        as_of=format_time(context.now_ms()),
    )


def _item(topic: Topic) -> TopicItem:
    return TopicItem(
        topic=topic.own.topic,
        partitions=topic.own.partitions,
        dispatch_strategy=topic.own.dispatch_strategy,
        messages=topic.messages,
        bytes=topic.bytes,
        producers=topic.producers,
        consumers=topic.consumers,
        subscriptions=len(topic.subscriptions),
        owner=None if topic.owner_reason else topic.own.owner,
        owner_reason=topic.owner_reason,
    )


async def describe_topic(context: Context, request: DescribeTopicRequest) -> TopicDescription:
    topic = await find_topic(context, request.topic)
    own = topic.own
    split = PARTITIONED if own.partitions else None
    return TopicDescription(
        topic=own.topic,
        topic_id=str(own.topic_id),
        partitions=own.partitions,
        dispatch_strategy=own.dispatch_strategy,
        durability=own.durability,
        messages=topic.messages,
        bytes=topic.bytes,
        producers=topic.producers,
        consumers=topic.consumers,
        subscriptions=topic.subscriptions,
        owner=None if topic.owner_reason else own.owner,
        owner_reason=topic.owner_reason,
        epoch=None if split else str(own.epoch),
        epoch_reason=split,
        start_offset=None if split else own.start_offset,
        start_offset_reason=split,
        next_offset=None if split else own.next_offset,
        next_offset_reason=split,
        tiered_offset=None if split else own.tiered_offset,
        tiered_offset_reason=split or ("no_cold_tier" if own.tiered_offset is None else None),
        journal_bytes=sum(log.journal_bytes for log in topic.logs),
        object_bytes=sum(log.object_bytes for log in topic.logs),
        policies=dict(own.policies),
        topic_schema=None if own.schema is None else dict(own.schema),
        created_at=format_time(own.created_at_ms),
        parts=[
            TopicPart(
                topic=part.topic,
                partition=_partition(part),
                owner=part.owner,
                owner_reason=UNASSIGNED if part.owner is None else None,
                epoch=str(part.epoch),
                start_offset=part.start_offset,
                next_offset=part.next_offset,
                messages=part.messages,
                bytes=part.bytes,
            )
            for part in topic.parts
        ],
    )


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
    return AlreadyExists(
        f"the topic {name} exists already; choose another name, or use it as it is",
        field="topic",
        value=name,
        topic=name,
        next=[next_call("topics.describe", {"topic": name}, "shows the topic that has the name")],
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
        raise InvalidArgument(
            # The first words are the original's; its own tests look for them.
            f"Cannot delete individual partition {topic.own.topic}: the partitions of a topic go together; delete "
            f"{topic.own.parent}",
            field="topic",
            value=topic.own.topic,
            next=[next_call("topics.describe", {"topic": topic.own.parent}, "shows the whole topic")],
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
