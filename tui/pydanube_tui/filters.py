"""The language after `/`: what rows stay.

    orders          text anywhere in the row        !orders         the rows without it
    /^ord.*[0-9]/   a regular expression            ~odrs           letters in this order (fuzzy)
    lag:>1k         a number: > >= < <= =           age:<5m         a time
    status:stuck    text in one column              !type:shared    not there
    $.total:>10     by JSON path: in a message's    $.lines[0].sku:9   value, else in what `y` shows

Terms stand side by side and must all hold. Columns are named by their beginning; units are k M G, Ki Mi Gi, s m h d.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydanube_tui.page import Column, Row
from pydanube_tui.payloads import value_of

Test = Callable[[Row], bool]
_UNITS: Final[dict[str, float]] = {
    **{"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12},
    **{"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40},
    **{"kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "b": 1.0},
}
_RELATIONS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
}
_TIMES: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_FIELD: Final = re.compile(r"([A-Za-z_]+):(>=|<=|>|<|=)?(.*)", re.DOTALL)
_PATH: Final = re.compile(r"\$((?:\.[\w-]+|\[\d+\])+):(>=|<=|>|<|=)?(.*)", re.DOTALL)
_STEP: Final = re.compile(r"\.([\w-]+)|\[(\d+)\]")
_NUMBER: Final = re.compile(r"(-?\d+(?:\.\d+)?)([A-Za-z]*)")
MAX_CHARS: Final = 200  # of a pattern that is held against every row


class FilterError(ValueError):
    """A filter that cannot be read; its text says what is wrong and how it is written."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter that was read."""

    text: str
    tests: tuple[Test, ...]

    def __call__(self, row: Row) -> bool:
        return all(test(row) for test in self.tests)


def parse(text: str, columns: Sequence[Column]) -> Filter:
    """Read a filter for rows of these columns.

    Raises:
        FilterError: a column that is not there, a number that is none, a broken pattern.
    """
    if len(text) > MAX_CHARS:
        raise FilterError(f"a filter has at most {MAX_CHARS} characters")
    return Filter(text, tuple(_term(word, columns) for word in _words(text)))


def _words(text: str) -> list[str]:
    """Terms; a regular expression between slashes may hold blanks."""
    return [word for word in re.findall(r"!?/(?:[^/\\]|\\.)+/|\S+", text) if word != "!"]


def _term(word: str, columns: Sequence[Column]) -> Test:
    if word.startswith("!"):
        inner = _term(word[1:], columns)
        return lambda row: not inner(row)
    if len(word) > 2 and word[0] == word[-1] == "/":
        return _pattern(word[1:-1])
    if word.startswith("~"):
        return _fuzzy(word[1:].casefold())
    if (path := _PATH.fullmatch(word)) is not None:
        return _of_path(path[1], path[2] or "", path[3])
    found = _FIELD.fullmatch(word)
    if found is not None:
        return _of_column(found[1], found[2] or "", found[3], columns)
    folded = word.casefold()
    return lambda row: any(folded in cell.text.casefold() for cell in row.cells)


def _pattern(text: str) -> Test:
    try:
        pattern = re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise FilterError(f"/{text}/ is no pattern: {error}") from None
    return lambda row: any(pattern.search(cell.text[:500]) for cell in row.cells)


def _fuzzy(letters: str) -> Test:
    def holds(text: str) -> bool:
        rest = iter(text)
        return all(letter in rest for letter in letters)

    return lambda row: any(holds(cell.text.casefold()) for cell in row.cells)


def _of_column(name: str, relation: str, wanted: str, columns: Sequence[Column]) -> Test:
    at = _column(name, columns)
    column = columns[at]
    if relation in (">", ">=", "<", "<=") or (relation == "=" and column.unit):
        return _compare(at, relation, _number(wanted, column))
    folded = wanted.casefold()
    if relation == "=":
        return lambda row: row.cells[at].text.casefold() == folded
    return lambda row: folded in row.cells[at].text.casefold()


def _column(name: str, columns: Sequence[Column]) -> int:
    folded = name.casefold()
    names = [column.name.casefold() for column in columns]
    at = next((n for n, each in enumerate(names) if each == folded), None)
    if at is None:
        at = next((n for n, each in enumerate(names) if each.startswith(folded)), None)
    if at is not None:
        return at
    known = ", ".join(column.name for column in columns)
    raise FilterError(f"there is no column {name}; there are {known}")


def _number(text: str, column: Column) -> float:
    found = _NUMBER.fullmatch(text)
    units = _TIMES if column.unit == "seconds" else _UNITS
    if found is None or found[2].casefold() not in units:
        example = "5m" if column.unit == "seconds" else "1k"
        raise FilterError(f"{column.name}: {text!r} is no number; write {column.name}:>{example}")
    return float(found[1]) * units[found[2].casefold()]


def _compare(at: int, relation: str, bound: float) -> Test:
    return lambda row: _holds(row.cells[at].value, relation, bound)


def _holds(value: object, relation: str, bound: float) -> bool:
    return isinstance(value, int | float) and _RELATIONS[relation](value, bound)


def _of_path(path: str, relation: str, wanted: str) -> Test:
    steps = [int(at) if at else name for name, at in _STEP.findall(path)]
    if relation in (">", ">=", "<", "<="):
        bound = _number(wanted, Column(name=f"${path}", title=""))
        return lambda row: _holds(_at(row, steps), relation, bound)
    folded = wanted.casefold()

    def holds(row: Row) -> bool:
        value = _at(row, steps)
        text = (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).casefold()
        return value is not None and (text == folded if relation == "=" else folded in text)

    return holds


def _at(row: Row, steps: Sequence[str | int]) -> Any:
    """What stands there in a message's value, else in the row's item; None: nothing."""
    value: Any = value_of(row.item) if "untrusted" in row.item else row.item
    for step in steps:
        fits = isinstance(value, Mapping) if isinstance(step, str) else isinstance(value, list)
        if not fits or (isinstance(step, int) and step >= len(value)):
            return None
        value = value.get(step) if isinstance(step, str) else value[step]
    return value


def ordered(rows: Sequence[Row], columns: Sequence[Column], by: str, *, falling: bool) -> list[Row]:
    """The rows by a column, what is not known last; rows of the same value keep their order."""
    at = next((index for index, column in enumerate(columns) if column.name == by), None)
    if at is None:
        return list(rows)
    known = [row for row in rows if row.cells[at].value is not None]
    unknown = [row for row in rows if row.cells[at].value is None]
    numbers = all(isinstance(row.cells[at].value, int | float) for row in known)
    if numbers:
        known.sort(key=lambda row: row.cells[at].value, reverse=falling)  # type: ignore[arg-type,return-value]
    else:
        known.sort(key=lambda row: str(row.cells[at].value).casefold(), reverse=falling)
    return known + unknown
