"""A view: the operations that it calls, and the pure functions that make a page of their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice, pairwise
from typing import Any, Final, TypeVar

from pydanube_core.errors import ClusterError

from pydanube_tui.page import (
    MISREAD,
    Call,
    Cell,
    Column,
    Item,
    Line,
    PageContent,
    Row,
    Sortable,
    Target,
    Tone,
    line,
)
from pydanube_tui.text import milliseconds

T = TypeVar("T")
Answer = Mapping[str, Any] | ClusterError
Arguments = Mapping[str, Any]
Moments = Sequence[tuple[int, float]]  # (milliseconds, value), oldest first
SAMPLES: Final = 30  # of each series a view keeps
LONG: Final = 300  # of its first `CHARTS` series, which are drawn as wide as the screen: ten minutes at 2 s
CHARTS: Final = 50
CHARTED: Final = "1h"  # the span of charts that brokers keep


class Extent(StrEnum):
    """How much of a list is requested."""

    ONE = "one"  # the answer unchanged
    ALL = "all"  # every page. After the first answer, changes and deletions
    NEWS = "news"  # newest first. After the first answer only newer items


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One operation that a view calls at each refresh.

    Without the answer of an `optional` one the view still works. Of one `for_names` a view shows names beside its own
    items. Its figures, which always change, cause no new page.
    """

    operation: str
    arguments: Arguments = field(default_factory=dict)
    extent: Extent = Extent.ONE
    optional: bool = False
    for_names: bool = False


def items_of(answers: Mapping[str, Answer], name: str) -> Sequence[Item]:
    """Return the items of a list among the answers, none if it is missing."""
    found = answers.get(name)
    return found.get("items", ()) if isinstance(found, Mapping) else ()


def given(arguments: Arguments, *names: str) -> dict[str, Any]:
    """Return the named arguments that were given."""
    return {name: arguments[name] for name in names if arguments.get(name)}


def listed(
    operation: str, *takes: str, extent: Extent = Extent.ALL, **fixed: Any
) -> Callable[[Arguments], dict[str, Ask]]:
    """Return the function that lists the operations of a view with one list. `takes`: the view's arguments for it."""
    return lambda arguments: {
        "list": Ask(operation=operation, arguments={**fixed, **given(arguments, *takes)}, extent=extent)
    }


