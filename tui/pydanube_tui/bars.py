"""The line at the top (where am I, how fresh is this) and the one at the bottom (what can I do)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydanube_tui.actions import Action
from pydanube_tui.cluster import Standing, State
from pydanube_tui.page import Line, Span, Tone, dim
from pydanube_tui.text import clean, ending, fit, span, width


def header(cluster: str, crumbs: Sequence[str], right: Line, cells: int) -> tuple[str, Line]:
    """The cluster's name, and the line after it: where one is, and the right end. Texts come as they are drawn."""
    name = f" {fit(cluster, min(width(cluster), max(8, cells // 3)))} "
    room = cells - width(name) - sum(width(text) for text, _ in right) - 1
    whole = " › ".join(crumbs)
    shown = ending(whole if width(whole) <= room - 2 else crumbs[-1], max(1, room - 2))
    return name, ((f" {shown}", Tone.STRONG), (" " * max(1, room - width(shown)), Tone.PLAIN), *right)


def freshness(standing: Standing, now_ms: int, refresh_s: float, *, paused: bool) -> list[Span]:
    """How it stands with the cluster, how old its data is, and how often it is asked."""
    age_s = standing.age_s(now_ms)
    match standing.state:
        case State.CONNECTING:
            return [("○ connecting ", Tone.WARN)]
        case State.LOST:
            tries = f"{standing.tries} {'try' if standing.tries == 1 else 'tries'}"
            held = "" if age_s is None else f", data {span(age_s)} old"
            return [(f"✗ connection lost, {tries}{held} ", Tone.BAD)]
        case State.REFUSED:
            return [(f"▼ refused: {standing.error.code if standing.error else ''} ", Tone.BAD)]
        case State.LIVE:
            mark, tone = ("○", Tone.WARN) if standing.stale(now_ms, refresh_s) else ("●", Tone.GOOD)
            pace = "paused" if paused else f"every {span(refresh_s)}"
            return [(f"{mark} {span(age_s or 0)} old ", tone), dim(f"{pace} ")]


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
