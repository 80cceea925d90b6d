"""A cursor that was moved, by whom and over what: what diagnosis tells of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The last seek of a kind: back, or forward over messages that were unread."""

    at_ms: int
    from_offset: int
    to_offset: int
    passed_over: int = 0
    by: str | None = None  # the client that asked; None: an operation
