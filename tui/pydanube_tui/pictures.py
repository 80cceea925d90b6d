"""The screen as text that is read aloud or compared, and as SVG for a page."""

from __future__ import annotations

import io
import re
from typing import Any, Final, Literal

from rich.console import Console as Printer
from textual.app import App

Form = Literal["text", "svg"]
_FONTS: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def picture(app: App[Any], form: str) -> str:
    """The screen as it stands."""
    if form == "svg":
        # The fonts that rich names lie on a foreign host: a picture asks nobody for anything.
        return _FONTS.sub("", app.export_screenshot(title="danube tui"))
    width, height = app.size
    printer = Printer(
        width=width, height=height, file=io.StringIO(), record=True, legacy_windows=False, force_terminal=True
    )
    printer.print(app.screen._compositor.render_update(full=True))  # what export_screenshot prints
    lines = printer.export_text(styles=False).split("\n")
    return "\n".join(line.rstrip() for line in lines[:height]).rstrip() + "\n"
