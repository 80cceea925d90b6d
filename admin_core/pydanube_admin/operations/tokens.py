"""API tokens, and revocations of web tokens and certificates.

A secret is in one answer and nowhere else: making a token keeps no plan and no result.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field
from pydanube_core.errors import AlreadyExists, InvalidArgument
from pydanube_core.security.api_tokens import DICE_BYTES, new_token, renewed
from pydanube_core.security.permissions import Binding, Principal, Scope
from pydanube_core.security.records import (
    TokenRecord,
    binding_key,
    decode_token,
    encode_binding,
    encode_revocation,
    encode_token,
    revocation_key,
    token_key,
)
from pydanube_core.security.revocations import Revocation, RevocationKind, serial_number
from pydanube_core.units import format_time, known_time, parse_duration_s

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Done, Forecast, Undo, entry
from pydanube_admin.engine.models import Change, Effect, Page, Request, Result, SortedListRequest
from pydanube_admin.engine.operation import operation
from pydanube_admin.engine.paging import glob, page_of
from pydanube_admin.engine.stored_grants import (
    MOST_RECORDS,
    Name,
    PrincipalType,
    StoredGrants,
    ceiling,
    check_grantable,
    check_owner,
    check_room,
    check_unchanged,
    found_grant,
    shown,
    stored_grants,
    write_grant,
)

KEPT_OVER_MS: Final = 7 * 86_400_000  # an expired revocation is kept so long, because the clock may be wrong


class TokenItem(Result):
    identity: ClassVar = ("token_id",)

    token_id: str
    name: str
    principal: str
    principal_type: str
    created_at: str
    expires_at: str | None
    last_used_at: str | None  # to within ten minutes. Null: never used
    within: list[
        str
    ]  # its makers, unless they could give everything: it never gives more than each of them may do


class CreateTokenRequest(Request):
    name: Annotated[Name, Field(description="Its purpose, and its principal where none is given")]
    principal: Annotated[
        str | None, Field(max_length=256, description="Principal of the token. Default: as name")
    ] = None
    principal_type: PrincipalType = "user"
    role: Annotated[
        str | None, Field(max_length=128, description="Also bind this role on the cluster. Default: none")
    ] = None
    expires: Annotated[
        str | None, Field(max_length=20, description="A length from now, such as 90d. Default: never expires")
    ] = None


class TokenRequest(Request):
    token_id: Annotated[str, Field(max_length=64, description="As tokens.list shows it")]


class RotateTokenRequest(TokenRequest):
    overlap: Annotated[str, Field(max_length=20, description="How long the former token stays good")] = "1h"


class NewToken(TokenItem):
    token: str  # shown here and never again


class RevokedToken(Change):
    token_id: str
    name: str


@operation(
    "tokens.list",
    effect=Effect.READ,
    summary="List API tokens by name, with owner, expiry and last use. Never the tokens themselves.",
    examples=(Example({}, "every token"),),
)
async def list_tokens(context: Context, request: SortedListRequest) -> Page[TokenItem]:
    matches = glob(request.filter)
    tokens = [each for each in (await stored_grants(context)).tokens.values() if matches(each.name)]
    return await page_of(
        context,
        TokenItem,
        tokens,
        lambda each: TokenItem(**_token(each)),
        key=lambda token: (token.token_id,),
        request=request,
    )


@operation(
    "tokens.create",
    effect=Effect.CREATE,
    title="Create a token",
    summary="Create an API token. It is in this answer and never shown again.",
    plans_itself=True,  # a plan's result is kept, and this one holds a secret
    idempotent=False,
    examples=(Example({"name": "billing", "role": "producer", "expires": "90d"}, "for a program"),),
)
async def create_token(context: Context, request: CreateTokenRequest) -> NewToken:
    stored = await stored_grants(context)
    principal = Principal(request.principal or request.name, request.principal_type)
    check_room(stored.tokens, "", "tokens")
    check_owner(context, stored, principal)
    binding = None
    if request.role is not None:
        check_grantable(context, stored, [request.role], Scope.CLUSTER, "")
        binding = Binding(
            id=f"token-{request.name}", principal=principal, roles=(request.role,), scope=Scope.CLUSTER
        )
        if binding.id in stored.bindings and stored.bindings[binding.id] != binding:
            raise AlreadyExists(
                f"there is another binding {binding.id}. Choose another name for the token",
                field="name",
                value=request.name,
            )
    now = context.now_ms()
    until_ms = _until_ms(request.expires, now)
    record, text = new_token(
        request.name,
        principal,
        secrets.token_bytes(DICE_BYTES),
        now_ms=now,
        until_ms=until_ms,
        makers=ceiling(context, stored.grants, principal),
    )
    bound = {} if binding is None else {binding_key(binding.id): encode_binding(binding)}
    await write_grant(context, token_key(record.token_id), encode_token(record), **bound)
    return NewToken(**_token(record), token=text)


@operation(
    "tokens.rotate",
    effect=Effect.CREATE,
    title="Rotate a token",
    summary="Create a token in place of another, which stays good for the overlap. It is in this answer and never shown again.",
    plans_itself=True,  # as tokens.create
    idempotent=False,
    examples=(Example({"token_id": "0123456789abcdef", "overlap": "1h"}, "an hour for both"),),
)
async def rotate_token(context: Context, request: RotateTokenRequest) -> NewToken:
    stored = await stored_grants(context)
    former = _found_token(stored, request.token_id)
    check_owner(context, stored, former.principal)
    now = context.now_ms()
    overlap_ms = int(parse_duration_s(request.overlap, field="overlap") * 1000)
    life = None if former.until_ms is None else now + max(0, former.until_ms - former.created_ms)
    record, text = new_token(
        former.name,
        former.principal,
        secrets.token_bytes(DICE_BYTES),
        now_ms=now,
        until_ms=life,
        makers=ceiling(context, stored.grants, former.principal, former.makers),
    )
    ending = encode_token(renewed(former, now_ms=now, overlap_ms=overlap_ms))
    await write_grant(
        context, token_key(record.token_id), encode_token(record), **{token_key(former.token_id): ending}
    )
    return NewToken(**_token(record), token=text)


async def forecast_revoke_token(context: Context, request: TokenRequest) -> Forecast:
    token = _found_token(await stored_grants(context), request.token_id)
    return Forecast(
        diff=[entry(f"tokens/{token.token_id}", _token(token), None)],
        image={"record": encode_token(token).decode()},  # its secret is in none of both
        basis=_token(replace(token, used_ms=None)),  # a client may use it meanwhile
    )


async def undo_revoke_token(context: Context, request: TokenRequest, done: Done) -> Undo:
    """Make the token valid again, until its former expiry: like a new one, made by the caller of the undo."""
    stored, former = await stored_grants(context), decode_token(done.image["record"].encode())
    now = stored.tokens.get(request.token_id)
    check_unchanged(
        None if now is None else replace(now, makers=former.makers),
        None,
        former,
        f"the token {request.token_id}",
    )
    context.executor.parse(
        "tokens.create",
        {"name": former.name, "principal": former.principal.name, "principal_type": former.principal.type},
    )
    check_room(stored.tokens, former.token_id, "tokens")
    check_owner(context, stored, former.principal)
    again = replace(former, makers=ceiling(context, stored.grants, former.principal, former.makers))
    return Undo(act=partial(write_grant, context, token_key(former.token_id), encode_token(again)))


@operation(
    "tokens.revoke",
    effect=Effect.CHANGE,
    ends=True,
    title="Revoke a token",
    summary="Revoke a token immediately. Streams that were opened with it end within 5 s.",
    forecast=forecast_revoke_token,
    undo=undo_revoke_token,
    examples=(Example({"token_id": "0123456789abcdef"}, "it has leaked"),),
)
async def revoke_token(context: Context, request: TokenRequest) -> RevokedToken:
    token = _found_token(await stored_grants(context), request.token_id)
    await write_grant(context, token_key(token.token_id), None)
    return RevokedToken(token_id=token.token_id, name=token.name)


def _until_ms(expires: str | None, now_ms: int) -> int | None:
    return None if expires is None else now_ms + int(parse_duration_s(expires, field="expires") * 1000)


def _found_token(stored: StoredGrants, token_id: str) -> TokenRecord:
    return found_grant(stored.tokens, "token", token_id, field="token_id")


def _token(token: TokenRecord) -> dict[str, Any]:
    return {
        "token_id": token.token_id, "name": token.name, "principal": token.principal.name,
        "principal_type": token.principal.type, "created_at": format_time(token.created_ms),
        "expires_at": known_time(token.until_ms),
        "last_used_at": known_time(token.used_ms),
        "within": [str(maker.principal) for maker in token.makers],
    }  # fmt: skip


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
        Field(description="jti: a web token. subject: all tokens issued to it until now"),
    ]
    value: Annotated[
        str, Field(min_length=1, max_length=256, description="The jti, a principal, or a serial number")
    ]
    expires: Annotated[
        str | None, Field(max_length=20, description="How long such tokens live, such as 30d. Default: kept")
    ] = None
    principal_type: Annotated[
        Literal["user", "service_account"], Field(description="Kind of a subject's principal")
    ] = "user"


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
    stored = await stored_grants(context)
    those = [each for each in stored.revocations.values() if not each.is_over(now_ms) and matches(each.id)]
    return await page_of(
        context,
        RevocationItem,
        those,
        lambda each: RevocationItem(**_revocation(each)),
        key=lambda revocation: (revocation.id,),
        request=request,
    )


async def forecast_create_revocation(context: Context, request: CreateRevocationRequest) -> Forecast:
    stored = await stored_grants(context)
    made = _new(context, stored, request)
    before = shown(stored.revocations, made.id, _revocation)
    return Forecast(
        diff=[entry(f"revocations/{made.id}", before, _revocation(made))],
        basis=[before, request.model_dump()],
        pinned={"until_ms": made.until_ms},
    )


@operation(
    "revocations.create",
    effect=Effect.CHANGE,
    ends=True,
    title="Revoke web tokens or a certificate",
    summary="Revoke web tokens or a client's certificate. Their streams end.",
    forecast=forecast_create_revocation,
    required_flags=("kind", "value"),
    examples=(
        Example({"kind": "subject", "value": "ann", "expires": "30d"}, "ann signs in again"),
        Example({"kind": "certificate", "value": "0A:1B:2C"}, "its key has leaked"),
    ),
)
async def create_revocation(context: Context, request: CreateRevocationRequest) -> ChangedRevocation:
    stored, now_ms = await stored_grants(context), context.now_ms()
    made = _new(context, stored, request)
    # One that is deleted too early makes a leaked credential good again, so it stays longer than any clock is wrong
    slack_ms = KEPT_OVER_MS if len(stored.revocations) < 2 * MOST_RECORDS else 0
    old_ms = now_ms - context.port.clock_apart_ms()[0] - slack_ms
    over = [revocation_key(each.id) for each in stored.revocations.values() if each.is_over(old_ms)]
    await write_grant(context, revocation_key(made.id), encode_revocation(made), **dict.fromkeys(over[:100]))
    return ChangedRevocation(**_revocation(made))


async def forecast_delete_revocation(context: Context, request: RevocationRequest) -> Forecast:
    going = found_grant((await stored_grants(context)).revocations, "revocation", request.revocation)
    return Forecast(diff=[entry(f"revocations/{going.id}", _revocation(going), None)])


@operation(
    "revocations.delete",
    effect=Effect.CHANGE,
    ends=True,
    title="Take a revocation back",
    summary="Withdraw a revocation: the tokens, subject or certificate are valid again.",
    forecast=forecast_delete_revocation,
    examples=(Example({"revocation": "jti:4711"}, "it was the wrong one"),),
)
async def delete_revocation(context: Context, request: RevocationRequest) -> DeletedRevocation:
    going = found_grant((await stored_grants(context)).revocations, "revocation", request.revocation)
    await write_grant(context, revocation_key(going.id), None)
    return DeletedRevocation(revocation=going.id)


def _new(context: Context, stored: StoredGrants, request: CreateRevocationRequest) -> Revocation:
    kind, value, now_ms = RevocationKind(request.kind), request.value, context.now_ms()
    if kind is RevocationKind.CERTIFICATE:
        try:
            value = serial_number(value)
        except ValueError:
            raise InvalidArgument(
                f"value: {value[:64]!r} is no serial number. `openssl x509 -serial -noout -in client.crt` shows it",
                field="value",
                value=value[:64],
            ) from None
    made = Revocation(
        kind=kind,
        value=value,
        principal_type=request.principal_type if kind is RevocationKind.SUBJECT else "",
        created_ms=now_ms,
        until_ms=_until_ms(request.expires, now_ms) if context.pinned is None else context.pinned["until_ms"],
    )
    in_force = {key: each for key, each in stored.revocations.items() if not each.is_over(now_ms)}
    check_room(in_force, made.id, "revocations")
    return made


def _revocation(revocation: Revocation) -> dict[str, Any]:
    return {
        "revocation": revocation.id, "kind": revocation.kind.value, "value": revocation.value,
        "principal_type": revocation.principal_type or None, "created_at": format_time(revocation.created_ms),
        "expires_at": known_time(revocation.until_ms),
    }  # fmt: skip
