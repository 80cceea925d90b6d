"""Lists: filter, order, cut to a page, and the token of the next one.

A page begins behind the key of the last item that was shown, so what is created or deleted meanwhile neither
repeats nor skips an item. The token holds that key and a digest over it, the operation and the other arguments: a
token that this list did not give out is refused. The digest is a check, no secret; the key in a token gives its
holder nothing that a filter would not. Hence it stays valid over a restart of the broker.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import fnmatch
import hashlib
import heapq
import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from pydanube_core.errors import PageInvalid

from pydanube_admin.engine.models import ListRequest

Key = tuple[str | int, ...]
T = TypeVar("T")

_DIGEST_BYTES: Final = 8
TURN_S: Final = 0.005
LOOK_AFTER: Final = 16  # items


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice(Generic[T]):
    """One page of `total` items."""

    items: list[T]
    next_page: str | None
    total: int


def glob(pattern: str | None) -> Callable[[str], bool]:
    """A predicate over names. A pattern with a slash is held against `/namespace/topic`, else against the name alone.

    `*` also passes over slashes. Case counts.
    """
    if pattern is None:
        return lambda name: True
    whole = "/" in pattern
    if whole and pattern[0] not in "/*?[":
        pattern = "/" + pattern
    match = re.compile(fnmatch.translate(pattern)).match
    if whole:
        return lambda name: match(name) is not None
    return lambda name: match(name.rpartition("/")[2]) is not None


async def chosen(items: Iterable[T], matches: Callable[[T], bool]) -> list[T]:
    """Those that match; others have a turn now and then, for a pattern may be dear and there may be many items."""
    found, begun = [], time.perf_counter()
    for index, item in enumerate(items):
        if index % LOOK_AFTER == 0 and time.perf_counter() - begun > TURN_S:
            await asyncio.sleep(0)
            begun = time.perf_counter()
        if matches(item):
            found.append(item)
    return found


def cut(items: Iterable[T], *, key: Callable[[T], Key], operation: str, request: ListRequest) -> Slice[T]:
    """The page of `items` that `request` asks for, ascending by `key`. Keys are unique and alike in shape.

    Raises:
        PageInvalid: `request.page` is no token of this list with these arguments.
    """
    everything = list(items)
    scope = _scope(operation, request)
    behind = everything
    if request.page is not None:
        after = _open(request.page, scope)
        try:
            behind = [item for item in everything if key(item) > after]
        except TypeError:  # a key of another shape, under a digest that somebody worked out
            raise _invalid(request.page) from None
    # Of ten thousand items fifty are shown: they are found without sorting the others
    found = heapq.nsmallest(request.limit + 1, behind, key=key)
    chosen, more = found[: request.limit], len(found) > request.limit
    return Slice(
        items=chosen, next_page=_seal(key(chosen[-1]), scope) if more else None, total=len(everything)
    )


def begin_of(operation: str, request: ListRequest, *, numbers: int) -> tuple[int, ...] | None:
    """The key behind which the asked page begins, None for the first; for lists that are not held in memory.

    Args:
        numbers: how many the key has, none below 0.

    Raises:
        PageInvalid: as `cut`.
    """
    if request.page is None:
        return None
    key = _open(request.page, _scope(operation, request))
    found = tuple(part for part in key if isinstance(part, int) and part >= 0)
    if len(found) != len(key) or len(key) != numbers:
        raise _invalid(request.page)
    return found


def next_token(key: Key, operation: str, request: ListRequest) -> str:
    """`next_page` of a page whose last item has that key."""
    return _seal(key, _scope(operation, request))


def _scope(operation: str, request: ListRequest) -> bytes:
    """What must be the same from page to page; the size of the pages need not."""
    fixed = request.model_dump(mode="json", exclude={"limit", "page"})
    return json.dumps([operation, fixed], sort_keys=True).encode()


def _seal(key: Key, scope: bytes) -> str:
    body = json.dumps(key).encode()
    return base64.urlsafe_b64encode(_digest(body, scope) + body).decode().rstrip("=")


def _open(token: str, scope: bytes) -> Key:
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    digest, body = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
    if not body or digest != _digest(body, scope):
        raise _invalid(token)
    try:
        key = json.loads(body)
    except (ValueError, RecursionError):
        raise _invalid(token) from None
    if not isinstance(key, list) or not all(isinstance(part, (str, int)) for part in key):
        raise _invalid(token)
    return tuple(key)


def _invalid(token: str) -> PageInvalid:
    return PageInvalid(
        "page: this list did not give out that token, or not for these arguments; pass next_page as it was "
        "given with the other arguments unchanged, or leave page out to begin again",
        field="page",
        value=token[:80],
    )


def _digest(body: bytes, scope: bytes) -> bytes:
    return hashlib.blake2b(scope + b"\0" + body, digest_size=_DIGEST_BYTES, person=b"pydanube page").digest()
