"""Files that the console writes: copies, exports and pictures, and the remembered columns and order of views.

Copies, exports and pictures never overwrite a file.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

from pydanube_core.errors import InvalidArgument
from rich.console import Console as Printer
from textual.app import App

from pydanube_tui.page import Column, Row
from pydanube_tui.payloads import json_text


def write(folder: Path, name: str, text: str) -> Path:
    """Write a new file `danube-NAME` in the folder, readable by its owner alone, and return its path.

    Raises:
        InvalidArgument: it cannot be written there.
    """
    stem, _, ending = name.rpartition(".")
    number = 0
    while True:
        path = folder / (f"danube-{stem}-{number}.{ending}" if number else f"danube-{name}")
        try:
            path.touch(mode=0o600, exist_ok=False)
            path.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
            return path
        except FileExistsError:
            number += 1
        except OSError as error:
            message = f"{path} cannot be written: {error.strerror}. Start danube tui in another folder"
            raise InvalidArgument(message, field="path", value=str(path)) from None


def as_csv(shown: Sequence[Column], columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Return the rows as CSV, by the shown columns. Numbers are not rounded."""
    at = [next(n for n, each in enumerate(columns) if each.name == column.name) for column in shown]
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([column.name for column in shown])
    for row in rows:
        cells = [(columns[n], row.cell(n)) for n in at]
        writer.writerow([_harmless(cell.value if column.unit else cell.text) for column, cell in cells])
    return out.getvalue()


def _harmless(value: object) -> object:
    """Return the value, with a quote before a text that a spreadsheet would take for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def as_json(rows: Sequence[Row]) -> str:
    """Return every field of the rows."""
    return json_text([row.item for row in rows], indent=2) + "\n"


Form = Literal["text", "svg"]
_FONTS: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def picture(app: App[Any], form: str) -> str:
    """Return the current screen as SVG or text."""
    if form == "svg":
        # The fonts that rich names lie on a foreign host. A picture must not load anything.
        return _FONTS.sub("", app.export_screenshot(title="danube tui"))
    width, height = app.size
    printer = Printer(
        width=width, height=height, file=io.StringIO(), record=True, legacy_windows=False, force_terminal=True
    )
    behind = app._background_screens  # as export_screenshot
    printer.print(app.screen._compositor.render_update(full=True, screen_stack=behind))
    lines = printer.export_text(styles=False).split("\n")
    return "\n".join(line.rstrip() for line in lines[:height]).rstrip() + "\n"


class Memory:
    """The chosen columns and order of each view. If the file cannot be read or written, they last for this run."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._views: dict[str, dict[str, Any]] = {}
        if path is not None:
            with suppress(OSError, ValueError):
                found = json.loads(path.read_text(encoding="utf-8"))
                self._views = {name: each for name, each in found.items() if isinstance(each, dict)}

    def columns(self, view: str, columns: Sequence[Column]) -> Sequence[Column]:
        """Return the chosen columns, in order. All if none were chosen."""
        chosen = self._views.get(view, {}).get("columns")
        if not isinstance(chosen, list):
            return columns
        known = {column.name: column for column in columns}
        return [known[name] for name in chosen if name in known] or columns

    def sort(self, view: str) -> tuple[str, bool] | None:
        """Return how the view was sorted last."""
        match self._views.get(view, {}).get("sort"):
            case [str(name), bool(falling)]:
                return name, falling
        return None

    def keep(self, view: str, what: Literal["columns", "sort"], value: Sequence[object]) -> None:
        """Remember the chosen columns of a view, or its order."""
        self._views.setdefault(view, {})[what] = list(value)
        if self._path is not None:
            with suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                fresh = self._path.with_suffix(".new")
                fresh.write_text(json.dumps(self._views, indent=1), encoding="utf-8")
                fresh.replace(self._path)
