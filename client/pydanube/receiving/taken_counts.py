"""Count the messages that the application has taken in a session, and when to report that to the broker. Pure.

The broker counts the time of a delivery from the report that it was taken, and leaves messages that wait in this
process alone while reports arrive. So the number is sent soon after a change, and several times per ack timeout in any
case while messages are held.
"""

from __future__ import annotations

from typing import Final

REPORT_S: Final = 0.2  # after a change, or a quarter of the ack timeout if that is shorter
HEARD_OF: Final = 4  # reports per ack timeout


class TakenCounts:
    """The count of one session.

    Args:
        ack_timeout_ms: of the consumer. 0: nothing expires.
        keeps: whether the broker keeps taken messages for this consumer while reports arrive.
        before: of the session that this one continues. Messages that it left in the buffer already count as taken at
            the broker, and are not counted again.
    """

    __slots__ = ("_heard_at_s", "_keeps", "_reported", "heard_every_s", "received", "taken")

    def __init__(
        self, ack_timeout_ms: int = 0, *, keeps: bool = False, before: TakenCounts | None = None
    ) -> None:
        self.received = 0  # messages of the session
        # of these, except those handed out from the current delivery
        self.taken: int = 0 if before is None else before.taken - before.received
        self.heard_every_s = ack_timeout_ms / 1000 / HEARD_OF if ack_timeout_ms else float("inf")
        self._keeps = keeps
        self._reported = 0
        self._heard_at_s = 0.0

    def due(self, handed_out: int, now_s: float) -> int | None:
        """Return the number to report now, None for nothing to report.

        Args:
            handed_out: messages of the current delivery that the application has.
        """
        total = max(0, self.taken + handed_out)
        if total == self._reported and now_s < self._heard_at_s + self.heard_every_s:
            return None
        self._reported, self._heard_at_s = total, now_s
        return total

    def next_s(self, handed_out: int) -> float | None:
        """Return the seconds until the next call of `due`. None: not before more is received."""
        total = self.taken + handed_out
        if total < self.received or total != self._reported:
            return min(REPORT_S, self.heard_every_s)
        return self.heard_every_s if self._keeps and self.heard_every_s < float("inf") else None
