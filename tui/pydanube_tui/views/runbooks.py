"""Tasks step by step: the runbooks that the admin core carries out. They are part of the program; nothing is asked."""

from __future__ import annotations

from typing import Final

from pydanube_admin import runbooks

from pydanube_tui.page import Cell, Column, Page, Row, Tone, line
from pydanube_tui.view import Situation, View

_COLUMNS: Final = (
    Column(name="name", title="runbook", key="N", least=24, most=32),
    Column(name="summary", title="what it does", least=30, most=160, grows=True),
    Column(name="steps", title="steps", key="S", least=5, most=5, right=True, unit="count", drop=1),
    Column(name="asks", title="asks for", least=16, most=40, drop=2),
)


def page(_: Situation) -> Page:
    """Every runbook."""
    rows = []
    for book in runbooks.all().values():
        names = {each.name: each.name.upper() for each in book.parameters}
        asked = ", ".join(each.name for each in book.parameters)
        cells = (
            Cell(book.name, Tone.STRONG, book.name),
            Cell(book.summary.format_map(names)),
            Cell(str(len(book.steps)), Tone.DIM, len(book.steps)),
            Cell(asked or "–", Tone.DIM),
        )
        item = {"runbook": book.name, "steps": [step.title for step in book.steps]}
        rows.append(Row(key=book.name, cells=cells, item=item))
    head = [
        line(
            (" Enter carries one out, step by step; what it would change is shown and asked about", Tone.DIM)
        ),
        line(),
    ]
    return Page(head=head, columns=_COLUMNS, rows=rows)


VIEW: Final = View(
    name="runbooks",
    title="Runbooks",
    summary="Tasks step by step: health, lag, schemas, dead letters, capacity. Enter carries one out.",
    asks=lambda _: {},
    page=page,
    columns=_COLUMNS,
    twin="danube runbook NAME --json",
    aliases=("runbook",),
)
