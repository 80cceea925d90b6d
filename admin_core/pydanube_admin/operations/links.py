"""Links: topics of another cluster, mirrored here at the same offsets, until they are failed over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated, Any, ClassVar, Final

import anyio
from pydantic import Field
from pydanube_core.errors import AlreadyExists, ClusterError, InvalidArgument, LinkNotFound, error_for
from pydanube_core.links import (
    FENCE_S,
    LINKS,
    MOST_LINKS,
    MOST_PATTERNS,
    LeftOutFacts,
    LinkFacts,
    LinkRecord,
    MirrorFacts,
    link_key,
    source_urls,
)
from pydanube_core.names import TopicName
from pydanube_core.refusals import not_a_mirror
from pydanube_core.topic_pattern import TopicPattern
from pydanube_core.units import counted, format_time

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.declared_records import DeclaredRecords, paused_or_not
from pydanube_admin.engine.forecast import Done, Forecast, Undo, blast_radius, entry
from pydanube_admin.engine.models import Change, Effect, Page, Request, Result, SortedListRequest
from pydanube_admin.engine.operation import operation
from pydanube_admin.engine.paging import glob, page_of

CHANGE: Final = "links:change"
MOST_SHOWN: Final = 200  # mirrors of a description, those that are furthest behind first
AT_ONCE: Final = 64  # topics that are opened concurrently: the store commits them together
_LOOK_S: Final = 0.05
CATCH_UP_S: Final = 10.0  # for the rest of a fenced source, which may be more than one round brings
DIVERGED: Final = frozenset({"diverged", "source_remade"})

NameArgument = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,79}$", description="Its name")]
TopicsArgument = Annotated[
    str,
    Field(
        min_length=1, max_length=2000, description="Patterns of topics, as /default/*, with commas between"
    ),
]


class LinkRequest(Request):
    link: NameArgument


class CreateLinkRequest(LinkRequest):
    source: Annotated[
        str,
        Field(
            min_length=1, max_length=2000, description="Brokers of the source: danube://eu-1:6650,eu-2:6650"
        ),
    ]
    topics: TopicsArgument
    start: Annotated[
        str,
        Field(pattern="^(earliest|latest)$", description="earliest, or latest: only what comes from now on"),
    ] = "earliest"
    rename: Annotated[
        str, Field(max_length=80, pattern="^[A-Za-z0-9_-]*$", description="Prefix of the mirrors' names")
    ] = ""
    token_file: Annotated[
        str | None,
        Field(
            max_length=1000,
            description="File with the token for the source, on each broker's machine; without: no token",
        ),
    ] = None
    max_bytes_per_s: Annotated[
        int, Field(ge=0, le=1 << 40, description="Most that each broker copies in a second; 0: no limit")
    ] = 0


class FailOverRequest(LinkRequest):
    topics: Annotated[
        str | None,
        Field(min_length=1, max_length=2000, description="Only these mirrors: patterns with commas between"),
    ] = None


class MirrorItem(Result):
    topic: str  # a log here
    source: str
    state: str  # copying, source_unreachable, source_deleted, source_remade, diverged, failed
    why: str | None
    copied_until: int  # the next offset
    lag_messages: int | None
    lag_ms: int | None
    lag_reason: str | None = None
    gap: str | None  # offsets that the source had deleted before they were copied


class LeftOutItem(Result):
    topic: str  # of the source
    state: str  # left_out, name_taken, failed_over, source_remade, or the error that prevents its mirror
    why: str | None


class LinkItem(Result):
    identity: ClassVar = ("link",)

    link: str
    source: str
    state: str  # copying, paused, source_unreachable, diverged, failed_over
    why: str | None
    topics: int  # logs that are mirrored
    not_copied: int  # topics of the source that match and are not copied. Describe has the reasons
    lag_messages: int | None
    lag_ms: int | None
    copied_until: str | None  # everything that the source had until then is here


class LinkDescription(LinkItem):
    source_cluster: str | None
    patterns: list[str]
    start: str
    rename: str
    token_file: str | None
    max_bytes_per_s: int  # of each broker; 0: no limit
    created_at: str
    mirrors: list[MirrorItem]  # the furthest behind first
    more_mirrors: int
    left_out: list[LeftOutItem]
    next_steps: list[str]


class ChangedLink(Change):
    link: str
    paused: bool
    generation: int


class DeletedLink(Change):
    link: str
    read_only_topics: int  # mirrors that stay, and stay read-only


class FailedOverTopic(Result):
    topic: str
    copied_until: dict[str, int]  # by log, where this cluster goes on
    source_fenced: bool  # the source refuses its producers and consumers now
    source: str | None  # why it is not known to
    missing_messages: int | None  # that the source had by its last word, and that are not here
    missing_ms: int | None


class FailedOver(Change):
    link: str
    topics: list[FailedOverTopic]
    source_fenced: bool  # of all topics
    source: str | None  # why it is not known to
    missing_messages: int | None
    missing_ms: int | None


# -- reading -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    """A link as all brokers that answer see it."""

    record: LinkRecord
    parts: Sequence[LinkFacts]

    @property
    def mirrors(self) -> list[MirrorFacts]:
        found = [mirror for part in self.parts for mirror in part.mirrors]
        return sorted(found, key=lambda each: (-(each.lag_messages or 0), each.topic))

    @property
    def left_out(self) -> list[LeftOutFacts]:
        return list({each.topic: each for part in self.parts for each in part.left_out}.values())

    @property
    def state(self) -> tuple[str, str | None]:
        """The link's state, and why."""
        if self.record.failed_over:
            return "failed_over", "its mirrors are topics of this cluster now"
        if self.record.paused:
            return "paused", None
        away = [each for each in self.parts if each.state == "source_unreachable"]
        if away:
            return "source_unreachable", away[0].why
        mirrors = self.mirrors
        if apart := [each for each in mirrors if each.state in DIVERGED]:
            return "diverged", f"{apart[0].topic}: {apart[0].why}"
        late = [each for each in mirrors if each.state != "copying"]
        if late and all(each.state == "source_unreachable" for each in mirrors):
            return "source_unreachable", late[0].why
        return "copying", f"{late[0].topic}: {late[0].why}" if late and late[0].why else None


