"""Links: topics of another cluster, mirrored here at the same offsets, until they are failed over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field
from pydanube_core.diagnosis.causes.links import APART
from pydanube_core.errors import InvalidArgument, LinkNotFound
from pydanube_core.links import (
    LINKS,
    MOST_LINKS,
    MOST_PATTERNS,
    LinkFacts,
    LinkRecord,
    MirrorFacts,
    StandingFacts,
    link_key,
    source_urls,
)
from pydanube_core.security.identity import current_identity
from pydanube_core.security.permissions import Resource, Scope
from pydanube_core.topic_pattern import TopicPattern
from pydanube_core.units import counted, format_time

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.declared_records import DeclaredRecords, paused_or_not, undone_pause
from pydanube_admin.engine.forecast import Done, Forecast, Undo, blast_radius
from pydanube_admin.engine.models import Change, Effect, Page, Request, Result, SortedListRequest
from pydanube_admin.engine.operation import operation
from pydanube_admin.engine.paging import glob, page_of
from pydanube_admin.engine.stored_grants import check_holds, stored_grants

CHANGE: Final = "links:change"
MOST_SHOWN: Final = 200  # mirrors of a description, those that are furthest behind first

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
        Field(pattern="^(earliest|latest)$", description="earliest, or latest: only messages from now on"),
    ] = "earliest"
    rename: Annotated[
        str, Field(max_length=80, pattern="^[A-Za-z0-9_-]*$", description="Prefix of the mirrors' names")
    ] = ""
    token_file: Annotated[
        str | None,
        Field(
            max_length=1000,
            description="File with the token for the source, on each broker's machine. Default: none",
        ),
    ] = None
    max_bytes_per_s: Annotated[
        int, Field(ge=0, le=1 << 40, description="Most that each broker copies in a second. 0: no limit")
    ] = 0
    roles: Annotated[
        bool, Field(description="Also the source's roles and bindings, as far as they hold on these topics")
    ] = False


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
    topic: str  # the topic of the source
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
    max_bytes_per_s: int  # limit of each broker. 0: no limit
    roles: bool  # whether roles and bindings are mirrored
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


# -- reading -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FoundLink:
    """A link as all brokers that answer see it."""

    record: LinkRecord
    parts: Sequence[LinkFacts]

    @property
    def mirrors(self) -> list[MirrorFacts]:
        found = [mirror for part in self.parts for mirror in part.mirrors]
        return sorted(found, key=lambda each: (-(each.lag_messages or 0), each.topic))

    @property
    def left_out(self) -> list[StandingFacts]:
        return list({each.topic: each for part in self.parts for each in part.left_out}.values())

    @property
    def state(self) -> tuple[str, str | None]:
        """Return the link's state and the reason for it."""
        if self.record.failed_over:
            return "failed_over", "its mirrors are topics of this cluster now"
        if self.record.paused:
            return "paused", None
        away = [each for each in self.parts if each.state == "source_unreachable"]
        if away:
            return "source_unreachable", away[0].why
        mirrors = self.mirrors
        if apart := [each for each in mirrors if each.state in APART]:
            return "diverged", f"{apart[0].topic}: {apart[0].why}"
        if not mirrors and not self.left_out and any(each.cluster for each in self.parts):
            return "copying", "no topic of the source matches, or the token has no data:mirror on one"
        late = [each for each in mirrors if each.state != "copying"]
        if late and all(each.state == "source_unreachable" for each in mirrors):
            return "source_unreachable", late[0].why
        return "copying", f"{late[0].topic}: {late[0].why}" if late and late[0].why else None


def _item(found: FoundLink) -> dict[str, Any]:
    state, why = found.state
    mirrors = found.mirrors
    until = [each.complete_until_ms for each in mirrors if each.complete_until_ms is not None]
    messages, ms = joint_lag((each.lag_messages, each.lag_ms) for each in mirrors)
    if not mirrors and state not in ("copying", "failed_over"):
        messages = ms = None
    return {
        "link": found.record.name,
        "source": found.record.source,
        "state": state,
        "why": why,
        "topics": len(mirrors),
        "not_copied": sum(each.state != "failed_over" for each in found.left_out)
        + sum(each.state != "copying" for each in mirrors),
        "lag_messages": messages,
        "lag_ms": ms,
        "copied_until": format_time(min(until)) if mirrors and len(until) == len(mirrors) else None,
    }


