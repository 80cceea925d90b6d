"""Moves of a cursor: by whom, and over which messages; reported by diagnosis."""

from __future__ import annotations

from dataclasses import dataclass

from pydanube_core.cursor_state import CursorState


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorMove:
    """The last move of a kind: back, or forward over messages that were unread."""

    at_ms: int
    from_offset: int
    to_offset: int
    passed_over: int = 0
    by: str | None = None  # the client that asked; None: an operation
    operation: str = "subscriptions.seek"  # what was asked for


class CursorMoves:
    """The last moves of one cursor; mutable, owned by its pump."""

    __slots__ = ("passed", "rewound")

    def __init__(self) -> None:
        self.rewound: CursorMove | None = None
        self.passed: CursorMove | None = None

    def note(
        self,
        before: CursorState,
        after: CursorState,
        operation: str = "subscriptions.seek",
        by: str | None = None,
    ) -> None:
        """Note a move of the cursor; one that changed nothing is ignored."""
        passed_over = max(0, before.lag_messages - after.lag_messages)
        moved = CursorMove(
            at_ms=after.taken_at_ms,
            from_offset=before.next_unacked,
            to_offset=after.next_unacked,
            passed_over=passed_over,
            by=by,
            operation=operation,
        )
        if after.next_unacked < before.next_unacked:
            self.rewound = moved
        elif passed_over:
            self.passed = moved
