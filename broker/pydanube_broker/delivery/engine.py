"""Shared by all pumps of a broker: turns, one timer for all deadlines, one for all changed cursors."""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
import weakref
from collections import Counter, deque
from typing import Final, Protocol

from pydanube_core.errors import ClusterError

from pydanube_broker.delivery.dead_letter_publisher import DeadLetterPublisher
from pydanube_broker.delivery.turns import Turns
from pydanube_broker.slices import SLICE_S
from pydanube_broker.worker_threads import WorkerThreads

log = logging.getLogger("pydanube.delivery")

FLUSH_S: Final = 0.1


class KeptCursor(Protocol):
    """The cursor of a subscription, as `CursorKeeper` uses it."""

    dirty: bool

    @property
    def may_be_written(self) -> bool:
        """Whether the journal takes records. If not, it takes none until a restart."""

    def write_cursor(self) -> None:
        """Append the changes to the journal. Raises its error: `DiskFull`, `Unavailable`, `JournalReadOnly`."""


class CursorKeeper:
    """Makes cursors durable: deltas go to the journal at most 100 ms after the acknowledgement.

    One timer serves the dirty cursors of the whole broker. An acknowledgement whose sender requests
    confirmation forces its delta out immediately.
    """

    def __init__(self) -> None:
        self._dirty: list[KeptCursor] = []
        self._due: deque[KeptCursor] = deque()  # of the current flush
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._failing = False  # logged once, until a cursor is written again

    def note(self, cursor: KeptCursor) -> None:
        """Note that a cursor has changes to write."""
        if not cursor.dirty:
            cursor.dirty = True
            self._dirty.append(cursor)
            if self._timer is None:
                self._timer = self._loop.call_later(FLUSH_S, self._fire)

    def _fire(self) -> None:
        """Write for 5 ms, then let others run: a cursor full of holes takes 15 ms, and many may be dirty."""
        if not self._due:
            self._take()
        begun = time.perf_counter()
        while self._due and time.perf_counter() - begun < SLICE_S:
            self._write(self._due.popleft())
        self._timer = None
        if self._due or self._dirty:
            self._timer = self._loop.call_later(0 if self._due else FLUSH_S, self._fire)

    def flush(self) -> None:
        """Append every dirty cursor now."""
        self._take()
        while self._due:
            self._write(self._due.popleft())

    def _take(self) -> None:
        self._due += self._dirty
        self._dirty = []

    def _write(self, cursor: KeptCursor) -> None:
        """Write one cursor. On failure the next flush retries it, unless the journal has failed for good."""
        try:
            cursor.write_cursor()
        except Exception as error:
            if not cursor.may_be_written:
                return  # it stays dirty: nothing is written until the restart
            cursor.dirty = False
            self.note(cursor)
            if not (isinstance(error, ClusterError) and error.retryable) and not self._failing:
                self._failing = True
                log.exception("cursor_not_written", extra={"error": str(error)})
        else:
            cursor.dirty = False
            self._failing = False

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


LATE_S: Final = 0.001  # added to each deadline, so that the timer does not fire before anything is due


class Ticked(Protocol):
    """An object with deadlines. `due_at_ms` is the time it is scheduled for, None if it is not."""

    due_at_ms: int | None

    def tick(self) -> None: ...


class Deadlines:
    """One timer for all subscriptions: a heap of (due, object), entries replaced lazily.

    Times are monotonic milliseconds of the loop's clock. The references are weak: an ack timeout may be hours, and a
    subscription that was deleted must not stay for them.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, weakref.ref[Ticked]]] = []
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._serial = 0

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def schedule(self, ticked: Ticked, due_ms: int | None) -> None:
        """Schedule a tick at `due_ms`, unless an earlier one is scheduled. That one will find nothing due."""
        if due_ms is None or (ticked.due_at_ms is not None and ticked.due_at_ms <= due_ms):
            return
        ticked.due_at_ms = due_ms
        self._serial += 1
        heapq.heappush(self._heap, (due_ms, self._serial, weakref.ref(ticked)))
        self._arm()

    def _arm(self) -> None:
        if not self._heap:
            return
        due = self._heap[0][0]
        if self._timer is not None:
            if self._timer_ms <= due:
                return
            self._timer.cancel()
        self._timer_ms = due
        self._timer = self._loop.call_at(due / 1000 + LATE_S, self._fire)

    def _fire(self) -> None:
        """Tick after everything that has arrived by now is read: an answer among it is in time.

        uvloop runs timers right behind its reads, and bytes that arrive during a long read are read in the
        next turn. A `call_soon` callback runs before the reads of a turn, so it takes two of them.
        """
        self._loop.call_soon(self._loop.call_soon, self._tick)

    def _tick(self) -> None:
        if self._timer is None:  # closed since
            return
        self._timer.cancel()  # another one may have been armed since
        self._timer = None
        now = self.now_ms()
        while self._heap and self._heap[0][0] <= now:
            due, _, kept = heapq.heappop(self._heap)
            ticked = kept()
            if ticked is not None and ticked.due_at_ms == due:
                ticked.due_at_ms = None
                ticked.tick()
        self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heap.clear()


class DeliveryEngine:
    """Parts that all pumps of a broker share."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.worker_threads = WorkerThreads()
        self.deadlines = Deadlines()
        self.cursors = CursorKeeper()
        self.dropped: Counter[tuple[str, str]] = Counter()  # (topic, reason): messages lost on purpose
        self.dead_letters: DeadLetterPublisher  # set by the owner of the topics, before the first delivery

    def close(self) -> None:
        self.deadlines.close()
        self.cursors.close()
        self.worker_threads.close()