def joint_lag(lags: Iterable[tuple[int | None, int | None]]) -> tuple[int | None, int | None]:
    """Return the sum of lags in messages and the largest in ms. Each is None if one of them is unknown."""
    known = list(lags)
    messages = [lag for lag, _ in known if lag is not None]
    ms = [lag_ms for _, lag_ms in known if lag_ms is not None]
    return (
        sum(messages) if len(messages) == len(known) else None,
        max(ms, default=0) if len(ms) == len(known) else None,
    )


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
        lambda record: LinkItem(**_item(found_of(record, facts))),
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
    found = found_of(record, await context.port.links())
    mirrors = found.mirrors
    return LinkDescription(
        **_item(found),
        source_cluster=next((each.cluster for each in found.parts if each.cluster), None),
        patterns=list(record.topics),
        start=record.start,
        rename=record.rename,
        token_file=record.token_file,
        max_bytes_per_s=record.max_bytes_per_s,
        roles=record.roles,
        created_at=format_time(record.created_at_ms),
        mirrors=[
            MirrorItem.of(
                each,
                gap=None if each.gap is None else f"{each.gap[0]}–{each.gap[1]}",
                lag_reason=None
                if each.lag_messages is not None
                else "the source has not reported its end yet",
            )
            for each in mirrors[:MOST_SHOWN]
        ],
        more_mirrors=max(0, len(mirrors) - MOST_SHOWN),
        left_out=[LeftOutItem.of(each) for each in found.left_out[:MOST_SHOWN]],
        next_steps=_next_steps(found),
    )


def _next_steps(found: FoundLink) -> list[str]:
    name, (state, _) = found.record.name, found.state
    match state:
        case "source_unreachable":
            check = "check its address, its certificate and the token. Copying continues without help"
            if not found.mirrors:
                return [check.capitalize()]
            return [f"If the source is lost: danube links fail-over {name}", f"Otherwise {check}"]
        case "diverged":
            return [f"Keep the messages that are here: danube links fail-over {name} --topics TOPIC"]
        case "paused":
            return [f"danube links resume {name}"]
    return []


def found_of(record: LinkRecord, facts: Sequence[LinkFacts]) -> FoundLink:
    return FoundLink(record, [each for each in facts if each.link == record.name])


# -- changing ----------------------------------------------------------------------------------------------------


def shown(record: LinkRecord) -> dict[str, Any]:
    shown = asdict(record)
    del shown["created_at_ms"], shown["generation"]
    return {**shown, "topics": list(record.topics)}


RECORDS: Final = DeclaredRecords(
    kind="link", prefix=LINKS, key=link_key, record=LinkRecord, shown=shown, pinned=shown, missing=LinkNotFound
)  # fmt: skip


async def _changed(context: Context, record: LinkRecord) -> ChangedLink:
    await RECORDS.write(context, record.name, record)
    return ChangedLink(link=record.name, paused=record.paused, generation=record.generation)


def patterns_of(text: str, field: str) -> tuple[str, ...]:
    found = tuple(str(TopicPattern.parse(each.strip(), field=field)) for each in text.split(","))
    if len(found) > MOST_PATTERNS:
        raise InvalidArgument(
            f"{len(found)} patterns: a link has at most {MOST_PATTERNS}. Write one that covers several",
            field=field,
            value=len(found),
        )
    return found


def _made(request: CreateLinkRequest, created_at_ms: int) -> LinkRecord:
    source_urls(request.source)
    return LinkRecord(
        name=request.link,
        source=request.source,
        topics=patterns_of(request.topics, "topics"),
        start=request.start,
        rename=request.rename,
        token_file=request.token_file,
        max_bytes_per_s=request.max_bytes_per_s,
        roles=request.roles,
        created_at_ms=created_at_ms,
    )


async def _created(context: Context, request: CreateLinkRequest) -> tuple[LinkRecord | None, LinkRecord]:
    delete = f"Delete it first: danube links delete {request.link}"
    await RECORDS.check_new(context, request.link, most=MOST_LINKS, instead=delete)
    made = _made(request, context.now_ms())
    if made.roles:
        await _check_names_of_roles(context, made)
    await _check_rights(context, made)
    return None, made


async def _check_rights(context: Context, record: LinkRecord) -> None:
    """Check the caller's permissions that depend on more than the request. `permission.needs` has the others.

    The brokers create missing namespaces for mirrors, so the caller needs the permission to create them. A link that
    mirrors roles requires every permission, because the source decides which roles arrive.
    """
    if record.roles:
        check_holds(context, (await stored_grants(context)).grants, "admin", Scope.CLUSTER, "")
    if (locks := context.port.locks) is None:
        return
    present = {facts.namespace for facts in await context.port.namespaces()}
    for missing in sorted({TopicPattern.parse(each).namespace for each in record.topics} - present):
        locks.check(current_identity.get(), "namespaces:create", Resource(missing))


