"""The version of this software."""

from __future__ import annotations

import importlib.metadata
from functools import cache


@cache
def version() -> str:
    """As it is installed; `0+source` where it is not."""
    try:
        return importlib.metadata.version("pydanube")
    except importlib.metadata.PackageNotFoundError:
        return "0+source"
