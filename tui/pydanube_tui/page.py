"""What a view shows, as plain data: lines at the top, a table below. Made by pure functions, drawn by `grid`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Sortable = float | str | None


class Tone(StrEnum):
    """What a text means; a theme says how that looks. No tone is the only carrier of a meaning: a glyph says it too."""

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
    """A place to go to: a view, and what of."""

    view: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """As it is typed after `:`."""
        return " ".join([self.view, *(str(value) for value in self.arguments.values())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An operation to call when the row is entered."""

    operation: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """One field of a row. `value` is what it is sorted and compared by; None stands after all others."""

    text: str
    tone: Tone = Tone.PLAIN
    value: Sortable = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column.

    Attributes:
        name: of the field, as in filters (`lag:>1k`) and the remembered order.
        key: the capital letter that sorts by it; "" for none.
        least: cells it keeps when there is little room.
        grows: shares the room that is left.
        drop: columns of a higher number leave first where there is too little room; 0 never does.
        unit: how a filter reads its numbers: "count", "bytes", "seconds", or "" for text.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row. `key` names it through refreshes; `item` is what `y` shows and actions take their arguments from."""

    key: str
    cells: tuple[Cell, ...]
    item: Mapping[str, Any] = field(default_factory=dict)
    enter: Target | Call | None = None
    heading: bool = False  # a title between rows: never selected


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One screen."""

    head: Sequence[Line] = ()
    columns: Sequence[Column] = ()
    rows: Sequence[Row] = ()
    empty: str = "nothing here"  # said in place of rows
    as_of_ms: int | None = None  # of the oldest answer
    sort: tuple[str, bool] | None = None  # column and whether falling; None: as the rows come
    title: str = ""  # in place of the view's, in the crumbs


def line(*spans: Span | str) -> Line:
    """A line of spans; a bare text is plain."""
    return tuple((each, Tone.PLAIN) if isinstance(each, str) else each for each in spans)


def headings(title: str, columns: int) -> Row:
    """A row that begins a group."""
    cells = (Cell(title, Tone.STRONG), *[Cell("")] * (columns - 1))
    return Row(key=f"# {title}", cells=cells, heading=True)
