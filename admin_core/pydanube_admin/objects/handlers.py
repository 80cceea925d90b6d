"""The objects of the cold tier, and the journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydanube_core.errors import InvalidArgument
from pydanube_core.names import TopicName
from pydanube_core.refusals import replay_into_itself, system_is_closed
from pydanube_core.units import format_time

from pydanube_admin.context import Context
from pydanube_admin.forecast import Forecast, blast_radius, entry
from pydanube_admin.models import Page
from pydanube_admin.objects.models import (
    CollectedObjects,
    CompactedObjects,
    ExportedObjects,
    ExportObjectsRequest,
    FlushedObjects,
    JournalDescription,
    JournalRequest,
    ListObjectsRequest,
    ObjectItem,
    ObjectsRequest,
    RangeRequest,
    ReplayedRange,
    ReplayedTopic,
    ReplayTopicRequest,
    VerifiedObjects,
    VerifyObjectsRequest,
)
from pydanube_admin.paging import cut, glob
from pydanube_admin.topics.reading import Topic, find_topic

MAX_SHOWN = 100  # objects in a plan; its blast radius counts all
PERSON = "cli"  # the face whose caller sits at a keyboard, and may name any folder of this machine


async def _ranges(
    context: Context, topic: Topic, request: RangeRequest | ReplayTopicRequest
) -> Mapping[str, tuple[int, int]]:
    return await context.port.topic_ranges(topic.own.topic, start=request.start, until=request.until)


async def _objects(context: Context, request: ListObjectsRequest) -> list[ObjectItem]:
    port, topic = context.port, await find_topic(context, request.topic)
    ranges = await _ranges(context, topic, request)
    return [
        ObjectItem(
            topic=log.topic,
            path=item["path"],
            start_offset=item["start_offset"],
            end_offset=item["end_offset"],
            messages=item["messages"],
            bytes=item["bytes"],
            min_append_time=format_time(item["min_append_time_ms"]),
            max_append_time=format_time(item["max_append_time_ms"]),
            epoch=item["epoch"],
            committed=True,
        )
        for log in topic.logs
        for item in await port.objects(log.topic, start=ranges[log.topic][0], end=ranges[log.topic][1])
    ]


async def list_objects(context: Context, request: ListObjectsRequest) -> Page[ObjectItem]:
    matches = glob(request.filter)
    found = [item for item in await _objects(context, request) if matches(item.path.rpartition("/")[2])]
    page = cut(
        found, key=lambda item: (item.topic, item.start_offset), operation="objects.list", request=request
    )
    return Page[ObjectItem](
        items=page.items,
        next_page=page.next_page,
        total=page.total,
        as_of=format_time(context.now_ms()),
    )


async def verify_objects(context: Context, request: VerifyObjectsRequest) -> VerifiedObjects:
    port, topic = context.port, await find_topic(context, request.topic)
    ranges = await _ranges(context, topic, request)
    found = [
        await port.verify_objects(log.topic, start=ranges[log.topic][0], end=ranges[log.topic][1])
        for log in topic.logs
    ]
    return VerifiedObjects(
        checked=sum(each["checked"] for each in found),
        damaged=[item for each in found for item in each["damaged"]],
        missing=[item for each in found for item in each["missing"]],
        gaps=[item for each in found for item in each["gaps"]],
        duplicates=[item for each in found for item in each["duplicates"]],
    )


async def flush_objects(context: Context, request: ObjectsRequest) -> FlushedObjects:
    port, topic = context.port, await find_topic(context, request.topic)
    moved = sum([await port.flush_objects(log.topic) for log in topic.logs])
    there = [len(await port.objects(log.topic, start=0, end=None)) for log in topic.logs]
    return FlushedObjects(topic=topic.own.topic, messages=moved, objects=sum(there))


async def compact_objects(context: Context, request: ObjectsRequest) -> CompactedObjects:
    port, topic = context.port, await find_topic(context, request.topic)
    merged = sum([await port.compact_objects(log.topic) for log in topic.logs])
    left = [len(await port.objects(log.topic, start=0, end=None)) for log in topic.logs]
    return CompactedObjects(topic=topic.own.topic, merged_objects=merged, objects=sum(left))


async def collect_objects(context: Context, request: ObjectsRequest) -> CollectedObjects:
    port, topic = context.port, await find_topic(context, request.topic)
    gone = [item for log in topic.logs for item in await port.collect_objects(log.topic)]
    return CollectedObjects(
        topic=topic.own.topic,
        deleted=[item["path"] for item in gone],
        bytes=sum(item["bytes"] for item in gone),
    )


async def forecast_compact(context: Context, request: ObjectsRequest) -> Forecast:
    port, topic = context.port, await find_topic(context, request.topic)
    found = [item for log in topic.logs for item in await port.objects(log.topic, start=0, end=None)]
    return Forecast(diff=[], blast_radius=_radius(found), basis=str(topic.own.topic_id))


async def forecast_collect(context: Context, request: ObjectsRequest) -> Forecast:
    port, topic = context.port, await find_topic(context, request.topic)
    found = [item for log in topic.logs for item in await port.orphans(log.topic)]
    return Forecast(
        diff=[entry(item["path"], {"bytes": item["bytes"]}, None) for item in found[:MAX_SHOWN]],
        blast_radius=_radius(found),
        basis=[str(topic.own.topic_id), sorted(item["path"] for item in found)],
    )


def _radius(found: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return blast_radius(topics=1, bytes=sum(item["bytes"] for item in found))


async def export_objects(context: Context, request: ExportObjectsRequest) -> ExportedObjects:
    topic, (start, end) = await _exported(context, request)
    said = await context.port.export_objects(
        topic.own.topic,
        start=start,
        end=end,
        to=request.to,
        file_format=request.format,
        any_folder=context.face == PERSON,
    )
    return ExportedObjects(
        topic=topic.own.topic,
        path=said["path"],
        format=request.format,
        messages=said["messages"],
        bytes=said["bytes"],
        start_offset=start,
        end_offset=end,
    )


async def _exported(context: Context, request: ExportObjectsRequest) -> tuple[Topic, tuple[int, int]]:
    topic = await find_topic(context, request.topic)
    if topic.parts:
        raise InvalidArgument(
            f"{topic.own.topic} has {len(topic.parts)} partitions, each with offsets of its own: export them one by one, "
            f"such as {topic.parts[0].topic}",
            field="topic",
            value=request.topic,
        )
    return topic, (await _ranges(context, topic, request))[topic.own.topic]


async def forecast_export(context: Context, request: ExportObjectsRequest) -> Forecast:
    _, (start, end) = await _exported(context, request)
    return Forecast(
        diff=[entry(request.to, None, {"format": request.format})],
        blast_radius=blast_radius(topics=1, messages=end - start),
    )


async def replay_topic(context: Context, request: ReplayTopicRequest) -> ReplayedTopic:
    topic, to, ranges = await _replayed(context, request)
    found = await context.port.replay_topic(topic.own.topic, ranges=ranges, to=to)
    return ReplayedTopic(
        topic=topic.own.topic,
        to=to,
        messages=sum(each["messages"] for each in found),
        ranges=[ReplayedRange(**each) for each in found],
    )


async def _replayed(
    context: Context, request: ReplayTopicRequest
) -> tuple[Topic, str, Mapping[str, tuple[int, int]]]:
    topic, to = await find_topic(context, request.topic), TopicName.parse(request.to)
    if to.base == TopicName.parse(topic.own.topic).base:
        raise replay_into_itself(str(to))
    if to.is_system:
        raise system_is_closed(str(to), field="to")
    return topic, str(to), await _ranges(context, topic, request)


async def forecast_replay(context: Context, request: ReplayTopicRequest) -> Forecast:
    _, to, ranges = await _replayed(context, request)
    messages = sum(end - start for start, end in ranges.values())
    return Forecast(
        diff=[entry(f"topics{to}/messages", None, {"added": messages})],
        blast_radius=blast_radius(topics=1, messages=messages),
    )


async def describe_journal(context: Context, request: JournalRequest) -> JournalDescription:
    return JournalDescription(**await context.port.journal())
