"""Key filters: globs that a consumer's keys must match."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

__all__ = ["key_pattern"]

_GLOB: Final = {"*": ".*", "?": "."}


def key_pattern(filters: Sequence[str]) -> re.Pattern[str]:
    """One expression for key filters: globs with `*` and `?`, every other character stands for itself."""
    translated = ("".join(_GLOB.get(c) or re.escape(c) for c in glob) for glob in filters)
    return re.compile("|".join(f"(?:{part})" for part in translated), re.DOTALL)
