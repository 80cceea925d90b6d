"""The fail-over of mirrors, which become topics of this cluster, and its end at the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Annotated, Final

import anyio
from pydantic import Field
from pydanube_core.errors import ClusterError, InvalidArgument, NoOwner, error_for
from pydanube_core.links import FENCE_S, LinkRecord, MirrorFacts
from pydanube_core.names import TopicName
from pydanube_core.refusals import not_a_mirror
from pydanube_core.units import counted

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Forecast, blast_radius, entry
from pydanube_admin.engine.models import Change, Effect, Request, Result
from pydanube_admin.engine.operation import operation
from pydanube_admin.operations.links import (
    MOST_SHOWN,
    RECORDS,
    LinkRequest,
    found_of,
    joint_lag,
    not_failed_over,
    patterns_of,
    shown,
)

AT_ONCE: Final = 64  # topics that are opened concurrently: the store commits them together
_LOOK_S: Final = 0.05
#: for the last cursors and sessions, which a source of an older build sends every second
LAST_MARKS_S: Final = 1.5
MOVING_S: Final = 4.0  # for mirrors without an owner: well inside the deadline of a face
CATCH_UP_S: Final = 10.0  # for the rest of a fenced source, which may be more than one round brings


class FailOverRequest(LinkRequest):
    topics: Annotated[
        str | None,
        Field(min_length=1, max_length=2000, description="Only these mirrors: patterns with commas between"),
    ] = None


class FailedOverTopic(Result):
    topic: str
    copied_until: dict[str, int]  # by log, where this cluster goes on
    source_fenced: bool  # the source refuses its producers and consumers now
    source: str | None  # the reason without a fence
    missing_messages: int | None  # messages that the source last reported, and that are missing here
    missing_ms: int | None


class FailedOver(Change):
    link: str
    topics: list[FailedOverTopic]
    source_fenced: bool  # whether the source is fenced for all topics
    source: str | None  # the reason without a fence
    missing_messages: int | None
    missing_ms: int | None


async def _to_fail_over(
    context: Context, request: FailOverRequest
) -> tuple[LinkRecord, dict[str, list[MirrorFacts]]]:
    """Return the link, and the logs of each mirror that the call opens, by topic. Waits for logs that are moving.

    Raises `NoOwner`: one has no owner, so the end of its copy cannot be read.
    """
    record = await not_failed_over(context, request.link)
    patterns = None if request.topics is None else patterns_of(request.topics, "topics")

    def opens(log: str) -> bool:
        name = str(TopicName.parse(log).base)
        return patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)

    away: set[str] = set()
    with anyio.move_on_after(MOVING_S):
        while True:
            found = found_of(record, await context.port.links())
            mirrors = [each for each in found.mirrors if opens(each.topic)]
            away = {log for part in found.parts for log in part.logs if opens(log)}
            away -= {each.topic for each in mirrors}
            if not away:
                break
            await anyio.sleep(_LOOK_S)
    if away:
        raise NoOwner(
            f"{counted(len(away), 'mirror')} of {record.name} cannot be reached now, first {min(away)}: no broker has it, or its "
            "broker does not answer. Repeat the fail-over, or name other topics",
            topics=sorted(away)[:MOST_SHOWN],
        )
    if not mirrors:
        if request.topics is not None:
            raise not_a_mirror(request.topics)
        if any(each.state == "failed_over" for each in found.left_out):
            return record, {}  # all are open: a fail-over that was cut off before its record was written
        raise InvalidArgument(
            f"the link {record.name} has no mirrors that could be failed over",
            field="link",
            value=record.name,
        )
    topics: dict[str, list[MirrorFacts]] = {}
    for each in mirrors:
        topics.setdefault(str(TopicName.parse(each.topic).base), []).append(each)
    return record, dict(sorted(topics.items()))


async def forecast_fail_over(context: Context, request: FailOverRequest) -> Forecast:
    record, topics = await _to_fail_over(context, request)
    missing, missing_ms = joint_lag(
        (each.lag_messages, each.lag_ms) for logs in topics.values() for each in logs
    )
    if not topics:
        said = "All its mirrors are open already, and only the link is marked as failed over"
    elif missing is None:
        said = "The source has not reported the ends of its topics, so the missing messages cannot be counted"
    elif missing:
        said = f"By its last word the source had {counted(missing, 'message')} more, {missing_ms} ms"
    else:
        said = "Everything is copied that the source had by its last word"
    return Forecast(
        diff=[
            entry(
                f"topics{name}",
                {"mirror_of": f"{record.name}:{logs[0].source}"},
                {"copied_until": {each.topic: each.copied_until for each in logs}},
            )
            for name, logs in topics.items()
        ],
        blast_radius=blast_radius(topics=len(topics), messages=missing),
        basis=[shown(record), list(topics)],
        reversible=False,
        later=f"{said}. The source is requested to refuse its producers and consumers, and its remaining messages are copied. If it "
        f"does not answer within {FENCE_S:g} s, stop its producers yourself: their messages would not be here",
    )


@operation(
    "links.fail_over",
    effect=Effect.DESTROY,
    tool="fail_over_link",
    title="Fail over a link",
    permission="links:fail_over",
    summary="Make mirrors topics of this cluster: they take producers, and their mirrored subscriptions open.",
    forecast=forecast_fail_over,
    examples=(
        Example({"link": "eu"}, "all its topics"),
        Example({"link": "eu", "topics": "/default/orders"}, "one topic. The others are still copied"),
    ),
)
async def fail_over(context: Context, request: FailOverRequest) -> FailedOver:
    record, topics = await _to_fail_over(context, request)
    if request.topics is None:
        record = replace(record, failed_over=True, generation=record.generation + 1)
    fenced = await context.port.fence_source(record.name, _sources(topics)) if topics else {}
    await _catch_up(context, record, {log: end for log, end in fenced.items() if isinstance(end, int)})
    done: dict[str, FailedOverTopic] = {}
    failures: list[ClusterError] = []
    limiter = anyio.CapacityLimiter(AT_ONCE)

    async def open_one(name: str, logs: Sequence[MirrorFacts]) -> None:
        async with limiter:
            try:
                ends: Mapping[str, int] = await context.port.seal_mirror(name)
                await context.port.open_mirror(name, ends)
                done[name] = _opened(name, ends, logs, fenced)
            except ClusterError as error:
                failures.append(error)

    async with anyio.create_task_group() as group:
        for name, logs in topics.items():
            group.start_soon(open_one, name, logs)
    if failures:
        raise _unfinished(failures[0], [name for name in topics if name not in done])
    if request.topics is None:
        await RECORDS.write(context, record.name, record)
    opened = [done[name] for name in topics]
    missing, missing_ms = joint_lag((each.missing_messages, each.missing_ms) for each in opened)
    if not opened:  # only the call that opened them has these figures
        missing, missing_ms = None, None
    return FailedOver(
        link=record.name,
        topics=opened,
        source_fenced=bool(opened) and all(each.source_fenced for each in opened),
        source=next(
            (each.source for each in opened if not each.source_fenced),
            None if opened else "an earlier call opened all mirrors",
        ),
        missing_messages=missing,
        missing_ms=missing_ms,
    )


def _unfinished(error: ClusterError, left: Sequence[str]) -> ClusterError:
    """Return the error of a fail-over that opened some topics. Repeated, it opens the rest."""
    return error_for(
        error.code,
        f"{counted(len(left), 'topic')} could not be opened, first {left[0]}: {error.message}. Their source may be fenced "
        "already: repeat the fail-over, or reopen the topics there (danube links reopen)",
        {**error.details, "topics": list(left[:MOST_SHOWN])},
        error.next,
        error.retry_after_ms,
    )


def _sources(topics: Mapping[str, Sequence[MirrorFacts]]) -> list[str]:
    """Return the source's topics of these mirrors."""
    return sorted({str(TopicName.parse(each.source).base) for logs in topics.values() for each in logs})


