"""What asks the cluster for a view: all operations of a refresh side by side, long lists by their pages.

A list of many pages is loaded whole once. After that a refresh asks for the page that is looked at and for one
other, in turn, so that a list of ten thousand costs what one of two thousand does; how old the rows in sight are is
what the header says. Records of the audit come by what is new since the answer before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from pydanube_core.errors import ClusterError

from pydanube_tui.view import SAMPLES, Answer, Ask, Extent, View

PAGE_ITEMS: Final = 1000
MAX_PAGES: Final = 100  # of one list: what is beyond is said not to be there
MAX_NEWS: Final = 1000
MAX_SERIES: Final = 50_000


class Caller(Protocol):
    """What calls operations: `OpsClient`."""

    async def call(
        self, operation: str, arguments: Mapping[str, Any] | None = None, *, plan_token: str = ""
    ) -> dict[str, Any]:
        """The result of an operation.

        Raises:
            ClusterError: what the operation answered, or that nobody did.
        """
        ...


Items = Sequence[Mapping[str, Any]]


class _Asker(Protocol):
    """Asks for one answer again and again."""

    async def refresh(self, caller: Caller, near: str | None) -> tuple[Mapping[str, Any], Items]:
        """The answer, and the items that came with this refresh."""
        ...


class _Pages:
    """A list of any length, page by page."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._tokens: list[str | None] = [None]
        self._pages: list[Items] = []
        self._turn = 0

    async def refresh(self, caller: Caller, near: str | None) -> tuple[Mapping[str, Any], Items]:
        """The whole list as far as it is known, and the items that were asked for now."""
        fresh: list[Mapping[str, Any]] = []
        wanted = [0] if not self._pages else self._due(near)
        while wanted:
            at = wanted.pop(0)
            known = len(self._pages)
            answer = await self._page(caller, at)
            fresh += answer["items"]
            moved = self._put(at, answer)
            if moved and at + 1 < MAX_PAGES and at + 1 not in wanted and (at + 1 >= known or moved):
                wanted.insert(0, at + 1)
        items = [item for page in self._pages for item in page]
        cut = self._tokens[len(self._pages)] if len(self._tokens) > len(self._pages) else None
        return {**answer, "items": items, "next_page": cut}, fresh

    def _due(self, near: str | None) -> list[int]:
        """The page that is looked at, and the next in turn."""
        seen = 0
        if near is not None:
            names = enumerate(self._pages)
            seen = next((at for at, page in names if any(item.get("topic") == near for item in page)), 0)
        self._turn = (self._turn + 1) % len(self._pages)
        return list(dict.fromkeys([seen, self._turn]))

    async def _page(self, caller: Caller, at: int) -> dict[str, Any]:
        arguments = {**self._ask.arguments, "limit": PAGE_ITEMS}
        if self._tokens[at] is not None:
            arguments["page"] = self._tokens[at]
        return await caller.call(self._ask.operation, arguments)

    def _put(self, at: int, answer: Mapping[str, Any]) -> bool:
        """Put a page in its place; True if the one behind it begins elsewhere now, and must be asked for."""
        items, following = answer["items"], answer.get("next_page")
        self._pages[at : at + 1] = [items]
        if following is None:
            del self._pages[at + 1 :], self._tokens[at + 1 :]
            return False
        if at + 1 < len(self._tokens) and self._tokens[at + 1] == following:
            return at + 1 >= len(self._pages)
        self._tokens[at + 1 : at + 2] = [following]
        return True


class _News:
    """The newest records; after the first answer only what came since is asked for."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._items: list[Mapping[str, Any]] = []
        self._since: str | None = None

    async def refresh(self, caller: Caller, _: str | None) -> tuple[Mapping[str, Any], Items]:
        """All that is known, the newest first."""
        arguments = {**self._ask.arguments, "limit": MAX_NEWS}
        if self._since is not None:
            arguments["since"] = f"time:{self._since}"
        answer = await caller.call(self._ask.operation, arguments)
        fresh = answer["items"]
        known = {item["seq"] for item in fresh}
        self._items = [*fresh, *(item for item in self._items if item["seq"] not in known)][:MAX_NEWS]
        self._since = answer["as_of"]
        return {**answer, "items": self._items}, fresh


class _Whole:
    """An answer as it is."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def refresh(self, caller: Caller, _: str | None) -> tuple[Mapping[str, Any], Items]:
        """The answer, and its items where it is a list."""
        answer = await caller.call(self._ask.operation, self._ask.arguments)
        return answer, answer.get("items", ())


_KINDS: Final[Mapping[Extent, Callable[[Ask], _Asker]]] = {
    Extent.ONE: _Whole,
    Extent.ALL: _Pages,
    Extent.NEWS: _News,
}


class Feed:
    """The answers of one view, kept from refresh to refresh, and the series it measures."""

    def __init__(self, caller: Caller, view: View, arguments: Mapping[str, Any]) -> None:
        self.view = view
        self._caller = caller
        self._asks = view.asks(arguments)
        self._askers = {name: _KINDS[ask.extent](ask) for name, ask in self._asks.items()}
        self.answers: dict[str, Answer] = {}
        self.series: dict[str, deque[tuple[int, float]]] = {}

    async def refresh(self, now_ms: int, near: str | None = None) -> None:
        """Ask everything once; afterwards `answers` and `series` are those of now.

        Args:
            near: the topic of a row in sight: its page is asked for.

        Raises:
            ClusterError: the first that an ask which is not optional met; the answers stay as they were.
        """
        names = list(self._askers)
        found = await asyncio.gather(
            *(self._askers[name].refresh(self._caller, near) for name in names), return_exceptions=True
        )
        answers: dict[str, Answer] = {}
        fresh: dict[str, Answer] = {}
        for name, result in zip(names, found, strict=True):
            if isinstance(result, ClusterError) and self._asks[name].optional and not result.retryable:
                answers[name] = result
            elif isinstance(result, BaseException):
                raise result
            else:
                answer, items = result
                answers[name] = answer
                fresh[name] = {**answer, "items": items}
        self.answers = answers
        for series, value in self.view.measures(fresh).items():
            if series not in self.series and len(self.series) >= MAX_SERIES:
                continue
            self.series.setdefault(series, deque(maxlen=SAMPLES)).append((now_ms, value))
