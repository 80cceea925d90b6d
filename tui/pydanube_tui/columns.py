"""Short ways to write a column: its name, how it lies, and what it shows of an item.

How it lies is said in words: the capital letter that sorts by it, its least and most cells, `grows`, `right`, `marks`,
`drop=N`, a unit. `N 20-60 grows`: sorted by N, from 20 to 60 cells wide, and it shares the room that is left.
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


def column(name: str, lies: str, *, title: str | None = None, **more: Any) -> Column:
    """A column whose rows bring their cells, or with what `more` says."""
    for word in lies.split():
        if word in _UNITS:
            more["unit"] = word
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


def told(name: str, lies: str, cell: Callable[[Item], Cell], *, title: str | None = None) -> Column:
    """A cell with a tone of its own."""
    return column(name, lies, title=title, cell=lambda item, _: cell(item))


def moving(
    name: str, lies: str, cell: Callable[[Item, Situation], Cell], *, title: str | None = None
) -> Column:
    """A cell that changes while its item does not."""
    return column(name, lies, title=title, cell=cell, moves=True)


def words(
    name: str, lies: str, get: str | Get = "", *, title: str | None = None, tone: Tone = Tone.PLAIN
) -> Column:
    """Make a column of texts, by a field's name or a function of the item."""
    take = _getter(get or name)

    def text(item: Item) -> str:
        return shown(take(item))

    def cell(item: Item, _: object) -> Cell:
        found = text(item)
        return Cell(found, tone, found)

    return column(name, lies, title=title, cell=cell, value=text)


def number(name: str, lies: str, get: str | Get = "", *, title: str | None = None) -> Column:
    """A number, written by its unit."""
    take = _getter(get or name)
    write = next((_UNITS[word] for word in lies.split() if word in _UNITS), count)

    def cell(item: Item, _: object) -> Cell:
        value = take(item)
        return Cell(write(value), Tone.PLAIN if value else Tone.DIM, value)

    return column(name, f"count {lies} right", title=title, cell=cell, value=take)


def since(name: str, lies: str, field: str) -> Column:
    """How long ago a time was; sorted so that rising is the newest first."""

    def cell(item: Item, situation: Situation) -> Cell:
        then = milliseconds(item.get(field))
        age_s = None if then is None else (situation.now_ms - then) / 1000
        return Cell(ago(item.get(field), situation.now_ms), Tone.DIM, age_s)

    return moving(name, f"6 right seconds {lies}", cell)


def _getter(field: str | Get) -> Callable[[Item], Any]:
    return field if callable(field) else lambda item: item.get(field)
