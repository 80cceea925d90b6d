"""Write sections of many topics into fragments: those that arrive while one is written share the next.

A lone move does not wait. While many topics are on their way an object is for `_TOPICS` of them, or is the only one of
`GATHER_S`, or of `GATHER_AHEAD_S` where no client waits. So a drain of a thousand quiet topics, each of which writes once
before it is stopped and once after it, makes at most 2000 / `_TOPICS` objects and one more of each kind in its time,
however quick the store is. Of a few topics half are waited for, and a hundredth of a second for each.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from pydanube_core.errors import ClusterError

from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.cluster.move_record import HandOverPart
from pydanube_broker.tier.fragments import Fragments
from pydanube_broker.topics.fragment import FragmentBuilder, Section

_TOPICS: Final = 24
GATHER_S: Final = 0.6
GATHER_AHEAD_S: Final = 2.0  # where no client waits
GATHER_A_TOPIC_S: Final = 0.01

_Waiting = tuple[Section, asyncio.Future[HandOverPart]]


class HandOverWriter:
    """Gathers sections into objects. Single user: the loop. Bounded by its callers: each has one section waiting.

    Args:
        on_their_way: says how many topics are being handed over now, or are about to be.
        awaited: clients wait for what it writes.
    """

    def __init__(
        self,
        fragments: Fragments,
        broker_id: BrokerId,
        on_their_way: Callable[[], int] = lambda: 1,
        *,
        awaited: bool,
    ) -> None:
        self._awaited = awaited
        self._fragments = fragments
        self._broker_id = broker_id
        self._on_their_way = on_their_way
        self._written_s = 0.0  # when the last object was
        self._more = asyncio.Event()
        self._waiting: deque[_Waiting] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def write(self, section: Section) -> HandOverPart:
        """Write a section; return its place in the store, once it was read back.

        Raises `StoreUnavailable`, `DiskFull`: of the fragment that it was in.
        """
        done: asyncio.Future[HandOverPart] = asyncio.get_running_loop().create_future()
        self._waiting.append((section, done))
        self._more.set()
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all())
        return await done

    async def aclose(self) -> None:
        """Cancel the writes under way."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                await self._gather()
                await self._write_one()
                self._written_s = time.monotonic()
        finally:
            self._writing = None
            for _, done in self._waiting:
                done.cancel()
            self._waiting.clear()

    async def _gather(self) -> None:
        """Wait until enough topics share the next object; see the module."""
        topics = self._on_their_way()
        most_s = GATHER_S if self._awaited else GATHER_AHEAD_S
        until_s = self._written_s + min(most_s, topics * GATHER_A_TOPIC_S)
        while len(self._waiting) < min(_TOPICS, topics // 2) and (left_s := until_s - time.monotonic()) > 0:
            self._more.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._more.wait()

    async def _write_one(self) -> None:
        """Write one object with as many waiting sections as fit."""
        builder = FragmentBuilder(self._broker_id)
        taken = []
        while self._waiting and not builder.is_full:
            section, done = self._waiting.popleft()
            if not done.cancelled():
                taken.append((builder.add(section), done))
        try:
            key = await self._fragments.write(builder.finish(), awaited=self._awaited)
        except ClusterError as error:
            for _, done in taken:
                if not done.done():
                    done.set_exception(error)
            return
        except asyncio.CancelledError:
            for _, done in taken:
                done.cancel()
            raise
        for place, done in taken:
            if not done.done():
                done.set_result(
                    HandOverPart(
                        key=key,
                        start=place.start,
                        end=place.end,
                        digest=place.digest,
                        first_offset=place.first_offset,
                        end_offset=place.end_offset,
                    )
                )