def _item(found: _Found) -> dict[str, Any]:
    state, why = found.state
    mirrors = found.mirrors
    lags = [each.lag_messages for each in mirrors]
    behind = [each.lag_ms for each in mirrors]
    until = [each.complete_until_ms for each in mirrors]
    return {
        "link": found.record.name,
        "source": found.record.source,
        "state": state,
        "why": why,
        "topics": len(mirrors),
        "not_copied": sum(each.state != "failed_over" for each in found.left_out)
        + sum(each.state != "copying" for each in mirrors),
        "lag_messages": sum(each for each in lags if each is not None) if None not in lags else None,
        "lag_ms": max((each for each in behind if each is not None), default=0)
        if None not in behind
        else None,
        "copied_until": format_time(min(each for each in until if each is not None))
        if until and None not in until
        else None,
    }


@operation(
    "links.list",
    effect=Effect.READ,
    summary="List links to other clusters with state, topics and lag.",
    examples=(Example({}, "every link"),),
)
async def list_links(context: Context, request: SortedListRequest) -> Page[LinkItem]:
    matches = glob(request.filter)
    facts = await context.port.links()
    records = [each for each in await RECORDS.all(context) if matches(each.name)]
    return await page_of(
        context,
        LinkItem,
        records,
        lambda record: LinkItem(**_item(_found_of(record, facts))),
        key=lambda record: (record.name,),
        request=request,
    )


