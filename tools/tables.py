"""Tables of Markdown, for the generators of pages."""

from __future__ import annotations

import json
from collections.abc import Iterable


def cell(value: object) -> str:
    """A value in a table: bars would end the cell."""
    return str(value).replace("|", "\\|").replace("\n", " ")


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    columns = list(head)
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def json_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
