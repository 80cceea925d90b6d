"""What the tests of the journal know of it: a small owner of records, and the truth to hold its answers against."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydanube_broker.journal import Disk, Journal, JournalOptions, RecordHeader, RecordKind
from pydanube_broker.journal.helper import InlineSyncer, PrepareDone, Preparer, Syncer
from pydanube_broker.journal.records import encode_file_header
from pydanube_broker.journal.segments import READY_TARGET
from pydanube_core.batch import BROKER_PART_BYTES, broker_part, encode_batch, read_broker_part
from pydanube_core.errors import ClusterError

CURSOR = struct.Struct("<QQ")
SEGMENT_BYTES = 16 << 10


async def turns_until(condition: Callable[[], bool]) -> None:
    """Give way to the loop until something holds; a test stands under `fail_after`."""
    while not condition():  # noqa: ASYNC110 - what is waited for has no event, and the loop is ours alone
        await asyncio.sleep(0)


class SameThread(Executor):
    """Carries out what the journal hands to its worker at once, so that the order of disk calls is one."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class InlinePreparer:
    """Prepares segments in the loop, through the journal's disk."""

    def __init__(self, disk: Disk) -> None:
        self.done: PrepareDone = lambda base, error: None
        self._disk = disk

    def prepare(self, path: Path, base_lsn: int, segment_bytes: int) -> None:
        error: OSError | None = None
        temporary = path.with_name(path.name + ".new")
        try:
            fd = self._disk.create(temporary)
            try:
                self._disk.pwritev(fd, [bytes(segment_bytes)], 0)
                self._disk.pwritev(fd, [encode_file_header(base_lsn, segment_bytes)], 0)
                self._disk.datasync(fd)
            finally:
                self._disk.close(fd)
            self._disk.rename(temporary, path)
            self._disk.sync_dir(path.parent)
        except OSError as problem:
            error = problem
            with contextlib.suppress(OSError):
                self._disk.unlink(temporary)
        asyncio.get_running_loop().call_soon(self.done, base_lsn, error)

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Written:
    """One appended batch; `data` is producer part and body."""

    base: int
    end: int
    time_ms: int
    data: bytes


class Ledger:
    """An owner that knows only next offsets and cursors, and insists on offsets without gaps."""

    def __init__(self) -> None:
        self.next: dict[int, int] = {}
        self.starts: dict[int, int] = {}
        self.cursors: dict[str, int] = {}
        self.padding = 0
        self.restored = 0
        self.replayed: list[RecordHeader] = []
        self.failures: list[ClusterError] = []
        self.durable_lsns: list[int] = []
        self.on_durable: Callable[[int], None] = lambda lsn: None

    # -- JournalOwner

    def restore(self, head: memoryview) -> None:
        assert not self.replayed
        self.restored += 1
        state = json.loads(bytes(head).rstrip(b"\0"))
        self.next = {int(topic): end for topic, end in state["next"].items()}
        self.starts = {int(topic): start for topic, start in state["starts"].items()}
        self.cursors = dict(state["cursors"])

    def replay(self, header: RecordHeader, body: memoryview) -> None:
        self.replayed.append(header)
        if header.kind is RecordKind.BATCH:
            part = read_broker_part(body[:BROKER_PART_BYTES])
            expected = self.next.get(header.topic_id, 0)
            assert part.base_offset == expected, (
                f"topic {header.topic_id}: offset {part.base_offset} follows {expected}"
            )
            self.next[header.topic_id] = part.last_offset + 1
        elif header.kind is RecordKind.CURSOR:
            name, position = CURSOR.unpack(body[: CURSOR.size])
            self.cursors[f"{header.topic_id}/{name}"] = position
        elif header.kind is RecordKind.TRIM_PREFIX:
            self.starts[header.topic_id] = CURSOR.unpack(body)[0]

    def encode_head(self) -> Sequence[bytes]:
        state = {"next": self.next, "starts": self.starts, "cursors": self.cursors}
        return [json.dumps(state).encode(), bytes(self.padding)]

    def durable(self, lsn: int) -> None:
        self.durable_lsns.append(lsn)
        self.on_durable(lsn)

    def failed(self, error: ClusterError) -> None:
        self.failures.append(error)


@dataclass(slots=True)
class Truth:
    """The records that were appended, and how far they were promised."""

    batches: dict[int, list[Written]] = field(default_factory=dict)
    promised: dict[int, int] = field(default_factory=dict)
    cursors: dict[str, int] = field(default_factory=dict)
    cursors_promised: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Truth:
        return Truth(
            {topic: list(batches) for topic, batches in self.batches.items()},
            dict(self.promised),
            dict(self.cursors),
            dict(self.cursors_promised),
        )

    def next(self, topic: int) -> int:
        batches = self.batches.get(topic)
        return batches[-1].end if batches else 0


