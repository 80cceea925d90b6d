"""Read topics of a lost broker from the chain of its journal (`chain`), for the heirs that rebuild them.

The chain is replayed into a separate folder, which ordinary recovery reads. Topics of one broker share the replay. It
is deleted once no topic was read from it for `IDLE_S`, and at a start.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus
from pydanube_core.errors import ClusterError, DiskFull, Unavailable

from pydanube_broker.chain import ChainStore, replay
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import Epoch, TopicId
from pydanube_broker.cluster.move_record import ChainRange
from pydanube_broker.cluster.records import TopicRecord
from pydanube_broker.copying.piece import Piece
from pydanube_broker.copying.reading import pieces_of
from pydanube_broker.journal import Disk, Journal, JournalOptions
from pydanube_broker.journal.helper import PrepareDone, SyncDone
from pydanube_broker.journal.records import encode_file_header
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.limits import Limits
from pydanube_broker.topics.log_state import LogState
from pydanube_broker.topics.topic import Topic
from pydanube_broker.worker_threads import WorkerThreads

log = logging.getLogger("pydanube.cluster")

IDLE_S: Final = 60.0
FAILED_S: Final = 3.0  # seconds between replays that fail: each topic that waits tries again every second
_FOLDER: Final = "inherited"
#: size of segments that recovery begins, for the end of the chain: no message is added
_SEGMENT_BYTES: Final = 4 << 20
_RETRY_MS: Final = 1_000
_CACHE_BYTES: Final = 1 << 20


class Inherited:
    """The journal of a lost broker, as its chain has it. Single user: the loop."""

    def __init__(self, hub: Hub, worker_threads: WorkerThreads) -> None:
        self.users = 0
        self.used_s = time.monotonic()
        self._hub = hub
        self._worker_threads = worker_threads

    def state(self, now: Assignment, chain: ChainRange) -> LogState | None:
        """Return a topic's state at the end of the chain. None if the chain has nothing of this stay at the broker."""
        state = self._hub.states.get(now.topic_id)
        if state is None or not state.opened:
            return None
        if state.awaiting and state.awaiting == now.moved:
            return state  # the topic had just arrived there
        return state if state.epoch > chain.above_epoch else None

    def first_offset(self, topic_id: TopicId) -> int | None:
        """Return the lowest offset whose message the chain has."""
        return self._hub.journal.first_offset(topic_id)

    def pieces(self, record: TopicRecord, state: LogState) -> AsyncGenerator[Piece]:
        """Yield a topic's messages behind `state.needed_offset`, the state in the last piece."""
        topic = Topic(
            record.name, state, self._hub, options=record, limits=Limits.of(), epoch=Epoch(state.epoch)
        )
        return pieces_of(topic, None, self._worker_threads, last=True)

    def close(self) -> None:
        self._hub.journal.abandon()


