"""The broker's run before this one, as telemetry has it: the same rings as the sampler's, until its own reach back as far.

It is read in the background after the first round, and dropped once it is older than the window. Diagnosis and charts read it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from pydanube_core.cursor_state import CursorState
from pydanube_core.telemetry.tables import HOLD_ROUNDS

Key: TypeAlias = tuple[int, int]  # topic id, subscription id
#: `(start_ms, end_ms) → (times of rounds, rings)`, see `pydanube_broker.telemetry.past`
ReadPast: TypeAlias = Callable[[int, int], Awaitable[tuple[Sequence[int], Mapping[Key, bytes]]]]
_WIDTH: Final = len(CursorState._fields) + 1


class RunBefore:
    """See the module. Empty until it was read."""

    def __init__(
        self, times: Sequence[int] = (), rings: Mapping[Key, bytes] | None = None, *, interval_s: float = 0.0
    ) -> None:
        self.times = times  # of its rounds, ascending
        self._rings = rings or {}
        self._hold_ms = int(HOLD_ROUNDS * interval_s * 1000)

    def rows(self, topic_id: int, subscription_id: int) -> list[tuple[CursorState, int | None]]:
        """Return the states at which the subscription changed, and the append time of the oldest unread message, oldest first."""
        ring = array("q", self._rings.get((topic_id, subscription_id), b""))
        rows = (ring[at : at + _WIDTH] for at in range(0, len(ring), _WIDTH))
        return [(CursorState(*row[:-1]), None if row[-1] < 0 else row[-1]) for row in rows]

    def states(
        self, topic_id: int, subscription_id: int, times: Sequence[int]
    ) -> list[tuple[CursorState, int | None] | None]:
        """Return the newest row at each of these times, None where none holds."""
        rows = self.rows(topic_id, subscription_id)
        taken = [state.taken_at_ms for state, _ in rows]
        found: list[tuple[CursorState, int | None] | None] = []
        for time in times:
            at = bisect_right(taken, time) - 1
            if at < 0 or time - taken[at] > self._hold_ms:
                found.append(None)
            else:
                state, oldest_ms = rows[at]
                found.append((CursorState(time, *state[1:]), oldest_ms))
        return found

    def stood_since_ms(self, topic_id: int, subscription_id: int, next_unacked: int) -> int | None:
        """Return the first time since which the cursor was at this place to the end of the run. None: it was not."""
        since_ms = None
        for state, _ in reversed(self.rows(topic_id, subscription_id)):
            if state.next_unacked != next_unacked:
                break
            since_ms = state.taken_at_ms
        return since_ms
