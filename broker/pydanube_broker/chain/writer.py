"""Send the records of a journal as the pieces of its chain.

Pieces are read back from the journal's files, so an unavailable store costs no memory, and a start continues where the
chain ends. A piece is closed `linger_s` after the first record that is in no piece, or at `PIECE_BYTES`. At most
`MOST_IN_FLIGHT` pieces are in flight, and they count in order. Nothing is sent while nothing is written.

A take-over reads all pieces, and a little load makes many small ones: 36 000 an hour. So after `PIECES_TO_READ` pieces,
one piece repeats all records that the journal still has, and reading begins there. It is one piece, because a start may
rely on its newest records only if it has all of them. A journal with more than `PIECE_BYTES` is not repeated.

If a name is taken by a piece of another writer, a successor has fenced this one: it sends nothing more, and the
outcome of pieces without an answer is unknown.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import anyio
import anyio.abc
import anyio.to_thread
from pydanube_core.errors import ClusterError, Fenced

from pydanube_broker.chain.forgetting import Forgetting
from pydanube_broker.chain.piece import (
    HEADER_BYTES,
    MOST_IN_FLIGHT,
    PIECE_BYTES,
    RANDOM_BYTES,
    Drop,
    Group,
    Head,
    Item,
    PieceHeader,
    Place,
    Safe,
    decode_header,
    encode_piece,
    piece_key,
)
from pydanube_broker.chain.source import ChainSource, Stretch, read_group
from pydanube_broker.chain.store import ChainStore
from pydanube_broker.journal.records import FILE_HEADER_BYTES

log = logging.getLogger("pydanube.chain")

HEAD_PART_BYTES: Final = 1 << 20  # of a large head in one piece, beside its groups: a quarter more to send
RETRY_S: Final = 0.5  # between attempts at an unavailable store, beside the retries of its adapter
#: after so many, one repeats the others: at least 100 s apart with the usual linger
PIECES_TO_READ: Final = 1_000
INLINE_BYTES: Final = 64 << 10  # up to this size a thread costs more than reading and hashing in the loop


#: reads a head that has its own file: base, number and content. None if it is gone. For a worker thread
ReadHead: TypeAlias = Callable[[], tuple[int, int, bytes] | None]


class ChainOwner(Protocol):
    """The receiver of a chain's reports. Called from the loop."""

    def stored(self, lsn: int) -> None:
        """Everything below `lsn` is in the store."""

    def fenced(self, error: Fenced) -> None:
        """A successor has the journal: acknowledge, deliver and tier nothing from now on. Called once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainStatistics:
    """`behind_bytes` are written and not stored. `behind_s` is the age of the oldest of them."""

    pieces: int
    bytes: int
    behind_bytes: int
    behind_s: float
    in_flight: int
    stored_lsn: int
    failures: int
    last_error: str | None


@dataclass(slots=True)
class _Flying:
    """A piece in flight.

    since: when its first record was written.
    begins: number at which reading may begin once it is stored: its own if it repeats the journal, that of the oldest
        segment's first piece if it drops segments, else None.
    """

    header: PieceHeader
    bytes: int
    since: float
    begins: int | None
    stored: bool = False


@dataclass(slots=True)
class _LargeHead:
    base: int
    number: int
    body: bytes
    position: int = 0

    def take_part(self) -> Head:
        part = self.body[self.position : self.position + HEAD_PART_BYTES]
        found = Head(
            base=self.base, number=self.number, size=len(self.body), position=self.position, part=part
        )
        self.position += len(part)
        return found


class ChainWriter:
    """See the module. Single user: the loop.

    Args:
        place: end of the chain, as `fenced_end` returned it.
        sent_lsn: records from this address on are sent. The chain has all earlier records that it needs.
        keep_from: makes the number durable at which reading begins. Pieces below are deleted only afterwards.
        from_number: number at which reading begins now.
        head_in_file: as `Journal.head_in_file`.
        pieces_to_read: as `PIECES_TO_READ`.
    """

    def __init__(
        self,
        store: ChainStore,
        source: ChainSource,
        owner: ChainOwner,
        *,
        cluster: str,
        journal: int,
        term: int,
        place: Place,
        sent_lsn: int,
        linger_s: float,
        keep_from: Callable[[int], Awaitable[None]],
        from_number: int = 1,
        head_in_file: Callable[[], ReadHead | None] = lambda: None,
        pieces_to_read: int = PIECES_TO_READ,
    ) -> None:
        self.stored_lsn = place.stored_lsn
        self.fenced: Fenced | None = None
        self._store = store
        self._source = source
        self._owner = owner
        self._cluster = cluster
        self._journal = journal
        self._term = term
        self._place = place
        self._sent = sent_lsn
        self._linger_s = linger_s
        self._head_in_file = head_in_file
        self._pieces_to_read = pieces_to_read
        self._repeat_at = from_number + pieces_to_read  # number of the piece that repeats the others
        self._forgetting = Forgetting(store, cluster, journal, keep_from)
        self._starts: dict[int, int] = {}  # base → number of the piece with the segment's first record
        self._flying: deque[_Flying] = deque()
        self._head: _LargeHead | None = None
        self._dropped = 0
        self._since: float | None = None  # when the first record was written that is in no piece
        self._wake = asyncio.Event()
        self._landed = asyncio.Event()
        self._pieces = self._bytes = self._failures = 0
        self._last_error: str | None = None
        self.written(source.written_lsn)

    # -- the journal's side --------------------------------------------------------------------------------------

    def written(self, lsn: int) -> None:
        """Note that everything below `lsn` is written to the journal's files."""
        if self._since is None:
            if lsn > self._sent:
                self._begin()
        elif lsn - self._sent >= PIECE_BYTES:
            self._wake.set()

    def head(self, base: int, number: int, body: bytes) -> None:
        """Send a head that has its own file, in parts beside the groups. It replaces an older head."""
        self._head = _LargeHead(base, number, body)
        if self._since is None:
            self._begin()

    def _begin(self) -> None:
        self._since = asyncio.get_running_loop().time()
        self._wake.set()

    def statistics(self) -> ChainStatistics:
        oldest = self._flying[0].since if self._flying else self._since
        return ChainStatistics(
            pieces=self._pieces,
            bytes=self._bytes,
            behind_bytes=max(0, self._source.written_lsn - max(self.stored_lsn, 0)),
            behind_s=0.0 if oldest is None else asyncio.get_running_loop().time() - oldest,
            in_flight=len(self._flying),
            stored_lsn=self.stored_lsn,
            failures=self._failures,
            last_error=self._last_error,
        )

    # -- pieces --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send pieces until cancelled or fenced. Pieces that are in flight then may arrive later."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._forgetting.run)
            while self.fenced is None:
                await self._due()
                while len(self._flying) >= MOST_IN_FLIGHT and self.fenced is None:
                    self._landed.clear()
                    await self._landed.wait()
                if self.fenced is None:
                    try:
                        await self._send(group)
                    except OSError as error:  # the disk: the journal meets it too
                        self._failures += 1
                        self._last_error = str(error)
                        await anyio.sleep(RETRY_S)
            group.cancel_scope.cancel()

    async def _due(self) -> None:
        """Wait until a piece is due to be closed, or the chain is fenced."""
        loop = asyncio.get_running_loop()
        while self.fenced is None:
            if self._since is not None:
                left = self._since + self._linger_s - loop.time()
                if left <= 0 or self._source.written_lsn - self._sent >= PIECE_BYTES:
                    return
            self._wake.clear()
            with anyio.move_on_after(left if self._since is not None else None):
                await self._wake.wait()

    async def _send(self, group: anyio.abc.TaskGroup) -> None:
        """Close a piece, and start sending it."""
        assert self._since is not None
        since, items = self._since, await self._repeated()
        repeats = bool(items)
        stretches = [] if repeats else self._stretches()
        small = sum(each.end - each.start for each in stretches) + _size(items) <= INLINE_BYTES
        if stretches:
            items += (
                self._groups(stretches) if small else await anyio.to_thread.run_sync(self._groups, stretches)
            )
        if self._head is not None:
            items.append(self._head.take_part())
            if self._head.position == len(self._head.body):
                self._head = None
        if not items:
            self._since = None
            return
        drop: int | None = None
        if self._source.oldest_base > self._dropped and self._head is None:  # it takes the newest head, whole
            drop = self._dropped = self._source.oldest_base
            items.append(Drop(base=drop))
        items.append(Safe(lsn=self._source.durable_lsn))
        random, place = secrets.token_bytes(RANDOM_BYTES), self._place

        def encode() -> tuple[PieceHeader, bytes]:
            return encode_piece(place, items, journal=self._journal, term=self._term, random=random)

        header, data = encode() if small else await anyio.to_thread.run_sync(encode)
        self._place = place.after(header)
        for item in items:
            if isinstance(item, Group) and item.lsn == item.base + FILE_HEADER_BYTES:
                self._starts[item.base] = header.number
        if repeats:
            self._repeat_at = header.number + self._pieces_to_read
        self._sent = max(self._sent, header.stored_lsn)
        more = self._source.written_lsn > self._sent or self._head is not None
        self._since = asyncio.get_running_loop().time() if more else None
        begins = header.number if repeats else None if drop is None else self._starts.get(drop)
        flying = _Flying(header, len(data), since, begins)
        self._flying.append(flying)
        group.start_soon(self._put, flying, data)

    def _stretches(self) -> list[Stretch]:
        """Return the stretches of the next piece."""
        found: list[Stretch] = []
        at, room = self._sent, PIECE_BYTES
        while room > 0 and (stretch := self._source.next_stretch(at)) is not None:
            found.append(stretch)
            room -= stretch.end - stretch.start
            at = stretch.end
        return found

    async def _repeated(self) -> list[Item]:
        """Return all records of the journal and its newest head, if the next piece is to repeat them, else nothing."""
        if self._place.number < self._repeat_at or self._head is not None:
            return []
        self._repeat_at = self._place.number + self._pieces_to_read // 8  # unless it succeeds
        read_head, stretches, at = self._head_in_file(), list[Stretch](), 0
        while (stretch := self._source.next_stretch(at)) is not None:
            stretches.append(stretch)
            at = stretch.end
        size = sum(each.end - each.start for each in stretches)
        if size > PIECE_BYTES:
            return []

        def read() -> list[Item]:
            items: list[Item] = [read_group(self._source, each, PIECE_BYTES) for each in stretches]
            if read_head is not None:
                head = read_head()
                if head is None or len(head[2]) > PIECE_BYTES:  # gone: a newer one follows
                    return []
                base, number, body = head
                items.append(Head(base=base, number=number, size=len(body), position=0, part=body))
            return items

        is_small = size <= INLINE_BYTES and read_head is None
        return read() if is_small else await anyio.to_thread.run_sync(read)

    def _groups(self, stretches: Sequence[Stretch]) -> list[Group]:
        """Read at most about `PIECE_BYTES` of the stretches. Blocking."""
        groups: list[Group] = []
        room = PIECE_BYTES
        for stretch in stretches:
            group = read_group(self._source, stretch, room)
            groups.append(group)
            room -= len(group.records)
            if group.end < stretch.end or room <= 0:
                break
        return groups

    async def _put(self, flying: _Flying, data: bytes) -> None:
        key = piece_key(self._cluster, self._journal, flying.header.number)
        while self.fenced is None:
            try:
                if await self._store.create(key, data) or await self._is_ours(key, flying.header):
                    flying.stored = True
                    self._advance()
                    return
            except Fenced as error:
                self._stop(error)
            except ClusterError as error:
                self._failures += 1
                self._last_error = error.message
                await anyio.sleep(RETRY_S)

    async def _is_ours(self, key: str, own: PieceHeader) -> bool:
        """Return whether the object under a piece's name is that piece, from an attempt whose answer was lost.

        Raises `Fenced`: another writer created it.
        """
        there = await self._store.read(key, HEADER_BYTES)
        if there is None:
            return False
        found = decode_header(there, journal=self._journal, number=own.number)
        if found == own:
            return True
        raise Fenced(
            f"another process has continued the chain of journal {self._journal} at piece {own.number}, under term "
            f"{found.term}: this broker acknowledges nothing more. See which broker owns its topics, and start this one again"
        )

    def _advance(self) -> None:
        """Count the stored pieces that have no unstored piece before them."""
        if self.fenced is not None:
            return
        before = self.stored_lsn
        while self._flying and self._flying[0].stored:
            done = self._flying.popleft()
            self._pieces += 1
            self._bytes += done.bytes
            self._last_error = None
            self.stored_lsn = max(self.stored_lsn, done.header.stored_lsn)
            if done.begins is not None:
                self._forgetting.begin_at(done.begins)
        self._landed.set()
        if self.stored_lsn > before:
            # Everything below is in the store, under names that no other process can take.
            self._owner.stored(self.stored_lsn)

    def _stop(self, error: Fenced) -> None:
        if self.fenced is None:
            self.fenced = error
            self._landed.set()
            self._wake.set()
            log.critical("chain_fenced", extra={"journal": str(self._journal), "error": error.message})
            self._owner.fenced(error)


def _size(items: Sequence[Item]) -> int:
    return sum(
        len(item.records) if isinstance(item, Group) else len(item.part)
        for item in items
        if isinstance(item, (Group, Head))
    )
