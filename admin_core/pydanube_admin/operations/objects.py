"""The objects of the cold tier, and the journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field
from pydanube_core.errors import InvalidArgument
from pydanube_core.names import TopicName
from pydanube_core.refusals import replay_into_itself, system_is_closed
from pydanube_core.units import counted, format_time

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Forecast, blast_radius, entry
from pydanube_admin.engine.models import (
    Change,
    Effect,
    Page,
    Place,
    Request,
    Result,
    SortedListRequest,
    TopicArgument,
    TopicRequest,
)
from pydanube_admin.engine.operation import operation
from pydanube_admin.engine.paging import glob, page_of
from pydanube_admin.engine.permission import sits_at_the_broker
from pydanube_admin.operations.brokers import BrokerRequest, this_broker
from pydanube_admin.operations.topics import Topic, find_topic

MAX_SHOWN = 100  # objects in a plan. Its blast radius counts all


# `from` is a word of Python, so the field is `start`. On every face it is `from`.
Begin = Annotated[
    str | None,
    Field(
        alias="from",
        max_length=64,
        description="offset:42, time:2026-01-31T12:00:00Z, time:-15m. Default: earliest",
    ),
]


End = Annotated[str | None, Field(max_length=64, description="End, exclusive. Default: the newest")]


class RangeRequest(Request):
    model_config = ConfigDict(serialize_by_alias=True)

    topic: TopicArgument
    start: Begin = None
    until: End = None


class ListObjectsRequest(SortedListRequest, RangeRequest):
    pass


class ExportObjectsRequest(RangeRequest):
    to: Annotated[
        str,
        Field(
            min_length=1,
            max_length=4096,
            description="New file in exports/ of the broker's data directory, a bare name. The command line writes a path of its own machine itself",
        ),
    ]
    format: Annotated[Literal["parquet", "jsonl"], Field(description="Format of the file")] = "parquet"


class ReplayTopicRequest(Request):
    model_config = ConfigDict(serialize_by_alias=True)

    topic: TopicArgument
    start: Annotated[
        str,
        Field(
            alias="from",
            max_length=64,
            description="earliest, offset:42, time:2026-01-31T12:00:00Z, time:-15m",
        ),
    ]
    until: End = None
    to: Annotated[
        str, Field(min_length=1, max_length=512, description="Another topic, made if it does not exist")
    ]


class ObjectItem(Result):
    """One committed object of a concrete topic: it is the topic for offsets from start to end, end exclusive."""

    identity: ClassVar = ("topic", "start_offset")

    topic: str
    path: str
    start_offset: int
    end_offset: int
    messages: int
    bytes: int
    min_append_time: str
    max_append_time: str
    epoch: int
    committed: bool
    # The end of the file, by which a reader sees that it is whole
    footer_bytes: int
    footer_crc: int  # their CRC-32


class VerifiedObjects(Result):
    """Every object read back and held against the catalog. All lists empty: the cold part is whole."""

    checked: int
    damaged: list[dict[str, Any]]
    missing: list[dict[str, Any]]
    gaps: list[list[int]]
    duplicates: list[list[int]]


class FlushedObjects(Change):
    topic: str
    messages: int  # offsets that went to the cold tier by this call
    objects: int  # present number of objects


class CompactedObjects(Change):
    topic: str
    merged_objects: int  # number of objects merged into others
    objects: int  # present number of objects


class CollectedObjects(Change):
    topic: str
    deleted: list[str]
    bytes: int


class ExportedObjects(Change):
    """A file that holds every message of the range."""

    topic: str
    path: str
    format: str
    messages: int
    bytes: int
    start_offset: int
    end_offset: int


class ReplayedRange(Result):
    """The messages that arrived in one concrete topic."""

    topic: str
    messages: int
    first_offset: int
    last_offset: int


class ReplayedTopic(Change):
    topic: str
    to: str
    messages: int
    ranges: list[ReplayedRange]


class JournalDescription(Result):
    """The broker's write-ahead log: its segments, oldest first, and what keeps the oldest from going."""

    bytes: int
    segments: int
    next_lsn: int
    durable_lsn: int
    read_only: bool
    sealed: list[dict[str, Any]]
    held_by: list[dict[str, Any]]


async def _ranges(
    context: Context, topic: Topic, request: RangeRequest | ReplayTopicRequest
) -> Mapping[str, tuple[int, int]]:
    return await context.port.topic_ranges(topic.own.topic, start=request.start, until=request.until)


