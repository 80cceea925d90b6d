"""The base of stores that keep their own rows: checks, watches, expiry of leases, opening and closing.

A watch pulls: it reads the history from its place on and sleeps until a commit touches its range. So a slow reader
costs no memory, but gets `Compacted` when the history has moved past its place. Commits outside the range do not wake
the watch. It remembers the first revision inside the range and skips to it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Self, TypeVar

import anyio
from pydanube_core.errors import ClosedResource, Conflict, Retryable

from pydanube_storage.metadata.clock import BootClock, Clock
from pydanube_storage.metadata.engine import Change, Engine, EngineFacts, Place
from pydanube_storage.metadata.leases import check_ttl
from pydanube_storage.metadata.leaving import leave
from pydanube_storage.metadata.model import (
    MAX_PAGE_ITEMS,
    Event,
    Guard,
    KeyRange,
    KeyValue,
    LeaseId,
    RangePage,
    Revision,
    Write,
    check_from_revision,
    check_key,
    check_limit,
    check_transaction,
)
from pydanube_storage.metadata.protocol import StoreStatistics

T = TypeVar("T")
_WATCH_READ_EVENTS: Final = 256


class StoreShell(ABC):
    """Implements `MetadataStore` on `run_step`, which carries out engine steps one at a time, in the order of calls."""

    def __init__(self, *, clock: Clock | None) -> None:
        self._clock: Clock = clock or BootClock()
        self._stack = AsyncExitStack()
        self._opened = False
        self._closed = False
        self._watches: set[_Watch] = set()
        self._expiry_sleep: anyio.CancelScope | None = None
        self._facts = EngineFacts(
            revision=Revision(0), oldest_event_revision=Revision(1), leases=0, next_deadline_ms=None
        )
        self._transactions = 0
        self._conflicts = 0
        self._commits = 0

    # Implemented by adapters

    @abstractmethod
    async def _start(self) -> None:
        """Open the rows and `_note` their facts."""

    @abstractmethod
    async def _stop(self) -> None:
        """Close the rows. Called once, shielded, after the last `run_step` has started."""

    @abstractmethod
    async def run_step(self, operation: Callable[[Engine], T], *, writes: bool) -> T:
        """Expire leases, carry out one step, make it durable, `_note` the changes, return the result."""

    def _note(self, changes: Sequence[Change], facts: EngineFacts) -> None:
        """Take in the changes of a durable commit, in order of commits, on the event loop."""
        moved = facts.next_deadline_ms != self._facts.next_deadline_ms
        self._facts = facts
        for watch in self._watches:
            watch.note(changes)
        if moved and self._expiry_sleep is not None:
            self._expiry_sleep.cancel()

    def _waiting_calls(self) -> int:
        return 0

    def _has_failed(self) -> bool:
        return False

    # Life

    async def __aenter__(self) -> Self:
        assert not self._opened, "a store is opened once. Make a new one"
        self._opened = True
        await self._start()
        try:
            group = await self._stack.enter_async_context(anyio.create_task_group())
            self._stack.callback(group.cancel_scope.cancel)
            group.start_soon(self._expire_leases)
        except BaseException:
            await self._close_rows()
            raise
        return self

    async def __aexit__(self, *failure: Any) -> bool | None:
        self._closed = True
        for watch in self._watches:
            watch.close()
        try:
            return await leave(self._stack, *failure)
        finally:
            await self._close_rows()

    async def _close_rows(self) -> None:
        self._closed = True
        with anyio.CancelScope(shield=True):
            await self._stop()

    def _check_open(self) -> None:
        if self._closed or not self._opened:
            raise ClosedResource("the metadata store is closed", resource=type(self).__name__)

    async def _expire_leases(self) -> None:
        """Expire leases in time, also without any call."""
        while True:
            deadline_ms = self._facts.next_deadline_ms
            with anyio.CancelScope() as self._expiry_sleep:
                if deadline_ms is None:
                    await anyio.sleep(math.inf)
                else:
                    await self._clock.wait_until(deadline_ms)
            woken = self._expiry_sleep.cancelled_caught
            self._expiry_sleep = None
            if woken:
                continue
            try:
                await self.run_step(lambda _engine: None, writes=False)  # every step begins with expiry
            except Retryable:
                # A disk error: the next call gets it too and tries the expiry again. Wait for that.
                with anyio.CancelScope() as self._expiry_sleep:
                    await anyio.sleep(math.inf)
                self._expiry_sleep = None

    # MetadataStore

    async def get(self, key: str) -> KeyValue | None:
        self._check_open()
        check_key(key)
        return await self.run_step(lambda engine: engine.get(key), writes=False)

    async def range(
        self,
        range_: KeyRange,
        *,
        limit: int = MAX_PAGE_ITEMS,
        after: str | None = None,
        descending: bool = False,
    ) -> RangePage:
        self._check_open()
        check_limit(limit)
        if after is not None:
            check_key(after, field="after")
        return await self.run_step(
            lambda engine: engine.range(range_, limit=limit, after=after, descending=descending), writes=False
        )

    async def transact(self, writes: Sequence[Write], *, guards: Sequence[Guard] = ()) -> Revision:
        """Run a transaction like `MetadataStore.transact`. A cancelled call may have happened, wholly or not at all."""
        self._check_open()
        fixed_guards, fixed_writes = (
            tuple(guards),
            tuple(writes),
        )  # the caller may change its lists while we wait
        check_transaction(fixed_guards, fixed_writes)
        try:
            revision = await self.run_step(
                lambda engine: engine.transact(fixed_guards, fixed_writes), writes=bool(fixed_writes)
            )
        except Conflict:
            self._conflicts += 1
            raise
        self._transactions += 1
        return revision

    async def raise_format(self, version: int) -> int:
        """Let only builds that read this format open the store. Return the format in force, which is durable."""
        self._check_open()
        return await self.run_step(lambda engine: engine.raise_format(version), writes=True)

    async def grant_lease(self, ttl_ms: int) -> LeaseId:
        self._check_open()
        check_ttl(ttl_ms)
        return await self.run_step(
            lambda engine: engine.grant_lease(ttl_ms, self._clock.now_ms()), writes=True
        )

    async def keep_alive(self, lease_id: LeaseId) -> int:
        self._check_open()
        return await self.run_step(
            lambda engine: engine.keep_alive(lease_id, self._clock.now_ms()), writes=False
        )

    async def revoke_lease(self, lease_id: LeaseId) -> None:
        self._check_open()
        await self.run_step(lambda engine: engine.revoke_lease(lease_id), writes=True)

    @asynccontextmanager
    async def watch(
        self, range_: KeyRange, *, from_revision: Revision
    ) -> AsyncIterator[AsyncIterator[Event]]:
        self._check_open()
        check_from_revision(from_revision)
        watch = _Watch(self._read_events, range_, from_revision)
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)
            watch.close()

    def statistics(self) -> StoreStatistics:
        return StoreStatistics(
            revision=self._facts.revision,
            oldest_event_revision=self._facts.oldest_event_revision,
            transactions=self._transactions,
            conflicts=self._conflicts,
            commits=self._commits,
            leases=self._facts.leases,
            watchers=len(self._watches),
            waiting=self._waiting_calls(),
            failed=self._has_failed(),
        )

    async def _read_events(self, range_: KeyRange, place: Place) -> tuple[list[Event], Place]:
        self._check_open()
        return await self.run_step(
            lambda engine: engine.events(range_, place, limit=_WATCH_READ_EVENTS), writes=False
        )


class _Watch:
    """One reader of the history. One task at a time may iterate."""

    def __init__(
        self,
        read: Callable[[KeyRange, Place], Awaitable[tuple[list[Event], Place]]],
        range_: KeyRange,
        from_revision: Revision,
    ) -> None:
        self._read = read
        self._range = range_
        self._place = Place(from_revision, 0)
        self._events: deque[Event] = deque()
        self._unseen: Revision | None = from_revision  # the first unread revision that may touch the range
        self._woken = anyio.Event()
        self._closed = False

    def note(self, changes: Sequence[Change]) -> None:
        if self._unseen is not None:
            return
        for change in changes:
            if any(key in self._range for key in change.keys):
                self._unseen = change.revision
                self._woken.set()
                return

    def close(self) -> None:
        self._closed = True
        self._woken.set()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            await self._fill()
        return self._events.popleft()

    async def _fill(self) -> None:
        while self._unseen is None:
            if self._closed:
                raise ClosedResource("the watch is closed", resource="watch")
            self._woken = anyio.Event()
            await self._woken.wait()
        # Cleared before reading, because each commit that this read misses calls `note` later.
        self._place = max(self._place, Place(self._unseen, 0))
        self._unseen = None
        try:
            events, behind = await self._read(self._range, self._place)
        except BaseException:
            self._unseen = self._place.revision  # cancelled or failed: nothing was read, read again
            raise
        if len(events) >= _WATCH_READ_EVENTS:
            self._unseen = behind.revision  # there may be more
        self._events.extend(events)
        self._place = behind