@operation(
    "links.describe",
    effect=Effect.READ,
    tool="describe_link",
    title="Describe a link",
    summary="Show a link: source, state, each mirror with its lag, and topics that are not copied, with the reason.",
    examples=(Example({"link": "eu"}, "one link"),),
)
async def describe_link(context: Context, request: LinkRequest) -> LinkDescription:
    record = await RECORDS.found(context, request.link)
    found = _found_of(record, await context.port.links())
    mirrors = found.mirrors
    return LinkDescription(
        **_item(found),
        source_cluster=next((each.cluster for each in found.parts if each.cluster), None),
        patterns=list(record.topics),
        start=record.start,
        rename=record.rename,
        token_file=record.token_file,
        max_bytes_per_s=record.max_bytes_per_s,
        created_at=format_time(record.created_at_ms),
        mirrors=[
            MirrorItem.of(
                each,
                gap=None if each.gap is None else f"{each.gap[0]}–{each.gap[1]}",
                lag_reason=None if each.lag_messages is not None else "the source has not said its end yet",
            )
            for each in mirrors[:MOST_SHOWN]
        ],
        more_mirrors=max(0, len(mirrors) - MOST_SHOWN),
        left_out=[LeftOutItem.of(each) for each in found.left_out[:MOST_SHOWN]],
        next_steps=_next_steps(found),
    )


def _next_steps(found: _Found) -> list[str]:
    name, (state, _) = found.record.name, found.state
    match state:
        case "source_unreachable":
            return [
                f"If the source is lost: danube links fail-over {name}",
                "Otherwise check its address, its certificate and the token; copying goes on by itself",
            ]
        case "diverged":
            return [f"Keep what is here: danube links fail-over {name} --topics TOPIC"]
        case "paused":
            return [f"danube links resume {name}"]
    return []


def _found_of(record: LinkRecord, facts: Sequence[LinkFacts]) -> _Found:
    return _Found(record, [each for each in facts if each.link == record.name])


# -- changing ----------------------------------------------------------------------------------------------------


def _shown(record: LinkRecord) -> dict[str, Any]:
    shown = asdict(record)
    del shown["created_at_ms"], shown["generation"]
    return {**shown, "topics": list(record.topics)}


RECORDS: Final = DeclaredRecords(
    kind="link", prefix=LINKS, key=link_key, record=LinkRecord, shown=_shown, pinned=_shown, missing=LinkNotFound
)  # fmt: skip


async def _changed(context: Context, record: LinkRecord) -> ChangedLink:
    await RECORDS.write(context, record.name, record)
    return ChangedLink(link=record.name, paused=record.paused, generation=record.generation)


def _patterns(text: str, field: str) -> tuple[str, ...]:
    found = tuple(str(TopicPattern.parse(each.strip(), field=field)) for each in text.split(","))
    if len(found) > MOST_PATTERNS:
        raise InvalidArgument(
            f"{len(found)} patterns: a link has at most {MOST_PATTERNS}; write one that covers several",
            field=field,
            value=len(found),
        )
    return found


def _made(request: CreateLinkRequest, created_at_ms: int) -> LinkRecord:
    source_urls(request.source)
    return LinkRecord(
        name=request.link,
        source=request.source,
        topics=_patterns(request.topics, "topics"),
        start=request.start,
        rename=request.rename,
        token_file=request.token_file,
        max_bytes_per_s=request.max_bytes_per_s,
        created_at_ms=created_at_ms,
    )


async def _created(context: Context, request: CreateLinkRequest) -> LinkRecord:
    records = await RECORDS.all(context)
    if any(each.name == request.link for each in records):
        raise AlreadyExists(
            f"the link {request.link} exists. Delete it first: danube links delete {request.link}",
            link=request.link,
        )
    if len(records) >= MOST_LINKS:
        raise InvalidArgument(
            f"there are {MOST_LINKS} links already. Delete one.", field="link", value=request.link
        )
    return _made(request, context.now_ms())


async def forecast_create(context: Context, request: CreateLinkRequest) -> Forecast:
    return RECORDS.forecast(request.link, None, await _created(context, request))


async def undo_create(context: Context, request: CreateLinkRequest, done: Done) -> Undo:
    return await RECORDS.undo(context, request.link, _made(request, 0), done)


