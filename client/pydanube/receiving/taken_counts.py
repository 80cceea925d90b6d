"""Count the messages that the application has taken in a session, and when to report that to the broker. Pure.

The ack timeout of a message begins when the broker receives the report that it was taken. While reports arrive, messages
that wait in this process do not expire. So the number is sent soon after a change, and while messages are held at least
several times per ack timeout.
"""

from __future__ import annotations

from typing import Final

REPORT_S: Final = 0.2  # after a change, or a quarter of the ack timeout if that is shorter
REPORTS: Final = 4  # per ack timeout


class TakenCounts:
    """The count of one session.

    Args:
        ack_timeout_ms: of the consumer. 0: nothing expires.
        keeps: whether the broker keeps taken messages for this consumer while reports arrive.
        before: of the session that this one continues. Messages that it left in the buffer already count as taken at
            the broker, and are not counted again.
    """

    __slots__ = ("_keeps", "_reported", "_reported_at_s", "received", "report_every_s", "taken")

    def __init__(
        self, ack_timeout_ms: int = 0, *, keeps: bool = False, before: TakenCounts | None = None
    ) -> None:
        self.received = 0  # messages of the session
        # of these, except those handed out from the current delivery
        self.taken: int = 0 if before is None else before.taken - before.received
        self.report_every_s = ack_timeout_ms / 1000 / REPORTS if ack_timeout_ms else float("inf")
        self._keeps = keeps
        self._reported = 0
        self._reported_at_s = 0.0

    def due(self, handed_out: int, now_s: float) -> int | None:
        """Return the number to report now, or None if no report is due.

        Args:
            handed_out: messages of the current delivery that the application has.
        """
        total = max(0, self.taken + handed_out)
        if total == self._reported and now_s < self._reported_at_s + self.report_every_s:
            return None
        self._reported, self._reported_at_s = total, now_s
        return total

    def next_s(self, handed_out: int) -> float | None:
        """Return the seconds until the next call of `due`. None if it is not needed before more messages arrive."""
        total = self.taken + handed_out
        if total < self.received or total != self._reported:
            return min(REPORT_S, self.report_every_s)
        return self.report_every_s if self._keeps and self.report_every_s < float("inf") else None
