"""The metadata store of a broker without etcd: SQLite behind one worker thread that shares commits.

Calls are queued to the thread. It takes up to 64 waiting calls, carries them out in order in one SQLite transaction,
commits once and answers all of them: one fsync for many transactions. Calls of one group see each other's changes,
which is safe because none is answered before the commit. If the commit fails, all changes of the group are undone.

If the disk is full, the group fails and nothing changes. Any other disk error stops writing until the store is opened
again, because a failed fsync is never retried on the same file. Reads continue as far as SQLite permits.

A busy event loop may starve every thread of the process (docs/design.md#4-the-journal). While a call waits for the
thread, the `pending` hook is held, so that the broker's loop can give way.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
from pydanube_core.errors import ClusterError, DiskFull, MetadataUnavailable

from pydanube_storage.metadata.clock import Clock
from pydanube_storage.metadata.engine import DEFAULT_HISTORY_REVISIONS, Change, Engine, EngineFacts
from pydanube_storage.metadata.shell import StoreShell
from pydanube_storage.metadata.sqlite_rows import SqliteRows, is_terminal, translate

T = TypeVar("T")
# Bounds the calls that one failed commit fails, and how long the first waits for the last
_MAX_GROUP: Final = 64
_MAX_WAITING: Final = 1024  # queued calls. Further ones wait on the loop
_CLOSE_S: Final = 10.0  # a hanging disk must not keep the broker from ending


@dataclass(slots=True, eq=False)
class _Request:
    operation: Callable[[Engine], Any]
    writes: bool
    done: anyio.Event
    cancelled: bool = False  # set by the loop, read by the thread: a hint only
    result: Any = None
    error: BaseException | None = None


@dataclass(slots=True, kw_only=True)
class _Answer:
    """The thread's answer for a group: the requests with their results, and the changes of the commit."""

    requests: list[_Request]
    changes: list[Change] = field(default_factory=list)
    facts: EngineFacts | None = None
    failed: bool = False


