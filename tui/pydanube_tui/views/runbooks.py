"""Tasks step by step: the runbooks that the admin core carries out. They are part of the program; nothing is asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydanube_admin import runbooks

from pydanube_tui.columns import custom, words
from pydanube_tui.page import Cell, Item, Tone, line
from pydanube_tui.view import Situation, View


def _books(_: Situation) -> Iterator[Item]:
    """Every runbook as an item of the list."""
    for book in runbooks.all().values():
        yield {
            "runbook": book.name,
            "summary": book.summary.format_map({each.name: each.name.upper() for each in book.parameters}),
            "asks": [each.name for each in book.parameters],
            "steps": [step.title for step in book.steps],
        }


VIEW: Final = View(
    name="runbooks",
    title="Runbooks",
    summary="Tasks step by step: health, lag, schemas, dead letters, capacity. Enter carries one out.",
    twin="danube runbook NAME --json",
    asks=lambda _: {},
    columns=(
        words("name", "N 24-32", "runbook", title="runbook", tone=Tone.STRONG),
        words("summary", "30-160 grows", title="what it does"),
        custom(
            "steps",
            "S 5 right count drop=1",
            lambda item: Cell(str(len(item["steps"])), Tone.DIM, len(item["steps"])),
        ),
        words(
            "asks",
            "16-40 drop=2",
            lambda item: ", ".join(item["asks"]) or "–",
            title="asks for",
            tone=Tone.DIM,
        ),
    ),
    items=_books,
    aliases=("runbook",),
    key=lambda item: str(item["runbook"]),
    head=lambda _: [
        line(
            (" Enter carries one out, step by step; what it would change is shown and asked about", Tone.DIM)
        ),
        line(),
    ],
)
