"""Ids of calls and plans: a letter, the time, and chance. Their order is that of time."""

from __future__ import annotations

import secrets
from typing import Final

CALL = "c"
PLAN = "p"
TASK = "t"
MAX_CHARS: Final = 64


def new_id(kind: str, now_ms: int) -> str:
    """Such as `c019a2b3c4d5e8f0a1b2c3d4e`; unique without asking anybody."""
    return f"{kind}{now_ms:012x}{secrets.token_hex(6)}"


def time_of(made: str) -> int:
    """Milliseconds since 1970 at which an id was made."""
    return int(made[1:13], 16)


def is_id(text: str) -> bool:
    """Whether something may be kept under that id; what comes from outside may be anything."""
    return len(text) <= MAX_CHARS and text.isascii() and text.isalnum()
