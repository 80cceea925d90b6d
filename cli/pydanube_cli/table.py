"""Tables: as wide as the terminal, or in a pipe as wide as needed.

If the width does not suffice, headers wrap first, then columns without any value are dropped, then texts
fold. Figures are never cut. Only then are the last columns dropped, with a note.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

GAP = 2
NARROWEST = 14  # a folded text narrower than this is no pleasure
NAME = 40  # the first column identifies the row: up to this width it stays whole


def cell_len(text: str) -> int:
    """Return the width of a text on a terminal, in cells."""
    if text.isascii():
        return len(text)
    marks = ("Mn", "Me", "Cf")
    return sum(
        0 if unicodedata.category(mark) in marks else 1 + (unicodedata.east_asian_width(mark) in "WF")
        for mark in text
    )


@dataclass(slots=True)
class TextColumn:
    """A column. `laid_out` sets `width`."""

    name: str
    cells: Sequence[str]
    numeric: bool
    empty: bool  # no item has a value
    width: int = field(default=0)
    head: list[str] = field(default_factory=list)

    def natural(self) -> int:
        return max((cell_len(cell) for cell in self.cells), default=0)


def laid_out(columns: Sequence[TextColumn], width: int | None) -> tuple[list[str], list[str], list[str]]:
    """Return (lines of the head, lines of the body, names of columns without room)."""
    for column in columns:
        column.head = [column.name]
        column.width = max(column.natural(), len(column.name))
    shown, dropped = list(columns), list[str]()
    if width is not None and _total(shown) > width:
        for column in shown:
            column.head = _wrapped(column.name, column.natural())
            column.width = max(column.natural(), *(len(line) for line in column.head))
        if _total(shown) > width:
            shown = [column for column in shown if not column.empty] or shown
        _fold(shown, width)
        while len(shown) > 1 and _total(shown) > width:
            dropped.insert(0, shown.pop().name)
            for column in shown:  # dropping a column may leave more room for the others
                column.width = max(column.natural(), *(len(line) for line in column.head))
            _fold(shown, width)
    heads = max((len(column.head) for column in shown), default=0)
    head = [
        _line([(column, ([""] * (heads - len(column.head)) + column.head)[row]) for column in shown])
        for row in range(heads)
    ]
    body = [line for row in range(len(shown[0].cells) if shown else 0) for line in _row(shown, row)]
    return head, body, dropped


def _total(columns: Sequence[TextColumn]) -> int:
    return sum(column.width for column in columns) + GAP * (len(columns) - 1)


def _wrapped(name: str, natural: int) -> list[str]:
    """Wrap a column's title: `dispatch_strategy` over values of 8 becomes `dispatch_`, `strategy`."""
    words = name.split("_")
    words = [f"{word}_" for word in words[:-1]] + words[-1:]
    room = max(natural, *(len(word) for word in words))
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) > room:
            lines.append("")
        lines[-1] += word
    return lines


def _fold(columns: Sequence[TextColumn], width: int) -> None:
    """Narrow the widest text until all fit, or none can be narrowed."""
    while (over := _total(columns) - width) > 0:
        texts = [
            column
            for at, column in enumerate(columns)
            if not column.numeric and column.width > (NARROWEST if at else NAME)
        ]
        if not texts:
            return
        widest = max(texts, key=lambda column: column.width)
        others = [column.width for column in texts if column is not widest]
        least = max(NARROWEST, *(others or [0]))
        floor = NAME if widest is columns[0] else NARROWEST
        widest.width = max(floor, least if widest.width > least else floor, widest.width - over)


def _row(columns: Sequence[TextColumn], row: int) -> list[str]:
    folded = [
        (column, textwrap.wrap(column.cells[row], column.width, break_on_hyphens=False) or [""])
        if cell_len(column.cells[row]) > column.width
        else (column, [column.cells[row]])
        for column in columns
    ]
    height = max(len(lines) for _, lines in folded)
    return [
        _line([(column, lines[at] if at < len(lines) else "") for column, lines in folded])
        for at in range(height)
    ]


def _line(cells: Sequence[tuple[TextColumn, str]]) -> str:
    parts = []
    for column, text in cells:
        blanks = " " * max(0, column.width - cell_len(text))
        parts.append(blanks + text if column.numeric else text + blanks)
    return (" " * GAP).join(parts).rstrip()
