"""Declared connectors, and the log of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydanube_tui.columns import custom, number, since, words
from pydanube_tui.page import Cell, Item, Line, Target, Tone, line
from pydanube_tui.view import Ask, Extent, Situation, View, given, listed
from pydanube_tui.views.fleet import level_cell

_STATES: Final = {
    "running": ("✓", Tone.GOOD),
    "failing": ("▼", Tone.WARN),
    "stopped": ("▼", Tone.BAD),
    "paused": ("○", Tone.DIM),
}


def _state(item: Item) -> Cell:
    glyph, tone = _STATES.get(item["state"], ("○", Tone.PLAIN))
    return Cell(f"{glyph} {item['state']}", tone, item["state"])


def _error(item: Item) -> Cell:
    text = str(item["last_error"] or item.get("worker_reason") or "")
    return Cell(text, Tone.WARN if item["last_error"] else Tone.DIM, text)


LIST: Final = View(
    name="connectors",
    summary="Declared sources and sinks with their state. Enter shows the log of one.",
    twin="danube connectors list --json",
    asks=listed("connectors.list"),
    columns=(
        words("connector", "N 16-40 grows", tone=Tone.STRONG),
        custom("state", "S 10", _state),
        words("type", "T 12-24 drop=2"),
        words("topic", "16-40 drop=3 grows", lambda item: item["topic"] or "–"),
        words("worker", "W 10-24 drop=4", lambda item: item["worker"] or "–", tone=Tone.DIM),
        number("rate", "R 7 drop=5", title="per s"),
        number("lag", "L 7", "lag_messages"),
        number("refused", "F 7", tone=None),
        since("since", "A drop=6", "since"),
        custom("error", "20-120 grows drop=1", _error, title="last error"),
    ),
    enter=lambda item: Target(view="connector", arguments={"connector": item["connector"]}),
    empty="no connectors. danube connectors create NAME --file FILE declares one",
    sort=("connector", False),
    faults="!state:running",
)


def _head(situation: Situation) -> Sequence[Line]:
    found = situation.of("described")
    if not found:
        return [line()]
    cell = _state(found)
    guarantee = str(found["guarantee"] or "").replace("_", " ")
    facts = f"   {found['type']}   {found['worker'] or found.get('worker_reason') or ''}   {guarantee}"
    lines = [line((f" {cell.text} ", cell.tone), (facts, Tone.PLAIN))]
    lines += [line((f"   {place} at {at}", Tone.DIM)) for place, at in list(found["position"].items())[:5]]
    if found["last_error"]:
        lines.append(line((f"   {found['last_error']}", Tone.WARN)))
    return [*lines, line()]


ONE: Final = View(
    name="connector",
    summary="The last log lines of a connector, the newest first, below its state and positions.",
    twin="danube connectors logs CONNECTOR --json",
    asks=lambda arguments: {
        **listed("connectors.logs", "connector", extent=Extent.ONE, lines=200)(arguments),
        "described": Ask(
            operation="connectors.describe", arguments=given(arguments, "connector"), optional=True
        ),
    },
    columns=(
        words("time", "T 23", lambda item: item["time"][:23].replace("T", " "), tone=Tone.DIM),
        custom("level", "L 8", level_cell),
        words("text", "20-400 grows", lambda item: item["untrusted"].get("text", "").partition(" ")[2]),
    ),
    key=lambda item: f"{item['time']} {item['untrusted'].get('text', '')}",
    head=_head,
    empty="its workers have logged nothing in the last hour",
    sort=("time", True),
    takes=("connector",),
)
