"""Operations on the objects of the cold tier and on the journal, over the broker's port."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from pydanube_core.errors import NotImplementedYet
from pydanube_core.units import format_time

from pydanube_admin.context import Context
from pydanube_admin.models import Page, Preview, Request
from pydanube_admin.object_models import (
    CollectedObjects,
    CompactedObjects,
    JournalDescription,
    JournalRequest,
    ListObjectsRequest,
    ObjectItem,
    ObjectsRequest,
    VerifiedObjects,
    VerifyObjectsRequest,
)
from pydanube_admin.paging import cut, glob
from pydanube_admin.previews import blast_radius
from pydanube_admin.topics import find_topic

__all__ = [
    "ObjectsPort",
    "collect_objects",
    "compact_objects",
    "describe_journal",
    "list_objects",
    "preview_collect",
    "preview_compact",
    "verify_objects",
]


@runtime_checkable
class ObjectsPort(Protocol):
    """What a broker with a cold tier does beside `ClusterPort`. Topics are concrete ones."""

    async def objects(self, topic: str, *, start: int, end: int | None) -> Sequence[Mapping[str, Any]]:
        """Committed objects: `ObjectItem` with times in milliseconds since 1970."""
        ...

    async def verify_objects(self, topic: str, *, start: int, end: int | None) -> Mapping[str, Any]: ...

    async def compact_objects(self, topic: str) -> int: ...

    async def orphans(self, topic: str) -> Sequence[Mapping[str, Any]]:
        """{path, bytes} of what `collect_objects` would delete."""
        ...

    async def collect_objects(self, topic: str) -> Sequence[Mapping[str, Any]]: ...

    async def journal(self) -> Mapping[str, Any]: ...


def _port(context: Context) -> ObjectsPort:
    if not isinstance(context.port, ObjectsPort):
        raise NotImplementedYet("this cluster has no cold tier")
    return cast(ObjectsPort, context.port)


async def _objects(context: Context, request: ListObjectsRequest | VerifyObjectsRequest) -> list[ObjectItem]:
    port, topic = _port(context), await find_topic(context, request.topic)
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
        for item in await port.objects(log.topic, start=request.start or 0, end=request.until)
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
    port, topic = _port(context), await find_topic(context, request.topic)
    found = [
        await port.verify_objects(log.topic, start=request.start or 0, end=request.until)
        for log in topic.logs
    ]
    return VerifiedObjects(
        checked=sum(each["checked"] for each in found),
        damaged=[item for each in found for item in each["damaged"]],
        missing=[item for each in found for item in each["missing"]],
        gaps=[item for each in found for item in each["gaps"]],
        duplicates=[item for each in found for item in each["duplicates"]],
    )


async def compact_objects(context: Context, request: ObjectsRequest) -> CompactedObjects:
    port, topic = _port(context), await find_topic(context, request.topic)
    merged = sum([await port.compact_objects(log.topic) for log in topic.logs])
    left = [len(await port.objects(log.topic, start=0, end=None)) for log in topic.logs]
    return CompactedObjects(topic=topic.own.topic, merged_objects=merged, objects=sum(left))


async def collect_objects(context: Context, request: ObjectsRequest) -> CollectedObjects:
    port, topic = _port(context), await find_topic(context, request.topic)
    gone = [item for log in topic.logs for item in await port.collect_objects(log.topic)]
    return CollectedObjects(
        topic=topic.own.topic,
        deleted=[item["path"] for item in gone],
        bytes=sum(item["bytes"] for item in gone),
    )


async def preview_compact(context: Context, request: ObjectsRequest) -> Preview:
    port, topic = _port(context), await find_topic(context, request.topic)
    found = [item for log in topic.logs for item in await port.objects(log.topic, start=0, end=None)]
    return _preview("objects.compact", request, "change", found, topics=1, reversible=False)


async def preview_collect(context: Context, request: ObjectsRequest) -> Preview:
    port, topic = _port(context), await find_topic(context, request.topic)
    found = [item for log in topic.logs for item in await port.orphans(log.topic)]
    return _preview("objects.collect", request, "destroy", found, topics=1, reversible=False)


def _preview(
    operation: str,
    request: Request,
    effect: Any,
    found: Sequence[Mapping[str, Any]],
    *,
    topics: int,
    reversible: bool,
) -> Preview:
    destroys = effect == "destroy"
    return Preview(
        operation=operation,
        arguments=request.model_dump(mode="json", exclude_unset=True),
        effect=effect,
        reversible=reversible,
        diff=[
            {"path": item["path"], "before": {"bytes": item["bytes"]}, "after": None}
            for item in found[:100]
            if destroys
        ],
        blast_radius=blast_radius(topics=topics, bytes=sum(item["bytes"] for item in found)),
    )


async def describe_journal(context: Context, request: JournalRequest) -> JournalDescription:
    return JournalDescription(**await _port(context).journal())
