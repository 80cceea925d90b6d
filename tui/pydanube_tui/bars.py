"""The line at the top (place, age of the data), the one at the bottom (keys), and the help text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Final

from pydanube_tui.actions import Action
from pydanube_tui.cluster import Connection, State
from pydanube_tui.page import Line, Span, Tone, dim, line
from pydanube_tui.text import clean, ending, fit, span, width
from pydanube_tui.view import View
from pydanube_tui.views.wording import STATUS


def header(cluster: str, crumbs: Sequence[str], right: Line, cells: int) -> tuple[str, Line]:
    """Return the cluster's name, and the line after it: the place, and the right end. Texts are cleaned already."""
    name = f" {fit(cluster, min(width(cluster), max(8, cells // 3)))} "
    room = cells - width(name) - sum(width(text) for text, _ in right) - 1
    whole = " › ".join(crumbs)
    shown = ending(whole if width(whole) <= room - 2 else crumbs[-1], max(1, room - 2))
    return name, ((f" {shown}", Tone.STRONG), (" " * max(1, room - width(shown)), Tone.PLAIN), *right)


def freshness(standing: Connection, now_ms: int, refresh_s: float, *, paused: bool) -> list[Span]:
    """Return the state of the connection, the age of the data, and the refresh interval."""
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
    """Return the most wanted keys, as many as there is room for, and the counts at the right."""
    spans: list[tuple[str, Tone]] = []
    room = cells - width(counts) - 3  # three blanks: around the counts, and before them
    for action in actions:
        key, title = clean(action.keys[0]), f" {action.title}  "
        if width(key) + width(title) > room:
            break
        spans += [(f" {key}", Tone.ACCENT), (title[:-1], Tone.DIM)]
        room -= width(key) + width(title)
    return (*spans, (" " * max(1, room + 1), Tone.PLAIN), (f" {counts} ", Tone.PLAIN))


_FILTERS: Final = "orders   !orders   /^ord.*9/   ~odrs   lag:>1k   status:stuck   age:>5m   $.json.path:x"


def _hanging(title: Sequence[Span], said: Span, cells: int) -> Iterator[Line]:
    """Yield a title and a text beside it, whose other lines begin below its first."""
    text, tone = said
    indent = sum(len(words) for words, _ in title)
    first, *rest = wrap(text, max(20, cells - indent)) or [""]
    yield line(*title, (first, tone))
    yield from (line((" " * indent, tone), (each, tone)) for each in rest)


def help_lines(
    view: View, actions: Mapping[str, Action], cells: int, offers: Callable[[Action], bool] = lambda _: True
) -> list[Line]:
    """Return the help text in lines of at most `cells` cells. Actions that this caller may not perform are dimmed."""
    lines = [line(view.summary), line(dim("the same without a screen: "), (view.twin, Tone.ACCENT)), line()]
    sorts = ", ".join(f"{column.key} {column.name}" for column in view.columns if column.key)
    if sorts:
        lines += _hanging([dim("sort by      ")], (sorts, Tone.PLAIN), cells)
    if view.columns:
        lines.append(line(dim("filter       "), _FILTERS))
        columns = ", ".join(column.name for column in view.columns)
        lines += _hanging([dim("columns      ")], (columns, Tone.PLAIN), cells)
    if any(column.name == "status" for column in view.columns):
        spans = [
            (f"{glyph} {name.lower().replace('_', ' ')}  ", tone) for name, (glyph, tone, _) in STATUS.items()
        ]
        lines += [line(dim("statuses     "), *spans[:4]), line(dim(" " * 13), *spans[4:])]
    groups: dict[str, list[Action]] = {}
    for action in actions.values():
        if action.within(view.name):
            groups.setdefault(action.group, []).append(action)
    for group, members in groups.items():
        lines += [line(), line((group, Tone.STRONG))]
        for action in members:
            keys = f"  {' '.join(action.keys) or '–':<12} "
            title = (f"{action.title:<18} ", Tone.PLAIN if offers(action) else Tone.DIM)
            lines += _hanging([(keys, Tone.ACCENT), title], dim(action.help), cells)
    return [*lines, line(), line(dim("  arrows j k pageup pagedown home end g G   move the cursor"))]