def make_data(topic: int, base: int, count: int, size: int, seed: int) -> bytes:
    """A batch whose bytes say where it belongs; some of them have sectors of zeros of their own."""
    chance = random.Random(f"{topic}/{base}/{seed}")
    body = chance.randbytes(size)
    match chance.randrange(4):
        case 0:
            body = bytes(size)
        case 1:
            body = body[: size // 3] + bytes(size - size // 3 * 2) + body[size - size // 3 :]
        case _:
            pass
    keys = [None] * count if chance.random() < 0.3 else None
    return encode_batch([body] + [b""] * (count - 1), first_sequence=base, producer_id=seed, keys=keys)


class Desk:
    """One life of a journal: the journal, its ledger, and the truth that is kept beside it."""

    def __init__(
        self,
        folder: Path,
        truth: Truth | None = None,
        *,
        disk: Disk | None = None,
        syncer: Syncer | None = None,
        preparer: Preparer | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        cache_bytes: int = 1 << 20,
        padding: int = 0,
    ) -> None:
        self.truth = truth if truth is not None else Truth()
        self.ledger = Ledger()
        self.ledger.padding = padding
        self.ledger.on_durable = self._durable
        self.disk = disk or Disk()
        self.journal = Journal(
            folder,
            JournalOptions(segment_bytes=segment_bytes, tail_cache_bytes=cache_bytes),
            self.ledger,
            disk=self.disk,
            syncer=syncer or InlineSyncer(self.disk),
            preparer=preparer or InlinePreparer(self.disk),
            worker=SameThread(),
        )
        self.on_promise: Callable[[], None] = lambda: None
        self._waiting: list[tuple[int, str | int, int]] = []
        self._seed = 0

    async def start(self) -> None:
        """Recover, begin, and hold what was recovered against the truth."""
        self.journal.recover()
        await self.journal.begin()
        self.check()

    def append(
        self, topic: int, *, size: int = 300, count: int = 3, seed: int = 0, data: bytes | None = None
    ) -> None:
        base = self.truth.next(topic)
        data = make_data(topic, base, count, size, seed) if data is None else data
        written = Written(base, base + count, 1000 + base, data)
        self.journal.check_room(len(written.data))
        part = broker_part(
            base_offset=base, last_offset=base + count - 1, epoch=1, append_time_ms=written.time_ms
        )
        lsn = self.journal.append_batch(
            topic,
            part,
            written.data,
            base=base,
            end=base + count,
            count=count,
            time_ms=written.time_ms,
        )
        self.ledger.next[topic] = base + count
        self.truth.batches.setdefault(topic, []).append(written)
        self._waiting.append((lsn, topic, base + count))

    def move_cursor(self, topic: int, name: int, position: int) -> None:
        lsn = self.journal.append(
            RecordKind.CURSOR, topic, [CURSOR.pack(name, position), bytes(position * 37 % 900)]
        )
        key = f"{topic}/{name}"
        self.ledger.cursors[key] = self.truth.cursors[key] = position
        self._waiting.append((lsn, key, position))

    def trim(self, topic: int, start: int) -> None:
        self.journal.append(RecordKind.TRIM_PREFIX, topic, [CURSOR.pack(start, 0)])
        self.ledger.starts[topic] = start

    def _durable(self, lsn: int) -> None:
        while self._waiting and self._waiting[0][0] <= lsn:
            _, what, position = self._waiting.pop(0)
            if isinstance(what, str):
                self.truth.cursors_promised[what] = position
            else:
                self.truth.promised[what] = position
        self.on_promise()

    async def durable(self) -> bool:
        """Wait until everything appended is promised, or the journal is read-only; which of the two."""
        await turns_until(lambda: not self._waiting or self.journal.read_only is not None)
        return self.journal.read_only is None

    async def rested(self) -> None:
        """Wait until segments stand ready, so that nothing but the writer uses the disk."""
        await turns_until(lambda: self.journal.statistics().ready_segments == READY_TARGET)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def read_all(self, topic: int, *, max_bytes: int = 2000, start: int = 0) -> list[Written]:
        """Everything of a topic that can be read, in steps."""
        found: list[Written] = []
        offset, end = start, self.ledger.next.get(topic, 0)
        while offset < end:
            batches = self.journal.read(topic, offset, end, max_bytes)
            if batches is None:
                plan = self.journal.plan_read(topic, offset, end, max_bytes)
                batches = self.journal.read_planned(plan)()
            if not batches:
                break
            for batch in batches:
                whole = b"".join(batch.buffers)
                part = read_broker_part(whole)
                assert (part.base_offset, part.last_offset + 1) == (batch.base, batch.end)
                assert part.append_time_ms == batch.append_time_ms
                found.append(Written(batch.base, batch.end, batch.append_time_ms, whole[BROKER_PART_BYTES:]))
            offset = found[-1].end
        return found

    def check(self) -> None:
        """Everything promised is readable, what is readable was appended, in order and once.

        What was recovered is promised from now on: it may be delivered.
        """
        truth = self.truth
        assert set(self.ledger.next) <= set(truth.batches)
        for topic, appended in truth.batches.items():
            start = self.ledger.starts.get(topic, 0)
            expected = [batch for batch in appended if batch.end > start]
            found = self.read_all(topic, start=start)
            assert found == expected[: len(found)], f"topic {topic}: what is read was never appended there"
            end = found[-1].end if found else min(start, truth.promised.get(topic, 0))
            promised = truth.promised.get(topic, 0)
            assert end >= promised, f"topic {topic}: offsets {end} to {promised} are lost"
            if found:
                assert self.ledger.next[topic] == end
            kept = len(appended) - len(expected) + len(found)
            del appended[kept:]
            truth.promised[topic] = truth.next(topic)
        for name, position in truth.cursors_promised.items():
            assert position <= self.ledger.cursors[name] <= truth.cursors[name], f"cursor {name} moved back"
        truth.cursors = dict(self.ledger.cursors)
        truth.cursors_promised = dict(self.ledger.cursors)
