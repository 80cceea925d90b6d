"""The help of a view: what it is, how it is filtered, and every key with what it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydanube_tui.actions import Action
from pydanube_tui.page import Line, Tone, line
from pydanube_tui.view import View
from pydanube_tui.views.wording import STATUS


def help_lines(
    view: View, actions: Mapping[str, Action], offers: Callable[[Action], bool] = lambda _: True
) -> list[Line]:
    """The text that `?` opens; what is not offered to this caller is dimmed."""
    lines = [
        line(view.summary),
        line(("the same without a screen: ", Tone.DIM), (view.twin, Tone.ACCENT)),
        line(),
    ]
    sorts = ", ".join(f"{column.key} {column.name}" for column in view.columns if column.key)
    if sorts:
        lines += [line(("sort by      ", Tone.DIM), sorts)]
    if view.columns:
        lines += [
            line(
                ("filter       ", Tone.DIM),
                "orders   !orders   /^ord.*9/   ~odrs   lag:>1k   status:stuck   age:>5m   $.json.path:x",
            ),
            line(("columns      ", Tone.DIM), ", ".join(column.name for column in view.columns)),
        ]
    if any(column.name == "status" for column in view.columns):
        spans = [
            (f"{glyph} {name.lower().replace('_', ' ')}  ", tone) for name, (glyph, tone, _) in STATUS.items()
        ]
        lines += [
            line(("statuses     ", Tone.DIM), *spans[:4]),
            line(("             ", Tone.DIM), *spans[4:]),
        ]
    groups: dict[str, list[Action]] = {}
    for action in actions.values():
        if action.within(view.name):
            groups.setdefault(action.group, []).append(action)
    for group, members in groups.items():
        lines += [line(), line((group, Tone.STRONG))]
        for action in members:
            refused = not offers(action)
            lines.append(
                line(
                    (f"  {' '.join(action.keys) or '–':<12} ", Tone.ACCENT),
                    (f"{action.title:<18} ", Tone.DIM if refused else Tone.PLAIN),
                    (action.help, Tone.DIM),
                )
            )
    lines += [line(), line(("  arrows j k pageup pagedown home end g G   move the cursor", Tone.DIM))]
    return lines
