"""Locate the messages of topics: by the broker, or in the object store alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pydanube_core.errors import InvalidArgument, StoreUnavailable, TopicNotFound
from pydanube_core.names import TopicName
from pydanube_core.topic_pattern import TopicPattern
from pydanube_core.units import parse_time_ms

from pydanube_storage.objects import ObjectStore, StoreOptions, open_store
from pydanube_storage.objects.names import ObjectName
from pydanube_storage.topics.extent import ColdObject, Extent, Slice, cover_of, gap_in
from pydanube_storage.topics.query import Broker, TopicQuery

_PAGE: Final = 1000
_LISTINGS: Final = 5  # tries for a listing without gaps
MOST_TOPICS: Final = 1000  # maximum per pattern, because each one costs three calls
#: how a store is reached, as fields of `StoreOptions`
STORE: Final = ("endpoint", "region", "path_style", "profile", "role", "anonymous")
_NOT_CLUSTERS: Final = ("exports",)
_TOLD: Final = ("endpoint", "region", "path_style")


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """The partitions of topics at one moment. `live`: a broker has the messages after the objects.

    `topic_ids`: topic → id, without those of unknown ones. A topic that was deleted and made again has another id.
    """

    topic: str  # the title of the query
    topic_ids: Mapping[str, str]
    extents: tuple[Extent, ...]
    store: StoreOptions | None  # None: nothing is tiered, or could be
    live: bool


def locate(query: TopicQuery) -> Located:
    """Locate the topics, those of a pattern as they are now.

    Raises `TopicNotFound`, `Unavailable`, `StoreUnavailable`, `InvalidArgument`.
    """
    found = []
    for name in query.topics or matching_topics(query):
        try:
            found.append(
                _in_store(query, name) if query.broker is None else _by_broker(query, query.broker, name)
            )
        except TopicNotFound:
            if query.pattern is None:
                raise
            # It was deleted after the listing, so the pattern does not match it any more.
    return Located(
        topic=query.title,
        topic_ids={topic: number for each in found for topic, number in each.topic_ids.items()},
        extents=tuple(extent for each in found for extent in each.extents),
        store=next((each.store for each in found if each.store is not None), None),
        live=query.broker is not None,
    )


def matching_topics(query: TopicQuery) -> Sequence[str]:
    """Return the topics that the query's pattern matches now. Raises `InvalidArgument`: they are too many."""
    assert query.pattern is not None
    pattern = TopicPattern.parse(query.pattern)
    if query.broker is None:
        store = open_for_reading(_named_store(query))
        folder = f"{cluster_folder(store, query.cluster)}/topics/{pattern.namespace}"
        names = {TopicName(pattern.namespace, name).base for name in store.folders(folder)}
    else:
        filtered = {"namespace": pattern.namespace, "filter": str(pattern)}
        names = {TopicName.parse(item["topic"]) for item in _pages(query.broker, "topics.list", filtered)}
    matching = sorted(str(name) for name in names if pattern.matches(name))
    if len(matching) > MOST_TOPICS:
        raise InvalidArgument(
            f"pattern {pattern} is {len(matching)} topics, {MOST_TOPICS} at the most",
            field="pattern",
            value=str(pattern),
        )
    return matching


def _named_store(query: TopicQuery) -> StoreOptions:
    if query.tier is None:
        raise InvalidArgument(
            "give broker, the address of a broker, or tier, the object store", field="tier", value=None
        )
    return store_options(query.tier, query.store)


def store_options(url: str, given: Mapping[str, str] | None) -> StoreOptions:
    """Return how to reach a store. Keys and tokens come from where every AWS tool finds them."""
    fields: dict[str, Any] = {name: value for name, value in (given or {}).items() if name in STORE}
    for name in fields.keys() & {"path_style", "anonymous"}:
        fields[name] = switch(fields[name], field=name)
    return StoreOptions(url=url, **fields)


def switch(given: object, *, field: str) -> bool:
    """Return true or false from a text. Raises `InvalidArgument`."""
    text = str(given).lower()
    if text not in ("true", "false"):
        raise InvalidArgument(f"{field}: write true or false, not {text!r}", field=field, value=text)
    return text == "true"


