"""Whether this broker accepts publishes and consumers, and why not.

One place for all obstacles: recovery, draining, a journal that failed, too little disk. `/readyz`, refusals and the
status all read it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import anyio
from pydanube_core.errors import (
    ClusterError,
    ClusterMismatch,
    DiskFull,
    Draining,
    Fenced,
    MetadataUnavailable,
    Unavailable,
)
from pydanube_core.facts import Reason

from pydanube_broker.settings.sizes import guard_bytes

log = logging.getLogger("pydanube.broker")

# Half a lease. After a shorter standstill the broker is still registered, and no registered broker is removed.
LONGEST_STANDSTILL_MS: Final = 5_000


class Standstill:
    """Whether this process stood still for so long that it may have been removed from the cluster, or replaced.

    A process that was stopped (SIGSTOP, a suspended machine, a loop that hung) finds its sockets full of requests when
    it continues. By then it may have been removed, and its topics assigned to others. So it accepts nothing until the
    metadata confirm that its place is still its own. The gap is noticed by the first publish after it, or by a timer,
    whichever runs first.

    Args:
        now_ms: a clock that counts suspension too.
        without_metadata: whether the broker currently runs without its metadata.
    """

    __slots__ = (
        "_error",
        "_seen_ms",
        "_without_metadata",
        "noticed",
        "now_ms",
        "number",
        "was_without_metadata",
    )

    def __init__(self, now_ms: Callable[[], int], without_metadata: Callable[[], bool]) -> None:
        self.now_ms = now_ms
        self._seen_ms = now_ms()
        self._without_metadata = without_metadata
        self._error: Unavailable | None = None
        self.number = 0  # of the last one
        self.was_without_metadata = False  # when that began
        self.noticed = anyio.Event()  # set while one is to be checked

    def look(self) -> Unavailable | None:
        """Return the error for all calls during a standstill, or None. Call it at least once a second."""
        now_ms = self.now_ms()
        gap_ms, self._seen_ms = now_ms - self._seen_ms, now_ms
        if gap_ms > LONGEST_STANDSTILL_MS:
            self.number += 1
            if self._error is None:
                self.was_without_metadata = self._without_metadata()
            self._error = Unavailable(
                f"the broker stood still for {gap_ms / 1000:.0f} s and checks in etcd whether its topics are still its own: "
                "try again in a moment",
                retry_after_ms=100,
            )
            self.noticed.set()
        return self._error

    def settled(self, number: int) -> None:
        """End the standstill of that number, unless there is a later one: etcd confirmed the broker's registration."""
        self.look()
        if self.number == number:
            self._error, self.noticed = None, anyio.Event()


SAMPLE_S: Final = 1.0


def ended(why: Fenced | ClusterMismatch) -> ClusterError:
    """Return the error for clients of a broker that has to end.

    If another broker has its place, they continue there, as after its death.
    """
    if isinstance(why, ClusterMismatch):
        return why
    return Unavailable(
        f"the broker has ended: {why.message}. Messages that were not acknowledged may or may not be stored. Connect again",
        retry_after_ms=500,
        outcome="unknown",
        reason=why.code,
    )


