"""API tokens: `danube_<id>_<secret>`, of which a broker keeps the id and the SHA-256 of the secret. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pydanube_core.errors import Unauthenticated
from pydanube_core.security.identity import Identity, Maker
from pydanube_core.security.permissions import Principal
from pydanube_core.security.records import TokenRecord

PREFIX: Final = "danube_"
_TOKEN: Final = re.compile(rf"{PREFIX}[\w-]+|[\w-]+\.[\w-]+\.[\w-]*", re.ASCII)
ID_BYTES: Final = 8
DICE_BYTES: Final = ID_BYTES + 32
_FORM: Final = re.compile(r"danube_([0-9a-f]{16})_([A-Za-z0-9_-]{43})\Z")
_NOBODYS: Final = hashlib.sha256(b"").hexdigest()


def new_token(
    name: str,
    principal: Principal,
    dice: bytes,
    *,
    now_ms: int,
    until_ms: int | None,
    makers: tuple[Maker, ...] = (),
) -> tuple[TokenRecord, str]:
    """Return the record to keep, and the token itself, which is shown once and kept nowhere.

    Args:
        dice: `DICE_BYTES` random bytes.
    """
    assert len(dice) == DICE_BYTES
    token_id = dice[:ID_BYTES].hex()
    secret = base64.urlsafe_b64encode(dice[ID_BYTES:]).decode().rstrip("=")
    record = TokenRecord(
        token_id=token_id, name=name, principal=principal, digest=_digest(secret), created_ms=now_ms,
        until_ms=until_ms, makers=makers,
    )  # fmt: skip
    return record, f"{PREFIX}{token_id}_{secret}"


def renewed(record: TokenRecord, *, now_ms: int, overlap_ms: int) -> TokenRecord:
    """Return a token that another one replaces: it is valid for `overlap_ms` more."""
    end = now_ms + overlap_ms
    return replace(record, until_ms=end if record.until_ms is None else min(end, record.until_ms))


def is_api_token(text: str) -> bool:
    return text.startswith(PREFIX)


def is_any_token(text: str) -> bool:
    """Return whether a text has the form of one token: an API token, or a JSON Web Token."""
    return _TOKEN.fullmatch(text) is not None


def verify(text: str, tokens: Mapping[str, TokenRecord], *, now_ms: int) -> Identity:
    """Return the record of a valid token. The secret is compared in constant time, for an unknown id as well.

    Raises `Unauthenticated`: it is none, unknown, of another secret, or expired: one sentence for the first three.
    """
    match = _FORM.match(text)
    record = None if match is None else tokens.get(match[1])
    digest = _digest("" if match is None else match[2])
    good = hmac.compare_digest(digest, _NOBODYS if record is None else record.digest)
    if record is None or not good:
        raise Unauthenticated(
            "this cluster has no such token. An admin makes one with `danube tokens create`"
        )
    if record.until_ms is not None and now_ms >= record.until_ms:
        raise Unauthenticated(
            f"the token {record.name!r} has expired. Ask for a new one (`danube tokens rotate`)",
            token_id=record.token_id,
        )
    return Identity(
        principal=record.principal,
        method="token",
        credential=record.token_id,
        makers=record.makers,
        expires_at_s=None if record.until_ms is None else record.until_ms / 1000,
    )


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
