"""The help of a view: what it is, how it is filtered, and every key with what it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pydanube_tui.actions import Action
from pydanube_tui.page import Line, Tone, dim, line
from pydanube_tui.view import View
from pydanube_tui.views.wording import STATUS

_FILTERS: Final = "orders   !orders   /^ord.*9/   ~odrs   lag:>1k   status:stuck   age:>5m   $.json.path:x"


def help_lines(
    view: View, actions: Mapping[str, Action], offers: Callable[[Action], bool] = lambda _: True
) -> list[Line]:
    """The text that `?` opens; what is not offered to this caller is dimmed."""
    lines = [line(view.summary), line(dim("the same without a screen: "), (view.twin, Tone.ACCENT)), line()]
    sorts = ", ".join(f"{column.key} {column.name}" for column in view.columns if column.key)
    if sorts:
        lines.append(line(dim("sort by      "), sorts))
    if view.columns:
        lines.append(line(dim("filter       "), _FILTERS))
        lines.append(line(dim("columns      "), ", ".join(column.name for column in view.columns)))
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
            lines.append(line((keys, Tone.ACCENT), title, dim(action.help)))
    return [*lines, line(), line(dim("  arrows j k pageup pagedown home end g G   move the cursor"))]
