"""Which audit records a query may match: a small filter for each stretch of the log.

A stretch is `STRETCH` records from a round number on. Once it is full, its filter is built from the log: a
Bloom filter (B. Bloom, 1970) of every operation, principal and topic in it, alone and in each combination
that one record has, and of the call ids. The names of its operations are stored beside it, for globs. A query
skips the stretches whose filter excludes a match. A filter has no false negatives. Stretches without a filter
are read.

Filters are kept in the metadata store, `BLOCK` of them under a key, with the hash of the last record that
they cover: filters of another log than the present one are not used. Missing filters are rebuilt at a slow
pace. `audit.verify` reads the log alone.

Why filters: a question about a rare principal or topic has no place in the log to seek to, as a call id has by its time.
Without filters it reads every record, which takes seconds of the loop for a million. With them a page takes 2 to 30 ms
(docs/research/measurements.md#administration).
"""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import b85decode, b85encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Any, Final, Self

from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import ClusterError, Conflict
from pydanube_core.names import TopicName

from pydanube_admin.engine.audit.audit_chain import NO_RECORD

_log = logging.getLogger("pydanube.admin")

# records: a page of 50 reads at most 50 stretches, apart from those without a filter
STRETCH: Final = 128
BLOCK: Final = 64  # stretches under one key: at most 128 KiB
MOST_STRETCHES: Final = 16_384  # two million records, at most 32 MiB, in practice a quarter of it
AT_ONCE: Final = 64  # records parsed in one go: a millisecond
PACE_S: Final = 0.02  # between two stretches: building a million takes two minutes, and a fifth of the loop
_BITS: Final = 24  # for each entry. With _PROBES, one stretch in 30 000 is read in vain
_PROBES: Final = 8
_MOST_BYTES: Final = 2048  # of one filter: fuller ones have more false positives
_MOST_KNOWN: Final = 1000  # names that a query remembers
_MOST_NAMES: Final = 64  # operations of a stretch. If there are more, none is named
_MOST_VALUE: Final = 190 * 1024  # bytes, a little below the limit of the metadata store

_Hashed = tuple[int, int]


class AuditSearch:
    """The terms of an audit query. None: any. `matches` is the glob over operations, if there is one."""

    def __init__(
        self,
        *,
        operation: str | None = None,
        principal: str | None = None,
        topic: str | None = None,
        call_id: str | None = None,
        matches: Callable[[str], bool] | None = None,
    ) -> None:
        self.call = None if call_id is None else _hashed(f"call {call_id}")
        self.matches = matches if operation is None else None
        self._of_all = _hashed(_entry(operation, principal, topic))
        self._rest = (principal, topic)
        self._by_name: dict[str, _Hashed | None] = {}

    def entries(self, operations: frozenset[str] | None) -> Iterator[_Hashed]:
        """Return the entries of which a matching stretch has one. `operations` None: unknown."""
        if self.matches is None or operations is None:
            yield self._of_all
            return
        for name in operations:
            if name not in self._by_name:
                if len(self._by_name) >= _MOST_KNOWN:
                    self._by_name.clear()
                self._by_name[name] = _hashed(_entry(name, *self._rest)) if self.matches(name) else None
            if (entry := self._by_name[name]) is not None:
                yield entry


