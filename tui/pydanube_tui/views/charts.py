"""The charts of traffic and unread messages, of the cluster or of one broker, over the hour that brokers keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydanube_core.units import counted

from pydanube_tui.page import Line, Span, Tone, dim, fact
from pydanube_tui.text import count, fitted, rate, size, span
from pydanube_tui.view import Situation

TITLE_CELLS = 9


def traffic(situation: Situation, lag_messages: int | None = None) -> Iterator[Line]:
    """Return traffic and lag now, and over the last hour: of the brokers' history, else since the view was opened.

    Now is the view's own measurement between two refreshes, else the last value of the history.
    """
    cells = max(30, situation.width - 46)
    chart = situation.of("chart")
    over = dim(f"  over {span(chart['age_s'][0])}") if chart else dim("")
    for title in ("in", "out"):
        messages, in_bytes = (_now(situation, f"{what}_{title}") for what in ("messages", "bytes"))
        told = f"{rate(messages):>9} {'–' if in_bytes is None else f'{size(in_bytes)}B/s':>9}"
        name = f"messages_{title}"
        drawn = fitted(chart[f"{name}_rate"][1:] if chart else situation.rates(name, cells + 1), cells)
        yield _fact(title, (told, Tone.STRONG), "  ", (drawn, Tone.ACCENT), over)
    if lag_messages is None and chart:
        lag_messages = chart["lag_messages"][-1]
    told = f"{count(lag_messages):>9}{'':10}"
    drawn = fitted(chart["lag_messages"] if chart else situation.values("lag_messages", cells), cells)
    yield _fact("behind", (told, Tone.STRONG), "  ", (drawn, Tone.WARN), over)
    if told := _parts(chart):
        yield _fact("of", dim(told))


def _now(situation: Situation, name: str) -> float | None:
    chart = situation.of("chart")
    measured = situation.rate(name)
    return chart[f"{name}_rate"][-1] if measured is None and chart else measured


def _parts(chart: Mapping[str, Any]) -> str:
    """Return how many brokers are in the sums, where that is not the same number throughout. Else an empty text."""
    at = chart.get("brokers_at")
    if not at:
        return ""
    since = next(place for place in range(len(at) - 1, -1, -1) if place == 0 or at[place - 1] != at[-1])
    fewest, most = min(at), max(at)
    before = {*at[:since]}
    least = counted(min(before), "broker") if len(before) == 1 else f"{fewest} to {most} brokers"
    return (
        f"{counted(at[-1], 'broker')} for {span(chart['age_s'][since])}, {least} before: sums differ by that"
    )


def _fact(title: str, *spans: Span | str) -> Line:
    return fact(title, *spans, cells=TITLE_CELLS)
