"""What asks the cluster for a view: all operations of a refresh side by side, long lists by their pages.

A list of many pages is loaded whole once. After that a refresh asks what changed, so that a list of ten thousand at rest
costs what an empty one does. Records of the audit come by what is new since the answer before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Final, Protocol

from pydanube_admin.registry import OPERATIONS
from pydanube_core.errors import ClusterError

from pydanube_tui.page import Item
from pydanube_tui.view import SAMPLES, Answer, Ask, Extent, View

PAGE_ITEMS: Final = 1000
MAX_PAGES: Final = 100  # of one list: what is beyond is said not to be there
MAX_NEWS: Final = 1000
MAX_SERIES: Final = 50_000
AGE: Final = "oldest_unread_age_s"  # the field of a list that the clock moves
LEAST_AGED_S: Final = 2.0
AGED_SHARE: Final = 0.02  # of an age: less more is not worth another row


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


Items = Sequence[Item]
Key = tuple[Any, ...]  # the fields by which a list's items are told apart


class _Asker(Protocol):
    """Asks for one answer again and again."""

    async def refresh(self, caller: Caller) -> tuple[Mapping[str, Any], Items]:
        """The answer, and the items that came with this refresh."""
        ...


class _Changing:
    """A list of any length: whole once, page by page; afterwards what changed and what went.

    What is read from a log, and a broker that knows no marks, give the whole list each time.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._identity = OPERATIONS[ask.operation].identity
        self._rows: dict[Key, Item] = {}
        self._items: list[Item] = []
        self._mark: str | None = None
        self._moved: set[Key] = set()  # what came with the refresh before
        self._ages: dict[Key, float] = {}  # of rows with an age: the monotonic second it was right

    async def refresh(self, caller: Caller) -> tuple[Mapping[str, Any], Items]:
        """The whole list, and of it what changed now, or came to rest since the refresh before."""
        asked = {**self._ask.arguments, "limit": PAGE_ITEMS}
        if self._mark is not None:
            asked["changed_since"] = self._mark
        answer = first = await caller.call(self._ask.operation, asked)
        answers = [first]
        while (page := answer.get("next_page")) is not None and len(answers) < MAX_PAGES:
            answer = await caller.call(self._ask.operation, {**asked, "page": page})
            answers.append(answer)
        rows, moved = (dict(self._rows) if "gone" in first else {}), set[Key]()
        for each in answers:
            for key in each.get("gone", ()):
                rows.pop(self._key(key), None)
            for item in each["items"]:
                moved.add(key := self._key(item) if self._identity else (len(rows),))
                rows[key] = item
        grown = self._grow_older(rows, moved)
        if moved or grown or rows.keys() != self._rows.keys():
            self._items = list(rows.values())
        fresh = [rows[key] for key in rows.keys() & (moved | self._moved)]
        self._rows, self._moved, self._mark = rows, moved, first.get("mark")
        return {**answer, "items": self._items}, fresh

    def _key(self, item: Item) -> Key:
        return tuple(item[name] for name in self._identity)

    def _grow_older(self, rows: dict[Key, Item], moved: set[Key]) -> bool:
        """Move what only the clock moves, which is no change to the broker; whether anything is shown differently now."""
        now_s, grown = monotonic(), False
        for key in moved:
            if rows[key].get(AGE) is None:
                self._ages.pop(key, None)
            else:
                self._ages[key] = now_s
        for key, right_s in list(self._ages.items()):
            if (item := rows.get(key)) is None:
                del self._ages[key]
            elif now_s - right_s >= max(LEAST_AGED_S, AGED_SHARE * item[AGE]):
                rows[key] = {**item, AGE: item[AGE] + now_s - right_s}
                self._ages[key], grown = now_s, True
        return grown


class _News:
    """The newest records; after the first answer only what came since is asked for."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._items: list[Mapping[str, Any]] = []
        self._since: str | None = None

    async def refresh(self, caller: Caller) -> tuple[Mapping[str, Any], Items]:
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

    async def refresh(self, caller: Caller) -> tuple[Mapping[str, Any], Items]:
        """The answer, and its items where it is a list."""
        answer = await caller.call(self._ask.operation, self._ask.arguments)
        return answer, answer.get("items", ())


_KINDS: Final[Mapping[Extent, Callable[[Ask], _Asker]]] = {
    Extent.ONE: _Whole,
    Extent.ALL: _Changing,
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
        self._refreshed_ms = 0

    async def refresh(self, now_ms: int) -> None:
        """Ask everything once; afterwards `answers` and `series` are those of now.

        Raises:
            ClusterError: the first that an ask which is not optional met; the answers stay as they were.
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
                answer, items = result
                answers[name] = answer
                fresh[name] = {**answer, "items": items}
        self.answers = answers
        before_ms, self._refreshed_ms = self._refreshed_ms, now_ms
        for series, value in self.view.measures(fresh).items():
            if series not in self.series and len(self.series) >= MAX_SERIES:
                continue
            moments = self.series.setdefault(series, deque(maxlen=SAMPLES))
            if moments and moments[-1][0] < before_ms:  # it was at rest until the refresh before
                moments.append((before_ms, moments[-1][1]))
            moments.append((now_ms, value))
