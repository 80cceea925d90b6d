"""Stop an assistant, or any other caller: freeze a face or a principal, so that it may read and change nothing."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from pydanube_core.errors import InvalidArgument, LimitReached
from pydanube_core.units import format_time, known_time, parse_duration_s, parse_time_ms

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Forecast, entry
from pydanube_admin.engine.freezes import ALL, FACES, MAX_FREEZES, Freeze, freezes
from pydanube_admin.engine.models import Change, Effect, Page, Request, Result, SortedListRequest
from pydanube_admin.engine.operation import MAX_WHY_CHARS, operation
from pydanube_admin.engine.paging import glob, page_of

Face = Annotated[
    Literal["mcp", "jsonrpc", "cli", "console", "all"] | None,
    Field(description="all: but the broker's own socket. Without: principal"),
]
OnlyPrincipal = Annotated[
    str | None, Field(min_length=1, max_length=256, description="In place of a face: this principal")
]


class FrozenItem(Result):
    identity: ClassVar = ("face", "principal")

    face: str | None
    principal: str | None
    frozen_until: str | None  # null: until it is lifted
    frozen_at: str
    by: str
    untrusted: dict[str, Any]  # reason: as given to faces.freeze


class FreezeRequest(Request):
    face: Face = None
    principal: OnlyPrincipal = None
    until: Annotated[
        str | None,
        Field(max_length=64, description="2h from now, or a time. Default: until lifted"),
    ] = None
    reason: Annotated[
        str,
        Field(
            min_length=1,
            max_length=MAX_WHY_CHARS,
            description="Reason, for refused callers and the audit",
        ),
    ]


class ThawRequest(Request):
    face: Face = None
    principal: OnlyPrincipal = None


class FrozenFace(Change):
    face: str | None
    principal: str | None
    frozen_until: str | None
    by: str


class ThawedFace(Change):
    face: str | None
    principal: str | None
    was_frozen: bool


@operation(
    "faces.list",
    effect=Effect.READ,
    summary="List frozen faces and principals, which may read and change nothing: since when, until when, by whom and why.",
    examples=(Example({}, "faces and principals that may only read"),),
)
async def list_faces(context: Context, request: SortedListRequest) -> Page[FrozenItem]:
    matches = glob(request.filter)
    found = [
        each
        for each in await freezes(context.port, context.now_ms())
        if matches(each.face or each.principal or "")
    ]

    def item(each: Freeze) -> FrozenItem:
        return FrozenItem(
            face=each.face,
            principal=each.principal,
            frozen_until=known_time(each.until_ms),
            frozen_at=format_time(each.at_ms),
            by=each.by,
            untrusted={"reason": each.reason},
        )

    return await page_of(
        context, FrozenItem, found, item, key=lambda each: (each.at_ms, each.key), request=request
    )


async def forecast_freeze(context: Context, request: FreezeRequest) -> Forecast:
    wanted = _freeze_of(context, request)
    await _check_liftable(context, wanted)
    before = await _held(context, wanted.key)
    return Forecast(
        diff=[entry(_path(wanted), _shown(before), _shown(wanted))],
        basis=[_shown(before), request.until],  # a length counts from when the plan is applied
    )


@operation(
    "faces.freeze",
    effect=Effect.CHANGE,
    tool="freeze_face",
    summary="Freeze a face or a principal: it can read but change nothing until then, or until faces.thaw.",
    forecast=forecast_freeze,
    required_flags=("reason",),
    examples=(
        Example(
            {"face": "mcp", "until": "2h", "reason": "the assistant deletes topics in a loop"},
            "for two hours",
        ),
        Example({"principal": "robot", "reason": "its token was stolen"}, "one caller, on every face"),
    ),
)
async def freeze_face(context: Context, request: FreezeRequest) -> FrozenFace:
    wanted = _freeze_of(context, request)
    await _check_liftable(context, wanted)
    await context.port.write_state({wanted.key: wanted.to_bytes()})
    return FrozenFace(
        face=wanted.face, principal=wanted.principal, frozen_until=known_time(wanted.until_ms), by=wanted.by
    )


async def forecast_thaw(context: Context, request: ThawRequest) -> Forecast:
    asked = _subject(context, request)
    before = await _held(context, asked.key)
    return Forecast(diff=[entry(_path(asked), _shown(before), None)])


@operation(
    "faces.thaw",
    effect=Effect.CHANGE,
    tool="thaw_face",
    summary="Lift the freeze of a face or a principal.",
    forecast=forecast_thaw,
    examples=(Example({"face": "mcp"}, "the assistants may change things again"),),
)
async def thaw_face(context: Context, request: ThawRequest) -> ThawedFace:
    asked = _subject(context, request)
    found = await context.port.read_state(asked.key)
    if found is not None:
        await context.port.write_state({asked.key: None}, expected={asked.key: found.revision})
    was_frozen = found is not None and Freeze.from_bytes(found.value).holds(context.now_ms())
    return ThawedFace(face=asked.face, principal=asked.principal, was_frozen=was_frozen)


def _subject(context: Context, request: FreezeRequest | ThawRequest) -> Freeze:
    """Return a freeze without an end of the face or principal that is named. Raises `InvalidArgument`."""
    if (request.face is None) == (request.principal is None):
        raise InvalidArgument("name a face, or a principal, and not both", field="face", value=request.face)
    return Freeze(
        face=request.face, principal=request.principal, until_ms=None, reason="", by=context.principal,
        at_ms=context.now_ms(),
    )  # fmt: skip


def _freeze_of(context: Context, request: FreezeRequest) -> Freeze:
    subject = _subject(context, request)
    if not request.reason.isprintable():
        raise InvalidArgument("reason must be one line of text", field="reason", value=request.reason[:80])
    until_ms = None if request.until is None else end_of(request.until, context.now_ms())
    return Freeze(
        face=subject.face, principal=subject.principal, until_ms=until_ms, reason=request.reason, by=subject.by,
        at_ms=subject.at_ms,
    )  # fmt: skip


def end_of(until: str, now_ms: int) -> int:
    """Return a time after now, from a length or a time. Raises `InvalidArgument`."""
    try:
        end_ms = now_ms + round(parse_duration_s(until, field="until") * 1000)
    except InvalidArgument:
        end_ms = parse_time_ms(until, field="until")
    if end_ms <= now_ms:
        raise InvalidArgument(
            f"until: {until!r} is over already. Give a length from now, such as 2h, or a later time",
            field="until",
            value=until,
        )
    return end_ms


async def _check_liftable(context: Context, wanted: Freeze) -> None:
    """Check that the freeze can be lifted afterwards. Raises `InvalidArgument`, `LimitReached`.

    With authorization on, that is the operator at the broker's own socket. Without it, there is no such socket, and a face
    must stay that is not frozen.
    """
    held = {each.key: each for each in await freezes(context.port, context.now_ms())}
    if wanted.key not in held and len(held) >= MAX_FREEZES:
        raise LimitReached(
            f"{MAX_FREEZES} faces and principals are frozen: lift some with faces.thaw",
            field="principal",
            limit=MAX_FREEZES,
        )
    frozen = {each.face for each in (*held.values(), wanted)}
    if context.port.locks is None and (ALL in frozen or frozen.issuperset(FACES)):
        raise InvalidArgument(
            "every face would be frozen, and without authorization ([auth] mode) no caller could lift that: leave one, such as cli",
            field="face",
            value=wanted.face,
        )


async def _held(context: Context, key: str) -> Freeze | None:
    found = await freezes(context.port, context.now_ms())
    return next((each for each in found if each.key == key), None)


def _path(freeze: Freeze) -> str:
    return f"faces/{freeze.face}" if freeze.face is not None else f"principals/{freeze.principal}"


def _shown(freeze: Freeze | None) -> dict[str, str | None] | None:
    return None if freeze is None else {"frozen_until": known_time(freeze.until_ms), "by": freeze.by}