class Health:
    """State of one broker. Single user: the loop."""

    def __init__(self, folder: Path, *, min_free_bytes: int, explicit: bool, memory: bool) -> None:
        self._folder = folder
        self._min_free = 0 if memory else min_free_bytes
        self._explicit = explicit
        self._timer: asyncio.TimerHandle | None = None
        self.recovering = True
        self.draining = False
        #: Another broker has this one's place, or its metadata are older than it. Nothing is accepted, for good.
        self.fenced: Fenced | ClusterMismatch | None = None
        self.standstill: Standstill | None = None  # None: no other broker can take its place
        self.metadata_away: ClusterError | None = None  # messages flow on without it
        self.on_fenced: Callable[[Fenced | ClusterMismatch], None] = lambda _error: None
        self.journal_error: ClusterError | None = None
        # Another reason why the journal takes no records.
        self.journal_trouble: Callable[[], Reason | None] = lambda: None
        # Failed kinds of changes, while messages may still flow: "AUDIT_UNWRITABLE", "METADATA_UNWRITABLE".
        self.changes_refused: dict[str, ClusterError] = {}
        self.disk: dict[str, Any] = {}
        self._disk_error: DiskFull | Unavailable | None = None

    def fence(self, error: Fenced | ClusterMismatch) -> None:
        """Accept nothing more, for good, and notify the servers."""
        self.fenced = error
        log.error("broker_fenced", extra={"why": error.message})
        self.on_fenced(error)

    def start(self) -> None:
        self._sample()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sample(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SAMPLE_S, self._sample)
        self._standing_still()
        self._look()

    def _look(self) -> None:
        try:
            stat = os.statvfs(self._folder)
        except OSError as error:
            # Nothing can be stored now, because the folder was removed or its disk taken away. The next sample looks
            # again.
            self.disk = {"free_bytes": None, "total_bytes": None, "guard_bytes": None}
            self._disk_error = Unavailable(
                f"the data folder {self._folder} cannot be looked at ({error.strerror}): nothing is stored until it "
                "is back. Bring it back, or restart the broker where its data is",
                field="data.dir",
                value=str(self._folder),
                reason=str(error),
                retry_after_ms=int(SAMPLE_S * 1000),
            )
            return
        total, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
        guard = guard_bytes(total, min_free_bytes=self._min_free, explicit=self._explicit)
        self.disk = {"free_bytes": free, "total_bytes": total, "guard_bytes": guard}
        self._disk_error = None
        if free < guard:
            self._disk_error = DiskFull(
                f"{free} bytes are free in {self._folder}, publishing stops below {guard}: free space, or lower "
                "data.min_free_bytes. No message is stored until then. Publishing resumes without help",
                field="data.min_free_bytes",
                value=guard,
                free_bytes=free,
                retry_after_ms=int(SAMPLE_S * 1000),
            )

    def room(self) -> tuple[int | None, int]:
        """Return the free bytes, or None, and the bytes that the guard keeps free."""
        self._look()
        return self.disk["free_bytes"], self.disk["guard_bytes"] or 0

    def check_room(self, size: int) -> None:
        """Raise `DiskFull` if storing so many bytes would leave less on the disk than publishing needs."""
        free, guard = self.room()
        if free is not None and free - size < guard:
            raise DiskFull(
                f"{size} bytes do not fit in {self._folder}: {free} are free, and publishing stops below {guard}. Free "
                "space, or lower data.min_free_bytes",
                field="data.min_free_bytes",
                value=guard,
                free_bytes=free,
                retry_after_ms=int(SAMPLE_S * 1000),
            )

    @property
    def disk_error(self) -> ClusterError | None:
        """Return the error of a full disk. None while it has room."""
        return self._disk_error

    @property
    def storing_error(self) -> ClusterError | None:
        """Return the error that prevents storing for longer than a moment, or None."""
        return self.journal_error or self._disk_error

    def check_publish(self) -> None:
        """Raise the error that refuses every publish now."""
        error = self._publish_error()
        if error is not None:
            raise error

    def check_consume(self) -> None:
        """Raise the error that refuses every consumer now. A failed journal can still be read."""
        if self.fenced is not None:
            raise ended(self.fenced)
        if self.draining:
            raise Draining("the broker is shutting down: try again in a moment", retry_after_ms=500)
        if self.recovering:
            raise Unavailable("the broker is still reading its journal: try again", retry_after_ms=500)
        if (error := self._standing_still()) is not None:
            raise error

    def _publish_error(self) -> ClusterError | None:
        if self.fenced is not None:
            return ended(self.fenced)
        if self.journal_error is not None:
            return self.journal_error
        if self.draining:
            return Draining("the broker is shutting down: try again in a moment", retry_after_ms=500)
        return self._standing_still() or self._disk_error

    def _standing_still(self) -> Unavailable | None:
        return None if self.standstill is None else self.standstill.look()

    def reasons(self) -> tuple[Reason, ...]:
        """Return why this broker is not ready. Empty if it is.

        The disk is checked now, so that the result agrees with publishes of this second.
        """
        found: list[Reason] = []
        self._look()
        if self.recovering:
            found.append(Reason(code="RECOVERING", message="the journal is being read"))
        if self.fenced is not None:
            found.append(Reason(code=self.fenced.code, message=self.fenced.message))
        if (stood := self._standing_still()) is not None:
            found.append(Reason(code="STOOD_STILL", message=stood.message))
        if self.draining:
            found.append(Reason(code=Draining.code, message="the broker is shutting down"))
        if self.journal_error is not None:
            found.append(Reason(code="JOURNAL_READ_ONLY", message=self.journal_error.message))
        if self._disk_error is not None:
            code = "DISK_GUARD" if isinstance(self._disk_error, DiskFull) else "DATA_DIR_GONE"
            found.append(Reason(code=code, message=self._disk_error.message))
        elif self.journal_error is None and (trouble := self.journal_trouble()) is not None:
            found.append(trouble)
        return (*found, *self._refused(by_metadata=False))

    def without_metadata(self) -> tuple[Reason, ...]:
        """Return which changes the metadata store refuses. Messages flow on, so the broker is ready."""
        return self._refused(by_metadata=True)

    def _refused(self, *, by_metadata: bool) -> tuple[Reason, ...]:
        return tuple(
            Reason(code=code, message=f"no change can be made: {error.message}")
            for code, error in self.changes_refused.items()
            if isinstance(error, MetadataUnavailable) is by_metadata
        )