async def _objects(context: Context, request: ListObjectsRequest) -> list[ObjectItem]:
    port, topic = context.port, await find_topic(context, request.topic)
    ranges = await _ranges(context, topic, request)
    return [
        ObjectItem(
            **item,
            topic=log.topic,
            min_append_time=format_time(item["min_append_time_ms"]),
            max_append_time=format_time(item["max_append_time_ms"]),
            committed=True,
        )
        for log in topic.logs
        for item in await port.objects(log.topic, start=ranges[log.topic][0], end=ranges[log.topic][1])
    ]


@operation(
    "objects.list",
    effect=Effect.READ,
    permission="objects:list",
    summary="List the Parquet objects that hold the cold part of a topic.",
    examples=(Example({"topic": "orders"}, "every object"),),
)
async def list_objects(context: Context, request: ListObjectsRequest) -> Page[ObjectItem]:
    matches = glob(request.filter)
    found = [item for item in await _objects(context, request) if matches(item.path.rpartition("/")[2])]
    return await page_of(
        context,
        ObjectItem,
        found,
        lambda item: item,
        key=lambda item: (item.topic, item.start_offset),
        request=request,
    )


@operation(
    "objects.verify",
    effect=Effect.READ,
    permission="objects:verify",
    summary="Read the objects of a topic back and compare them with the catalog: damaged, missing, gaps, duplicates.",
    damage=("damaged", "missing", "gaps", "duplicates"),
    long_running=True,
    resumable=True,
    examples=(Example({"topic": "orders"}, "all of them"),),
)
async def verify_objects(context: Context, request: RangeRequest) -> VerifiedObjects:
    port, topic = context.port, await find_topic(context, request.topic)
    ranges = await _ranges(context, topic, request)
    found = [
        await port.verify_objects(log.topic, start=ranges[log.topic][0], end=ranges[log.topic][1])
        for log in topic.logs
    ]
    told = {
        name: [item for each in found for item in each[name]]
        for name in ("damaged", "missing", "gaps", "duplicates")
    }
    return VerifiedObjects(checked=sum(each["checked"] for each in found), **told)


async def forecast_compact(context: Context, request: TopicRequest) -> Forecast:
    port, topic = context.port, await find_topic(context, request.topic)
    found = [item for log in topic.logs for item in await port.objects(log.topic, start=0, end=None)]
    return Forecast(diff=[], blast_radius=_radius(found), basis=str(topic.own.topic_id))


@operation(
    "objects.compact",
    effect=Effect.CHANGE,
    summary="Merge small neighbouring objects of a topic into large ones.",
    forecast=forecast_compact,
    long_running=True,
    resumable=True,
    examples=(Example({"topic": "orders"}, "now, rather than when it is due"),),
)
async def compact_objects(context: Context, request: TopicRequest) -> CompactedObjects:
    port, topic = context.port, await find_topic(context, request.topic)
    merged = sum([await port.compact_objects(log.topic) for log in topic.logs])
    left = [len(await port.objects(log.topic, start=0, end=None)) for log in topic.logs]
    return CompactedObjects(topic=topic.own.topic, merged_objects=merged, objects=sum(left))


@operation(
    "objects.flush",
    effect=Effect.CHANGE,
    title="Flush to objects",
    summary="Move all messages acknowledged until now to the cold tier, of any size and age.",
    forecast=forecast_compact,
    long_running=True,
    resumable=True,
    examples=(Example({"topic": "orders"}, "now, rather than by size or age"),),
)
async def flush_objects(context: Context, request: TopicRequest) -> FlushedObjects:
    port, topic = context.port, await find_topic(context, request.topic)
    moved = sum([await port.flush_objects(log.topic) for log in topic.logs])
    there = [len(await port.objects(log.topic, start=0, end=None)) for log in topic.logs]
    return FlushedObjects(topic=topic.own.topic, messages=moved, objects=sum(there))


async def forecast_collect(context: Context, request: TopicRequest) -> Forecast:
    port, topic = context.port, await find_topic(context, request.topic)
    found = [item for log in topic.logs for item in await port.orphans(log.topic)]
    return Forecast(
        diff=[entry(item["path"], {"bytes": item["bytes"]}, None) for item in found[:MAX_SHOWN]],
        blast_radius=_radius(found),
        basis=[str(topic.own.topic_id), sorted(item["path"] for item in found)],
        later="The topic and its messages stay: the catalog lists none of these objects",
    )


@operation(
    "objects.collect",
    effect=Effect.DESTROY,
    summary="Delete objects in the folder of a topic that the catalog does not list.",
    forecast=forecast_collect,
    long_running=True,
    examples=(Example({"topic": "orders"}, "after a crash or a compaction"),),
)
async def collect_objects(context: Context, request: TopicRequest) -> CollectedObjects:
    port, topic = context.port, await find_topic(context, request.topic)
    gone = [item for log in topic.logs for item in await port.collect_objects(log.topic)]
    return CollectedObjects(
        topic=topic.own.topic,
        deleted=[item["path"] for item in gone],
        bytes=sum(item["bytes"] for item in gone),
    )