def open_for_reading(options: StoreOptions) -> ObjectStore:
    """Open an existing store: a mistyped folder is not created, as a broker's first start would do.

    Raises `StoreUnavailable`: no such folder.
    """
    parts = urlsplit(options.url)
    if "://" not in options.url or parts.scheme == "file":
        folder = Path(unquote(parts.path) if "://" in options.url else options.url)
        if not folder.is_dir():
            raise StoreUnavailable(
                f"there is no object store at {folder}: give the broker's tier.url, by default objects/ in its data "
                "directory",
                field="tier",
                value=options.url,
                store=options.url,
                cause="missing",
            )
    return open_store(options)


def objects_in(store: ObjectStore, folder: str) -> tuple[ColdObject, ...]:
    """Return the objects of a log, without overlap, from a listing of its folder."""
    return cover_of(
        (fact.key, name, fact.bytes)
        for fact in store.list(folder)
        if (name := ObjectName.parse(fact.key)) is not None
    )


def cluster_folder(store: ObjectStore, wanted: str | None) -> str:
    """Return the cluster's name, the first part of its keys. Without `wanted`, that of the only cluster.

    Raises `InvalidArgument`: there are several, or it is not there.
    """
    found = [name for name in store.folders("") if name not in _NOT_CLUSTERS and not name.startswith(".")]
    if wanted is not None:
        if wanted not in found:
            raise InvalidArgument(
                f"{store.url} has no cluster {wanted!r}, it has {', '.join(found) or 'none'}",
                field="cluster",
                value=wanted,
                existing=found,
            )
        return wanted
    if len(found) != 1:
        what = "nothing has been written there yet" if not found else f"name a cluster: {', '.join(found)}"
        raise InvalidArgument(f"{store.url}: {what}", field="cluster", value=None, existing=found)
    return found[0]


def store_of_broker(
    broker: Broker, cluster: str | None, given: Mapping[str, str]
) -> tuple[StoreOptions, str]:
    """Return (store, cluster) by the broker. Given options go before its own.

    Raises `Unavailable`: no broker. InvalidArgument: it has no object store.
    """
    tier = broker.ask("brokers.status", {})["tier"]
    if not tier.get("enabled"):
        raise InvalidArgument(
            f"the broker has no object store: {tier.get('reason')}", field="tier", value=None
        )
    return _told(tier, given), cluster or tier["cluster"]


def _told(tier: Mapping[str, Any], given: Mapping[str, str] | None) -> StoreOptions:
    """Return the broker's store and how it is reached. Keys, profile and role are the reader's own."""
    told = {name: str(tier[name]) for name in _TOLD if tier.get(name) is not None}
    return store_options(tier["url"], {**told, **(given or {})})


def _by_broker(query: TopicQuery, broker: Broker, topic: str) -> Located:
    described = broker.ask("topics.describe", {"topic": topic})
    tier = broker.ask("brokers.status", {})["tier"]
    store = None
    if query.tier is not None:
        store = _named_store(query)
    elif tier.get("enabled"):
        store = _told(tier, query.store)
    parts = described["parts"] or [described]
    extents = []
    for part in parts:
        extent = Extent(
            topic=part["topic"],
            partition=part.get("partition"),
            start=part["start_offset"],
            end=part["next_offset"],
            of=described["topic"],
        )
        if store is not None and extent.start < extent.end:
            extent = _with_objects(broker, extent, tier.get("url", ""))
        extents.append(extent)
    return Located(
        topic=described["topic"],
        topic_ids={described["topic"]: described["topic_id"]},
        extents=tuple(extents),
        store=store,
        live=True,
    )


def _with_objects(broker: Broker, extent: Extent, tier_url: str) -> Extent:
    """Return an extent with its objects by the broker's listing, up to the first gap. The tail begins there.

    If objects are merged between two pages, the second page lacks those that became part of an object of the first.
    Then the listing is repeated.
    """
    gap = None
    for _ in range(_LISTINGS):
        found = [_listed(item, tier_url) for item in _pages(broker, "objects.list", {"topic": extent.topic})]
        extent = replace(extent, objects=tuple(each for each in found if each.end > extent.start))
        if (gap := gap_in(extent)) is None:
            return extent
    assert gap is not None
    return replace(extent, objects=tuple(each for each in extent.objects if each.end <= gap[0]))


