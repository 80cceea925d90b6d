"""Shorthands for columns: name, layout, and the content of an item's cell.

The layout is written in words: the capital letter that sorts by it, its least and most cells, `grows`, `right`,
`marks`, `drop=N`, a unit. `exact` numbers are written with all their digits. `N 20-60 grows`: sorted by N, from 20 to
60 cells wide, and it shares the remaining room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pydanube_tui.page import Cell, Column, Item, Tone
from pydanube_tui.text import ago, count, milliseconds, shown, size, span

if TYPE_CHECKING:
    from pydanube_tui.view import Situation

Get = Callable[[Item], Any]
_UNITS: Final = {"count": count, "bytes": size, "seconds": span}
_WRITTEN: Final = {**_UNITS, "exact": shown}


def column(name: str, layout: str, *, title: str | None = None, **more: Any) -> Column:
    """Return a column whose rows have their own cells, or the cells of `more`."""
    for word in layout.split():
        if word in _WRITTEN:
            more["unit"] = word if word in _UNITS else "count"
        elif word in ("grows", "right", "marks"):
            more[word] = True
        elif word.startswith("drop="):
            more["drop"] = int(word[5:])
        elif word[0].isdigit():
            least, _, most = word.partition("-")
            more |= {"least": int(least), "most": int(most or least)}
        else:
            more["key"] = word
    return Column(name=name, title=name if title is None else title, **more)


def custom(name: str, layout: str, cell: Callable[[Item], Cell], *, title: str | None = None) -> Column:
    """Return a column of cells with tones of their own."""
    return column(name, layout, title=title, cell=lambda item, _: cell(item))


def moving(
    name: str, layout: str, cell: Callable[[Item, Situation], Cell], *, title: str | None = None
) -> Column:
    """Return a column of cells that change while their items do not."""
    return column(name, layout, title=title, cell=cell, moves=True)


def words(
    name: str, layout: str, get: str | Get = "", *, title: str | None = None, tone: Tone = Tone.PLAIN
) -> Column:
    """Return a column of texts, from a field or a function of the item."""
    take = _getter(get or name)

    def text(item: Item) -> str:
        return shown(take(item))

    def cell(item: Item, _: object) -> Cell:
        found = text(item)
        return Cell(found, tone, found)

    return column(name, layout, title=title, cell=cell, value=text)


def number(
    name: str, layout: str, get: str | Get = "", *, title: str | None = None, tone: Tone | None = None
) -> Column:
    """Return a column of numbers with units. Without a tone of their own, 0 and unknown are dimmed."""
    take = _getter(get or name)
    write = next((_WRITTEN[word] for word in layout.split() if word in _WRITTEN), count)

    def cell(item: Item, _: object) -> Cell:
        value = take(item)
        return Cell(write(value), tone or (Tone.PLAIN if value else Tone.DIM), value)

    return column(name, f"count {layout} right", title=title, cell=cell, value=take)


def since(name: str, layout: str, field: str) -> Column:
    """Return a column of ages. Ascending is the newest first."""

    def cell(item: Item, situation: Situation) -> Cell:
        then = milliseconds(item.get(field))
        age_s = None if then is None else (situation.now_ms - then) / 1000
        return Cell(ago(item.get(field), situation.now_ms), Tone.DIM, age_s)

    return moving(name, f"6 right seconds {layout}", cell)


def _getter(field: str | Get) -> Callable[[Item], Any]:
    return field if callable(field) else lambda item: item.get(field)