def _radius(found: Sequence[Mapping[str, Any]]) -> dict[str, int | None]:
    return blast_radius(topics=1, bytes=sum(item["bytes"] for item in found))


async def _exported(context: Context, request: ExportObjectsRequest) -> tuple[Topic, tuple[int, int]]:
    topic = await find_topic(context, request.topic)
    if topic.parts:
        raise InvalidArgument(
            f"{topic.own.topic} has {counted(len(topic.parts), 'partition')}, each with offsets of its own: export them one by one, "
            f"such as {topic.parts[0].topic}",
            field="topic",
            value=request.topic,
        )
    ranges = await _ranges(context, topic, request) if context.pinned is None else context.pinned["ranges"]
    start, end = ranges[topic.own.topic]
    return topic, (max(start, topic.own.start_offset), end)


async def forecast_export(context: Context, request: ExportObjectsRequest) -> Forecast:
    topic, (start, end) = await _exported(context, request)
    pinned = {"ranges": {topic.own.topic: [start, end]}} if context.pinned is None else context.pinned
    return Forecast(
        diff=[entry(request.to, None, {"format": request.format})],
        blast_radius=blast_radius(topics=1, messages=max(0, end - start)),
        basis=[str(topic.own.topic_id), pinned],
        pinned=pinned,
    )


@operation(
    "objects.export",
    effect=Effect.CREATE,
    summary="Write a range of a topic to one file on the broker's machine, as Parquet or JSON lines. Untiered messages "
    "are tiered first.",
    forecast=forecast_export,
    required_flags=("to",),
    long_running=True,
    examples=(
        Example({"topic": "orders", "to": "orders.parquet"}, "all of it"),
        Example(
            {"topic": "orders", "from": "time:-1h", "to": "orders.jsonl", "format": "jsonl"},
            "the last hour as JSON lines",
        ),
    ),
)
async def export_objects(context: Context, request: ExportObjectsRequest) -> ExportedObjects:
    topic, (start, end) = await _exported(context, request)
    said = await context.port.export_objects(
        topic.own.topic,
        start=start,
        end=end,
        to=request.to,
        file_format=request.format,
        any_folder=sits_at_the_broker(),
    )
    return ExportedObjects(
        **said, topic=topic.own.topic, format=request.format, start_offset=start, end_offset=end
    )


async def _replayed(
    context: Context, request: ReplayTopicRequest
) -> tuple[Topic, str, Mapping[str, tuple[int, int]]]:
    topic, to = await find_topic(context, request.topic), TopicName.parse(request.to)
    if to.base == TopicName.parse(topic.own.topic).base:
        raise replay_into_itself(str(to))
    if to.is_system:
        raise system_is_closed(str(to), field="to")
    if context.pinned is None:
        return topic, str(to), await _ranges(context, topic, request)
    ranges = context.pinned["ranges"]
    starts = {log.topic: log.start_offset for log in topic.logs}
    return topic, str(to), {log: (max(start, starts[log]), end) for log, (start, end) in ranges.items()}


async def forecast_replay(context: Context, request: ReplayTopicRequest) -> Forecast:
    topic, to, ranges = await _replayed(context, request)
    messages = sum(max(0, end - start) for start, end in ranges.values())
    pinned = {"ranges": {log: list(each) for log, each in ranges.items()}}
    pinned = pinned if context.pinned is None else dict(context.pinned)
    return Forecast(
        diff=[entry(f"topics{to}/messages", None, {"added": messages})],
        blast_radius=blast_radius(topics=1, messages=messages, bytes=None),
        basis=[str(topic.own.topic_id), to, pinned],
        pinned=pinned,
    )


@operation(
    "topics.replay",
    effect=Effect.CREATE,
    title="Replay a topic",
    summary="Copy a range of a topic into another topic. Each copy names its message in x-replayed-from.",
    idempotent=False,
    forecast=forecast_replay,
    required_flags=("from", "to"),
    long_running=True,
    examples=(Example({"topic": "orders", "from": "time:-1h", "to": "orders-again"}, "the last hour"),),
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


@operation(
    "journal.describe",
    at=Place.BROKER,
    effect=Effect.READ,
    title="Describe the journal",
    permission="journal:describe",
    summary="Show the segments of the write-ahead log and the topics that keep the oldest from going.",
    examples=(Example({}, "the one that answers"),),
)
async def describe_journal(context: Context, request: BrokerRequest) -> JournalDescription:
    await this_broker(context, request.broker_id)
    return JournalDescription(**await context.port.journal())