def check_held(broker: Broker, extent: Extent, start: int, topic_id: str | None = None) -> None:
    """Check by the broker that the messages of a located extent from `start` on were not deleted. Raises as `check_there`."""
    described = broker.ask("topics.describe", {"topic": extent.shown})
    starts = {part["topic"]: part["start_offset"] for part in described["parts"] or [described]}
    check_there(extent, start, starts, topic_id, described["topic_id"])


def check_there(
    read: Extent | Slice, start: int, starts: Mapping[str, int], known: str | None, topic_id: str | None
) -> None:
    """Check that the messages of a concrete topic from `start` on are not deleted.

    Args:
        read: the part of the topic to read.
        starts: the present first offsets of the concrete topics.
        known: id of the topic at the scan, None if it is unknown.
        topic_id: the present id, None if it is unknown.

    Raises:
        TopicNotFound: the topic was deleted, or was made again.
        InvalidArgument: retention or a truncation has deleted the message at `start`.
    """
    if None not in (known, topic_id) and topic_id != known:
        raise TopicNotFound(
            f"{read.shown} was deleted after the scan, and another topic has its name: scan again",
            field="topic",
            value=read.shown,
        )
    if read.topic not in starts:
        raise TopicNotFound(f"{read.topic} was deleted after the scan", field="topic", value=read.topic)
    if (held := starts[read.topic]) > start:
        raise InvalidArgument(
            f"{read.topic}: retention has deleted offsets {start} to {held - 1} after the scan. Scan again",
            field="start",
            value=start,
            start_offset=held,
        )


def _pages(broker: Broker, operation: str, asked: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    arguments: dict[str, Any] = {**asked, "limit": _PAGE}
    while True:
        page = broker.ask(operation, arguments, timeout_s=60.0)
        yield from page["items"]
        if page["next_page"] is None:
            return
        arguments["page"] = page["next_page"]


def _listed(item: Mapping[str, Any], tier_url: str) -> ColdObject:
    path = str(item["path"])
    root = tier_url.removeprefix("file://").rstrip("/") + "/"
    assert path.startswith(root), f"{path} is not below {root}"
    return ColdObject(
        key=path.removeprefix(root),
        start=item["start_offset"],
        end=item["end_offset"],
        bytes=item["bytes"],
        min_append_time_ms=parse_time_ms(item["min_append_time"], field="min_append_time"),
        max_append_time_ms=parse_time_ms(item["max_append_time"], field="max_append_time"),
        footer_bytes=item.get("footer_bytes"),  # None from a broker of an earlier version
        footer_crc=item.get("footer_crc"),
    )


def _in_store(query: TopicQuery, topic: str) -> Located:
    where = _named_store(query)
    store = open_for_reading(where)
    name = TopicName.parse(topic)
    cluster = cluster_folder(store, query.cluster)
    namespace = f"{cluster}/topics/{name.namespace}"
    concrete = []
    for folder in store.folders(namespace):
        found = TopicName(name.namespace, folder)
        if found == name or (found.base == name and found.partition is not None):
            concrete.append(found)
    if not concrete:
        raise TopicNotFound(
            f"{store.url} has no objects of {name} in {cluster}: nothing of it was tiered, or it is another topic",
            field="topic",
            value=str(name),
            store=store.url,
        )
    extents = []
    for each in sorted(concrete, key=lambda one: (one.partition or 0, one.name)):
        ids = store.folders(f"{namespace}/{each.name}")
        newest = max(ids, key=lambda text: int(text) if text.isdigit() else -1)  # deleted and made again
        objects = objects_in(store, f"{namespace}/{each.name}/{newest}")
        start = objects[0].start if objects else 0
        extents.append(
            Extent(
                topic=str(each),
                partition=None if each == name else each.partition,
                start=start,
                end=max((one.end for one in objects), default=start),
                objects=objects,
                of=str(name),
            )
        )
    # a partitioned topic's own is not there
    own_id = {str(name): newest} if concrete == [name] and newest.isdigit() else {}
    return Located(topic=str(name), topic_ids=own_id, extents=tuple(extents), store=where, live=False)
