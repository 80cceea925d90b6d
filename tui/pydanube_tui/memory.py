"""The columns and the order of each view, remembered in a file, or for the session alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydanube_tui.page import Column


class Memory:
    """Columns and order by view. A file that cannot be read or written is done without: it is a convenience."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._views: dict[str, dict[str, Any]] = {}
        if path is not None:
            with suppress(OSError, ValueError):
                found = json.loads(path.read_text(encoding="utf-8"))
                self._views = {name: each for name, each in found.items() if isinstance(each, dict)}

    def columns(self, view: str, columns: Sequence[Column]) -> Sequence[Column]:
        """The columns that were chosen, in their order; all where none were."""
        chosen = self._views.get(view, {}).get("columns")
        if not isinstance(chosen, list):
            return columns
        known = {column.name: column for column in columns}
        return [known[name] for name in chosen if name in known] or columns

    def sort(self, view: str) -> tuple[str, bool] | None:
        """How the view was sorted last."""
        match self._views.get(view, {}).get("sort"):
            case [str(name), bool(falling)]:
                return name, falling
        return None

    def keep(self, view: str, what: Literal["columns", "sort"], value: Sequence[object]) -> None:
        """Remember the columns that were chosen for a view, or how it was sorted."""
        self._views.setdefault(view, {})[what] = list(value)
        if self._path is not None:
            with suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                fresh = self._path.with_suffix(".new")
                fresh.write_text(json.dumps(self._views, indent=1), encoding="utf-8")
                fresh.replace(self._path)
