"""The metadata store in memory: a second adapter beside the one on disk, whose rows are quick and forgotten. Nothing outlives the block."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

import anyio.lowlevel
from pydanube_storage.metadata.clock import Clock
from pydanube_storage.metadata.engine import DEFAULT_HISTORY_REVISIONS, Counters, Engine, Place
from pydanube_storage.metadata.model import Event, KeyRange, KeyValue, LeaseId, Revision
from pydanube_storage.metadata.shell import StoreShell

T = TypeVar("T")


class MemoryRows:
    """Rows in a dict beside a sorted list of its keys: insertion O(n) moves of pointers, reading O(log n)."""

    def __init__(self) -> None:
        self._items: dict[str, KeyValue] = {}
        self._keys: list[str] = []
        self._events: deque[tuple[Place, Event]] = deque()
        self._leases: dict[LeaseId, int] = {}
        self._counters = Counters(revision=Revision(0), compacted=Revision(0), last_lease=LeaseId(0))

    def raise_format(self, version: int) -> int:
        return version  # nothing outlives this process

    def get(self, key: str) -> KeyValue | None:
        return self._items.get(key)

    def scan(self, range_: KeyRange, *, limit: int, descending: bool) -> list[KeyValue]:
        low = bisect.bisect_left(self._keys, range_.start)
        high = bisect.bisect_left(self._keys, range_.end, lo=low)
        if limit >= 0:
            low, high = (max(low, high - limit), high) if descending else (low, min(high, low + limit))
        keys = self._keys[low:high]
        return [self._items[key] for key in (reversed(keys) if descending else keys)]

    def put(self, item: KeyValue) -> None:
        if item.key not in self._items:
            bisect.insort(self._keys, item.key)
        self._items[item.key] = item

    def delete(self, key: str) -> None:
        del self._items[key]
        del self._keys[bisect.bisect_left(self._keys, key)]

    def keys_of_lease(self, lease_id: LeaseId) -> list[str]:
        return [key for key in self._keys if self._items[key].lease_id == lease_id]

    def append_events(self, events: Sequence[Event]) -> None:
        self._events.extend((Place(event.revision, index), event) for index, event in enumerate(events))

    def events(self, range_: KeyRange, place: Place, *, limit: int) -> list[tuple[Event, Place]]:
        # A watcher that keeps up looks at the last few only: search from the young end.
        behind = 0
        for at, _ in reversed(self._events):
            if at < place:
                break
            behind += 1
        young = islice(self._events, len(self._events) - behind, None)
        return list(islice(((event, at) for at, event in young if event.key in range_), limit))

    def forget_events(self, up_to: Revision) -> None:
        while self._events and self._events[0][0].revision <= up_to:
            self._events.popleft()

    def put_lease(self, lease_id: LeaseId, ttl_ms: int) -> None:
        self._leases[lease_id] = ttl_ms

    def delete_lease(self, lease_id: LeaseId) -> None:
        del self._leases[lease_id]

    def leases(self) -> dict[LeaseId, int]:
        return dict(self._leases)

    def counters(self) -> Counters:
        return self._counters

    def put_counters(self, counters: Counters) -> None:
        self._counters = counters


class MemoryStore(StoreShell):
    """`async with MemoryStore() as store`. A cancelled call has had no effect here (elsewhere it may have)."""

    def __init__(
        self, *, clock: Clock | None = None, history_revisions: int = DEFAULT_HISTORY_REVISIONS
    ) -> None:
        super().__init__(clock=clock)
        self._engine = Engine(MemoryRows(), now_ms=self._clock.now_ms(), history_revisions=history_revisions)

    async def _start(self) -> None:
        self._note([], self._engine.facts())

    async def _stop(self) -> None:
        pass

    async def run_step(self, operation: Callable[[Engine], T], *, writes: bool) -> T:
        await anyio.lowlevel.checkpoint()
        self._check_open()  # it may have been closed while we waited for our turn
        engine = self._engine
        try:
            engine.expire(self._clock.now_ms())
            return operation(engine)
        finally:
            changes = engine.take_changes()
            self._commits += bool(changes)
            self._note(changes, engine.facts())
