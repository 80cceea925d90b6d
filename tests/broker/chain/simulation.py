"""Chains under a store that loses, delays and doubles, owners that die, pause and come back: real writers, fences and readers.

One seed decides everything; time is the loop's own. One producer sends the values 1, 2, 3 … to the broker it believes to
be the owner, and sends again after each change what was not acknowledged. The invariants:

* A value that is acknowledged is in the chain at that instant: below every fence, and no stray.
* Every successor's log holds, in order and once, every value that was acknowledged until then.
* Of two owners one acknowledges: after a fence an owner acknowledges nothing that it had not stored before.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import selectors
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from zlib import crc32

from pydanube_broker.chain import Drop, Group, Place, chain_end, fenced_end, piece_key, pieces
from pydanube_broker.chain.piece import HEADER_BYTES as PIECE_HEADER_BYTES
from pydanube_broker.chain.piece import NO_PIECE, decode_header
from pydanube_broker.chain.source import Stretch
from pydanube_broker.chain.writer import ChainWriter
from pydanube_broker.journal.records import (
    FILE_HEADER_BYTES,
    HEADER_BYTES,
    RecordKind,
    encode_header,
    read_header,
    record_bytes,
)  # fmt: skip
from pydanube_core.errors import Fenced, StoreUnavailable

T = TypeVar("T")
CLUSTER = "c"
SEGMENT_BYTES = 6 << 10
LINGER_S = 0.1
WINDOW = 8  # values that the producer sends without an answer
VALUES = struct.Struct("<Q")


class _Selector(selectors.SelectSelector):
    """Does not wait: what the loop would have waited is added to its time."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        self.loop.now += timeout or 0.0
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now = 0.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


class SimStore:
    """See the module. What was asked goes on when the process that asked is gone."""

    def __init__(self, chance: random.Random) -> None:
        self.objects: dict[str, bytes] = {}
        self.faults = True
        self.happened: set[str] = set()
        self._chance = chance

    async def create(self, key: str, data: bytes) -> bool:
        result: list[bool] = []

        def apply() -> None:
            result.append(key not in self.objects)
            self.objects.setdefault(key, data)

        loop = asyncio.get_running_loop()
        fate = self._chance.random() if self.faults else 1.0
        arrival = self._chance.expovariate(20)
        late = self._chance.uniform(0.5, 20)
        if fate < 0.06:
            self._note("refused")
        elif fate < 0.14:
            self._note("late")
            loop.call_later(late, apply)
        else:
            loop.call_later(arrival, apply)
            if fate < 0.20:
                self._note("doubled")
                loop.call_later(late, lambda: self.objects.setdefault(key, data))
        await asyncio.sleep(arrival + self._chance.expovariate(20))
        if fate < 0.14 or not result:
            raise StoreUnavailable("no answer")
        if 0.20 <= fate < 0.28:
            self._note("answer lost")
            raise StoreUnavailable("the answer was lost")
        return result[0]

    def _note(self, fault: str) -> None:
        self.happened.add(fault)

    async def read(self, key: str, most_bytes: int | None = None) -> bytes | None:
        await asyncio.sleep(self._chance.expovariate(50))
        if self.faults and self._chance.random() < 0.02:
            raise StoreUnavailable("no answer")
        data = self.objects.get(key)
        return data if data is None or most_bytes is None else data[:most_bytes]

    async def read_many(self, keys: Sequence[str], most_bytes: int | None = None) -> Sequence[bytes | None]:
        await self.read("")  # which may fail
        return [
            data if data is None or most_bytes is None else data[:most_bytes]
            for data in map(self.objects.get, keys)
        ]

    async def names(self, folder: str) -> Sequence[str]:
        await asyncio.sleep(self._chance.expovariate(50))
        return sorted(key for key in self.objects if key.startswith(f"{folder}/"))

    async def delete(self, key: str) -> None:
        await asyncio.sleep(self._chance.expovariate(50))
        self.objects.pop(key, None)


