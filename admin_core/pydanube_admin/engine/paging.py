"""Lists: filter, order, cut to a page, and the token of the next one.

A list has an order of its own, and `sort` puts another before it. What is sorted by may be costly to know and is known of the
items only: then all of them are made, some hundreds a turn.

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
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, Final, Generic, Literal, TypeVar, Union, get_args, get_origin

from pydanube_core.errors import InvalidArgument, PageInvalid
from pydanube_core.spelling import close_names
from pydanube_core.units import format_time

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.models import ListRequest, Page, Result, SortedListRequest
from pydanube_admin.engine.spelling import either, shown

Key = tuple[str | int | float, ...]
T = TypeVar("T")
R = TypeVar("R", bound=Result)

_DIGEST_BYTES: Final = 8
TURN_S: Final = 0.005
LOOK_AFTER: Final = 16  # items
MADE_A_TURN: Final = 100  # items that are made to be sorted
_SORTED_BY: Final = {str, int, float, bool, type(None)}


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


def cut(
    items: Iterable[T],
    *,
    key: Callable[[T], Key],
    operation: str,
    request: ListRequest,
    falling: bool = False,
) -> Slice[T]:
    """The page of `items` that `request` asks for, ascending by `key`. Keys are unique and alike in shape.

    `falling`: the second part of a key goes from large to small.

    Raises:
        PageInvalid: `request.page` is no token of this list with these arguments.
    """
    everything = list(items)
    scope = _scope(operation, request)
    behind = everything

    def place(whole: Key) -> tuple[Any, ...]:
        return (whole[0], _Falling(whole[1]), *whole[2:]) if falling else whole

    if request.page is not None:
        key_of_last = _open(request.page, scope)
        try:
            after = place(key_of_last)
            behind = [item for item in everything if place(key(item)) > after]
        except (TypeError, IndexError):  # a key of another shape, under a digest that somebody worked out
            raise _invalid(request.page) from None
    # Of ten thousand items fifty are shown: they are found without sorting the others
    found = heapq.nsmallest(request.limit + 1, behind, key=lambda item: place(key(item)))
    chosen, more = found[: request.limit], len(found) > request.limit
    return Slice(
        items=chosen, next_page=_seal(key(chosen[-1]), scope) if more else None, total=len(everything)
    )


def one_by_one(make: Callable[[T], R]) -> Callable[[Sequence[T]], Awaitable[list[R]]]:
    """Return a function that makes items one by one, at once."""

    async def made(some: Sequence[T]) -> list[R]:
        return [make(one) for one in some]

    return made


async def page_of(
    context: Context,
    item: type[R],
    found: Iterable[T],
    make: Callable[[Sequence[T]], Awaitable[list[R]]],
    *,
    key: Callable[[T], Key],
    operation: str,
    request: SortedListRequest,
) -> Page[R]:
    """The page that `request` asks for, of the items that `make` makes of what was found.

    Args:
        make: items of some of `found`, one for each in their order; without those that have gone.
        key: the list's own order; unique and alike in shape.

    Raises:
        InvalidArgument: `sort` names no field that can be sorted by, or `top` came with `page`.
        PageInvalid: as `cut`.
    """
    everything = list(found)
    field, falling = _order(item, request)
    if request.top is not None:
        if request.page is not None:
            raise InvalidArgument("top has no pages: leave out page, or top", field="top", value=request.top)
        request = request.model_copy(update={"limit": request.top})
    if field is None:
        page = cut(everything, key=key, operation=operation, request=request)
        items, next_page, total = await make(page.items), page.next_page, page.total
    else:
        made = await _made(everything, make, key)
        sorted_page = cut(
            made,
            key=lambda pair: _place(getattr(pair[1], field), pair[0]),
            operation=operation,
            request=request,
            falling=falling,
        )
        items, next_page, total = [each for _, each in sorted_page.items], sorted_page.next_page, len(made)
    return Page[item](  # type: ignore[valid-type]
        items=items,
        items_reason=None if total else _none_because(request),
        next_page=None if request.top is not None else next_page,
        total=total,
        as_of=format_time(context.now_ms()),
    )


def _none_because(request: SortedListRequest) -> str | None:
    """Name what an empty list was narrowed by; None where it was not."""
    given = request.model_dump(
        exclude_defaults=True, exclude=set(SortedListRequest.model_fields) - {"filter"}
    )
    narrowed = [f"{name} {shown(value)!r}" for name, value in given.items()]
    return f"nothing matches {' and '.join(narrowed)}" if narrowed else None


def _order(item: type[Result], request: SortedListRequest) -> tuple[str | None, bool]:
    if request.sort is None:
        return None, False
    field = request.sort.removeprefix("-")
    fields = [name for name, each in item.model_fields.items() if _is_sorted_by(name, each.annotation)]
    if field not in fields:
        close = close_names(field, fields)
        hint = f"did you mean {either(close)}?" if close else f"there are {', '.join(fields)}"
        raise InvalidArgument(
            f"items cannot be sorted by {shown(field)!r}; {hint}",
            field="sort",
            value=shown(request.sort),
            did_you_mean=close,
            fields=fields,
        )
    return field, request.sort.startswith("-")


def _is_sorted_by(name: str, kind: Any) -> bool:
    options = get_args(kind) if get_origin(kind) in (UnionType, Union) else (kind,)
    return not name.endswith("_reason") and all(
        one in _SORTED_BY or get_origin(one) is Literal for one in options
    )


async def _made(
    found: Sequence[T], make: Callable[[Sequence[T]], Awaitable[list[R]]], key: Callable[[T], Key]
) -> list[tuple[Key, R]]:
    """Every item with its key, some hundreds a turn. Of a hundred one of which has gone, each is made alone."""
    made: list[tuple[Key, R]] = []
    for start in range(0, len(found), MADE_A_TURN):
        some = found[start : start + MADE_A_TURN]
        items = await make(some)
        if len(items) == len(some):
            made += zip(map(key, some), items, strict=True)
        else:
            made += [(key(one), each) for one in some for each in await make([one])]
        await asyncio.sleep(0)
    return made


def _place(value: Any, key: Key) -> Key:
    """Where an item stands in a sorted list: what is unknown stands last, equals in the list's own order."""
    return (1, 0, *key) if value is None else (0, value, *key)


@dataclass(frozen=True, slots=True)
class _Falling:
    """A value that stands before smaller ones."""

    value: Any

    def __lt__(self, other: _Falling) -> bool:
        return bool(other.value < self.value)

    def __gt__(self, other: _Falling) -> bool:
        return bool(other.value > self.value)


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
    """Return what must be the same from page to page; the size of the pages need not."""
    fixed = request.model_dump(mode="json", exclude={"limit", "page", "top"})
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
    if not isinstance(key, list) or not all(isinstance(part, (str, int, float)) for part in key):
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
