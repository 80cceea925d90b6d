"""Revocations: web tokens and certificates that are good for nothing any more. API tokens have an operation of their own."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from pydanube_core.errors import GrantNotFound, InvalidArgument
from pydanube_core.security.records import encode_revocation, revocation_key
from pydanube_core.security.revocations import Revocation, RevocationKind, serial_number
from pydanube_core.units import format_time, parse_duration_s

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.effect import Effect
from pydanube_admin.engine.forecast import Forecast, entry
from pydanube_admin.engine.grant_book import GrantBook, check_room, grant_book, write_grant
from pydanube_admin.engine.models import Change, Page, Request, Result, SortedListRequest
from pydanube_admin.engine.operation import Example, operation
from pydanube_admin.engine.paging import glob, page_of


class RevocationItem(Result):
    identity: ClassVar = ("revocation",)

    revocation: str
    kind: str
    value: str
    principal_type: str | None  # of a subject
    created_at: str
    expires_at: str | None


class CreateRevocationRequest(Request):
    kind: Annotated[
        Literal["jti", "subject", "certificate"],
        Field(description="jti: a web token; subject: all that it was issued until now"),
    ]
    value: Annotated[
        str, Field(min_length=1, max_length=256, description="The jti, a principal, or a serial number")
    ]
    expires: Annotated[
        str | None, Field(max_length=20, description="30d …: how long such tokens live; without: kept")
    ] = None
    principal_type: Annotated[Literal["user", "service_account"], Field(description="Of a subject")] = "user"


class RevocationRequest(Request):
    revocation: Annotated[str, Field(max_length=300, description="As revocations.list shows it")]


class ChangedRevocation(RevocationItem, Change):
    pass


class DeletedRevocation(Change):
    revocation: str


@operation(
    "revocations.list",
    effect=Effect.READ,
    summary="List web tokens and certificates that were revoked.",
    examples=(Example({"filter": "subject:*"}, "whose tokens"),),
)
async def list_revocations(context: Context, request: SortedListRequest) -> Page[RevocationItem]:
    matches, now_ms = glob(request.filter), context.now_ms()
    book = await grant_book(context)
    found = [each for each in book.revocations.values() if not each.is_over(now_ms) and matches(each.id)]
    return await page_of(
        context,
        RevocationItem,
        found,
        lambda each: RevocationItem(**_revocation(each)),
        key=lambda revocation: (revocation.id,),
        operation="revocations.list",
        request=request,
    )


async def forecast_create_revocation(context: Context, request: CreateRevocationRequest) -> Forecast:
    book = await grant_book(context)
    made = _new(context, book, request)
    before = book.revocations.get(made.id)
    return Forecast(
        diff=[
            entry(
                f"revocations/{made.id}", None if before is None else _revocation(before), _revocation(made)
            )
        ]
    )


@operation(
    "revocations.create",
    effect=Effect.CHANGE,
    title="Revoke web tokens or a certificate",
    summary="Make web tokens or a client's certificate good for nothing; their streams end.",
    forecast=forecast_create_revocation,
    required_flags=("kind", "value"),
    examples=(
        Example({"kind": "subject", "value": "ann", "expires": "30d"}, "ann signs in anew"),
        Example({"kind": "certificate", "value": "0A:1B:2C"}, "its key has leaked"),
    ),
)
async def create_revocation(context: Context, request: CreateRevocationRequest) -> ChangedRevocation:
    book, now_ms = await grant_book(context), context.now_ms()
    made = _new(context, book, request)
    over = [revocation_key(each.id) for each in book.revocations.values() if each.is_over(now_ms)]
    await write_grant(context, revocation_key(made.id), encode_revocation(made), **dict.fromkeys(over[:100]))
    return ChangedRevocation(**_revocation(made))


async def forecast_delete_revocation(context: Context, request: RevocationRequest) -> Forecast:
    found = _found(await grant_book(context), request.revocation)
    return Forecast(diff=[entry(f"revocations/{found.id}", _revocation(found), None)])


@operation(
    "revocations.delete",
    effect=Effect.CHANGE,
    title="Take a revocation back",
    summary="Let what was revoked be good again.",
    forecast=forecast_delete_revocation,
    examples=(Example({"revocation": "jti:4711"}, "it was the wrong one"),),
)
async def delete_revocation(context: Context, request: RevocationRequest) -> DeletedRevocation:
    found = _found(await grant_book(context), request.revocation)
    await write_grant(context, revocation_key(found.id), None)
    return DeletedRevocation(revocation=found.id)


def _new(context: Context, book: GrantBook, request: CreateRevocationRequest) -> Revocation:
    kind, value, now_ms = RevocationKind(request.kind), request.value, context.now_ms()
    if kind is RevocationKind.CERTIFICATE:
        try:
            value = serial_number(value)
        except ValueError:
            raise InvalidArgument(
                f"value: {value[:64]!r} is no serial number; `openssl x509 -serial -noout -in client.crt` shows it",
                field="value",
                value=value[:64],
            ) from None
    life_s = None if request.expires is None else parse_duration_s(request.expires, field="expires")
    made = Revocation(
        kind=kind,
        value=value,
        principal_type=request.principal_type if kind is RevocationKind.SUBJECT else "",
        created_ms=now_ms,
        until_ms=None if life_s is None else now_ms + int(life_s * 1000),
    )
    in_force = {key: each for key, each in book.revocations.items() if not each.is_over(now_ms)}
    check_room(in_force, made.id, "revocations")
    return made


def _found(book: GrantBook, revocation_id: str) -> Revocation:
    if revocation_id not in book.revocations:
        raise GrantNotFound(
            f"there is no revocation {revocation_id[:64]!r}; see `danube revocations list`",
            field="revocation",
            value=revocation_id[:64],
        )
    return book.revocations[revocation_id]


def _revocation(revocation: Revocation) -> dict[str, Any]:
    return {
        "revocation": revocation.id, "kind": revocation.kind.value, "value": revocation.value,
        "principal_type": revocation.principal_type or None, "created_at": format_time(revocation.created_ms),
        "expires_at": None if revocation.until_ms is None else format_time(revocation.until_ms),
    }  # fmt: skip