async def _check_names_of_roles(context: Context, record: LinkRecord) -> None:
    """Check that mirrored roles and bindings replace none of this cluster, and apply only to topics of the link."""
    for text in record.topics:
        if set("*?[") & set(TopicPattern.parse(text).glob.removesuffix("*")):
            raise InvalidArgument(
                f"with roles, a pattern is a name or begins with one and ends with *: {text} would hold on more topics",
                field="topics",
                value=text,
            )
    stored = await stored_grants(context)
    taken = sorted(each for each in (*stored.roles, *stored.bindings) if each.startswith(f"{record.name}:"))
    if taken:
        raise InvalidArgument(
            f"{taken[0]} and {len(taken) - 1} other roles and bindings begin with {record.name}: and would be replaced by those "
            "of the source. Delete them, or give the link another name",
            field="link",
            value=record.name,
        )


@operation(
    "links.create",
    effect=Effect.CREATE,
    title="Create a link",
    summary="Mirror topics of another cluster here, at the same offsets. Mirrors are read-only until they are failed over.",
    forecast=RECORDS.forecast_of(_created),
    undo=RECORDS.undo_of(lambda request, before: _made(request, 0)),
    required_flags=("source", "topics"),
    examples=(
        Example(
            {"link": "eu", "source": "danube://eu-1:6650,eu-2:6650", "topics": "/default/*"},
            "every topic of the namespace default, from its first message on",
        ),
    ),
)
async def create_link(context: Context, request: CreateLinkRequest) -> ChangedLink:
    return await _changed(context, (await _created(context, request))[1])


async def _paused(context: Context, request: LinkRequest, *, paused: bool) -> tuple[LinkRecord, LinkRecord]:
    before = await not_failed_over(context, request.link)
    return before, paused_or_not(before, paused=paused)


async def not_failed_over(context: Context, link: str) -> LinkRecord:
    found = await RECORDS.found(context, link)
    if found.failed_over:
        raise InvalidArgument(
            f"the link {link} was failed over: its mirrors are topics of this cluster now. Delete it and create another one",
            field="link",
            value=link,
        )
    return found


@operation(
    "links.pause",
    effect=Effect.CHANGE,
    tool="pause_link",
    title="Pause a link",
    permission=CHANGE,
    summary="Stop copying, until the link is resumed. Mirrors stay read-only, and fall behind.",
    forecast=RECORDS.forecast_of(partial(_paused, paused=True)),
    undo=RECORDS.undo_of(undone_pause(paused=True)),
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
    forecast=RECORDS.forecast_of(partial(_paused, paused=False)),
    undo=RECORDS.undo_of(undone_pause(paused=False)),
    examples=(Example({"link": "eu"}, "it goes on"),),
)
async def resume_link(context: Context, request: LinkRequest) -> ChangedLink:
    return await _changed(context, (await _paused(context, request, paused=False))[1])


async def forecast_delete(context: Context, request: LinkRequest) -> Forecast:
    record = await RECORDS.found(context, request.link)
    mirrors = found_of(record, await context.port.links()).mirrors
    forecast = RECORDS.forecast(request.link, record, None)
    later = (
        f"{counted(len(mirrors), 'mirror stays', 'mirrors stay')} read-only, and {'gets' if len(mirrors) == 1 else 'get'} nothing more. To "
        f"write to them, fail over first: danube links fail-over {request.link}"
    )
    return replace(forecast, blast_radius=blast_radius(topics=len(mirrors)), later=later if mirrors else None)


async def undo_delete(context: Context, request: LinkRequest, done: Done) -> Undo:
    if (before := RECORDS.before(done)) is not None:
        await _check_rights(context, before)
    return await RECORDS.undo(context, request.link, None, done)


@operation(
    "links.delete",
    effect=Effect.DESTROY,
    title="Delete a link",
    summary="Delete a link's declaration. Its mirrors stay, read-only. A link of the same name and source continues them.",
    forecast=forecast_delete,
    undo=undo_delete,
    examples=(Example({"link": "eu"}, "it copies no more"),),
)
async def delete_link(context: Context, request: LinkRequest) -> DeletedLink:
    record = await RECORDS.found(context, request.link)
    mirrors = found_of(record, await context.port.links()).mirrors
    await RECORDS.write(context, request.link, None)
    return DeletedLink(link=request.link, read_only_topics=len(mirrors))