class Inheritances:
    """The replayed chains of this broker. Single user: the loop.

    Args:
        folder: the broker's data folder. Replays are stored in a folder inside.
        cluster: the folder of the cluster's objects.
    """

    def __init__(self, store: ChainStore, cluster: str, folder: Path, worker_threads: WorkerThreads) -> None:
        self._store = store
        self._cluster = cluster
        self._folder = folder / _FOLDER
        self._worker_threads = worker_threads
        self._open: dict[tuple[int, int], Inherited] = {}
        self._failed: dict[tuple[int, int], tuple[float, ClusterError]] = {}  # until when (monotonic)
        self._opening = anyio.Lock()

    @asynccontextmanager
    async def of(self, chain: ChainRange) -> AsyncIterator[Inherited]:
        """Context for reading from a chain, which is replayed unless that was done for another topic.

        The error of a failed replay is raised again for `FAILED_S`.

        Raises:
            CorruptObject, StoreUnavailable: as `chain.replay`.
            DiskFull, Unavailable: the folder cannot be written.
            CorruptJournal: the replayed journal is damaged.
        """
        key = (chain.journal, chain.until)
        async with self._opening:
            found = self._open.get(key)
            if found is None:
                found = self._open[key] = await self._replayed_unless_failed(key, chain)
        found.users += 1
        try:
            yield found
        finally:
            found.users -= 1
            found.used_s = time.monotonic()

    async def begin(self, chain: ChainRange) -> None:
        """Replay a chain before the first of its topics is assigned here, so that it does not wait for that."""
        with suppress(ClusterError):  # the heirs meet it again
            async with self.of(chain):
                pass

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Delete replays that were not read for `IDLE_S`, until cancelled. Deletes all of them before and after."""
        try:
            await self._remove(self._folder)  # of an earlier process
            task_status.started()
            while True:
                await anyio.sleep(IDLE_S / 4)
                until_s = time.monotonic() - IDLE_S
                for key, each in list(self._open.items()):
                    if not each.users and each.used_s < until_s:
                        del self._open[key]
                        each.close()
                        await self._remove(self._path(*key))
        finally:
            for each in self._open.values():
                each.close()
            self._open.clear()
            with anyio.CancelScope(shield=True):
                await self._remove(self._folder)

    @staticmethod
    async def _remove(folder: Path) -> None:
        await anyio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))

    def _path(self, journal: int, until: int) -> Path:
        return self._folder / f"{journal}-{until}"

    async def _replayed_unless_failed(self, key: tuple[int, int], chain: ChainRange) -> Inherited:
        now_s = time.monotonic()
        self._failed = {each: failed for each, failed in self._failed.items() if failed[0] > now_s}
        if key in self._failed:
            raise self._failed[key][1].with_traceback(None)
        try:
            return await self._replayed(chain)
        except ClusterError as error:
            self._failed[key] = time.monotonic() + FAILED_S, error
            raise

    async def _replayed(self, chain: ChainRange) -> Inherited:
        folder = self._path(chain.journal, chain.until)
        begun_s = time.monotonic()
        try:
            found = await replay(
                self._store,
                self._cluster,
                chain.journal,
                chain.from_piece,
                chain.until,
                folder,
                disk=_UnsyncedDisk(),
            )
        except OSError as error:
            raise _not_written(folder, error) from error
        hub = Hub()
        hub.journal = Journal(
            folder,
            JournalOptions(segment_bytes=_SEGMENT_BYTES, tail_cache_bytes=_CACHE_BYTES),
            hub,
            disk=_UnsyncedDisk(),
            syncer=_NoSyncer(),
            preparer=_SparsePreparer(),
        )
        try:
            with self._worker_threads.pending():
                await anyio.to_thread.run_sync(hub.journal.recover, hub.begins)
            await hub.journal.begin()
        except OSError as error:
            hub.journal.abandon()
            raise _not_written(folder, error) from error
        except BaseException:
            hub.journal.abandon()
            raise
        hub.fold_replayed()
        log.warning(
            "chain_replayed",
            extra={
                "journal": str(chain.journal),
                "pieces": found.pieces,
                "bytes": found.stored_lsn,
                "topics": len(hub.states),
                "seconds": round(time.monotonic() - begun_s, 3),
            },
        )
        return Inherited(hub, self._worker_threads)


class _UnsyncedDisk(Disk):
    """Syncs nothing: a replay is never used by a later process, and clients wait for it."""

    def datasync(self, fd: int) -> None: ...

    def sync_dir(self, path: Path) -> None: ...


class _NoSyncer:
    """Syncs nothing, as `_UnsyncedDisk`. A helper process would take half a second to start."""

    def __init__(self) -> None:
        self.done: SyncDone = lambda lsn, error, seconds, waited_s: None

    def open(self, slot: int, fd: int) -> None: ...

    def forget(self, slot: int) -> None: ...

    def sync(self, slots: tuple[int, ...], lsn: int) -> None:
        asyncio.get_running_loop().call_soon(self.done, lsn, None, 0.0, 0.0)

    def close(self) -> None: ...


class _SparsePreparer:
    """Prepares the few segments of a replay without writing zeros."""

    def __init__(self) -> None:
        self.done: PrepareDone = lambda base, error: None

    def prepare(self, path: Path, base_lsn: int, segment_bytes: int) -> None:
        failure: OSError | None = None
        try:
            with path.open("xb") as file:
                file.write(encode_file_header(base_lsn, segment_bytes))
                file.truncate(segment_bytes)
        except OSError as error:
            failure = error
        asyncio.get_running_loop().call_soon(lambda: self.done(base_lsn, failure))

    def close(self) -> None:
        self.done = lambda base, error: None


def _not_written(folder: Path, error: OSError) -> DiskFull | Unavailable:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"the chain does not fit into {folder}: make room", path=str(folder))
    return Unavailable(
        f"the chain could not be written to {folder} ({error.strerror or error}): check the disk",
        retry_after_ms=_RETRY_MS,
    )