@dataclass(slots=True, kw_only=True)
class Situation:
    """The facts from which the pages of an open view are made, updated at each refresh."""

    view: View
    arguments: Arguments
    answers: Mapping[str, Answer]
    now_ms: int
    width: int = 80
    height: int = 24
    # each value once, with the time of its arrival
    series: Mapping[str, Moments] = field(default_factory=dict)
    times: Sequence[int] = ()  # of the refreshes
    rows: dict[str, Row] = field(default_factory=dict)  # of the page before
    form: str = ""  # in which payloads are shown
    derived: dict[str, Any] = field(default_factory=dict)  # from the answers, shared by all cells of a page

    def of(self, name: str) -> Mapping[str, Any]:
        """Return an answer, empty if there is none."""
        found = self.answers.get(name)
        return found if isinstance(found, Mapping) else {}

    def items(self, name: str = "list") -> Sequence[Item]:
        """Return the items of a list."""
        return items_of(self.answers, name)

    def error(self, name: str) -> ClusterError | None:
        """Return the error of a missing optional answer."""
        found = self.answers.get(name)
        return found if isinstance(found, ClusterError) else None

    def unseen(self) -> list[str]:
        """The brokers that did not answer, with the reason. The lists lack their items."""
        found = (each for name in self.answers for each in self.of(name).get("not_seen") or ())
        known = (each for each in found if isinstance(each, Mapping))  # an older broker's balance has ids
        return list(dict.fromkeys(f"broker {each['broker_id']}: {each['why']}" for each in known))

    def moments(self, name: str, most: int = SAMPLES) -> Moments:
        """Return a series with its times, for the last refreshes."""
        came, found = self.series.get(name, ()), []
        at = len(came) - 1
        for time in islice(reversed(self.times), most):
            while at >= 0 and came[at][0] > time:
                at -= 1
            if at < 0:
                break
            found.append((time, came[at][1]))
        return found[::-1]

    def values(self, name: str, most: int = SAMPLES) -> list[float]:
        """Return a series without its times."""
        return [value for _, value in self.moments(name, most)]

    def rates(self, name: str, most: int = SAMPLES) -> list[float | None]:
        """Return a counter's growth per second between refreshes, None where it restarted."""
        found: list[float | None] = []
        for (before_ms, before), (after_ms, after) in pairwise(self.moments(name, most)):
            usable = after >= before and after_ms > before_ms
            found.append((after - before) * 1000 / (after_ms - before_ms) if usable else None)
        return found

    def rate(self, name: str) -> float | None:
        """Return the newest of `rates`, None if unknown."""
        found = self.rates(name, 2)
        return found[-1] if found else None

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return the result of `make`, which derives it from the answers and is called once per page."""
        if name not in self.derived:
            self.derived[name] = make()
        return self.derived[name]  # type: ignore[no-any-return]

    # -- the maker of the rows -----------------------------------------------------------------------------------

    def cell(self, item: Item, at: int) -> Cell:
        """The cell of a column for an item."""
        cell = self.view.columns[at].cell
        assert cell is not None, self.view.columns[at].name
        try:
            return cell(item, self)
        except MISREAD:  # while drawing: one cell fails, not the console
            return Cell("?", Tone.WARN)

    def value(self, item: Item, at: int) -> Sortable:
        """The value by which a column sorts the row."""
        value = self.view.columns[at].value
        if value is None:
            return self.cell(item, at).value
        try:
            return value(item)
        except MISREAD:
            return None

    def still(self, item: Item) -> Iterable[Cell]:
        """Return the cells that change only with their item."""
        return [self.cell(item, at) for at, column in enumerate(self.view.columns) if not column.moves]

    def enter(self, item: Item) -> Target | Call | None:
        """The place or the call to which Enter leads."""
        try:
            return self.view.enter(item)
        except MISREAD:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A view. All functions are pure.

    Attributes:
        summary: its purpose, for help and the documentation.
        twin: the equivalent command, without a screen.
        asks: arguments -> name -> operation to call.
        columns: of its rows, which are made of `items`: `key` names each, by default by the field of the first column,
            `enter` returns the place to which Enter leads.
        rows: instead of `items`, if rows of several kinds stand together, with their own cells.
        takes: names of its arguments, in the order they are typed after `:`. Those of `may` can be left out.
        measures: answers -> name -> a number whose last `SAMPLES` values are kept.
        faults: the filter that leaves the rows that are not well.
        dated: the answers whose time is the page's. The first that has one counts.
        instead: another view for some arguments, under the same name.
    """

    name: str
    summary: str
    twin: str
    asks: Callable[[Arguments], Mapping[str, Ask]]
    columns: Sequence[Column] = ()
    items: Callable[[Situation], Iterable[Item]] = Situation.items
    key: Callable[[Item], str] | None = None
    enter: Callable[[Item], Target | Call | None] = lambda _: None
    rows: Callable[[Situation], Iterable[Row]] | None = None
    head: Callable[[Situation], Sequence[Line]] = lambda _: ()
    empty: str = "nothing here"  # shown instead of rows
    sort: tuple[str, bool] | None = None  # column and whether falling. None: unsorted
    faults: str = ""
    dated: tuple[str, ...] = ("list",)
    aliases: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    measures: Callable[[Mapping[str, Answer]], Mapping[str, float]] = lambda _: {}
    live: bool = False  # rows come from a reader of messages, not from answers
    instead: Callable[[Arguments], View | None] = lambda _: None

    @property
    def title(self) -> str:
        """The name as a title."""
        return self.name.replace("-", " ").capitalize()

    def as_of_ms(self, situation: Situation) -> int | None:
        """The time of the page's data, in milliseconds since 1970."""
        times = (milliseconds(situation.of(name).get("as_of")) for name in self.dated)
        return next((time for time in times if time is not None), None)

    def page(self, situation: Situation) -> PageContent:
        """Return the page of the answers."""
        situation.derived.clear()
        unseen = [line((f" ▼ not seen  {told}", Tone.WARN)) for told in situation.unseen()]
        rows = self._made(situation) if self.rows is None else list(self.rows(situation))
        before, situation.rows = situation.rows, {row.key: row for row in rows}
        return PageContent(
            head=[*unseen, *self.head(situation)],
            columns=self.columns,
            rows=rows,
            before=before,
            empty=self.empty,
            sort=self.sort,
        )

    def _made(self, situation: Situation) -> list[Row]:
        """Return a row for each item; the former row if the item is the same."""
        before, rows = situation.rows, []
        for item in self.items(situation):
            key = str(item[self.columns[0].name]) if self.key is None else self.key(item)
            row = before.get(key)
            if row is None or (row.item is not item and row.item != item):
                row = Row(key=key, item=item, maker=situation)
            rows.append(row)
        return rows