@dataclass(frozen=True, slots=True)
class Stretch:
    """The filter of a stretch. `operations` None: too many to name."""

    bits: bytes
    operations: frozenset[str] | None

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> Self:
        names: set[str] = set()
        entries: set[str] = set()
        for record in records:
            names.add(str(record["operation"]))
            entries.update(_entries(record))
        size = max(32, min(_MOST_BYTES, len(entries) * _BITS // 8))
        bits = bytearray(size)
        for one in entries:
            for place in _places(_hashed(one), size):
                bits[place >> 3] |= 1 << (place & 7)
        known = len(names) <= _MOST_NAMES and all(len(name) <= 100 for name in names)
        return cls(bytes(bits), frozenset(names) if known else None)

    def may_hold(self, search: AuditSearch) -> bool:
        """Return whether a record of the stretch may match."""
        if search.call is not None and not self._has(search.call):
            return False
        return any(map(self._has, search.entries(self.operations)))

    def _has(self, entry: _Hashed) -> bool:
        # Inlined on purpose: a query tests thousands of stretches.
        bits, (place, step) = self.bits, entry
        size = len(bits) * 8
        for _ in range(_PROBES):
            at = place % size
            if not bits[at >> 3] >> (at & 7) & 1:
                return False
            place += step
        return True


def topics_of(arguments: Mapping[str, Any]) -> set[str]:
    """Return the topics that a call names, in its own arguments or those of the call that it plans."""
    found = set()
    for name, value in arguments.items():
        named = [value] if name in ("topic", "to") else ()
        if name == "topics":  # of a plan for many: its globs name no topic
            named = value.split(",") if isinstance(value, str) else value
        for each in named if isinstance(named, list) else ():
            with suppress(ClusterError):
                found.add(str(TopicName.parse(each.strip() if isinstance(each, str) else "")))
        if name == "arguments" and isinstance(value, Mapping):
            found |= topics_of(value)
    return found


def topics_of_record(record: Mapping[str, Any]) -> set[str]:
    """Return the topics of a record: those that its call names, and those that it changed, such as by an undo.

    Filters that earlier versions made lack the latter. Their stretches are read for a topic that a call names.
    """
    found = topics_of(record["arguments"])
    for path in chain(record.get("before") or (), record.get("after") or ()):
        kind, _, rest = path.partition("/")
        if kind == "topics" and rest.count("/") >= 1:
            found.add("/" + "/".join(rest.split("/", 2)[:2]))
    return found


def _entry(operation: str | None, principal: str | None, topic: str | None) -> str:
    return json.dumps([operation, principal, topic])


def _entries(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield every combination of terms that the record matches, including none, apart from time."""
    yield f"call {record['call_id']}"
    for operation in (record["operation"], None):
        for principal in (record["principal"], None):
            for topic in (*topics_of_record(record), None):
                yield _entry(operation, principal, topic)


def _hashed(entry: str) -> _Hashed:
    digest = blake2b(entry.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest[:4]), int.from_bytes(digest[4:]) | 1


def _places(entry: _Hashed, size: int) -> Iterator[int]:
    """Return the bits of an entry in a filter of so many bytes, by double hashing (Kirsch and Mitzenmacher, 2006)."""
    place, step = entry
    for _ in range(_PROBES):
        yield place % (size * 8)
        place += step


def parsed(payload: bytes) -> dict[str, Any] | None:
    """Parse a record for queries, or return None if it is none."""
    try:
        body = json.loads(payload)
    except NO_RECORD:
        return None
    known = isinstance(body, dict) and isinstance(body.get("arguments"), dict)
    return body if known and {"operation", "principal", "call_id"} <= body.keys() else None


class AuditIndex:
    """See the module. Single user: the loop.

    `catch_up` builds the missing filters below the log's end in a task of its own.
    """

    def __init__(self, port: ClusterPort) -> None:
        self._port = port
        self.stretches: dict[int, Stretch] = {}
        self._task: asyncio.Task[None] | None = None
        self._looked_at = -1  # the number of full stretches at the last pass, negative before the first

    def may_hold(self, stretch: int, search: AuditSearch) -> bool:
        """Return whether the records of a stretch have to be read."""
        known = self.stretches.get(stretch)
        return known is None or known.may_hold(search)

    @property
    def built(self) -> int:
        """The number of stretches with a filter."""
        return len(self.stretches)

    def wrote(self, end: int) -> None:
        """Note the log's new end: a full stretch without a filter gets one."""
        if self._task is None and end // STRETCH > self._looked_at:
            self._task = asyncio.get_running_loop().create_task(self._catch_up())
            self._task.add_done_callback(self._ended)

    async def caught_up(self) -> None:
        """Wait until the indexing task has finished."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled() or (error := task.exception()) is None:
            return
        # Queries still work, only slower. The next written record triggers another attempt.
        level = logging.INFO if isinstance(error, ClusterError) else logging.ERROR
        _log.log(level, "audit_not_indexed", extra={"error": str(error)})

    async def _catch_up(self) -> None:
        while True:  # the log may have grown
            end, _ = await self._port.open_audit()
            if end // STRETCH == self._looked_at:
                return
            start, _ = await self._port.read_audit(start=0, max_messages=1)
            await self._index(-(-start // STRETCH), end // STRETCH)

    async def _index(self, first: int, full: int) -> None:
        """Make the filter of each stretch from `first` on, below `full`."""
        first = max(first, full - MOST_STRETCHES)
        if self._looked_at < 0:
            for block in range(first // BLOCK, full // BLOCK + 1):
                await self._load(block)
        self._looked_at = full
        await self._give_up_below(first)
        # The newest first: most questions are about them.
        for stretch in range(full - 1, first - 1, -1):
            if stretch in self.stretches:
                continue
            try:
                await self.build(stretch)
            except ClusterError:  # damaged, or trimmed by now: queries read these records
                continue
            await self._keep(stretch // BLOCK)
            await asyncio.sleep(PACE_S)

    async def build(self, stretch: int) -> None:
        records = [parsed(payload) for _, payload in await self._read(stretch * STRETCH, STRETCH)]
        self.stretches[stretch] = Stretch.of(record for record in records if record is not None)

    async def _read(self, start: int, count: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        while len(found) < count:
            at = start + len(found)
            _, some = await self._port.read_audit(start=at, max_messages=min(AT_ONCE, count - len(found)))
            if not some or some[0][0] != at:
                raise Conflict(f"the audit has no record {at} any more")
            found += some
            await asyncio.sleep(0)
        return found

    async def _keep(self, block: int) -> None:
        """Store a block once all its filters exist."""
        first = block * BLOCK
        known = [self.stretches.get(stretch) for stretch in range(first, first + BLOCK)]
        whole = [each for each in known if each is not None]
        if len(whole) < BLOCK:
            return
        value = json.dumps(
            {
                "version": 1,
                "last_hash": await self._last_hash(block),
                "filters": [b85encode(each.bits).decode() for each in whole],
                "operations": [each.operations and sorted(each.operations) for each in whole],
            }
        ).encode()
        if len(value) <= _MOST_VALUE:
            await self._port.write_state({_key(block): value})

    async def _load(self, block: int) -> None:
        kept = await self._port.read_state(_key(block))
        if kept is None:
            return
        try:
            body = json.loads(kept.value)
            if body["version"] != 1 or body["last_hash"] != await self._last_hash(block):
                return
            filters = [b85decode(text) for text in body["filters"]]
            names: Sequence[list[str] | None] = body["operations"]
            found = [
                Stretch(bits, None if known is None else frozenset(known))
                for bits, known in zip(filters, names, strict=True)
                if bits
            ]
        except (*NO_RECORD, LookupError, TypeError, ValueError) as error:
            _log.warning("audit_index_unreadable", extra={"error": str(error)})
            return
        if len(found) == BLOCK:
            self.stretches.update(enumerate(found, start=block * BLOCK))

    async def _last_hash(self, block: int) -> str | None:
        """Return the hash of a block's last record, from the log."""
        at = (block + 1) * BLOCK * STRETCH - 1
        _, found = await self._port.read_audit(start=at, max_messages=1)
        record = parsed(found[0][1]) if found and found[0][0] == at else None
        return None if record is None else str(record.get("hash"))

    async def _give_up_below(self, first: int) -> None:
        for stretch in [each for each in self.stretches if each < first]:
            del self.stretches[stretch]
        below = first // BLOCK - 1
        while below >= 0 and await self._port.read_state(_key(below)) is not None:
            await self._port.write_state({_key(below): None})
            below -= 1


def _key(block: int) -> str:
    return f"audit/index/{block:010d}"
