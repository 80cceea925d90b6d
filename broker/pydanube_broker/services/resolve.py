"""`danube.stream.Stream/Resolve` returns a topic's owners and partitions, and can create it. `Match` returns the topics
that match patterns."""

from __future__ import annotations

import asyncio
from typing import Final

from pydanube_core.errors import InvalidArgument
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.links import LINEAGE, mirror_of, writer_elsewhere
from pydanube_core.names import TopicName
from pydanube_core.topic_pattern import TopicPattern, is_glob

from pydanube_broker.rpc.caller import COLD_CALL
from pydanube_broker.services.left_out import check_left_out
from pydanube_broker.serving.registry import Registry
from pydanube_broker.serving.topic_access import Action, TopicAccess

#: fields of a request that apply only to the creation of the topic
WITH_CREATE: Final = frozenset(
    {"partitions", "dispatch_strategy", "schema_subject", "schema_version", "unused_ttl_s"}
)
MOST_WAIT_S: Final = 10.0
_MOST_TOPICS: Final = 1000
_MOST_PATTERNS: Final = 1000
_MOST_GLOBS: Final = 10  # globs among the patterns. Each is compiled, and compared with every topic
_NAMES_AT_ONCE: Final = 500  # names compared with all globs per turn of the loop: a few milliseconds
_COUNTED_AT_ONCE: Final = 20  # topics whose partitions are counted per turn: 0.2 ms for 1 000 partitions


async def resolve(access: TopicAccess, registry: Registry, data: bytes) -> bytes:
    """Handle `Resolve`, a rare call."""
    request = pb.ResolveRequest.FromString(data)
    name = TopicName.parse(request.topic)
    strategy = request.dispatch_strategy or "reliable"
    if strategy not in ("reliable", "non_reliable"):
        raise InvalidArgument(
            f"dispatch_strategy {strategy!r}: use reliable or non_reliable",
            field="dispatch_strategy",
            value=strategy,
        )
    if request.create:
        # Before the creation, so that a producer with an unknown schema leaves no topic behind.
        await access.load_schema(request.schema_subject)
        access.check_schema(request.schema_subject, request.schema_version)
        partitioned, topics = await access.parts_to_write(
            COLD_CALL,
            name,
            partitions=request.partitions,
            strategy=strategy,
            unused_ttl_s=request.unused_ttl_s,
            schema_subject=request.schema_subject,
        )
    else:
        check_left_out(request, WITH_CREATE, "counts only with create")
        if request.wait_ms:
            wait_s = min(request.wait_ms / 1000, MOST_WAIT_S)
            partitioned, topics = await access.placed_away(COLD_CALL, name, request.away, wait_s)
        else:
            partitioned, topics = await access.placed(COLD_CALL, Action.LOOK_UP, name)
        if not topics:
            raise registry.not_found(name)
    index = registry.catalog.index
    record = index.partitioned(name.base) or index.find_topic(name)
    options = {} if record is None else record.spec.settings.options
    return pb.ResolveResponse(
        topic=str(name),
        dispatch_strategy=strategy if not topics else topics[0].dispatch_strategy,
        partitions=[
            pb.Partition(
                topic=topic.name,
                topic_id=topic.topic_id,
                broker_url=access.connect_url or topic.broker_url,
                epoch=topic.epoch,
                waits_for=topic.waits_for,
            )
            for topic in topics
        ],
        partitioned=partitioned,
        max_message_bytes=min((topic.max_message_bytes for topic in topics), default=0),
        mirror_of=mirror_of(options) or "",
        failed_over_to=writer_elsewhere(options) or "",
        fail_overs=len(options.get(LINEAGE, ())),
    ).SerializeToString()


async def match(access: TopicAccess, data: bytes) -> bytes:
    """Handle `Match`, a rare call."""
    request = pb.MatchRequest.FromString(data)
    if len(request.patterns) > _MOST_PATTERNS:
        raise InvalidArgument(
            f"{len(request.patterns)} patterns: at most {_MOST_PATTERNS} are taken",
            field="patterns",
            value=len(request.patterns),
        )
    if (globs := sum(is_glob(text) for text in request.patterns)) > _MOST_GLOBS:
        raise InvalidArgument(
            f"{globs} patterns with *, ? or [: at most {_MOST_GLOBS} are taken. Write one that covers several",
            field="patterns",
            value=globs,
        )
    patterns = [TopicPattern.parse(text, field="patterns") for text in request.patterns]
    plain = {TopicName(one.namespace, one.glob) for one in patterns if not one.is_glob}
    wild = [one for one in patterns if one.is_glob]
    names = sorted(access.names())
    found: list[TopicName] = []
    for start in range(0, len(names), _NAMES_AT_ONCE):
        found += [
            name
            for name in names[start : start + _NAMES_AT_ONCE]
            if (name in plain or any(pattern.matches(name) for pattern in wild))
            and access.may(COLD_CALL, Action.LOOK_UP, name)
        ]
        await asyncio.sleep(0)
    limit = min(request.limit or _MOST_TOPICS, _MOST_TOPICS)
    partitions: list[int] = []
    for start in range(0, min(len(found), limit), _COUNTED_AT_ONCE):
        partitions += map(access.count_partitions, found[start : min(start + _COUNTED_AT_ONCE, limit)])
        await asyncio.sleep(0)
    return pb.MatchResponse(
        topics=map(str, found[:limit]), more=len(found) > limit, partitions=partitions
    ).SerializeToString()
