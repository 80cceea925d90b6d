"""The charts of traffic and unread messages, of the cluster or of one broker, over the hour that brokers keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydanube_core.units import counted

from pydanube_tui.page import Line, Span, Tone, dim, fact
from pydanube_tui.text import chart, count, rate, size, span
from pydanube_tui.view import Answer, Situation


def beside(title: str, *spans: Span | str) -> Line:
    """Return a head line with the title as wide as those of the charts."""
    return fact(title, *spans, cells=9)


def counters(answers: Mapping[str, Answer]) -> dict[str, float]:
    """Return the counters of the charts, and the lag, as far as the answer `metrics` has them."""
    metrics = answers.get("metrics")
    names = ("messages_in", "messages_out", "bytes_in", "bytes_out", "lag_messages")
    found = metrics if isinstance(metrics, Mapping) else {}
    return {name: float(found[name]) for name in names if name in found}


def traffic(situation: Situation, lag_messages: int | None = None) -> Iterator[Line]:
    """Return traffic and lag now, and over the last hour: of the brokers' history, else since the view was opened.

    Now is the view's own measurement between two refreshes, else the last value of the history. It ends the chart, so
    that the peak is never below it. A chart of unread messages is not cut: a backlog that grew a moment ago is no spike.
    """
    cells = max(24, situation.width - 56)
    history = situation.of("chart")
    age_s = history["age_s"][0] if history else None
    for title in ("in", "out"):
        messages, in_bytes = (_now(situation, f"{what}_{title}") for what in ("messages", "bytes"))
        told = f"{rate(messages):>9} {'–' if in_bytes is None else f'{size(in_bytes)}B/s':>9}"
        name = f"messages_{title}"
        drawn, peak = chart(
            [*history[f"{name}_rate"][1:], messages] if history else situation.rates(name, cells + 1), cells
        )
        yield beside(title, (told, Tone.STRONG), "  ", (drawn, Tone.ACCENT), scale(peak, rate, age_s))
    if lag_messages is None and history:
        lag_messages = history["lag_messages"][-1]
    told = f"{count(lag_messages):>9}{'':10}"
    drawn, peak = chart(
        [*history["lag_messages"], lag_messages] if history else situation.values("lag_messages", cells),
        cells,
        cut=False,
    )
    yield beside("behind", (told, Tone.STRONG), "  ", (drawn, Tone.WARN), scale(peak, count, age_s))
    if told := _parts(history):
        yield beside("of", dim(told))


def scale(peak: float | None, shown: Callable[[float | None], str], age_s: float | None) -> Span:
    """Return the text beside a chart: its highest value, and the time that it covers."""
    highest = "" if peak is None else f"  peak {shown(peak)}"
    return dim(highest if age_s is None else f"{highest or ' '} in {span(age_s)}")


def _now(situation: Situation, name: str) -> float | None:
    history = situation.of("chart")
    measured = situation.rate(name)
    return history[f"{name}_rate"][-1] if measured is None and history else measured


def _parts(history: Mapping[str, Any]) -> str:
    """Return how many brokers are in the sums, where that is not the same number throughout. Else an empty text."""
    at = history.get("brokers_at")
    if not at:
        return ""
    since = next(place for place in range(len(at) - 1, -1, -1) if place == 0 or at[place - 1] != at[-1])
    fewest, most = min(at), max(at)
    before = {*at[:since]}
    least = counted(min(before), "broker") if len(before) == 1 else f"{fewest} to {most} brokers"
    return f"{counted(at[-1], 'broker')} for {span(history['age_s'][since])}, {least} before: sums differ by that"
