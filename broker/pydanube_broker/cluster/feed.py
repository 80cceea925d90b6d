"""Changes of a key range of the metadata store, taken in one after the other, by whoever waits for one.

At any time one caller reads the watch and the others wait; who has what it waited for passes the reading on. So nobody
needs a task to see what it wrote itself, and what others write is taken in while anybody waits, or by `follow`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

import anyio
from pydanube_core.errors import ClosedResource, Retryable
from pydanube_storage.metadata import Compacted, Event, KeyRange, MetadataStore, Revision

log = logging.getLogger("pydanube.cluster")

_NEVER: Final = Revision(1 << 62)
_PAUSE_S: Final = 1.0  # after the store did not answer


class Feed:
    """See the module. Single user: the loop.

    Args:
        read: reads the whole range, from scratch or after the watch has lost its place, and returns the revision that
            it began at.
        take: takes in one change.
    """

    def __init__(
        self,
        store: MetadataStore,
        range_: KeyRange,
        *,
        read: Callable[[], Awaitable[Revision]],
        take: Callable[[Event], None],
    ) -> None:
        self._store = store
        self._range = range_
        self._read = read
        self._take = take
        self._stack = AsyncExitStack()
        self._watch: AsyncIterator[Event]
        self._revision = Revision(0)  # of the newest change; what came before it was taken in
        self._reading = False
        self._lost = False  # the watch has lost its place: the range is to be read again
        self._waiting: dict[Revision, anyio.Event] = {}

    async def begin(self) -> None:
        """Read the range, and watch it from there."""
        self._revision = await self._read()
        watch = self._store.watch(self._range, from_revision=Revision(self._revision + 1))
        self._watch = await self._stack.enter_async_context(watch)

    async def aclose(self) -> None:
        await self._stack.aclose()

    async def until(self, revision: Revision, holds: Callable[[], bool], *, at_latest: bool = False) -> None:
        """Read changes until `holds()` is true, or all changes up to a revision were read.

        Args:
            at_latest: the revision is what the store had when it was asked; the change that is waited for may be older,
                and the range may have none of that revision for long: look after each.

        Raises:
            StoreUnavailable, ClosedResource: the watch cannot be read.
        """
        try:
            while self._revision <= revision and not holds():
                if self._reading:
                    told_at = self._revision if at_latest else revision
                    await self._waiting.setdefault(told_at, anyio.Event()).wait()
                    continue
                self._reading = True
                try:
                    await self._next()
                finally:
                    self._reading = False
        finally:
            if not self._reading and self._waiting:  # another one reads on
                self._waiting.pop(next(iter(self._waiting))).set()

    async def _next(self) -> None:
        if self._lost:
            await self.begin()
            self._lost = False
        try:
            event = await anext(self._watch)
        except Compacted:
            log.warning("catalog_read_again")
            await self._stack.aclose()
            self._lost = True
            await self.begin()
            self._lost = False
        else:
            self._revision = event.revision
            self._take(event)
        for revision in [each for each in self._waiting if each <= self._revision]:
            self._waiting.pop(revision).set()

    async def follow(self) -> None:
        """Read changes until the store closes; errors are logged and tried again."""
        while True:
            try:
                await self.until(_NEVER, lambda: False)
            except ClosedResource:
                return
            except Retryable as error:
                log.warning("catalog_not_followed", extra={"error": str(error)})
                await anyio.sleep(_PAUSE_S)
