"""Lists: filter, sort, cut to a page, and make the token of the next one.

A list has a default order, and `sort` puts another before it. Sorting by a field that may be costly to
compute requires building every item, in turns of `MADE_A_TURN`.

A page begins after the key of the last item of the page before, so concurrent creations and deletions neither
repeat nor skip an item (`page_tokens`).

Every answer carries a mark. With it as `changed_since`, a list returns the changes since then: the rows as
they are now, and the keys of deleted ones. Brokers follow topics and subscriptions, so that the cost depends
on the changes (`Followed`). For other lists the admin core remembers the last state (`list_memory`).
"""

from __future__ import annotations

import asyncio
import fnmatch
import heapq
import re
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from types import UnionType
from typing import Any, Final, Generic, Literal, TypeVar, Union, get_args, get_origin

from pydanube_core.errors import InvalidArgument
from pydanube_core.list_keys import ListChanges
from pydanube_core.spelling import close_names, either, shown
from pydanube_core.units import format_time

from pydanube_admin.engine import marks
from pydanube_admin.engine.context import Context
from pydanube_admin.engine.list_memory import Identity
from pydanube_admin.engine.models import ListRequest, Page, Result, SortedListRequest
from pydanube_admin.engine.page_tokens import Key, invalid_page, opened, scope_of, seal

T = TypeVar("T")
R = TypeVar("R", bound=Result)