class Folder:
    """A journal's files: segments of records, the first of each a head with all values before it."""

    def __init__(self, journal: int) -> None:
        self.journal = journal
        self.segments: dict[int, bytearray] = {}
        self.written_lsn = self.durable_lsn = 0
        self.oldest_base = 0

    def begin(self, above: int, values: Sequence[int]) -> None:
        """Begin a segment above an address."""
        base = -(-max(above, self.written_lsn) // SEGMENT_BYTES) * SEGMENT_BYTES
        self.segments[base] = bytearray(FILE_HEADER_BYTES)
        self.written_lsn = base + FILE_HEADER_BYTES
        self._put(RecordKind.HEAD, b"".join(map(VALUES.pack, values)))

    def append(self, value: int, log: Sequence[int]) -> int:
        """Return where the record ends; `log` is all that goes before it."""
        base = next(reversed(self.segments))
        if len(self.segments[base]) > SEGMENT_BYTES - 200:
            self.begin(base + SEGMENT_BYTES, log)
        return self._put(RecordKind.CURSOR, VALUES.pack(value))

    def _put(self, kind: RecordKind, body: bytes) -> int:
        base = next(reversed(self.segments))
        header = encode_header(kind, self.written_lsn, 0, 0, len(body), crc32(body))
        whole = header + body
        self.segments[base] += whole + bytes(record_bytes(len(body)) - len(whole))
        self.written_lsn = base + len(self.segments[base])
        return self.written_lsn

    def overlay(self, group: Group) -> None:
        """Write what the chain has and the disk has lost."""
        segment = self.segments.setdefault(group.base, bytearray(FILE_HEADER_BYTES))
        at = group.lsn - group.base
        assert at <= len(segment), "a hole in the chain"
        segment[at : at + len(group.records)] = group.records
        self.written_lsn = max(self.written_lsn, group.base + len(segment))

    def lose(self, keep_lsn: int) -> None:
        """A power cut: what was not synced is gone above an address."""
        for base in list(self.segments):
            if base + FILE_HEADER_BYTES > keep_lsn:
                del self.segments[base]
            else:
                data, at = self.segments[base], FILE_HEADER_BYTES
                while (header := read_header(data, at, base + at)) is not None:
                    end = at + record_bytes(header.body_bytes)
                    if base + end > keep_lsn:
                        break  # torn
                    at = end
                del data[at:]
        self.segments = dict(sorted(self.segments.items()))
        ends = [base + len(data) for base, data in self.segments.items()]
        self.written_lsn = self.durable_lsn = ends[-1] if ends else 0

    def log(self) -> list[tuple[int, int]]:
        """(end of its record, value) of all values; of those in a head the head's end."""
        found: list[tuple[int, int]] = []
        for base, data in sorted(self.segments.items()):
            at = FILE_HEADER_BYTES
            while (header := read_header(data, at, base + at)) is not None:
                body = data[at + HEADER_BYTES : at + HEADER_BYTES + header.body_bytes]
                at += record_bytes(header.body_bytes)
                values = [VALUES.unpack_from(body, i)[0] for i in range(0, len(body), VALUES.size)]
                if header.kind is RecordKind.HEAD and len(values) >= len(found):
                    known = {value: end for end, value in found}
                    found = [(known.get(value, base + at), value) for value in values]
                elif header.kind is not RecordKind.HEAD:
                    found.append((base + at, values[0]))
        return found

    # -- as a source of the chain

    def next_stretch(self, lsn: int) -> Stretch | None:
        for base, data in sorted(self.segments.items()):
            start, end = max(lsn, base + FILE_HEADER_BYTES), base + len(data)
            if start < end:
                return Stretch(base=base, segment_bytes=SEGMENT_BYTES, start=start, end=end)
        return None

    def read(self, stretch: Stretch, count: int) -> bytes:
        at = stretch.start - stretch.base
        return bytes(self.segments[stretch.base][at : at + count])


@dataclass(slots=True)
class Record:
    """`/journals/<broker>` of the broker that the topic is assigned to; changed in one step."""

    journal: int
    term: int = 1
    from_number: int = 1


@dataclass(slots=True)
class World:
    chance: random.Random
    store: SimStore
    record: Record
    acknowledged: int = 0  # values 1 … were acknowledged
    owner: Owner | None = None
    owners: list[Owner] = field(default_factory=list)
    journals: int = 1
    sent: int = 0
    stages: set[str] = field(default_factory=set)
    _seen: dict[int, Place] = field(
        default_factory=dict
    )  # journal → the end of its chain, as far as it was read

    def held(self, journal: int, from_number: int) -> int:
        """Return up to which address the store holds a chain now."""
        place = self._seen.get(journal) or Place(number=1)
        if place.number < from_number:
            place = Place(number=from_number)
        while (data := self.store.objects.get(piece_key(CLUSTER, journal, place.number))) is not None:
            header = decode_header(data[:PIECE_HEADER_BYTES], journal=journal, number=place.number)
            begins = header.number == from_number > 1 and place.before == NO_PIECE
            place = place.after(header) if begins or place.continued_by(header) else place.past_stray()
        self._seen[journal] = place
        return place.stored_lsn


class Owner:
    """One process that owns the topic: the part of a broker that the chain needs. Bugs are planted in subclasses."""

    def __init__(self, world: World, folder: Folder) -> None:
        self.world = world
        self.folder = folder
        self.record = world.record
        self.term = world.record.term
        self.acknowledged = 0  # by anyone, when the fence stood
        self.serving = False
        self.values: list[tuple[int, int]] = []
        self.answered = 0  # values that were shown to be stored
        self.writer: ChainWriter | None = None
        self.task: asyncio.Task[None] | None = None
        self.error: Fenced | None = None
        self.copied_lsn = 0  # where the head with what was taken over ends

    # -- what bugs change

    async def fence(self, journal: int, from_number: int, term: int) -> tuple[int, Any]:
        return await fenced_end(self.world.store, CLUSTER, journal, from_number, term)

    async def first_number(self, journal: int, from_number: int) -> int:
        return from_number

    def stored_at_start(self, stored_lsn: int) -> int:
        return stored_lsn

    def closed_by_death(self) -> bool:
        """Whether the chain of the lost broker is given up when its first heir dies."""
        return False

    # -- life

    async def restart(self) -> None:
        """Start from the folder: fence the earlier start, take from the chain what the disk has lost."""
        record = self.record
        if self.world.record is not record or record.term != self.term:
            return  # an heir was named: the broker that comes back reads its term first
        _, place = await self.fence(self.folder.journal, record.from_number, record.term)
        self.acknowledged = self.world.acknowledged
        if place.stored_lsn > self.folder.written_lsn:
            self.world.stages.add("the disk had less than the chain")
            first = await self.first_number(self.folder.journal, record.from_number)
            async for _, items in pieces(self.world.store, CLUSTER, self.folder.journal, first, place.number):
                for item in items:
                    if isinstance(item, Group) and item.end > self.folder.written_lsn:
                        self.folder.overlay(item)
            self.folder.segments = dict(sorted(self.folder.segments.items()))
        elif place.stored_lsn < self.folder.written_lsn:
            self.world.stages.add("the disk had more than the chain")
        sent = place.stored_lsn
        self.begin(self.folder.log(), place, sent, record.term, record.from_number)

    async def take_over(self) -> None:
        """Take the topic over from the chain of the lost broker into a journal of its own."""
        world, lost = self.world, self.record
        lost.term += 1
        term = lost.term
        number, _ = await self.fence(lost.journal, lost.from_number, term)
        self.acknowledged = world.acknowledged
        old = Folder(lost.journal)
        first = await self.first_number(lost.journal, lost.from_number)
        async for _, items in pieces(world.store, CLUSTER, lost.journal, first, number):
            for item in items:
                if isinstance(item, Group):
                    if item.base in old.segments or item.lsn == item.base + FILE_HEADER_BYTES:
                        old.overlay(item)
                elif isinstance(item, Drop):
                    for base in [base for base in old.segments if base < item.base]:
                        del old.segments[base]
        if world.record is not lost or lost.term != term:
            return  # another heir was named meanwhile
        log = [value for _, value in old.log()]
        self.check(log)
        self.heir_of, self.heir_term = lost, term
        _, place = await fenced_end(world.store, CLUSTER, self.folder.journal, 1, 1)
        self.begin([(0, value) for value in log], place, 0, 1, 1)
        if self.closed_by_death():
            world.record = self.record = Record(self.folder.journal)

    heir_of: Record | None = None
    heir_term = 0
    pieces_to_read = 12  # after so many, one repeats the others

    def check(self, log: Sequence[int]) -> None:
        """Hold a log that was read from a chain against all that was acknowledged."""
        assert list(log) == list(range(1, len(log) + 1)), f"values out of order: {log}"
        assert len(log) >= self.acknowledged, f"{len(log)} of {self.acknowledged} acknowledged"

    def begin(self, log: list[tuple[int, int]], place: Any, sent: int, term: int, from_number: int) -> None:
        self.check([value for _, value in log])
        self.folder.begin(place.stored_lsn, [value for _, value in log])
        self.copied_lsn = self.folder.written_lsn
        self.values = [(end or self.folder.written_lsn, value) for end, value in log]
        self.writer = ChainWriter(
            self.world.store, self.folder, self, cluster=CLUSTER, journal=self.folder.journal, term=term,
            place=place, sent_lsn=sent, linger_s=LINGER_S, keep_from=self.keep_from, from_number=from_number,
            pieces_to_read=self.pieces_to_read,
        )  # fmt: skip
        self.task = asyncio.get_running_loop().create_task(self.writer.run())
        self.serving = True
        self.stored(self.stored_at_start(place.stored_lsn))

    async def keep_from(self, number: int) -> None:
        await asyncio.sleep(0.01)
        record = self.record if self.heir_of is None else None
        if record is None or self.world.record is not record:
            raise StoreUnavailable("this broker is not in the metadata")
        self.world.stages.add("begins later")
        record.from_number = number

    def publish(self, value: int) -> None:
        last = self.values[-1][1] if self.values else 0
        if value == last + 1:
            end = self.folder.append(value, [each for _, each in self.values])
            self.values.append((end, value))
            self.written()
        elif value <= self.answered:
            self.acknowledge(value)  # a duplicate of what is stored

    def stored(self, lsn: int) -> None:
        if self.dead:
            return
        if self.heir_of is not None and lsn >= self.copied_lsn > 0:
            # The topic is safe in the heir's journal: opened, unless another heir was named or has opened it
            if self.world.record is not self.heir_of or self.heir_of.term != self.heir_term:
                self.world.stages.add("another heir was faster")
                self.kill()
                return
            self.heir_of = None
            self.world.record = self.record = Record(self.folder.journal)
            self.world.stages.add("opened")
        if self.heir_of is not None:
            return
        begun = self.answered
        while self.answered < len(self.values) and self.values[self.answered][0] <= lsn:
            self.answered += 1
        if self.answered > begun:
            held = self.world.held(self.folder.journal, self.record.from_number)
            end = self.values[self.answered - 1][0]
            assert end <= held, f"value {self.answered} ends at {end}, the store holds {held}"
        self.acknowledge(self.answered)

    def written(self) -> None:
        """Note that the journal has more."""
        assert self.writer is not None
        self.writer.written(self.folder.written_lsn)

    def acknowledge(self, value: int) -> None:
        assert self.error is None, "acknowledged after the fence"
        self.world.acknowledged = max(self.world.acknowledged, min(value, self.world.sent))

    def fenced(self, error: Fenced) -> None:
        self.world.stages.add("fenced while it ran")
        self.error = error
        self.serving = False

    def drop(self) -> None:
        """The tier has everything: segments before the newest head are not needed."""
        newest = next(reversed(self.folder.segments))
        if self.folder.durable_lsn > newest + FILE_HEADER_BYTES + HEADER_BYTES + VALUES.size * len(
            self.values
        ):
            self.folder.oldest_base = newest
            for base in [base for base in self.folder.segments if base < newest]:
                if self.writer is not None and self.writer.stored_lsn >= newest:
                    del self.folder.segments[base]
                    self.world.stages.add("dropped")

    dead = False

    def kill(self) -> None:
        self.serving, self.dead = False, True
        if self.task is not None:
            self.task.cancel()


async def run_world(seed: int, kind: Callable[[World, Folder], Owner], steps: int) -> World:
    chance = random.Random(seed)
    world = World(chance, SimStore(chance), Record(1))
    tasks: list[asyncio.Task[None]] = []

    def start(owner: Owner, how: Callable[[Owner], Awaitable[None]]) -> None:
        async def attempt() -> None:
            while True:
                with contextlib.suppress(StoreUnavailable):
                    await how(owner)
                    return
                await asyncio.sleep(0.2)

        async def guarded() -> None:
            try:
                await attempt()
            except Fenced:
                world.stages.add("a slower successor was fenced")

        owner.task = asyncio.get_running_loop().create_task(guarded())
        tasks.append(owner.task)
        world.owner = owner
        world.owners.append(owner)

    def new_folder() -> Folder:
        world.journals += 1
        return Folder(world.journals)

    try:
        start(kind(world, Folder(1)), Owner.restart)
        for _ in range(steps):
            await asyncio.sleep(chance.expovariate(8))
            for task in tasks:
                if task.done() and not task.cancelled():
                    task.result()
            owner = world.owner
            assert owner is not None
            what = chance.random()
            if what < 0.94:
                if owner.serving:
                    for value in range(
                        world.acknowledged + 1, world.acknowledged + 1 + chance.randrange(WINDOW)
                    ):
                        world.sent = max(world.sent, value)
                        owner.publish(value)
                    folder = owner.folder
                    folder.durable_lsn = max(folder.durable_lsn, folder.written_lsn - chance.randrange(400))
                    if chance.random() < 0.2:
                        owner.drop()
            elif what < 0.97 and owner.folder.journal == world.record.journal:
                owner.kill()  # killed, or a power cut, and started again
                if chance.random() < 0.6:
                    owner.folder.lose(chance.randint(owner.folder.durable_lsn, owner.folder.written_lsn))
                start(kind(world, owner.folder), Owner.restart)
            elif what < 0.99:
                if chance.random() < 0.5:
                    owner.kill()  # else cut off from the metadata only: it goes on
                    if owner.heir_of is not None:
                        world.stages.add("an heir died")
                start(kind(world, new_folder()), Owner.take_over)
        world.store.faults = False
        for owner in world.owners:
            if chance.random() < 0.5:
                owner.kill()
        await asyncio.sleep(60)
        for _attempt in range(2):
            last = kind(world, new_folder())
            await last.take_over()
            await asyncio.sleep(30)
            assert world.record.journal == last.folder.journal, "the last heir did not open the topic"
        return world
    finally:
        for owner in world.owners:
            owner.kill()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run_seed(seed: int, kind: Callable[[World, Folder], Owner] = Owner, *, steps: int = 250) -> World:
    """Run one history in virtual time. Raises what went wrong."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(run_world(seed, kind, steps))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


# -- bugs planted on purpose ---------------------------------------------------------------------------------------


class FenceForgotten(Owner):
    """A successor reads to the end of the chain and makes no fence."""

    async def fence(self, journal: int, from_number: int, term: int) -> tuple[int, Any]:
        place = await chain_end(self.world.store, CLUSTER, journal, from_number)
        return place.number, place


class LocalTailCommitted(Owner):
    """After a start everything on the own disk counts as stored."""

    def stored_at_start(self, stored_lsn: int) -> int:
        return self.folder.written_lsn


class LowestNameRead(Owner):
    """Reading begins at the lowest name that is listed."""

    async def first_number(self, journal: int, from_number: int) -> int:
        names = await self.world.store.names(f"{CLUSTER}/journals/{journal}")
        return int(names[0].rpartition("/")[2])


class ChainDroppedEarly(Owner):
    """The lost broker's chain is given up before the heir has the topic in its own."""

    def closed_by_death(self) -> bool:
        return True


class AnsweredWhenWritten(Owner):
    """Records count as stored when the own disk has them."""

    def written(self) -> None:
        super().written()
        self.stored(self.folder.durable_lsn)


class OpenedBeforeStored(Owner):
    """An heir serves the topic before its own chain has what it took over."""

    def begin(self, log: list[tuple[int, int]], place: Any, sent: int, term: int, from_number: int) -> None:
        super().begin(log, place, sent, term, from_number)
        if self.heir_of is not None and self.world.record is self.heir_of:
            self.heir_of = None
            self.world.record = self.record = Record(self.folder.journal)


BUGS = (
    FenceForgotten, LocalTailCommitted, LowestNameRead, ChainDroppedEarly, AnsweredWhenWritten, OpenedBeforeStored,
)  # fmt: skip
