"""The broker's wall clock: the system's clock, except that it follows a step only after a delay.

A message with a wrong append time keeps it, and later decisions compare with it. So the broker does not follow a step of
the system's clock immediately. For `HOLD_MS` its time advances with the machine's counter, and it adopts the system's
clock only if the difference persists. A short error has no effect, and a correction takes effect after 30 s. Small
differences, such as those of NTP, are followed immediately. Timeouts within the process use the loop's time instead.

A clock that was wrong from the start is detected by witnesses: other brokers, the object store, the newest append time, and
this clock before it stepped or before the start, carried on by the machine's counter. The broker deletes by age only data
that are old enough by all witnesses (`earliest_ms`). A time counts as in the future only if it is later than the time of all
witnesses (`latest_ms`).

If another broker or the store agrees with the clock, its own past does not count. Without such a witness a step is believed
after `BEFORE_MS`. A start long after the newest message, in another boot of the machine, looks like a clock that is ahead. It
deletes nothing by age that is newer than this message, until a witness is heard or for `START_MS`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from enum import Enum
from typing import Final, NamedTuple

from pydanube_storage.metadata import BootClock

log = logging.getLogger("pydanube.clock")

STEP_MS: Final = 2_000  # a larger difference between two readings is a step
HOLD_MS: Final = 30_000
_SHOWN_MS: Final = 600_000  # a step is listed in `reasons` for this long
APART_MS: Final = 60_000  # smaller differences from a witness are ignored, as delays of messages
HEARD_MS: Final = 3_600_000  # another broker counts as a witness for this long after its last message
BEFORE_MS: Final = 86_400_000  # a day for an operator to see the finding and to set the clock
START_MS: Final = 600_000  # brokers and object stores that can be reached are heard by then
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
    BEFORE = "before"  # this clock in the past, carried on by the machine's counter


_COUNTS_MS: Final = {WitnessKind.BROKER: HEARD_MS, WitnessKind.BEFORE: BEFORE_MS}
_BEFORE_STEP: Final = "this clock before it stepped"
_BEFORE_START: Final = "this clock before the start"
_NEWEST_MESSAGE: Final = "the newest message of the journal"


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
        self._unsettled_until_ms = -1  # counter value at the end of a start's wait for witnesses
        # Append time and topic of the newest message at the start
        self._newest_ms, self._newest_topic = 0, ""

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
            if not any(one.kind is WitnessKind.BEFORE for _, one, _ in self._heard(counter, counter)):
                self.witness(_BEFORE_STEP, counter + self._offset_ms, kind=WitnessKind.BEFORE)
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

    def started(self, newest_ms: int, *, before_ms: int | None, newest_topic: str = "") -> None:
        """Begin with the witnesses of a start, before anything is deleted.

        Args:
            newest_ms: append time of the newest message, 0 if there is none.
            before_ms: `offset_ms` of an earlier start in the same boot, None if unknown.
            newest_topic: topic of that message, for warnings.
        """
        self._newest_ms, self._newest_topic = newest_ms, newest_topic
        counter = self._counter_ms()
        for name in (_BEFORE_STEP, _BEFORE_START, _NEWEST_MESSAGE):
            self._witnesses.pop(name, None)
        self._unsettled_until_ms = -1
        if before_ms is not None:
            self.witness(_BEFORE_START, counter + before_ms, kind=WitnessKind.BEFORE)
        if newest_ms > 0:
            self.witness(_NEWEST_MESSAGE, newest_ms, kind=WitnessKind.PAST)
            if self.now_ms() - newest_ms > APART_MS:
                self._unsettled_until_ms = counter + START_MS

    @property
    def offset_ms(self) -> int | None:
        """Return this clock minus the machine's counter, for a later start. None while a witness disagrees."""
        self.now_ms()
        return None if self._step_since_ms is not None or self.apart_most() else self._offset_ms

    def apart_ms(self, *, at_start: bool = True) -> tuple[int, int]:
        """Return how far this clock is ahead of the slowest witness and behind the fastest one. 0 within a minute.

        Args:
            at_start: whether the newest message counts as a slow clock until another witness is heard.
        """
        ahead = behind = 0
        for _, difference in self._differences(at_start=at_start):
            ahead, behind = max(ahead, difference), max(behind, -difference)
        return ahead, behind

    def earliest_ms(self) -> int:
        """Return the time by this clock or its slowest witness, for deletions by age."""
        return self.now_ms() - self.apart_ms()[0]

    def latest_ms(self) -> int:
        """Return the time by this clock or its fastest witness, for checks whether a time is in the future."""
        return self.now_ms() + self.apart_ms()[1]

    def _differences(self, *, at_start: bool = False) -> Iterator[tuple[str, int]]:
        """Yield each witness that disagrees, with this clock's time minus its own."""
        counter = self._counter_ms()
        now = self.now_ms()
        heard = self._heard(counter, now)
        if not heard:
            return
        confirmed = any(
            one.kind in (WitnessKind.BROKER, WitnessKind.STORE) and abs(difference) <= APART_MS
            for _, one, difference in heard
        )
        unsettled = at_start and counter < self._unsettled_until_ms
        unsettled = unsettled and all(one.kind is WitnessKind.PAST for _, one, _ in heard)
        for name, one, difference in heard:
            counts = difference < -APART_MS or unsettled or one.kind is not WitnessKind.PAST
            counts = counts and not (confirmed and one.kind is WitnessKind.BEFORE)
            # The clock is right, so the message was from the future and is not any more.
            counts = counts and not (confirmed and name == _NEWEST_MESSAGE and self._newest_ms <= now)
            if counts and abs(difference) > APART_MS:
                yield name, difference

    def _heard(self, counter: int, now: int) -> list[tuple[str, _Witness, int]]:
        """Return the witnesses that still count, each with `now` minus its time."""
        return [
            (name, one, now - counter - one.offset_ms)
            for name, one in self._witnesses.items()
            if counter - one.heard_ms <= _COUNTS_MS.get(one.kind, counter)
        ]

    def apart_most(self) -> tuple[str, int] | None:
        """Return the witness that disagrees most, and the milliseconds that this clock is ahead of it, or None."""
        return max(self._differences(), key=lambda each: abs(each[1]), default=None)

    def contradiction(self) -> str | None:
        """Return the warning about the witness that disagrees most, or None."""
        worst = self.apart_most()
        if worst is None:
            return None
        name, difference = worst
        if name == _NEWEST_MESSAGE and difference < 0:
            return self._future_messages(-difference)
        way = "ahead of" if difference > 0 else "behind"
        return (
            f"the clock of this broker is {abs(difference) / 1000:.0f} s {way} {name}. Until they agree, nothing is deleted "
            "by age that is not old by both, and administration between brokers may fail. Set the clocks (`timedatectl`, "
            "`chronyc tracking`)"
        )

    def _future_messages(self, ahead_ms: int) -> str:
        """Return the warning that the newest message is later than this clock by `ahead_ms`."""
        counter, now = self._counter_ms(), self.now_ms()
        agreeing = next(
            (
                name
                for name, one, difference in self._heard(counter, now)
                if one.kind in (WitnessKind.BROKER, WitnessKind.STORE) and abs(difference) <= APART_MS
            ),
            None,
        )
        until = datetime.fromtimestamp(self._newest_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        found = (
            f"the clock of this broker is {ahead_ms / 1000:.0f} s behind {_NEWEST_MESSAGE}: topic {self._newest_topic} has "
            f"messages from the future, up to {until}"
        )
        if agreeing is not None:
            return (
                f"{found}. The clock agrees with {agreeing.removeprefix('the clock of ')}, so these messages were stored "
                "while it ran ahead. There is nothing to set. This finding ends at that time"
            )
        return (
            f"{found}. If this clock is right (`timedatectl`, `chronyc tracking`), they were stored while it ran ahead, and "
            "there is nothing to set: this finding ends with the next start after that time. Otherwise set the clock"
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