@operation(
    "links.create",
    effect=Effect.CREATE,
    title="Create a link",
    summary="Mirror topics of another cluster here, at the same offsets. Mirrors are read-only until they are failed over.",
    forecast=forecast_create,
    undo=undo_create,
    required_flags=("source", "topics"),
    examples=(
        Example(
            {"link": "eu", "source": "danube://eu-1:6650,eu-2:6650", "topics": "/default/*"},
            "every topic of the namespace default, from its first message on",
        ),
    ),
)
async def create_link(context: Context, request: CreateLinkRequest) -> ChangedLink:
    return await _changed(context, await _created(context, request))


async def _paused(context: Context, request: LinkRequest, *, paused: bool) -> tuple[LinkRecord, LinkRecord]:
    before = await RECORDS.found(context, request.link)
    if before.failed_over:
        raise InvalidArgument(
            f"the link {before.name} was failed over: its mirrors are topics of this cluster now. Delete it and create "
            "another one",
            field="link",
            value=before.name,
        )
    return before, paused_or_not(before, paused=paused)


async def _forecast_paused(context: Context, request: LinkRequest, *, paused: bool) -> Forecast:
    return RECORDS.forecast(request.link, *await _paused(context, request, paused=paused))


async def _undo_paused(context: Context, request: LinkRequest, done: Done, *, paused: bool) -> Undo:
    return await RECORDS.undo_paused(context, request.link, done, paused=paused)


@operation(
    "links.pause",
    effect=Effect.CHANGE,
    tool="pause_link",
    title="Pause a link",
    permission=CHANGE,
    summary="Stop copying, until the link is resumed. Mirrors stay read-only, and fall behind.",
    forecast=partial(_forecast_paused, paused=True),
    undo=partial(_undo_paused, paused=True),
    examples=(Example({"link": "eu"}, "while the line is needed for something else"),),
)
async def pause_link(context: Context, request: LinkRequest) -> ChangedLink:
    return await _changed(context, (await _paused(context, request, paused=True))[1])


@operation(
    "links.resume",
    effect=Effect.CHANGE,
    tool="resume_link",
    title="Resume a link",
    permission=CHANGE,
    summary="Let a paused link copy again, from where it stopped.",
    forecast=partial(_forecast_paused, paused=False),
    undo=partial(_undo_paused, paused=False),
    examples=(Example({"link": "eu"}, "it goes on"),),
)
async def resume_link(context: Context, request: LinkRequest) -> ChangedLink:
    return await _changed(context, (await _paused(context, request, paused=False))[1])


async def forecast_delete(context: Context, request: LinkRequest) -> Forecast:
    record = await RECORDS.found(context, request.link)
    mirrors = _found_of(record, await context.port.links()).mirrors
    forecast = RECORDS.forecast(request.link, record, None)
    later = (
        f"{counted(len(mirrors), 'mirror')} {'stays' if len(mirrors) == 1 else 'stay'} read-only, and get nothing more. To "
        f"write to them, fail over first: danube links fail-over {request.link}"
    )
    return replace(forecast, blast_radius=blast_radius(topics=len(mirrors)), later=later if mirrors else None)


async def undo_delete(context: Context, request: LinkRequest, done: Done) -> Undo:
    return await RECORDS.undo(context, request.link, None, done)


@operation(
    "links.delete",
    effect=Effect.DESTROY,
    title="Delete a link",
    summary="Delete a link's declaration. Its mirrors stay, read-only; a link of the same name and source goes on with them.",
    forecast=forecast_delete,
    undo=undo_delete,
    examples=(Example({"link": "eu"}, "it copies no more"),),
)
async def delete_link(context: Context, request: LinkRequest) -> DeletedLink:
    record = await RECORDS.found(context, request.link)
    mirrors = _found_of(record, await context.port.links()).mirrors
    await RECORDS.write(context, request.link, None)
    return DeletedLink(link=request.link, read_only_topics=len(mirrors))


# -- fail-over ---------------------------------------------------------------------------------------------------


