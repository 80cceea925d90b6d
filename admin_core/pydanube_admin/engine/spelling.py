"""How names and refused values from outside stand in errors: the value cut short."""

from __future__ import annotations

import json
from typing import Any, Final

MAX_SHOWN_CHARS: Final = 200  # of a refused value: enough to recognise it, too little to flood a model


def shown(value: Any) -> Any:
    """A refused value as it may stand in an error: short, and text that can be encoded."""
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else "an integer beyond 64 bits"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"


def either(names: list[str]) -> str:
    return " or ".join(repr(name) for name in names)
