"""The version of this software."""

from __future__ import annotations

import importlib.metadata
from functools import cache


@cache
def version() -> str:
    """Return the installed version, or `0+source` if the package is not installed."""
    try:
        return importlib.metadata.version("pydanube")
    except importlib.metadata.PackageNotFoundError:
        return "0+source"