async def _to_fail_over(
    context: Context, request: FailOverRequest
) -> tuple[LinkRecord, dict[str, list[MirrorFacts]]]:
    """Return the link, and the logs of each mirror that the call opens, by topic."""
    record = await RECORDS.found(context, request.link)
    patterns = None if request.topics is None else _patterns(request.topics, "topics")
    found: dict[str, list[MirrorFacts]] = {}
    for each in _found_of(record, await context.port.links()).mirrors:
        name = str(TopicName.parse(each.topic).base)
        if patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns):
            found.setdefault(name, []).append(each)
    if patterns is not None and not found:
        raise not_a_mirror(str(request.topics))
    return record, dict(sorted(found.items()))


def _missing(mirrors: Sequence[MirrorFacts]) -> tuple[int | None, int | None]:
    """Return messages and milliseconds that may be missing in some mirrors. None: the source never reported its end."""
    messages = [each.lag_messages for each in mirrors]
    times = [each.lag_ms for each in mirrors]
    return (
        None if None in messages else sum(each or 0 for each in messages),
        None if None in times else max((each or 0 for each in times), default=0),
    )


async def forecast_fail_over(context: Context, request: FailOverRequest) -> Forecast:
    record, topics = await _to_fail_over(context, request)
    missing, missing_ms = _missing([each for logs in topics.values() for each in logs])
    if missing is None:
        said = "The source has not said where its topics end, so what is missing is not known"
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
        blast_radius=blast_radius(topics=len(topics), messages=missing or 0),
        basis=[_shown(record), list(topics)],
        reversible=False,
        later=f"{said}. The source is asked to refuse its producers and consumers, and what it has by then is copied. If it "
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
        Example({"link": "eu", "topics": "/default/orders"}, "one topic; the others are still copied"),
    ),
)
async def fail_over(context: Context, request: FailOverRequest) -> FailedOver:
    record, topics = await _to_fail_over(context, request)
    if request.topics is None:
        record = replace(record, failed_over=True, generation=record.generation + 1)
    fenced = await context.port.fence_source(record.name, _sources(topics))
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
    missing = [each.missing_messages for each in opened]
    times = [each.missing_ms for each in opened]
    return FailedOver(
        link=record.name,
        topics=opened,
        source_fenced=all(each.source_fenced for each in opened),
        source=next((each.source for each in opened if not each.source_fenced), None),
        missing_messages=None if None in missing else sum(each or 0 for each in missing),
        missing_ms=None if None in times else max((each or 0 for each in times), default=0),
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
    """Wait until all that a fenced source had is copied, or no more comes."""
    if record.paused:
        return
    with anyio.move_on_after(CATCH_UP_S):
        while ends:
            mirrors = {each.source: each for each in _found_of(record, await context.port.links()).mirrors}
            ends = {
                log: end
                for log, end in ends.items()
                if (each := mirrors.get(log)) is not None
                and each.state == "copying"
                and each.copied_until < end
            }
            await anyio.sleep(_LOOK_S)


def _opened(
    name: str, ends: Mapping[str, int], logs: Sequence[MirrorFacts], fenced: Mapping[str, int | str]
) -> FailedOverTopic:
    lacking: list[int | None] = []
    why: str | None = None
    for each in logs:
        answer = fenced.get(
            each.source, fenced.get(str(TopicName.parse(each.source).base), "it was not asked")
        )
        if isinstance(answer, str):
            end, why = each.source_end, answer
        else:
            end = answer
        lacking.append(None if end is None else max(0, end - ends[each.topic]))
    missing = None if None in lacking else sum(each or 0 for each in lacking)
    return FailedOverTopic(
        topic=name,
        copied_until=dict(ends),
        source_fenced=why is None,
        source=why,
        missing_messages=missing,
        missing_ms=0 if missing == 0 else _missing(logs)[1],
    )


# -- the source's side -------------------------------------------------------------------------------------------


class ReopenTopicRequest(Request):
    topic: Annotated[str, Field(min_length=1, max_length=300, description="The topic, /namespace/name")]


class ReopenedTopic(Change):
    topic: str
    was_failed_over_to: str  # the cluster


async def _elsewhere(context: Context, topic: str) -> tuple[str, str]:
    name = str(TopicName.parse(topic))
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