class EmbeddedStore(StoreShell):
    """Use as `async with EmbeddedStore(path) as store` on asyncio. At most 1024 calls are queued, further ones wait.

    Args:
        path: the SQLite file, created if missing. Its folder must exist. It is locked exclusively while open.
        clock: the time for leases.
        history_revisions: how many revisions back a watch may begin, also after the store is opened again.
        first_revision: the revision at which a new file begins.
        pending: entered while a call waits for the worker thread.
        make_room: called when the disk is full. If it returns true, it freed space and the call is tried once more.

    Entering raises `DataDirLocked`, `DataDirForeign`, `FormatTooNew`, `CorruptMetadata` or `MetadataUnavailable`.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        history_revisions: int = DEFAULT_HISTORY_REVISIONS,
        first_revision: int = 0,
        pending: Callable[[], AbstractContextManager[None]] | None = None,
        make_room: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(clock=clock)
        self._make_room = make_room or (lambda: False)
        self._path = path
        self._history_revisions = history_revisions
        self._first_revision = first_revision
        self._pending = pending or nullcontext
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._slots = anyio.Semaphore(_MAX_WAITING)
        self._waiting = 0
        self._failed = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # On the loop

    async def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = anyio.Event()
        opened = _Request(lambda _engine: None, writes=False, done=anyio.Event())
        self._thread = threading.Thread(target=self._work, args=(opened,), name="metadata-store", daemon=True)
        self._thread.start()
        try:
            with self._pending():
                await opened.done.wait()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._stop()
            raise
        if opened.error is not None:
            await self._stop()
            raise opened.error

    async def _stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._requests.put(None)
        with anyio.move_on_after(_CLOSE_S), self._pending():
            await self._ended.wait()
            thread.join()  # it has posted its last message and is about to return

    def _waiting_calls(self) -> int:
        return self._waiting

    def _has_failed(self) -> bool:
        return self._failed

    async def run_step(self, operation: Callable[[Engine], T], *, writes: bool) -> T:
        try:
            return await self._try(operation, writes=writes)
        except DiskFull:
            if not self._make_room():
                raise
        # The group was undone, so the step may run again
        return await self._try(operation, writes=writes)

    async def _try(self, operation: Callable[[Engine], T], *, writes: bool) -> T:
        async with self._slots:
            self._check_open()
            request = _Request(operation, writes, anyio.Event())
            self._waiting += 1
            self._requests.put(request)
            try:
                with self._pending():
                    await request.done.wait()
            except BaseException:
                request.cancelled = True
                raise
            finally:
                self._waiting -= 1
        if request.error is not None:
            raise request.error
        result: T = request.result
        return result

    def _deliver(self, answer: _Answer) -> None:
        self._failed = answer.failed
        if answer.facts is not None:
            self._commits += bool(answer.changes)
            self._note(answer.changes, answer.facts)
        for request in answer.requests:
            request.done.set()

    # In the thread

    def _work(self, opened: _Request) -> None:
        worker: _Worker | None = None
        try:
            worker = _Worker(self._path, self._clock, self._history_revisions, self._first_revision)
        except BaseException as error:
            opened.error = error
        try:
            self._post(_Answer(requests=[opened], facts=worker.engine.facts() if worker else None))
            while worker is not None and (group := self._take_group()):
                self._post(worker.carry_out(group))
        finally:
            if worker is not None:
                worker.rows.close()
            self._call_loop(self._ended.set)

    def _take_group(self) -> list[_Request]:
        """Wait for requests and return a group of them, empty if the store closes."""
        group: list[_Request] = []
        request = self._requests.get()
        while request is not None:
            group.append(request)
            if len(group) == _MAX_GROUP:
                return group
            try:
                request = self._requests.get_nowait()
            except queue.Empty:
                return group
        if group:
            self._requests.put(None)  # answer this group first. No request can be queued behind the end
        return group

    def _post(self, answer: _Answer) -> None:
        self._call_loop(lambda: self._deliver(answer))

    def _call_loop(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            # The loop was closed, so no caller waits any more. End the thread, which closes the file.
            self._requests.put(None)


class _Worker:
    """Rows and engine, in the thread that owns them."""

    def __init__(self, path: Path, clock: Clock, history_revisions: int, first_revision: int) -> None:
        self._path = path
        self._clock = clock
        self._failed = False
        self.rows = SqliteRows(path, first_revision=first_revision)
        try:
            self.engine = Engine(self.rows, now_ms=clock.now_ms(), history_revisions=history_revisions)
        except sqlite3.Error as error:
            self.rows.close()
            raise translate(error, path=path) from error
        except BaseException:
            self.rows.close()
            raise

    def carry_out(self, group: list[_Request]) -> _Answer:
        requests = [request for request in group if not request.cancelled]
        writes = not self._failed and (
            self.engine.has_due(self._clock.now_ms()) or any(request.writes for request in requests)
        )
        try:
            if writes:
                self.rows.begin()
                self.engine.expire(self._clock.now_ms())
            for request in requests:
                self._carry_out_one(request)
            if writes:
                self.rows.commit()  # the fsync: the group's transactions are durable from here on
        except Exception as error:
            self._undo(requests, error)
            return _Answer(requests=group, failed=self._failed)
        return _Answer(
            requests=group, changes=self.engine.take_changes(), facts=self.engine.facts(), failed=self._failed
        )

    def _carry_out_one(self, request: _Request) -> None:
        if request.writes and self._failed:
            request.error = MetadataUnavailable(
                f"{self._path}: an earlier disk error stopped writing. Start the broker again",
                path=str(self._path),
            )
            return
        try:
            request.result = request.operation(self.engine)
        except ClusterError as error:  # refused before it wrote: the others of the group go on
            request.error = error

    def _undo(self, requests: Sequence[_Request], error: Exception) -> None:
        """Fail every request of a group, and reload the state from the disk."""
        if isinstance(error, sqlite3.Error) and is_terminal(error):
            self._failed = True
        try:
            self.rows.roll_back()
            self.engine.reload(self._clock.now_ms())
        except sqlite3.Error:
            self._failed = True
        for request in requests:
            if isinstance(error, sqlite3.Error):
                # After a failed commit the log on disk may contain the group. Opening the file again will show it.
                outcome = "unknown" if request.writes and self._failed else None
                request.error = translate(error, path=self._path, outcome=outcome)
            else:
                request.error = error
