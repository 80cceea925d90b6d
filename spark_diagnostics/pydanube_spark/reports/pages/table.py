"""Tables of a report as data, and as HTML. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydanube_core.units import counted

from pydanube_spark.reports.pages.markup import escaped

#: a strip: (colour, how long), in the order of time
Strip = Sequence[tuple[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The content of a row's column.

    `under`: small text below it. `mark`: colour of a dot before it. `sort`: sort value, None for unknown, which sorts
    last. `number`: align right. `strip`: a strip shown instead of the text, which is its label for screen readers.
    """

    text: str
    under: str = ""
    mark: str = ""
    sort: float | str | None = ""
    number: bool = False
    strip: Strip = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A row. `parts`: the rows that it expands into."""

    cells: Sequence[Cell]
    parts: Sequence[TableRow] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """A table. `live`: it can be sorted and filtered."""

    title: str
    head: Sequence[str]
    rows: Sequence[TableRow]
    note: str = ""
    live: bool = False


def plain_rows(rows: Sequence[Sequence[str]]) -> list[TableRow]:
    """Return rows of texts as a table. A column is numeric if all its texts are numbers."""
    numeric = [all(map(_numeric, column)) for column in zip(*rows, strict=True)]
    return [
        TableRow(cells=[Cell(text=text, number=number) for text, number in zip(row, numeric, strict=True)])
        for row in rows
    ]


def _numeric(text: str) -> bool:
    if text.isdigit() and len(text) > 15:  # the id of a broker
        return False
    return text == "–" or text[:1].isdigit() or (text[:1] in "-+" and text[1:2].isdigit())


def comparison_table(
    report: Mapping[str, Any], figures: Callable[[Mapping[str, Any]], dict[str, str]]
) -> TableView:
    """Return the figures of both times, and the changed statuses."""
    before = report["previous"]
    title = "Compared with the time before"
    head = ("", f"{before['since'][:16]} to {before['until'][:16]}".replace("T", " "), "now")
    if "reason" in before:
        return TableView(title=title, head=head, rows=(), note=f"Nothing to compare with: {before['reason']}")
    was, now = figures(before["summary"]), figures(report["summary"])
    rows = [(name, was[name], now[name]) for name in now]
    rows += [
        (f"{each['subscription']} of {each['log']}", each["before"], each["now"])
        for each in before.get("changed", ())
    ]
    more = before.get("changed_total", 0) - len(before.get("changed", ()))
    return TableView(
        title=title, head=head, rows=plain_rows(rows), note=f"{more} more changed." if more else ""
    )


def table_html(view: TableView) -> str:
    first = view.rows[0].cells if view.rows else ()
    numbers = [cell.number for cell in first] or [False] * len(view.head)
    head = "".join(
        f"<th{_classes('number' * number)}>{f'<button>{escaped(text)}</button>' if view.live else escaped(text)}</th>"
        for text, number in zip(view.head, numbers, strict=True)
    )
    rows = "".join(
        _row(view, row) + "".join(_row(view, part, part=True) for part in row.parts) for row in view.rows
    )
    note = f"<p>{escaped(view.note)}</p>" if view.note else ""
    if not view.rows:
        return f"<h2>{escaped(view.title)}</h2>{note or '<p>None.</p>'}"
    found = '<input type="search" placeholder="Filter" aria-label="Filter rows">' if view.live else ""
    return (
        f"<h2>{escaped(view.title)}</h2>{note}<div>{found}<table{_classes('live' * view.live)}>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _classes(*names: str) -> str:
    given = " ".join(name for name in names if name)
    return f' class="{given}"' if given else ""


def _row(view: TableView, row: TableRow, *, part: bool = False) -> str:
    cells = [_cell(view.head[i], cell) for i, cell in enumerate(row.cells)]
    if row.parts:
        count = counted(len(row.parts), "partition")
        opener = f'<button class="open" aria-expanded="false">{count}</button>'
        cells[1] = cells[1].removesuffix("</td>") + opener + "</td>"
    return f"<tr{_classes('part' * part)}>{''.join(cells)}</tr>"


def _cell(label: str, cell: Cell) -> str:
    dot = f'<i class="{cell.mark}"></i>' if cell.mark else ""
    shown = strip_svg(cell.strip, cell.text) if cell.strip else f"{dot}{escaped(cell.text)}"
    under = f"<small>{escaped(cell.under)}</small>" if cell.under else ""
    kinds = _classes("number" * cell.number, "mark" * bool(cell.mark), "long" * (len(cell.under) > 40))
    sort = "" if cell.sort == "" else f' data-sort="{escaped(str("" if cell.sort is None else cell.sort))}"'
    return f'<td{kinds} data-label="{escaped(label)}"{sort}>{shown}{under}</td>'


def strip_svg(strip: Strip, said: str) -> str:
    """Return a strip of statuses over time."""
    whole = sum(length for _, length in strip) or 1.0
    at, parts = 0.0, []
    for colour, length in strip:
        parts.append(
            f'<rect class="{colour}" x="{round(1000 * at / whole, 1)}" width="{round(1000 * length / whole, 1)}" height="14"/>'
        )
        at += length
    return (
        f'<svg class="strip" viewBox="0 0 1000 14" preserveAspectRatio="none" role="img" aria-label="{escaped(said)}">'
        f"<title>{escaped(said)}</title>{''.join(parts)}</svg>"
    )
