"""Results for people: tables for lists, aligned pairs for single objects, figures with units.

JSON is for scripts and is the result untouched. Everything here is for people and free to change. Control
characters are removed from foreign text before it reaches a terminal.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pydanube_core.units import human_bytes

from pydanube_cli.failures import printable

MAX_COLUMNS = 9


def print_json(value: Any) -> None:
    """Print JSON on stdout: one line when piped, indented on a terminal."""
    print(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None, default=str))


def prose(text: str) -> None:
    """Print narration on stderr, if it is a terminal."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def print_table(
    items: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None, *, fits: bool = False
) -> None:
    """Print a table of `items`. The default of `columns` is the first scalar fields.

    Args:
        fits: fold it to the width of `COLUMNS` in a pipe too, if that is set.
    """
    from pydanube_cli.table import TextColumn, laid_out

    if columns is None:
        scalar = {
            name: None
            for item in items
            for name, value in item.items()
            if not isinstance(value, (dict, list)) and not name.endswith("_reason")
        }
        columns = list(scalar)[:MAX_COLUMNS]
    terminal = sys.stdout.isatty()
    head, body, dropped = laid_out(
        [
            TextColumn(
                name=name,
                cells=[cell(name, item.get(name), item) for item in items],
                numeric=any(_is_number(item.get(name)) for item in items),
                empty=all(item.get(name) is None for item in items),
            )
            for name in columns
        ],
        shutil.get_terminal_size().columns if terminal or (fits and os.environ.get("COLUMNS")) else None,
    )
    bold = terminal and not os.environ.get("NO_COLOR")
    for line in head:
        print(f"\x1b[1m{line}\x1b[0m" if bold else line)
    for line in body:
        print(line)
    if dropped:
        prose(f"no room for {', '.join(dropped)}: --json has all")


def print_pairs(result: Mapping[str, Any]) -> None:
    """Print an object, one field a line. Nested objects are indented, lists of objects become tables."""
    _pairs(result, indent="")


def _pairs(result: Mapping[str, Any], indent: str) -> None:
    shown = {name: value for name, value in result.items() if not name.endswith("_reason")}
    width = max((len(name) for name in shown), default=0)
    for name, value in shown.items():
        if isinstance(value, Mapping) and value:
            print(f"{indent}{printable(name)}:")
            _pairs(value, indent + "  ")
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            print(f"{indent}{printable(name)}:")
            print_table(value)
        elif isinstance(value, str) and "\n" in value.strip():
            print(f"{indent}{printable(name)}:")
            for line in value.rstrip().split("\n"):
                print(f"{indent}  {printable(line)}")
        else:
            print(f"{indent}{printable(name):<{width}}  {cell(name, value, result)}")


def cell(name: str, value: Any, item: Mapping[str, Any] | None = None) -> str:
    """Return one value as text: bytes and seconds by the ending of the field's name, unknown with its reason."""
    if value is None:
        reason = (item or {}).get(f"{name}_reason")
        return f"- ({printable(str(reason))})" if reason else "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and (name == "bytes" or name.endswith("_bytes")):
        return human_bytes(value)
    if isinstance(value, (int, float)) and name.endswith("_s") and not name.endswith("_per_s"):
        return human_seconds(float(value))
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 and name != "pid" else str(value)
    if isinstance(value, list):
        return ", ".join(cell(name, entry) for entry in value) or "-"
    if isinstance(value, Mapping):
        return printable(json.dumps(value, ensure_ascii=False, default=str)) if value else "-"
    return printable(str(value))


def human_seconds(seconds: float) -> str:
    """Return seconds as a person reads them: `850 ms`, `12.3 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
