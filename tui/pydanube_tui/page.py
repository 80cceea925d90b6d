"""A view's content as plain data: head lines and a table. Made by pure functions, drawn by `grid`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

Item = Mapping[str, Any]
Sortable = float | str | None
# Errors from reading an answer of another shape than expected, as of a broker of another version.
MISREAD: Final = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    ArithmeticError,
    RecursionError,
)


class Tone(StrEnum):
    """The meaning of a text; a theme gives it a style. A glyph always shows the meaning, too."""

    PLAIN = "plain"
    DIM = "dim"
    STRONG = "strong"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    ACCENT = "accent"


Span = tuple[str, Tone]
Line = tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A place to go to: a view and its arguments."""

    view: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The words that lead to the place after `:`."""
        return " ".join([self.view, *(str(value) for value in self.arguments.values())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An operation that Enter on the row calls."""

    operation: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """One field of a row. `value`: the sort key. None comes last."""

    text: str
    tone: Tone = Tone.PLAIN
    value: Sortable = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column, made by the functions of `columns`.

    Attributes:
        name: of the field, as in filters (`lag:>1k`) and the remembered order.
        key: the capital letter that sorts by it, "" for none.
        least: minimum width in cells if there is little room.
        grows: shares the room that is left.
        drop: columns of a higher number leave first if there is too little room. 0 never leaves.
        unit: how a filter reads its numbers: "count", "bytes", "seconds", or "" for text.
        cell: returns its cell of an item, in a situation. None if the rows bring their cells.
        value: returns the sort key, if that is cheaper than the cell.
        moves: the cell changes while the item does not: an age, a rate.
    """

    name: str
    title: str
    key: str = ""
    least: int = 4
    most: int = 60
    right: bool = False
    grows: bool = False
    drop: int = 0
    unit: str = ""
    marks: bool = False  # a change since the refresh before is marked
    cell: Callable[[Item, Any], Cell] | None = None
    value: Callable[[Item], Sortable] | None = None
    moves: bool = False


class Row:
    """A row. `key` identifies it across refreshes. `item` is shown by `y`, and actions take arguments from it.

    The cells of a long list are made of its items when they are drawn, so that ten thousand rows cost only the visible
    ones.
    """

    __slots__ = ("_cells", "_enter", "_folded", "_maker", "heading", "item", "key")

    def __init__(
        self,
        *,
        key: str,
        item: Item | None = None,
        cells: tuple[Cell, ...] = (),
        enter: Target | Call | None = None,
        heading: bool = False,
        maker: Maker | None = None,
    ) -> None:
        self.key = key
        self.item: Item = item or {}
        self.heading = heading  # a title between rows: never selected
        self._cells, self._enter, self._maker = cells, enter, maker
        self._folded: str | None = None

    def cell(self, at: int) -> Cell:
        """The cell of a column, by its place among those of the page."""
        return self._cells[at] if self._maker is None else self._maker.cell(self.item, at)

    def value(self, at: int) -> Sortable:
        """The value by which a column sorts the row."""
        return self._cells[at].value if self._maker is None else self._maker.value(self.item, at)

    @property
    def enter(self) -> Target | Call | None:
        """The place or the call to which Enter leads."""
        return self._enter if self._maker is None else self._maker.enter(self.item)

    @property
    def folded(self) -> str:
        """The texts of its cells, one per line, in lower case, for filters. Without ages and rates."""
        if self._folded is None:
            cells = self._cells if self._maker is None else self._maker.still(self.item)
            self._folded = "\n".join([cell.text.replace("\n", " ") for cell in cells]).casefold()
        return self._folded


class Maker(Protocol):
    """Makes the cells of rows from their items."""

    def cell(self, item: Item, at: int) -> Cell: ...
    def value(self, item: Item, at: int) -> Sortable: ...
    def enter(self, item: Item) -> Target | Call | None: ...
    def still(self, item: Item) -> Iterable[Cell]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContent:
    """The content of one screen: head lines, columns, rows."""

    head: Sequence[Line] = ()
    columns: Sequence[Column] = ()
    rows: Sequence[Row] = ()
    empty: str = "nothing here"  # shown instead of rows
    before: Mapping[str, Row] = field(default_factory=dict)  # of the page before, by their keys
    sort: tuple[str, bool] | None = None  # column and whether falling. None: unsorted


def line(*spans: Span | str) -> Line:
    """Return a line of spans. A bare text is plain."""
    return tuple((each, Tone.PLAIN) if isinstance(each, str) else each for each in spans)


def dim(text: str) -> Span:
    """Return a text of lesser importance."""
    return text, Tone.DIM


def fact(title: str, *spans: Span | str, cells: int = 10) -> Line:
    """Return a head line: a title of so many cells, then its value."""
    return line(dim(f" {title:<{cells}} "), *spans)


def headings(title: str) -> Row:
    """Return a row that begins a group."""
    return Row(key=f"# {title}", cells=(Cell(title, Tone.STRONG),), heading=True)