_CHANGED: Final = " changed"  # suffix of the operation's name, in the tokens of pages of changes
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
    """Return a predicate over names. A pattern with a slash matches `/namespace/topic`, else the name alone.

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
    """Return the items that match, yielding to the loop now and then: a pattern may be slow, and there may be many items."""
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
    ordered: bool = False,
) -> Slice[T]:
    """Return the requested page of `items`, ascending by `key`. Keys are unique and of one shape.

    `falling`: the second part of a key goes from large to small. `ordered`: the items are ascending, so that
    only those of the page are read.

    Raises `PageInvalid`: `request.page` is no token of this list with these arguments.
    """
    everything = list(items)
    scope = scope_of(operation, request)
    behind = everything

    def place(whole: Key) -> tuple[Any, ...]:
        return (whole[0], _Falling(whole[1]), *whole[2:]) if falling else whole

    if request.page is not None:
        key_of_last = opened(request.page, scope)
        try:
            after = place(key_of_last)
            if ordered:
                behind = everything[bisect_right(everything, after, key=key) :]
            else:
                behind = [item for item in everything if place(key(item)) > after]
        except (TypeError, IndexError):  # a key of another shape, under a computed digest
            raise invalid_page(request.page) from None
    if ordered:
        found = behind[: request.limit + 1]
    else:  # of ten thousand items fifty are shown: they are found without sorting the others
        found = heapq.nsmallest(request.limit + 1, behind, key=lambda item: place(key(item)))
    chosen, more = found[: request.limit], len(found) > request.limit
    return Slice(
        items=chosen, next_page=seal(key(chosen[-1]), scope) if more else None, total=len(everything)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed(Generic[T]):
    """A list whose changes the brokers report.

    Attributes:
        found: all its items.
        changed: the items that one broker's changes may concern, including those no longer in the list.
        sight: False if the caller's roles show only a part, which changes with them. Then nothing is
            followed, and rows are compared.
        ordered: whether `found` returns them in the list's default order.
    """

    found: Callable[[], Awaitable[Iterable[T]]]
    changed: Callable[[ListChanges], Awaitable[Iterable[T]]]
    sight: bool
    ordered: bool = False


async def page_of(
    context: Context,
    item: type[R],
    found: Iterable[T],
    make: Callable[[T], R],
    *,
    key: Callable[[T], Key],
    request: SortedListRequest,
) -> Page[R]:
    """Return the requested page of the items that `make` makes of `found`. See `Listing`."""

    async def one_by_one(some: Sequence[T]) -> list[R]:
        return [make(one) for one in some]

    def identity(one: T) -> Identity:
        return _identity(make(one))

    return await Listing(context, item, one_by_one, identity, key=key, request=request).page(found)


@dataclass(frozen=True, slots=True)
class Listing(Generic[T, R]):
    """A call of a list.

    Attributes:
        make: makes the items of some found objects, in their order, without those that have gone.
        identity: returns the values of the item's `identity` for a found object.
        key: the list's default order. Keys are unique and of one shape.
    """

    context: Context
    item: type[R]
    make: Callable[[Sequence[T]], Awaitable[list[R]]]
    identity: Callable[[T], Identity]
    _: KW_ONLY
    key: Callable[[T], Key]
    request: SortedListRequest

    async def page(self, found: Iterable[T]) -> Page[R]:
        """The page that the request asks for.

        Raises:
            InvalidArgument: `sort` names no sortable field, `top` came with `page`, or `changed_since` is no
                mark.
            PageInvalid: as `cut`.
        """
        context, request, operation = self.context, self.request, self.context.operation
        scope = marks.scope_of_marks(operation, request)
        asked = marks.asked_mark(context, request, scope)
        lists, kept_as = context.lists, marks.scope_of_memory(context, scope)
        gone: list[dict[str, Any]] | None = None
        because = None
        if asked is None:
            page = await self._whole(list(found))
            if request.page is None and len(page.items) == page.total:  # all of it is here
                lists.see(kept_as, {_identity(each): each for each in page.items})
        else:
            made = await self._made(list(found))
            lists.see(kept_as, {_identity(row): row for _, row in made})
            number = marks.number_in(asked, lists.life)
            changed = None if number is None else lists.changed(kept_as, number)
            if changed is None:
                because = marks.OTHER_START if number is None else marks.NOT_KEPT
            else:
                operation += _CHANGED
                made = [pair for pair in made if _identity(pair[1]) in changed.rows]
                gone = self._named(changed.gone if request.page is None else ())
            some = cut(made, key=lambda pair: pair[0], operation=operation, request=request)
            page = self._of([row for _, row in some.items], next_page=some.next_page, total=some.total)
        mark = marks.seen_mark(lists.life, lists.mark(kept_as))
        return self._marked(page, scope, mark, gone=gone, because=because)

    async def followed(self, followed: Followed[T]) -> Page[R]:
        """As `page`, at a cost that depends on the changes, not on the size of the list."""
        if not followed.sight:
            return await self.page(await followed.found())
        scope = marks.scope_of_marks(self.context.operation, self.request)
        asked = marks.asked_mark(self.context, self.request, scope)
        before = marks.lives_in(asked)
        told = sorted(await self.context.port.list_changes(before or None), key=lambda one: one.life)
        because = None if asked is None else marks.whole_because(before, told)
        gone: list[dict[str, Any]] | None = None
        if asked is None or because is not None:
            page = await self._whole(list(await followed.found()), ordered=followed.ordered)
        else:
            news = dict.fromkeys([each for one in told for each in await followed.changed(one)])
            operation = self.context.operation + _CHANGED
            some = cut(news, key=self.key, operation=operation, request=self.request)
            items = await self.make(some.items)
            there = {_identity(each) for each in items}
            away = [which for which in map(self.identity, some.items) if which not in there]
            unseen = set(map(self.identity, await followed.found())) if away else set()
            gone = self._named(which for which in away if which not in unseen)
            page = self._of(items, next_page=some.next_page, total=some.total)
            if not unseen.isdisjoint(away):  # their broker does not report them: the next mark does
                return self._marked(page, scope, asked or (), gone=gone, because=because)
        return self._marked(page, scope, marks.told_mark(told), gone=gone, because=because)

    def _named(self, gone: Iterable[Identity]) -> list[dict[str, Any]]:
        return [dict(zip(self.item.identity, which, strict=True)) for which in gone]

    def _marked(
        self,
        page: Page[R],
        scope: bytes,
        mark: Key,
        *,
        gone: list[dict[str, Any]] | None,
        because: str | None,
    ) -> Page[R]:
        self.context.lists.note_time(scope, page.as_of, mark)
        return page.model_copy(update={"mark": seal(mark, scope), "gone": gone, "whole_because": because})

    async def _whole(self, everything: Sequence[T], *, ordered: bool = False) -> Page[R]:
        request, operation = self.request, self.context.operation
        field, falling = _order(self.item, request)
        if request.top is not None:
            if request.page is not None:
                raise InvalidArgument(
                    "top has no pages: leave out page, or top", field="top", value=request.top
                )
            request = request.model_copy(update={"limit": request.top})
        if field is None:
            page = cut(everything, key=self.key, operation=operation, request=request, ordered=ordered)
            items, next_page, total = await self.make(page.items), page.next_page, page.total
        else:
            made = await self._made(everything)
            sorted_page = cut(
                made,
                key=lambda pair: sort_place(getattr(pair[1], field), pair[0]),
                operation=operation,
                request=request,
                falling=falling,
            )
            items, next_page, total = (
                [each for _, each in sorted_page.items],
                sorted_page.next_page,
                len(made),
            )
        reason = None if total else none_because(request)
        return self._of(
            items, next_page=None if request.top is not None else next_page, total=total, reason=reason
        )

    def _of(self, items: list[R], *, next_page: str | None, total: int, reason: str | None = None) -> Page[R]:
        return Page[self.item](  # type: ignore[name-defined]
            items=items,
            items_reason=reason,
            next_page=next_page,
            total=total,
            as_of=format_time(self.context.now_ms()),
        )

    async def _made(self, found: Sequence[T]) -> list[tuple[Key, R]]:
        """Make every item with its key, yielding after each hundred. Items that have gone are left out."""
        made: list[tuple[Key, R]] = []
        for start in range(0, len(found), MADE_A_TURN):
            some = found[start : start + MADE_A_TURN]
            items = await self.make(some)
            if len(items) < len(some):
                there = {_identity(each) for each in items}
                some = [one for one in some if self.identity(one) in there]
            made += zip(map(self.key, some), items, strict=True)
            await asyncio.sleep(0)
        return made


def _identity(row: Result) -> Identity:
    return tuple(getattr(row, name) for name in type(row).identity)


def none_because(request: ListRequest) -> str | None:
    """Return a sentence naming the filters of an empty list, or None if there are none."""
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


def sort_place(value: Any, key: Key) -> Key:
    """Return the sort key of an item: unknown values last, equal ones in the list's own order."""
    return (1, 0, *key) if value is None else (0, value, *key)


@dataclass(frozen=True, slots=True)
class _Falling:
    """A value that sorts before smaller ones."""

    value: Any

    def __lt__(self, other: _Falling) -> bool:
        return bool(other.value < self.value)

    def __gt__(self, other: _Falling) -> bool:
        return bool(other.value > self.value)
