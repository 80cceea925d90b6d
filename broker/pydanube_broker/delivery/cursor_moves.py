"""Moves of a cursor for diagnosis: by whom, and over which messages."""

from __future__ import annotations

from pydanube_core.cursor_state import CursorState
from pydanube_core.diagnosis.views import CursorMove


class CursorMoves:
    """The last moves of one cursor. Mutable, owned by its pump."""

    __slots__ = ("back", "forward", "redelivered_ms")

    def __init__(self) -> None:
        self.back: CursorMove | None = None
        self.forward: CursorMove | None = None
        self.redelivered_ms: int | None = None

    def redelivered(self, before: CursorState) -> None:
        """Note that single messages are delivered again.

        The cursor goes back, but the messages behind them do not become unread.
        """
        self.redelivered_ms = before.taken_at_ms

    def note(
        self,
        before: CursorState,
        after: CursorState,
        operation: str = "subscriptions.seek",
        by: str | None = None,
    ) -> None:
        """Note a move of the cursor. One that changed nothing is ignored."""
        skipped = max(0, before.lag_messages - after.lag_messages)
        moved = CursorMove(
            at_ms=after.taken_at_ms,
            from_offset=before.next_unacked,
            to_offset=after.next_unacked,
            skipped_messages=skipped,
            by=by,
            operation=operation,
        )
        if after.next_unacked < before.next_unacked:
            self.back = moved
        elif skipped:
            self.forward = moved
