"""The chain of this broker's journal: opened at a start, made when it is first needed, written while the broker runs.

Order of a start: `reopen` before the journal is read (it fences the earlier start and restores records that the disk
has lost), `attach` before the journal begins, `run` as a task. If the store is away, the chain is opened as soon as the
store answers, and the journal keeps its segments until then. Topics that are stored in it acknowledge and show nothing new
until then (`is_late`). Such a start fails if the disk may have lost records that the chain has, after a power cut.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from pydanube_core.errors import ClusterError, CorruptObject, Fenced, Retryable, StoreOwned
from pydanube_storage.objects import StoreOptions

from pydanube_broker.chain.folder import ChainFile, restore_lost
from pydanube_broker.chain.piece import Place, chain_folder
from pydanube_broker.chain.probe import check_create_only
from pydanube_broker.chain.reading import chain_end, check_end, fenced_end
from pydanube_broker.chain.source import Stretch
from pydanube_broker.chain.writer import PIECES_TO_READ, ChainOwner, ChainStatistics, ChainWriter
from pydanube_broker.journal import Journal
from pydanube_broker.journal.identity import journal_id
from pydanube_broker.journal.segments import CHAIN_FILE
from pydanube_broker.tier.chain_calls import ChainCalls
from pydanube_broker.tier.child import TierChild
from pydanube_broker.tier.ownership import place_of
from pydanube_broker.topics.topic import now_ms

log = logging.getLogger("pydanube.chain")

_AGAIN_S: Final = 2.0


class _Source:
    """The journal as the chain reads it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @property
    def durable_lsn(self) -> int:
        return self._journal.durable_lsn

    @property
    def written_lsn(self) -> int:
        return self._journal.written_lsn

    @property
    def oldest_base(self) -> int:
        return self._journal.oldest_base

    def next_stretch(self, lsn: int) -> Stretch | None:
        found = self._journal.written_from(lsn)
        if found is None:
            return None
        base, size, start, end = found
        return Stretch(base=base, segment_bytes=size, start=start, end=end)

    def read(self, stretch: Stretch, count: int) -> bytes:
        return self._journal.read_written(stretch.base, stretch.start, count)


