"""The broker's wall clock: the system's clock, except that it follows a step only after a delay.

A message with a wrong append time keeps it, and later decisions compare with it. So the broker does not follow a step of
the system's clock immediately. For `HOLD_MS` its time advances with the machine's counter, and it adopts the system's
clock only if the difference persists. A short error has no effect, and a correction takes effect after 30 s. Small
differences, such as those of NTP, are followed immediately. Timeouts within the process use the loop's time instead.

A clock that was wrong from the start is detected by witnesses: other brokers, the object store, the newest append time.
The broker deletes by age only data that are old enough by all witnesses (`earliest_ms`). A time counts as in the future only
if it is later than the time of all witnesses (`latest_ms`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, NamedTuple

from pydanube_storage.metadata import BootClock

log = logging.getLogger("pydanube.clock")

STEP_MS: Final = 2_000  # a larger difference between two readings is a step
HOLD_MS: Final = 30_000
_SHOWN_MS: Final = 600_000  # a step is listed in `reasons` for this long
APART_MS: Final = 60_000  # smaller differences from a witness are ignored, as delays of messages
HEARD_MS: Final = 3_600_000  # another broker counts as a witness for this long after its last message
_WITNESSES: Final = 256  # maximum of witnesses. The one with the oldest message is replaced
APPEND_TOLERANCE_MS: Final = 10_000

_BOOT: Final = BootClock()


def append_time(now_ms: int, last_ms: int) -> int:
    """Return the append time of a topic's next batch, in milliseconds since 1970.

    Append times do not decrease, except that a last time of more than `APPEND_TOLERANCE_MS` in the future is ignored.
    Otherwise a clock that ran ahead once would fix the topic's times until that moment. So append times can go back.
    Searches by time treat a batch as no newer than the batches behind it.
    """
    return last_ms if now_ms <= last_ms <= now_ms + APPEND_TOLERANCE_MS else now_ms


class WitnessKind(Enum):
    BROKER = "broker"  # another broker of the cluster
    STORE = "store"  # the object store, read at the start
    PAST = "past"  # a past time: this clock may be ahead of it, but not behind


class _Witness(NamedTuple):
    offset_ms: int  # its time minus the machine's counter
    heard_ms: int  # the counter when the witness was read
    kind: WitnessKind


class WallClock:
    """Milliseconds since 1970, without sudden steps. Any thread may call it. Only the loop does."""

    def __init__(
        self,
        *,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        counter_ms: Callable[[], int] = _BOOT.now_ms,
    ) -> None:
        self._wall_ms = wall_ms
        self._counter_ms = counter_ms
        self._offset_ms = wall_ms() - counter_ms()
        self._step_since_ms: int | None = None  # counter value at the begin of the present step
        self._stepped_at_ms: int | None = None  # counter value at the begin of the newest step
        self.steps = 0
        self.adopted = 0  # steps that were followed
        self.last_step_ms = 0  # positive if forward
        self._witnesses: dict[str, _Witness] = {}

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970, without the steps of the machine's clock."""
        counter = self._counter_ms()
        wall = self._wall_ms()
        difference = wall - counter - self._offset_ms
        if -STEP_MS <= difference <= STEP_MS:
            self._offset_ms += difference
            self._step_since_ms = None
            return wall
        if self._step_since_ms is None:
            self._step_since_ms = self._stepped_at_ms = counter
            self.steps += 1
            self.last_step_ms = difference
            log.warning("clock_stepped", extra={"by_s": round(difference / 1000, 1)})
        elif counter - self._step_since_ms >= HOLD_MS:
            self._offset_ms += difference
            self._step_since_ms = None
            self.adopted += 1
            return wall
        return counter + self._offset_ms

    def witness(self, name: str, their_ms: int, *, kind: WitnessKind) -> None:
        """Record another clock's time. Warnings contain `name`."""
        counter = self._counter_ms()
        self._witnesses.pop(name, None)
        if len(self._witnesses) >= _WITNESSES:
            del self._witnesses[next(iter(self._witnesses))]
        self._witnesses[name] = _Witness(their_ms - counter, counter, kind)

    def apart_ms(self) -> tuple[int, int]:
        """Return how far this clock is ahead of the slowest witness and behind the fastest one. 0 within a minute."""
        ahead = behind = 0
        for _, difference in self._differences():
            ahead, behind = max(ahead, difference), max(behind, -difference)
        return ahead, behind

    def earliest_ms(self) -> int:
        """Return the time by this clock or its slowest witness, for deletions by age."""
        return self.now_ms() - self.apart_ms()[0]

    def latest_ms(self) -> int:
        """Return the time by this clock or its fastest witness, for checks whether a time is in the future."""
        return self.now_ms() + self.apart_ms()[1]

    def _differences(self) -> Iterator[tuple[str, int]]:
        """Yield each witness that disagrees, with this clock's time minus its own."""
        counter, now = self._counter_ms(), self.now_ms()
        for name, one in self._witnesses.items():
            if one.kind is WitnessKind.BROKER and counter - one.heard_ms > HEARD_MS:
                continue
            difference = now - counter - one.offset_ms
            if difference < -APART_MS or (difference > APART_MS and one.kind is not WitnessKind.PAST):
                yield name, difference

    def apart_most(self) -> tuple[str, int] | None:
        """Return the witness that disagrees most, and the milliseconds that this clock is ahead of it, or None."""
        return max(self._differences(), key=lambda each: abs(each[1]), default=None)

    def contradiction(self) -> str | None:
        """Return the warning about the witness that disagrees most, or None."""
        worst = self.apart_most()
        if worst is None:
            return None
        name, difference = worst
        way = "ahead of" if difference > 0 else "behind"
        return (
            f"the clock of this broker is {abs(difference) / 1000:.0f} s {way} {name}. Until they agree, nothing is deleted "
            "by age that is not old by both, and administration between brokers may fail. Set the clocks (`timedatectl`, "
            "`chronyc tracking`)"
        )

    def reason(self) -> str | None:
        """Return the warning about a recent step of the clock, or None."""
        if self._stepped_at_ms is None or self._counter_ms() - self._stepped_at_ms > _SHOWN_MS:
            return None
        state = (
            "it is not followed until it has stayed there for 30 s"
            if self._step_since_ms is not None
            else "time is right again, or was taken over"
        )
        return (
            f"the machine's clock stepped by {self.last_step_ms / 1000:+.1f} s; {state}. Look at its time service "
            "(`timedatectl`, `chronyc tracking`)"
        )
