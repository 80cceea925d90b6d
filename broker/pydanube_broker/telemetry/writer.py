"""Write telemetry: take rounds in the loop, give them to the tier's process every `flush_age`.

In the loop a row costs a microsecond: `marshal` packs it there, and the process that has pyarrow decodes it. The
waiting rows are bounded by bytes. Beyond that, rounds are dropped and counted, and the telemetry has a gap, which
reports show as one. A store that is away costs telemetry, never messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import marshal
import os
import secrets
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio
import psutil
from pydanube_core.errors import ClusterError
from pydanube_core.observation import Round
from pydanube_core.telemetry import TelemetryFile, telemetry_folder
from pydanube_core.telemetry.files import DAY_MS, date_of
from pydanube_core.telemetry.tables import BROKERS, EVENTS, HOLD_ROUNDS

from pydanube_broker.telemetry.rows import Machine, RoundRows, Row, removed_row

if TYPE_CHECKING:  # the tier's process has this package, and would load pydantic for it
    from pydanube_broker.settings.sections import Telemetry

log = logging.getLogger("pydanube.telemetry")

WAITING_BYTES: Final = 16 << 20  # about ten minutes of a thousand busy subscriptions
_SLICE_ROWS: Final = 500  # packed together: half a millisecond
_TEND_EVERY: Final = 10  # flushes between two rounds of upkeep
_STEPS: Final = 20  # of one round of upkeep
_CLOSE_S: Final = 5.0
RECALL_S: Final = 60.0  # for rows of the last run: a store that hangs does not delay this run's
_SET_BACK_MS: Final = 3_600_000

Call = Callable[[str, dict[str, Any], bytes], Awaitable[tuple[dict[str, Any], Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryStatistics:
    """Counters since the broker started."""

    rounds: int
    rows: int
    files: int
    bytes: int
    waiting_bytes: int
    dropped_rounds: int
    errors: int
    error: str | None  # of the last flush, if it failed


@dataclass(frozen=True, slots=True)
class _Packed:
    """Rows of one table, of one round."""

    table: str
    taken_ms: int
    rows: int
    data: bytes


class TelemetryWriter:
    """Gathers rounds, given to `take`, and writes them. `run` is its task. Single user: the loop.

    Args:
        call: calls the tier's process.
        cluster: first part of every key.
        state: returns the state in this broker's registration.
    """

    def __init__(
        self,
        settings: Telemetry,
        machine: Machine,
        call: Call,
        cluster: str,
        *,
        now_ms: Callable[[], int],
        state: Callable[[], str] = lambda: "active",
    ) -> None:
        self._settings = settings
        self._call = call
        self._cluster = cluster
        self._broker_id = machine.broker_id
        self._rows = RoundRows(machine, state)
        self._now_ms = now_ms
        self._waiting: deque[_Packed] = deque()
        self._waiting_bytes = 0
        self._taken_ms = 0
        self._rounds = self._row_count = self._files = self._bytes = self._dropped = self._errors = 0
        self._error: str | None = None
        self._flushing = asyncio.Lock()
        self._reading_events = asyncio.Lock()

    def statistics(self) -> TelemetryStatistics:
        return TelemetryStatistics(
            rounds=self._rounds,
            rows=self._row_count,
            files=self._files,
            bytes=self._bytes,
            waiting_bytes=self._waiting_bytes,
            dropped_rounds=self._dropped,
            errors=self._errors,
            error=self._error,
        )

    def take(self, found: Round) -> None:
        """Take a round. Never waits, never raises. Without room for it, it is dropped and counted."""
        # The sampler may sample more often than this interval, and its rounds are never quite an interval apart.
        due_ms = self._taken_ms + self._settings.sample_interval * 1000 - found.interval_s * 500
        # A clock that was set back repeats written times, so nothing is due until it has caught up. After a clock
        # that was ahead for a moment, perhaps by a year, that would be nothing for a year, so a larger step back is
        # not waited for.
        set_back = found.taken_at_ms < self._taken_ms - _SET_BACK_MS
        due = self._taken_ms == 0 or found.taken_at_ms >= due_ms or set_back
        rows = self._rows.take(found, due=due)
        if not due:
            return
        self._taken_ms = found.taken_at_ms
        self._rounds += 1
        if self._waiting_bytes >= WAITING_BYTES:
            self._dropped += 1
            return
        for table, all_of_it in rows.items():
            for at in range(0, len(all_of_it), _SLICE_ROWS):
                self._pack(table, found.taken_at_ms, all_of_it[at : at + _SLICE_ROWS])

    def _pack(self, table: str, taken_ms: int, rows: Sequence[Row]) -> None:
        data = marshal.dumps(list(rows))
        self._waiting.append(_Packed(table, taken_ms, len(rows), data))
        self._waiting_bytes += len(data)

    async def run(self, recall: Callable[..., Awaitable[None]]) -> None:
        """Read the last run's rows (`recall`), then flush, and maintain the stored files, until cancelled."""
        with anyio.move_on_after(RECALL_S):
            await recall(self.past, self.charted)
        flushes = 0
        while True:
            await asyncio.sleep(self._settings.flush_age)
            await self.flush()
            flushes += 1
            if flushes % _TEND_EVERY == 1:
                await self._tend()

    async def aclose(self, last: Sequence[Row] = ()) -> None:
        """Write the waiting rows, that the broker stopped, and its `last` events, if that is quick."""
        word = self._rows.stopped_row(self._now_ms())
        if word is not None:
            self._pack(BROKERS.name, word[0], [word])
        self.note_events(last)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self.flush()

    def note_events(self, rows: Sequence[Row]) -> None:
        """Take rows of `events`, each with its own time. Without room they are dropped and counted, as rounds are."""
        for row in rows:
            if self._waiting_bytes >= WAITING_BYTES:
                self._dropped += 1
            else:
                self._pack(EVENTS.name, row[0], [row])

    async def events(self, since_ms: int, until_ms: int, most: int) -> tuple[list[Row], bool]:
        """Return the newest events of all brokers in `[since_ms, until_ms)`, newest first, and whether there are older ones.

        Those of other brokers are missing until they are flushed. Raises the errors of the store.
        """
        # Urgent: an operator waits, and on a busy machine a call of low priority took longer than the caller's deadline.
        asked = {
            "cluster": self._cluster,
            "start_ms": since_ms,
            "end_ms": until_ms,
            "most": most,
            "urgent": True,
        }
        # One at a time: the tier has two threads for urgent calls, and a flush needs one of them.
        async with self._reading_events:
            # Copied before the files are read: rows flushed in between are in both, not in neither
            waiting = list(self._waiting)
            said, blob = await self._call("telemetry_events", asked, b"")
        rows: list[Row] = marshal.loads(blob)
        for packed in waiting:
            if packed.table == EVENTS.name and since_ms <= packed.taken_ms < until_ms:
                rows += marshal.loads(packed.data)
        own = {row[1:4]: row for row in rows}
        newest = sorted(own.values(), key=lambda row: row[0], reverse=True)
        return newest[:most], said["more"] or len(newest) > most

    async def past(self, start_ms: int, end_ms: int) -> tuple[Sequence[int], Mapping[tuple[int, int], bytes]]:
        """Return the times of the rounds of this broker's last run in `[start_ms, end_ms)`, and its rings. Raises the store's errors."""
        asked = {"cluster": self._cluster, "broker_id": self._broker_id, "urgent": True}
        said, blob = await self._call("telemetry_past", asked | {"start_ms": start_ms, "end_ms": end_ms}, b"")
        return said["times"], marshal.loads(blob)

    async def charted(
        self, start_ms: int, end_ms: int
    ) -> tuple[bytes, Mapping[int, bytes], Mapping[tuple[int, int], bytes]]:
        """Return the rows of this broker's charts in `[start_ms, end_ms)`. Raises the store's errors."""
        hold_ms = int(HOLD_ROUNDS * self._settings.sample_interval * 1000)
        asked = {"cluster": self._cluster, "broker_id": self._broker_id, "hold_ms": hold_ms}
        _, blob = await self._call("telemetry_charted", asked | {"start_ms": start_ms, "end_ms": end_ms}, b"")
        broker, logs, cursors = marshal.loads(blob)
        return broker, logs, cursors

    def note_removed(self, broker_id: str) -> None:
        """Write that another broker was removed, so that reports do not wait for its samples."""
        now_ms = self._now_ms()
        self._pack(BROKERS.name, now_ms, [removed_row(broker_id, now_ms)])

    async def flush(self) -> None:
        """Write all waiting rows, one file for each table and day. Rows that failed are tried again next time."""
        async with self._flushing:
            taken = list(self._waiting)
            if not taken:
                return
            parts: dict[tuple[str, int], list[_Packed]] = {}
            for each in taken:
                parts.setdefault((each.table, each.taken_ms // DAY_MS), []).append(each)
            files = []
            for (table, _), packed in parts.items():
                times = [each.taken_ms for each in packed]
                name = TelemetryFile(
                    start_ms=min(times),
                    end_ms=max(times) + 1,
                    broker_id=self._broker_id,
                    generation=0,
                    random=secrets.token_hex(4),
                )
                folder = telemetry_folder(self._cluster, table, date_of(min(times)))
                files.append(
                    {"table": table, "key": f"{folder}/{name}", "sizes": [len(each.data) for each in packed]}
                )
            blob = b"".join(each.data for packed in parts.values() for each in packed)
            try:
                # Not with low priority: it takes a tenth of a second a minute, and the telemetry of a busy hour is
                # the most useful.
                said, _ = await self._call("telemetry_write", {"files": files, "urgent": True}, blob)
            except ClusterError as error:
                self._failed(error)
                return
            self._error = None
            self._files += len(files)
            self._bytes += said["bytes"]
            for each in taken:
                self._waiting.popleft()
                self._waiting_bytes -= len(each.data)
                self._row_count += each.rows

    async def _tend(self) -> None:
        arguments: Mapping[str, Any] = {
            "cluster": self._cluster,
            "broker_id": self._broker_id,
            "now_ms": self._now_ms(),
            "most": _STEPS,
            "keep_ms": round(self._settings.keep * 1000),
            "keep_downsampled_ms": round(self._settings.keep_downsampled * 1000),
            "downsample_after_ms": round(self._settings.downsample_after * 1000),
        }
        try:
            said, _ = await self._call("telemetry_tend", dict(arguments), b"")
        except ClusterError as error:
            self._failed(error)
        else:
            if said["damaged"]:
                log.warning("telemetry_damaged", extra={"files": said["damaged"]})

    def _failed(self, error: ClusterError) -> None:
        self._errors += 1
        if self._error is None:  # once per outage
            log.warning("telemetry_failed", extra={"error": error.message})
        self._error = error.message


def usable_cpus() -> int | None:
    """Return how many processors this process may use."""
    return os.cpu_count() if sys.platform == "darwin" else len(os.sched_getaffinity(0))


def machine_of(broker_id: str, incarnation: int) -> Machine:
    """Return processors and memory. The network's capacity can neither be read nor declared yet."""
    memory = psutil.virtual_memory().total
    return Machine(broker_id=broker_id, incarnation=incarnation, cpus=usable_cpus(), memory_bytes=memory)
