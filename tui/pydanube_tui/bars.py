"""The line at the top (where am I, how fresh is this) and the one at the bottom (what can I do)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydanube_tui.actions import Action
from pydanube_tui.cluster import Standing, State
from pydanube_tui.page import Line, Tone
from pydanube_tui.text import clean, ending, fit, span, width


@dataclass(frozen=True, slots=True, kw_only=True)
class Top:
    """The facts that the line at the top tells; its texts are those that are drawn."""

    cluster: str
    production: bool
    crumbs: Sequence[str]
    standing: Standing
    now_ms: int
    refresh_s: float
    paused: bool
    writes: bool


def header(top: Top, cells: int) -> tuple[str, Line, Line]:
    """The cluster's name, the crumbs, and the right end: freshness and what is allowed."""
    right = (
        *_freshness(top),
        (" WRITES " if top.writes else " read-only ", Tone.WARN if top.writes else Tone.DIM),
    )
    name = f" {fit(top.cluster, min(width(top.cluster), max(8, cells // 3)))} "
    room = cells - width(name) - sum(width(text) for text, _ in right) - 1
    crumbs = " › ".join(top.crumbs)
    if width(crumbs) > room - 2:
        crumbs = top.crumbs[-1]
    shown = ending(crumbs, max(1, room - 2))
    left: Line = ((f" {shown}", Tone.STRONG), (" " * max(1, room - width(shown)), Tone.PLAIN))
    return name, left, right


def _freshness(top: Top) -> Line:
    standing = top.standing
    age_s = standing.age_s(top.now_ms)
    pace = "paused" if top.paused else f"every {span(top.refresh_s)}"
    tries = f"{standing.tries} {'try' if standing.tries == 1 else 'tries'}"
    match standing.state:
        case State.CONNECTING:
            return (("○ connecting ", Tone.WARN),)
        case State.LOST:
            held = "" if age_s is None else f", data {span(age_s)} old"
            return ((f"✗ connection lost, {tries}{held} ", Tone.BAD),)
        case State.REFUSED:
            return ((f"▼ refused: {standing.error.code if standing.error else ''} ", Tone.BAD),)
        case State.LIVE:
            stale = standing.stale(top.now_ms, top.refresh_s)
            return (
                (f"{'○' if stale else '●'} {span(age_s or 0)} old ", Tone.WARN if stale else Tone.GOOD),
                (f"{pace} ", Tone.DIM),
            )


def footer(actions: Iterable[Action], counts: str, cells: int) -> Line:
    """Keys of what is most wanted here, as many as there is room for, and the counts at the right."""
    spans: list[tuple[str, Tone]] = []
    room = cells - width(counts) - 2
    for action in actions:
        key, title = clean(action.keys[0]), f" {action.title}  "
        if width(key) + width(title) > room:
            break
        spans += [(f" {key}", Tone.ACCENT), (title[:-1], Tone.DIM)]
        room -= width(key) + width(title)
    return (*spans, (" " * max(1, room), Tone.PLAIN), (f" {counts} ", Tone.PLAIN))
