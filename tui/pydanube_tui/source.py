"""Fetch the answers of a view: all operations of a refresh in parallel, long lists by pages.

A list is loaded completely once. After that a refresh fetches its changes and deletions, so that ten thousand unchanged
rows cost nothing. Of audit records it fetches those newer than the last answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from pydanube_admin.registry import OPERATIONS
from pydanube_core.errors import ClusterError

from pydanube_tui.page import Item
from pydanube_tui.view import CHARTS, LONG, SAMPLES, Answer, Ask, Extent, View

PAGE_ITEMS: Final = 1000
MAX_ITEMS: Final = 100_000  # of one list. The screen says that there are more
MAX_NEWS: Final = 1000
MAX_SERIES: Final = 50_000


class Caller(Protocol):
    """The client that calls operations: `OpsClient`."""

    async def call(
        self, operation: str, arguments: Mapping[str, Any] | None = None, *, plan_token: str = ""
    ) -> dict[str, Any]:
        """Return the result of an operation.

        Raises:
            ClusterError: the operation's error, or that of the connection.
        """


Items = Sequence[Item]


class _Asker(Protocol):
    """Refreshes one answer. `moved`: it differs from the one before."""

    moved: bool

    async def refresh(self, caller: Caller) -> tuple[Mapping[str, Any], Items]:
        """Return the answer, and the items new in this refresh."""


class _List:
    """A list of any length: read completely at first, then by its changes."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._names = OPERATIONS[ask.operation].identity
        self._items: dict[tuple[Any, ...], Item] = {}
        self._mark: str | None = None
        self.moved = True

    async def refresh(self, caller: Caller) -> tuple[Mapping[str, Any], Items]:
        """Return the whole list, and the items new in this refresh."""
        asked = {**self._ask.arguments, "limit": PAGE_ITEMS}
        if self._mark is not None:
            asked["changed_since"] = self._mark
        first = answer = await caller.call(self._ask.operation, asked)
        fresh, gone = [*answer["items"]], [*(answer.get("gone") or ())]
        while answer["next_page"] is not None and len(fresh) < MAX_ITEMS:
            answer = await caller.call(self._ask.operation, {**asked, "page": answer["next_page"]})
            fresh += answer["items"]
            gone += answer.get("gone") or ()
        if first.get("gone") is None:
            self._items = {}
        for item in gone:
            self._items.pop(self._key(item), None)
        # Changes by the clock alone are not reported: each item keeps the time to which its ages belong.
        for item in fresh:
            key = self._key(item) or (len(self._items),)  # log lines have no key
            self._items[key] = {"as_of": first["as_of"], **item}
        self._mark = first.get("mark")
        self.moved = bool(fresh or gone or first.get("gone") is None)
        return {**first, "items": [*self._items.values()], "next_page": answer["next_page"]}, fresh

    def _key(self, item: Item) -> tuple[Any, ...]:
        return tuple(item.get(name) for name in self._names)


class _News:
    """The newest records. After the first answer only newer ones are fetched."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._items: list[Mapping[str, Any]] = []
        self._since: str | None = None
        self.moved = True

    async def refresh(self, caller: Caller) -> tuple[Mapping[str, Any], Items]:
        """Return all known records, newest first."""
        arguments = {**self._ask.arguments, "limit": MAX_NEWS}
        if self._since is not None:
            arguments["since"] = f"time:{self._since}"
        answer = await caller.call(self._ask.operation, arguments)
        fresh = answer["items"]
        known = {item["seq"] for item in fresh}
        self.moved = bool(fresh)
        self._items = [*fresh, *(item for item in self._items if item["seq"] not in known)][:MAX_NEWS]
        self._since = answer["as_of"]
        return {**answer, "items": self._items}, fresh


class _Whole:
    """An answer that is read completely each time. A list has moved if its items differ from the last ones."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._items: Items | None = None
        self.moved = True

    async def refresh(self, caller: Caller) -> tuple[Mapping[str, Any], Items]:
        """Return the answer, and its items if it is a list."""
        answer = await caller.call(self._ask.operation, self._ask.arguments)
        items: Items | None = answer.get("items")
        self.moved = items is None or items != self._items
        self._items = items
        return answer, items or ()


_KINDS: Final[Mapping[Extent, Callable[[Ask], _Asker]]] = {
    Extent.ONE: _Whole,
    Extent.ALL: _List,
    Extent.NEWS: _News,
}


class Feed:
    """The answers of one view, kept from refresh to refresh, and the series measured from them."""

    def __init__(
        self, caller: Caller, view: View, arguments: Mapping[str, Any], before: Feed | None = None
    ) -> None:
        """`before`: the feed of the same view, when it was left. Its series continue."""
        self.view = view
        self._caller = caller
        self._asks = view.asks(arguments)
        self._askers: dict[str, _Asker] = {}
        self.begin()
        self.answers: dict[str, Answer] = {}
        self.series: dict[str, deque[tuple[int, float]]] = {} if before is None else before.series
        self.times: deque[int] = deque(maxlen=LONG) if before is None else before.times
        self.still = 0  # refreshes since the last news

    def begin(self) -> None:
        """Read whole lists at the next refresh."""
        self._askers = {name: _KINDS[ask.extent](ask) for name, ask in self._asks.items()}

    async def refresh(self, now_ms: int) -> None:
        """Call every operation once. Afterwards `answers`, `series` and `times` are up to date.

        Raises:
            ClusterError: the first error of an operation that is not optional. The answers are unchanged.
        """
        names = list(self._askers)
        found = await asyncio.gather(
            *(self._askers[name].refresh(self._caller) for name in names), return_exceptions=True
        )
        answers: dict[str, Answer] = {}
        fresh: dict[str, Answer] = {}
        for name, result in zip(names, found, strict=True):
            if isinstance(result, ClusterError) and self._asks[name].optional and not result.retryable:
                answers[name] = result
            elif isinstance(result, BaseException):
                raise result
            else:
                answers[name], items = result
                fresh[name] = {**result[0], "items": items}
        self.answers = answers
        self.still = (
            0
            if any(self._askers[name].moved and not self._asks[name].for_names for name in fresh)
            else self.still + 1
        )
        self.times.append(now_ms)
        for name, value in self.view.measures(fresh).items():
            if name in self.series or len(self.series) < MAX_SERIES:
                kept = LONG if len(self.series) < CHARTS else SAMPLES
                moments = self.series.setdefault(name, deque(maxlen=kept))
                if not moments or moments[-1][1] != value:  # an unchanged value is not stored again
                    moments.append((now_ms, value))
