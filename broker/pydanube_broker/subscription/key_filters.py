"""Key filters: globs that a consumer's keys must match."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pydanube_core.errors import InvalidArgument

__all__ = ["check_key_filters", "key_pattern"]

_GLOB: Final = {"*": ".*", "?": "."}


def check_key_filters(type: str, filters: Sequence[str]) -> None:
    """Refuse filters where nothing goes by keys.

    Raises:
        InvalidArgument: there are some, and the subscription's type is not key-shared.
    """
    if filters and type != "key-shared":
        raise InvalidArgument(
            f"key_filters: a subscription of type {type} has none; subscribe as key-shared",
            field="key_filters",
            value=list(filters),
        )


def key_pattern(filters: Sequence[str]) -> re.Pattern[str]:
    """One expression for key filters: globs with `*` and `?`, every other character stands for itself."""
    translated = ("".join(_GLOB.get(c) or re.escape(c) for c in glob) for glob in filters)
    return re.compile("|".join(f"(?:{part})" for part in translated), re.DOTALL)