class JournalChain:
    """See the module. Single user: the loop. `folder` is the journal's."""

    def __init__(self, folder: Path, options: StoreOptions, *, linger_s: float) -> None:
        self.file = ChainFile.read(folder)
        self._folder = folder
        self._place_here = place_of(folder.parent)
        self._url = options.url
        self._linger_s = linger_s
        self._child = TierChild(options, work="chain")
        self.call = self._child.call
        self.store = ChainCalls(self.call)
        self._place: Place | None = None  # the end of this start's fence
        self._writer: ChainWriter | None = None
        self._journal: Journal | None = None
        self._owner: ChainOwner | None = None
        self._wanted = asyncio.Event()
        self._opening = asyncio.Lock()
        self._heads: tuple[int, int, bytes] | None = None  # the newest head from before there was a writer
        self._head_base = 0  # of the newest head
        self.error: ClusterError | None = None  # why it is not open
        self.is_late = False  # topics are stored by it, and this start has not fenced the earlier one yet
        self.late_since_ms = 0
        self._record_from: Callable[[int], Awaitable[None]] | None = None
        self._moved = asyncio.Event()
        self._begun_s = time.monotonic()  # the writer

    @property
    def is_needed(self) -> bool:
        """Whether topics are stored by this chain."""
        return self.file is not None and self.file.needed

    @property
    def is_wanted(self) -> bool:
        """Whether the journal is copied, for any reason."""
        return self._wanted.is_set()

    @property
    def from_number(self) -> int:
        """Number of the first piece that a reader needs."""
        return 1 if self.file is None else self.file.from_number

    @property
    def per_hour(self) -> tuple[int, int]:
        """Requests that create pieces, and their bytes, in an hour like those since this start."""
        found = self.statistics()
        if found is None:
            return 0, 0
        hours = max(1.0, time.monotonic() - self._begun_s) / 3600
        return round(found.pieces / hours), round(found.bytes / hours)

    def statistics(self) -> ChainStatistics | None:
        return None if self._writer is None else self._writer.statistics()

    # -- start ---------------------------------------------------------------------------------------------------

    async def reopen(self, *, copy: bool, take_over: bool, is_disk_whole: bool = False) -> None:
        """Fence the earlier start of a journal that has a chain, and restore records that its disk has lost.

        A chain that others have fenced is read up to its end. It is continued under the term that they leave (`begin_term`).
        While the disk has everything, a damaged chain is like a store that is away: it is tried again.

        Args:
            is_disk_whole: the disk has everything that earlier starts wrote: the machine has not been started since.

        Raises:
            StoreUnavailable, StoreUnsuitable: topics are stored there, and the store replaces objects, or is away while the
                disk may lack records.
            CorruptObject: the chain is damaged, and the disk may lack records that it has.
            StoreOwned: this is a copy of the folder, and `take_over` is not set.
        """
        if self.file is None or not (copy or self.file.needed):
            return
        if self.file.place != self._place_here:
            if not take_over:
                raise await self._is_a_copy(self.file)
            self.file = replace(self.file, place=self._place_here)
            await anyio.to_thread.run_sync(self.file.write, self._folder)
        file = self.file
        try:
            try:
                await self._open(file)
            except Fenced as error:
                self._not_open(error)
            end = self._place or await chain_end(self.store, file.cluster, file.journal, file.from_number)
            lost = await restore_lost(self.store, file, end, self._folder)
        except (Retryable, CorruptObject) as error:
            if not is_disk_whole and isinstance(error, CorruptObject):
                raise self._is_damaged(file, error) from error
            if not is_disk_whole and file.needed:
                raise
            self._place = None  # `run` opens it again
            self.is_late, self.late_since_ms = file.needed, now_ms()
            self._not_open(error)
            return
        if lost:
            log.warning("records_restored_from_chain", extra={"bytes": lost})

    def _not_open(self, error: ClusterError) -> None:
        self.error = error
        log.warning("chain_not_open", extra={"error": error.message})

    def _is_damaged(self, file: ChainFile, error: CorruptObject) -> CorruptObject:
        folder = f"{self._url}/{chain_folder(file.cluster, file.journal)}"
        return CorruptObject(
            f"{error.message}, or the data directory from a newer one. The machine was started since this broker ran, or the "
            "directory was restored, so it may lack messages that only the copy of its journal has. If there is no backup, "
            f"move {self._folder / CHAIN_FILE} and the objects in {folder} away: the broker then serves the messages of its "
            "disk, and copies anew",
            cause="chain",
            path=folder,
        )

    async def _is_a_copy(self, file: ChainFile) -> ClusterError:
        try:
            names = await self.store.names(f"{file.cluster}/owner")
        except Retryable as error:
            return error
        marks = [name.rpartition("/")[2].partition(".")[0] for name in names]
        newest = max((int(mark) for mark in marks if mark.isdecimal()), default=0)
        return StoreOwned(
            f"the copy of this journal in {self._url} is continued by another data directory: this one is a copy of that "
            f"one, or was moved. If that broker is gone for good, start with DANUBE_TIER__TAKE_OVER={newest}, once. Else "
            "remove chain.json from its journal folder",
            store=self._url,
            field="tier.take_over",
        )

    async def _open(self, file: ChainFile) -> None:
        await check_create_only(self.store, file.cluster, self._url)
        await check_end(
            self.store, file.cluster, file.journal, file.from_number, may_be_new=not file.needed
        )  # before the fence, which would take the name of a missing piece
        _, self._place = await fenced_end(self.store, file.cluster, file.journal, file.from_number, file.term)
        self.error = None

    async def check(self, cluster: str) -> None:
        """Check that the store can keep a chain, unless there is one. Raises `StoreUnavailable`, `StoreUnsuitable`."""
        if self._writer is None:
            await check_create_only(self.store, cluster, self._url)

    def attach(
        self,
        journal: Journal,
        owner: ChainOwner,
        *,
        record_from: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """Take the journal, before it begins.

        `record_from` records the piece at which reading begins, for brokers that may take over. It is called before older
        pieces are deleted.
        """
        self._journal, self._owner, self._record_from = journal, owner, record_from

    async def begin_term(self, term: int) -> None:
        """Continue under a term that the metadata has raised, once the take-over is settled. Raises `OSError`."""
        if self.file is not None and self.file.term < term:
            self.file = replace(self.file, term=term)
            self._place = self.error = None
            await anyio.to_thread.run_sync(self.file.write, self._folder)

    # -- as the writer's owner

    def stored(self, lsn: int) -> None:
        assert self._owner is not None
        self._owner.stored(lsn)
        self._moved.set()

    def fenced(self, error: Fenced) -> None:
        assert self._owner is not None
        self.error = error
        self._owner.fenced(error)
        self._moved.set()

    async def until_stored(self, lsn: int) -> None:
        """Wait until everything below `lsn` is in the store. Raises `Fenced`."""
        while self._stored_lsn() < lsn:
            if isinstance(self.error, Fenced):
                raise self.error
            self._moved.clear()
            await self._moved.wait()

    async def until_all_stored(self) -> None:
        """Wait until everything appended so far is in the store. Raises `Fenced`."""
        assert self._journal is not None
        await self.until_stored(self._journal.next_lsn)

    async def want(self, cluster: str, *, needed: bool = False) -> None:
        """Copy the journal from now on. `needed`: a topic is stored by the chain, which is durable on return.

        Raises:
            StoreUnavailable: topics are to be stored there, and the store does not answer.
            StoreUnsuitable: no chain can be kept there.
            CorruptObject: topics are to be stored there, and the chain is damaged.
        """
        if self.file is None or self.file.needed < needed:
            file = self.file or ChainFile(
                cluster=cluster,
                journal=await anyio.to_thread.run_sync(journal_id, self._folder),
                place=self._place_here,
            )
            try:
                await self._opened(file)
            except (Retryable, CorruptObject) as error:
                if needed:
                    raise
                self._not_open(error)
            file = replace(self.file or file, needed=needed or file.needed)
            await anyio.to_thread.run_sync(file.write, self._folder)
            self.file = file
            if self._writer is not None:
                self.stored(self._writer.stored_lsn)
        if not self._wanted.is_set():
            assert self._journal is not None
            self._journal.copy_to(self._written, self._head, self._stored_lsn)
            read_head = self._journal.head_in_file()
            found = None if read_head is None else await anyio.to_thread.run_sync(read_head)
            if found is not None:
                self._head(found[0], found[1], [found[2]])
            self._wanted.set()

    async def not_needed(self) -> None:
        """Record, durable on return, that no topic is stored by the chain. The disk has everything. Raises `OSError`."""
        if self.file is not None and self.file.needed:
            self.file = replace(self.file, needed=False)
            await anyio.to_thread.run_sync(self.file.write, self._folder)
            log.info("chain_not_needed")

    async def _opened(self, file: ChainFile) -> None:
        """Open the chain unless it is."""
        async with self._opening:
            if self._place is None and self._writer is None:
                await self._open(file)

    def _written(self, lsn: int) -> None:
        if self._writer is not None:
            self._writer.written(lsn)

    def _head(self, base: int, number: int, head: Sequence[bytes]) -> None:
        if base < self._head_base:
            return
        self._head_base = base
        body = b"".join(head)
        if self._writer is not None:
            self._writer.head(base, number, body)
        else:
            self._heads = base, number, body

    def _stored_lsn(self) -> int:
        return 0 if self._writer is None else self._writer.stored_lsn

    # -- run -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write the chain once it is wanted, until it is fenced."""
        await self._wanted.wait()
        assert self.file is not None
        assert self._journal is not None
        while self._place is None:
            try:
                await self._opened(self.file)
            except Fenced as error:
                self.fenced(error)
                return
            except ClusterError as error:
                if self.error is None:
                    self._not_open(error)
                self.error = error
                await anyio.sleep(_AGAIN_S)
        found = self._journal.recovered
        if found is not None and self._place.stored_lsn > found.end:
            self.fenced(
                Fenced(
                    f"{self._url} has {self._place.stored_lsn - found.end} bytes of this journal that its folder lacks, "
                    "which was restored from a backup, or damaged: start the broker again, now that the store answers"
                )
            )
            return
        self.is_late = False
        self._begun_s = time.monotonic()
        self._writer = ChainWriter(
            self.store,
            _Source(self._journal),
            self,
            cluster=self.file.cluster,
            journal=self.file.journal,
            term=self.file.term,
            place=self._place,
            sent_lsn=self._place.stored_lsn,
            linger_s=self._linger_s,
            keep_from=self._keep_from,
            from_number=self.file.from_number,
            head_in_file=self._journal.head_in_file,
            pieces_to_read=PIECES_TO_READ,
        )
        if self._heads is not None:
            self._writer.head(*self._heads)
        await self._writer.run()

    async def _keep_from(self, number: int) -> None:
        assert self.file is not None
        if self._record_from is not None:
            await self._record_from(number)
        file = replace(self.file, from_number=number)
        await anyio.to_thread.run_sync(file.write, self._folder)
        self.file = file

    async def close(self) -> None:
        await self._child.close()
