"""The filter language of `/`.

    orders          text anywhere in the row        !orders         the rows without it
    /^ord.*[0-9]/   a regular expression            ~odrs           letters in this order (fuzzy)
    lag:>1k         a number: > >= < <= =           age:<5m         a time
    status:stuck    text in one column              !type:shared    not there
    $.total:>10     by JSON path: in a message's    $.lines[0].sku:9   value, else in what `y` shows

Terms stand side by side and must all hold. Columns are named by their beginning. Units are k M G, Ki Mi Gi, s m h d.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Context, Decimal
from operator import itemgetter
from typing import Any, Final

from pydanube_tui.page import MISREAD, Column, PageContent, Row, Sortable
from pydanube_tui.payloads import Number, value_of, written

Test = Callable[[Row], bool]
_UNITS: Final[dict[str, float]] = {
    **{"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12},
    **{"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40},
    **{"kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "b": 1.0},
}
_RELATIONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
}
_UNIT_DIGITS: Final = 20  # of the longest factor here
_TIMES: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_FIELD: Final = re.compile(r"([A-Za-z_]+):(>=|<=|>|<|=)?(.*)", re.DOTALL)
_PATH: Final = re.compile(r"\$((?:\.[\w-]+|\[\d+\])+):(>=|<=|>|<|=)?(.*)", re.DOTALL)
_STEP: Final = re.compile(r"\.([\w-]+)|\[(\d+)\]")
# Terms of which more letters leave fewer rows
_GROWS: Final = re.compile(r"~[^:]*|[^!/~$:][^:]*|[A-Za-z_]+:[^<>=:]*")
_NUMBER: Final = re.compile(r"(-?\d+(?:\.\d+)?)([A-Za-z]*)")
MAX_CHARS: Final = 200  # of a pattern that is matched against every row


class FilterError(ValueError):
    """A filter that cannot be parsed. Its text contains the fault and the remedy."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed filter: terms that must all match."""

    text: str
    tests: tuple[Test, ...]

    def of(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows that match all terms, in order."""
        found = [row for row in rows if not row.heading]
        for test in self.tests:
            found = [row for row in found if test(row)]
        return found

    def narrows(self, other: Filter) -> bool:
        """Return whether its matches are among those of the other, whose last term, text or fuzzy, it extends."""
        *before, last = _words(other.text) or ["!"]
        *now, grown = _words(self.text) or ["!"]
        same_kind = (":" in last) == (":" in grown) and _GROWS.fullmatch(last) and _GROWS.fullmatch(grown)
        return now == before and grown.startswith(last) and bool(same_kind)


class RowsInSight:
    """The rows of a page that match the filter, in order. A further key tests no more rows than necessary."""

    def __init__(self) -> None:
        self._page = PageContent()
        self._sort: tuple[str, bool] | None = None
        self._ordered: Sequence[Row] = ()
        self._narrowed: tuple[Filter, Sequence[Row]] | None = None

    def of(self, page: PageContent, sort: tuple[str, bool] | None, filter: Filter | None) -> Sequence[Row]:
        """Return the rows. Headings are shown only if nothing is sorted or filtered."""
        if page is not self._page or sort != self._sort:
            self._ordered = page.rows if sort is None else ordered(page.rows, page.columns, *sort)
            self._page, self._sort, self._narrowed = page, sort, None
        if filter is None:
            self._narrowed = None
            return self._ordered
        known = self._narrowed
        if known is None or known[0] is not filter:
            among = known[1] if known is not None and filter.narrows(known[0]) else self._ordered
            known = self._narrowed = (filter, filter.of(among))
        return known[1]


def parse(text: str, columns: Sequence[Column]) -> Filter:
    """Parse a filter for rows of these columns.

    Raises:
        FilterError: a column does not exist, a number is none, or a pattern is broken.
    """
    if len(text) > MAX_CHARS:
        raise FilterError(f"a filter has at most {MAX_CHARS} characters")
    return Filter(text, tuple(_term(word, columns) for word in _words(text)))


def _words(text: str) -> list[str]:
    """Split into terms. A regular expression between slashes may contain blanks."""
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
    return lambda row: folded in row.folded


def _pattern(text: str) -> Test:
    try:
        pattern = re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise FilterError(f"/{text}/ is no pattern: {error}") from None
    return lambda row: any(pattern.search(text[:500]) for text in row.folded.split("\n"))


def _fuzzy(letters: str) -> Test:
    """Return whether the letters occur in order within one cell."""
    pattern = re.compile("".join(f"[^\n{re.escape(each)}]*{re.escape(each)}" for each in letters))
    return lambda row: pattern.search(row.folded) is not None


def _of_column(name: str, relation: str, wanted: str, columns: Sequence[Column]) -> Test:
    at = _column(name, columns)
    column = columns[at]
    if relation in (">", ">=", "<", "<=") or (relation == "=" and column.unit):
        return _compare(at, relation, _number(wanted, column))
    folded = wanted.casefold()
    holds = operator.eq if relation == "=" else operator.contains
    if column.moves:
        return lambda row: holds(row.cell(at).text.casefold(), folded)
    still = sum(not each.moves for each in columns[:at])
    return lambda row: holds(row.folded.split("\n")[still], folded)


def _column(name: str, columns: Sequence[Column]) -> int:
    folded = name.casefold()
    names = [column.name.casefold() for column in columns]
    at = next((n for n, each in enumerate(names) if each == folded), None)
    if at is None:
        at = next((n for n, each in enumerate(names) if each.startswith(folded)), None)
    if at is not None:
        return at
    known = ", ".join(column.name for column in columns)
    raise FilterError(f"there is no column {name}. There are {known}")


def _number(text: str, column: Column) -> float:
    found, unit = _measure(text, column)
    return float(found) * unit


def _measure(text: str, column: Column) -> tuple[str, float]:
    """Return the digits of a number and the factor of its unit."""
    found = _NUMBER.fullmatch(text)
    units = _TIMES if column.unit == "seconds" else _UNITS
    if found is None or found[2].casefold() not in units:
        example = "5m" if column.unit == "seconds" else "1k"
        raise FilterError(f"{column.name}: {text!r} is no number. Write {column.name}:>{example}")
    return found[1], units[found[2].casefold()]


def _compare(at: int, relation: str, bound: float) -> Test:
    return lambda row: _holds(row.value(at), relation, bound)


def _holds(value: object, relation: str, bound: float | Decimal) -> bool:
    return isinstance(value, int | float | Decimal) and _RELATIONS[relation](value, bound)


def _of_path(path: str, relation: str, wanted: str) -> Test:
    steps = [int(at) if at else name for name, at in _STEP.findall(path)]
    if relation in (">", ">=", "<", "<="):
        found, unit = _measure(wanted, Column(name=f"${path}", title=""))
        # A float of twenty digits is another number, and so is a product of decimals cut to the usual 28
        exact = Context(prec=len(found) + _UNIT_DIGITS).multiply(Decimal(found), Decimal(unit))
        return lambda row: _holds(_at(row, steps), relation, exact)
    folded = wanted.casefold()
    plain = _NUMBER.fullmatch(wanted)
    equal = Decimal(wanted) if relation == "=" and plain is not None and not plain[2] else None

    def holds(row: Row) -> bool:
        value = _at(row, steps)
        if equal is not None and isinstance(value, Number) and value == equal:
            return True
        text = (value if isinstance(value, str) else written(value)).casefold()
        return value is not None and (text == folded if relation == "=" else folded in text)

    return holds


def _at(row: Row, steps: Sequence[str | int]) -> Any:
    """Return the value at a path of a message's value, else of the row's item. None if there is none."""
    value: Any = value_of(row.item) if "untrusted" in row.item else row.item
    for step in steps:
        fits = isinstance(value, Mapping) if isinstance(step, str) else isinstance(value, list)
        if not fits or (isinstance(step, int) and step >= len(value)):
            return None
        value = value.get(step) if isinstance(step, str) else value[step]
    return value


def _values(rows: Sequence[Row], column: Column, at: int) -> list[Sortable]:
    """Return the values of rows in a column. For many items directly, without making their rows."""
    if column.value is not None:
        with suppress(*MISREAD):
            return [column.value(row.item) for row in rows]
    return [row.value(at) for row in rows]


def ordered(rows: Sequence[Row], columns: Sequence[Column], by: str, falling: bool) -> list[Row]:
    """Return the rows sorted by a column, unknown values last. Equal ones keep their order."""
    at = next((index for index, column in enumerate(columns) if column.name == by), None)
    rows = [row for row in rows if not row.heading]
    if at is None:
        return rows
    valued = list(zip(_values(rows, columns[at], at), rows, strict=True))
    known = [pair for pair in valued if pair[0] is not None]
    if not all(isinstance(value, int | float) for value, _ in known):
        known = [(str(value).casefold(), row) for value, row in known]
    known.sort(key=itemgetter(0), reverse=falling)
    return [row for _, row in known] + [row for value, row in valued if value is None]
