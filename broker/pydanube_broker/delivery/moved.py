"""A cursor that was moved, by whom and over what: what diagnosis tells of it."""

from __future__ import annotations

from dataclasses import dataclass

from pydanube_core.cursor_state import CursorState


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The last move of a kind: back, or forward over messages that were unread."""

    at_ms: int
    from_offset: int
    to_offset: int
    passed_over: int = 0
    by: str | None = None  # the client that asked; None: an operation
    operation: str = "subscriptions.seek"  # what was asked for


class Moves:
    """The last moves of one cursor; mutable, owned by its pump."""

    __slots__ = ("passed", "rewound")

    def __init__(self) -> None:
        self.rewound: Moved | None = None
        self.passed: Moved | None = None

    def note(
        self,
        before: CursorState,
        after: CursorState,
        operation: str = "subscriptions.seek",
        by: str | None = None,
    ) -> None:
        """Somebody has moved the cursor; one that stands where it stood is no news."""
        passed_over = max(0, before.lag_messages - after.lag_messages)
        moved = Moved(
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
