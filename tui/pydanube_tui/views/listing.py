"""Views that are one list of one operation: a table of its fields is all they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydanube_tui.page import Call, Cell, Column, Line, Page, Row, Target, Tone
from pydanube_tui.text import ago, count, milliseconds, size, span
from pydanube_tui.view import Ask, Extent, Situation, View
from pydanube_tui.views.wording import shown

Item = Mapping[str, Any]
Get = Callable[[Item], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A column, and how an item becomes its cell."""

    column: Column
    cell: Callable[[Item, int], Cell]  # of the item and the time now


def _getter(field: str | Get) -> Get:
    return field if callable(field) else lambda item: item.get(field)


def words(name: str, title: str, get: str | Get = "", *, tone: Tone = Tone.PLAIN, **column: Any) -> Shape:
    """A text."""
    take = _getter(get or name)

    def cell(item: Item, _: int) -> Cell:
        text = shown(take(item))
        return Cell(text, tone, text)

    return Shape(column=Column(name=name, title=title, **column), cell=cell)


def told(name: str, title: str, cell: Callable[[Item], Cell], **column: Any) -> Shape:
    """A cell with a tone of its own."""
    return Shape(column=Column(name=name, title=title, **column), cell=lambda item, _: cell(item))


def number(name: str, title: str, get: str | Get = "", *, unit: str = "count", **column: Any) -> Shape:
    """A number: counted, in bytes or in seconds."""
    take = _getter(get or name)
    write = {"count": count, "bytes": size, "seconds": span}[unit]

    def cell(item: Item, _: int) -> Cell:
        value = take(item)
        return Cell(write(value), Tone.PLAIN if value else Tone.DIM, value)

    return Shape(column=Column(name=name, title=title, right=True, unit=unit, **column), cell=cell)


def since(name: str, title: str, field: str, **column: Any) -> Shape:
    """How long ago a time was; sorted so that rising is the newest first."""

    def cell(item: Item, now_ms: int) -> Cell:
        then = milliseconds(item.get(field))
        return Cell(ago(item.get(field), now_ms), Tone.DIM, None if then is None else (now_ms - then) / 1000)

    rest = {"least": 6, "most": 6, **column}
    return Shape(column=Column(name=name, title=title, right=True, unit="seconds", **rest), cell=cell)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What is particular of a list."""

    operation: str
    shapes: Sequence[Shape]
    key: Callable[[Item], str]
    empty: str
    takes: Sequence[str] = ()  # arguments of the view that are the operation's
    arguments: Mapping[str, Any] | None = None
    extent: Extent = Extent.ALL
    enter: Callable[[Item], Target | Call | None] = lambda _: None
    wanted: Callable[[Item, Mapping[str, Any]], bool] = lambda _item, _arguments: True
    sort: tuple[str, bool] | None = None
    head: Callable[[Situation], Sequence[Line]] = lambda _: ()
    beside: Mapping[str, Ask] | None = None  # asked too, for the head

    @property
    def columns(self) -> Sequence[Column]:
        """The columns."""
        return tuple(shape.column for shape in self.shapes)

    def asks(self, arguments: Mapping[str, Any]) -> Mapping[str, Ask]:
        """The list, and what stands beside it."""
        given = {name: arguments[name] for name in self.takes if name in arguments}
        whole = {**(self.arguments or {}), **given}
        return {
            "list": Ask(operation=self.operation, arguments=whole, extent=self.extent),
            **(self.beside or {}),
        }

    def page(self, situation: Situation) -> Page:
        """A row for each item."""
        return Page(
            head=self.head(situation),
            columns=self.columns,
            rows=[
                self._row(item, situation)
                for item in situation.items("list")
                if self.wanted(item, situation.arguments)
            ],
            empty=self.empty,
            as_of_ms=milliseconds(situation.of("list").get("as_of")),
            sort=self.sort,
        )

    def _row(self, item: Item, situation: Situation) -> Row:
        cells = tuple(shape.cell(item, situation.now_ms) for shape in self.shapes)
        return Row(key=self.key(item), cells=cells, item=item, enter=self.enter(item))


def view_of(listing: Listing, *, name: str, title: str, summary: str, twin: str, **more: Any) -> View:
    """The view that shows a listing."""
    return View(
        name=name,
        title=title,
        summary=summary,
        asks=listing.asks,
        page=listing.page,
        columns=listing.columns,
        twin=twin,
        **more,
    )
