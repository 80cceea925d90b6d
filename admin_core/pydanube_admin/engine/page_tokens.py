"""Tokens of next pages, and marks: keys in a form that only the same list accepts back.

A token holds a key and a digest over it, the operation and the other arguments. A token that this list did
not issue is refused. The digest is a check, not a secret: the key in a token gives its holder nothing that a
filter would not. Hence a token stays valid after a restart of the broker.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Final

from pydanube_core.errors import PageInvalid

from pydanube_admin.engine.models import ListRequest

Key = tuple[str | int | float, ...]

_DIGEST_BYTES: Final = 8


def begin_of(operation: str, request: ListRequest, *, numbers: int) -> tuple[int, ...] | None:
    """Return the key after which the requested page begins, None for the first. For lists not held in memory.

    Args:
        numbers: how many the key has, none below 0.

    Raises:
        PageInvalid: as `cut`.
    """
    if request.page is None:
        return None
    key = opened(request.page, scope_of(operation, request))
    found = tuple(part for part in key if isinstance(part, int) and part >= 0)
    if len(found) != len(key) or len(key) != numbers:
        raise invalid_page(request.page)
    return found


def next_token(key: Key, operation: str, request: ListRequest) -> str:
    """Return the `next_page` of a page whose last item has that key."""
    return seal(key, scope_of(operation, request))


def scope_of(operation: str, request: ListRequest, *, but: frozenset[str] = frozenset()) -> bytes:
    """Return the arguments that must be the same from page to page, without the page size. `but`: others that need not."""
    fixed = request.model_dump(mode="json", exclude={"limit", "page", "top", *but})
    return json.dumps([operation, fixed], sort_keys=True).encode()


def seal(key: Key, scope: bytes) -> str:
    """Encode a key, for `opened` with the same scope."""
    body = json.dumps(key).encode()
    return base64.urlsafe_b64encode(digest_of(body, scope) + body).decode().rstrip("=")


def opened(token: str, scope: bytes) -> Key:
    """Decode a text that `seal` made. Raises `PageInvalid` for any other."""
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    digest, body = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
    if not body or digest != digest_of(body, scope):
        raise invalid_page(token)
    try:
        key = json.loads(body)
    except (ValueError, RecursionError):
        raise invalid_page(token) from None
    if not isinstance(key, list) or not all(isinstance(part, (str, int, float)) for part in key):
        raise invalid_page(token)
    return tuple(key)


def invalid_page(token: str) -> PageInvalid:
    """Return the error for a token that this list did not issue."""
    return PageInvalid(
        "page: this list did not give out that token, or not for these arguments. Pass next_page as it was "
        "given with the other arguments unchanged, or leave page out to begin again",
        field="page",
        value=token[:80],
    )


def digest_of(body: bytes, scope: bytes) -> bytes:
    return hashlib.blake2b(scope + b"\0" + body, digest_size=_DIGEST_BYTES, person=b"pydanube page").digest()