async def _catch_up(context: Context, record: LinkRecord, ends: Mapping[str, int]) -> None:
    """Wait until all that a fenced source had is copied, with its last cursors and sessions, or no more comes."""
    if record.paused:
        return
    last_marks = anyio.current_time() + LAST_MARKS_S
    with anyio.move_on_after(CATCH_UP_S):
        while ends:
            mirrors = {each.source: each for each in found_of(record, await context.port.links()).mirrors}
            waits = anyio.current_time() < last_marks
            ends = {
                log: end
                for log, end in ends.items()
                if (each := mirrors.get(log)) is not None
                and each.state == "copying"
                and (each.copied_until < end or (waits and not each.fenced))
            }
            await anyio.sleep(_LOOK_S)


def _opened(
    name: str, ends: Mapping[str, int], logs: Sequence[MirrorFacts], fenced: Mapping[str, int | str]
) -> FailedOverTopic:
    lacking: list[tuple[int | None, int | None]] = []
    why: str | None = None
    for each in logs:
        answer = fenced.get(
            each.source, fenced.get(str(TopicName.parse(each.source).base), "no request was sent to it")
        )
        if isinstance(answer, str):
            end, why = each.source_end, answer
        else:
            end = answer
        lacking.append((None if end is None else max(0, end - ends[each.topic]), each.lag_ms))
    missing, missing_ms = joint_lag(lacking)
    return FailedOverTopic(
        topic=name,
        copied_until=dict(ends),
        source_fenced=why is None,
        source=why,
        missing_messages=missing,
        missing_ms=0 if missing == 0 else missing_ms,
    )


# -- the source's side -------------------------------------------------------------------------------------------


class ReopenTopicRequest(Request):
    topic: Annotated[str, Field(min_length=1, max_length=300, description="The topic, /namespace/name")]


class ReopenedTopic(Change):
    topic: str
    was_failed_over_to: str  # the cluster


async def _elsewhere(context: Context, topic: str) -> tuple[str, str]:
    name = str(TopicName.parse(topic).base)  # a fail-over is of all partitions, and so is what ends it
    facts, *_ = await context.port.topic(name)
    if facts.failed_over_to is None:
        raise InvalidArgument(f"{name} was not failed over: it is written here", field="topic", value=name)
    return name, facts.failed_over_to


async def forecast_reopen(context: Context, request: ReopenTopicRequest) -> Forecast:
    name, cluster = await _elsewhere(context, request.topic)
    return Forecast(
        diff=[entry(f"topics{name}", {"failed_over_to": cluster}, {"failed_over_to": None})],
        blast_radius=blast_radius(topics=1),
        basis=[name, cluster],
        reversible=False,
        later=f"The cluster {cluster} may write the topic, too. From then on the two have different messages at equal offsets",
    )


@operation(
    "links.reopen",
    effect=Effect.DESTROY,
    tool="reopen_topic",
    title="Reopen a topic",
    permission="links:fail_over",
    summary="Let clients come back to a topic that was failed over to another cluster.",
    forecast=forecast_reopen,
    examples=(Example({"topic": "/default/orders"}, "the fail-over was a mistake"),),
)
async def reopen_topic(context: Context, request: ReopenTopicRequest) -> ReopenedTopic:
    name, cluster = await _elsewhere(context, request.topic)
    await context.port.reopen_topic(name)
    return ReopenedTopic(topic=name, was_failed_over_to=cluster)
