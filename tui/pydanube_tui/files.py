"""Files that the console writes: copies, exports, pictures. A name is never written over."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from pydanube_core.errors import InvalidArgument

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
            told = f"{path} cannot be written: {error.strerror}; start danube tui in another folder"
            raise InvalidArgument(told, field="path", value=str(path)) from None


def as_csv(shown: Sequence[Column], columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """The rows by the columns that are shown; numbers whole, not as the screen rounds them."""
    at = [next(n for n, each in enumerate(columns) if each.name == column.name) for column in shown]
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([column.name for column in shown])
    for row in rows:
        cells = [(columns[n], row.cell(n)) for n in at]
        writer.writerow([_harmless(cell.value if column.unit else cell.text) for column, cell in cells])
    return out.getvalue()


def _harmless(value: object) -> object:
    """The value, with a quote before a text that a spreadsheet would take for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def as_json(rows: Sequence[Row]) -> str:
    """Every field of the rows."""
    return json_text([row.item for row in rows], indent=2) + "\n"
