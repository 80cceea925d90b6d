"""Write the audit: one chain, records in groups.

Several cores may write: a group is appended only to the end that it links to.

A write returns when its record is on stable storage. Reads do not wait: their records are written with the
next group, which begins as soon as the one before is stored. Records that cannot be written stay in the queue
and are retried. When the queue is full, reads are refused too, so that no call is ever without a record.

The audit ends in two steps. `end_calls` ends waiting calls with `Draining` and refuses new ones. Records of changes
that were made are still written, because clients change subscriptions until the broker's ports are closed. `aclose`
tries once more to write the waiting records, and logs the number of records that it drops.

Changes are never left out. A program that reads the lag each second would fill the audit with those reads
alone, and a loop of bad calls would grow it without limit. Therefore one of equal reads is recorded per
minute, and a limited number of refusals per second. The number left out is recorded as well.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final

import anyio
from pydanube_core.audit_begin import BEGIN_KEY, AuditBegin
from pydanube_core.audit_key import AuditKey
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import AuditUnavailable, ClusterError, Conflict, Draining
from pydanube_core.recent import RecentDict

from pydanube_admin.engine.audit.audit_chain import FIRST, KEYS_KEY, Head, KeyTerms, head_of, linked
from pydanube_admin.engine.audit.audit_index import AuditIndex

READS_APART_MS: Final = 60_000
MOST_ALIKE: Final = 1000  # kinds of reads that are remembered
REFUSALS_A_SECOND: Final = 50


class AuditReads(StrEnum):
    """Which reads the audit records: the setting `[admin] audit_reads`."""

    SAMPLED = "sampled"  # the first in a minute of each principal, face and operation
    ALL = "all"
    NONE = "none"


class ReadSampling:
    """Decides which reads are recorded. Single user: the loop."""

    def __init__(self, which: AuditReads) -> None:
        self._which = which
        self._last_ms: RecentDict[tuple[str, str, str], int] = RecentDict(MOST_ALIKE)

    def takes(self, principal: str, face: str, operation: str, now_ms: int) -> bool:
        """Return whether a read is recorded."""
        if self._which is not AuditReads.SAMPLED:
            return self._which is AuditReads.ALL
        kind = (principal, face, operation)
        last = self._last_ms.get(kind)
        if last is not None and 0 <= now_ms - last < READS_APART_MS:
            return False
        self._last_ms[kind] = now_ms
        return True


class RefusalBound:
    """Decides which refusals are recorded, and counts those that are not. Single user: the loop."""

    def __init__(self) -> None:
        self._second = -1
        self._taken = 0
        self._left_out = 0

    def takes(self, now_ms: int) -> bool:
        """Return whether a refusal is recorded: it is one of the first of its second."""
        if now_ms // 1000 != self._second:
            self._second, self._taken = now_ms // 1000, 0
        self._taken += 1
        if self._taken <= REFUSALS_A_SECOND:
            return True
        self._left_out += 1
        return False

    def left_out(self) -> int:
        """Return how many were left out since the last call."""
        count, self._left_out = self._left_out, 0
        return count


_log = logging.getLogger("pydanube.admin")

HEAD_KEY: Final = "audit/head"
MAX_WAITING: Final = 10_000
GROUP: Final = 500
RETRY_S: Final = 0.5
ATTEMPTS: Final = 32  # each that fails means that another core's group was written
LAST_TRY_S: Final = 2.0  # an append waits at most 1 s for the object store
CANCEL_S: Final = 1.0  # a cancelled append only releases its place in the journal's queue


class AuditLog:
    """See the module. Single user: the loop."""

    def __init__(self, port: ClusterPort, reads: AuditReads = AuditReads.SAMPLED) -> None:
        self._port = port
        self.index = AuditIndex(port)
        self.reads = ReadSampling(reads)
        self.refusals = RefusalBound()
        self._waiting: deque[tuple[Mapping[str, Any], asyncio.Future[None] | None]] = deque()
        self._group: Sequence[tuple[Mapping[str, Any], asyncio.Future[None] | None]] = ()  # being written
        self._task: asyncio.Task[None] | None = None
        self._head: Head | None = None  # None: to be read from the topic first
        self.error: ClusterError | None = None  # why the last group could not be written
        self._source: Callable[[], Iterable[Mapping[str, Any]]] = tuple  # source of gathered records
        self._tried = asyncio.Event()  # to write a group, with or without success
        self._calls_ended = False
        self._last_try = asyncio.Event()
        self._closed = False

    @property
    def head(self) -> Head | None:
        """The last record confirmed to be on stable storage."""
        return self._head

    def collect_from(self, gathered: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        """Register a source of records, which is read at `collect` and before a query."""
        self._source = gathered

    def collect(self) -> None:
        """Take the records of the registered source, if there is room."""
        if len(self._waiting) < MAX_WAITING:
            self.note(*self._source())

    def check_room(self) -> None:
        """Raise `AuditUnavailable` if no more records are accepted, or `Draining` after `end_calls`."""
        if self._calls_ended:
            raise _draining()
        if len(self._waiting) >= MAX_WAITING:
            raise self._unavailable(self.error)

    def note(self, *records: Mapping[str, Any]) -> None:
        """Write records soon, without waiting for them. After `aclose`, drop them and log their number."""
        if self._closed:
            _log_dropped(len(records))
            return
        self._waiting.extend((record, None) for record in records)
        self._start()

    async def write(self, *records: Mapping[str, Any]) -> None:
        """Write records after all that were noted before. They are on stable storage on return.

        Raises `AuditUnavailable` or `Draining`: it is not confirmed that they are.
        """
        self.check_room()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.extend((record, None) for record in records[:-1])
        self._waiting.append((records[-1], done))
        self._start()
        await done

    async def settled(self) -> None:
        """Wait until no record is waiting, or none can be written."""
        self.collect()
        while self._task is not None and self.error is None:
            if self._tried.is_set():  # others may wait for it
                self._tried = asyncio.Event()
            await self._tried.wait()

    def end_calls(self) -> None:
        """End waiting calls with `Draining`, and refuse new ones. Records without a waiting call are still written."""
        self._calls_ended = True
        for _, done in (*self._group, *self._waiting):
            if done is not None and not done.done():
                done.set_exception(_draining())
        self._waiting = deque(each for each in self._waiting if each[1] is None)

    async def aclose(self) -> None:
        """End calls, and try once to write the waiting records, for at most 2 s. Log the number of dropped records.

        A cancellation ends the attempt.
        """
        self.end_calls()
        try:
            if not self._closed:
                self.note(*self._source())  # also above `MAX_WAITING`: the source is bounded
                self.error = None
                self._last_try.set()
            with anyio.move_on_after(LAST_TRY_S):
                await self.settled()
            await self.index.aclose()
        finally:
            self._closed = True
            if self._task is not None:
                self._task.cancel()
                with anyio.move_on_after(CANCEL_S, shield=True):
                    await asyncio.wait([self._task])
            _log_dropped(sum(done is None for _, done in self._waiting))
            self._waiting.clear()

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._tried.set()
        if not task.cancelled() and task.exception() is not None:
            _log.error("audit_failed", exc_info=task.exception())
        is_over = self._closed or (self._last_try.is_set() and self.error is not None)
        if self._waiting and not task.cancelled() and not is_over:
            self._start()

    async def _run(self) -> None:
        await asyncio.sleep(0)  # records of the same turn go in the same group
        while self._waiting:
            self._group = group = [self._waiting.popleft() for _ in range(min(GROUP, len(self._waiting)))]
            try:
                await self._append([record for record, _ in group])
            except asyncio.CancelledError:
                self._group = ()
                self._waiting.extendleft(reversed(group))
                raise
            except Exception as error:
                # Whether the group was stored is unknown: the chain's end is read again before the next one.
                self._head = None
                self.error = error if isinstance(error, ClusterError) else AuditUnavailable(str(error))
                self._tried.set()
                if not isinstance(error, ClusterError):
                    _log.exception("audit_failed")
                unavailable = self._unavailable(self.error)
                for _, done in group:
                    if done is not None and not done.done():
                        done.set_exception(unavailable)
                # Waiting calls were refused. Reads have happened all the same, and are still to be recorded.
                self._waiting.extendleft(reversed([each for each in group if each[1] is None]))
                self._group = ()
                if self._last_try.is_set():
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_S):
                        await self._last_try.wait()
                continue
            self.error = None
            self._group = ()
            for _, done in group:
                if done is not None and not done.done():
                    done.set_result(None)

    async def _append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Link records to the chain's end and append them, or to the new end if another core was faster."""
        key = await self._port.audit_key()
        for _ in range(ATTEMPTS):
            try:
                end = head = self._head or await self._open(key)
                payloads = []
                for record in records:
                    payload, head = linked(record, head, key)
                    payloads.append(payload)
                await self._port.append_audit(payloads, at=end.seq + 1)
            except Conflict:
                self._head = None
            else:
                self._head = head
                self.index.wrote(head.seq + 1)
                return
        raise AuditUnavailable(f"others wrote to the audit {ATTEMPTS} times before this broker could")

    async def _open(self, key: AuditKey) -> Head:
        next_offset, last = await self._port.open_audit()
        kept = await self._port.read_state(KEYS_KEY)
        terms = KeyTerms.from_json(None if kept is None else kept.value, key, of_others=True)
        if terms.terms and terms.terms[-1][1] != key.key_id:
            _log.warning(
                "audit_key_changed",
                extra={
                    "key_before": terms.terms[-1][1],
                    "key_id": key.key_id,
                    "remedy": "nothing, if the key file was lost or replaced. Otherwise the metadata was altered in the "
                    "store: look at the records that audit.verify counts as chain_only",
                },
            )
        now = terms.with_key(key.key_id, next_offset).to_json(key)
        if kept is None or kept.value != now:  # before its first record
            await self._port.write_state(
                {KEYS_KEY: now}, expected={KEYS_KEY: None if kept is None else kept.revision}
            )
        if await self._port.read_state(BEGIN_KEY) is None:
            await self._keep_begin(key)
        if last is None:
            # Nothing is stored, or all of it was trimmed: a record's seq is its offset all the same.
            stored = await self._port.read_state(HEAD_KEY)
            known = None if stored is None else head_of(stored.value)
            if known is not None and known.seq == next_offset - 1:
                return known
            return Head(seq=next_offset - 1, hash=FIRST.hash)
        head = head_of(last)
        # An unreadable last record breaks the chain, which `audit.verify` reports. The chain continues.
        return Head(seq=next_offset - 1, hash=FIRST.hash if head is None else head.hash)

    async def _keep_begin(self, key: AuditKey) -> None:
        """Store where the chain begins: before its first record, or of an audit that an earlier version wrote."""
        start, found = await self._port.read_audit(start=0, max_messages=1)
        begin = AuditBegin()
        if start > 0 and found:
            begin = AuditBegin(start, str(json.loads(found[0][1])["prev_hash"]))
            _log.warning("audit_begin_adopted", extra={"seq": start})
        await self._port.write_state({BEGIN_KEY: begin.to_json(key)}, expected={BEGIN_KEY: None})

    @staticmethod
    def _unavailable(error: ClusterError | None) -> AuditUnavailable:
        why = "" if error is None else f": {error.message}"
        return AuditUnavailable(
            f"the call cannot be recorded in the audit, so nothing was changed{why}",
            reason=None if error is None else error.code,
        )


def _draining() -> Draining:
    return Draining("the broker is shutting down: try again in a moment", retry_after_ms=500)


def _log_dropped(records: int) -> None:
    if records:
        _log.error("audit_records_dropped", extra={"records": records})
