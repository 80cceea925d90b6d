"""Sections of many topics on their way into fragments: what comes while one is written goes into the next together.

A lone move does not wait; where an object had several topics, the next one waits for more of them, so that a drain of a thousand
quiet topics makes less than a hundred.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from pydanube_core.errors import ClusterError

from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.cluster.move_record import HandOverPart
from pydanube_broker.tier.fragments import Fragments
from pydanube_broker.topics.fragment import FragmentBuilder, Section

_GATHER_S: Final = 0.1

_Waiting = tuple[Section, asyncio.Future[HandOverPart]]


class HandOverWriter:
    """See the module. Single user: the loop. What waits is bounded by how many callers there are: one section each."""

    def __init__(self, fragments: Fragments, broker_id: BrokerId) -> None:
        self._fragments = fragments
        self._broker_id = broker_id
        self._waiting: deque[_Waiting] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def write(self, section: Section) -> HandOverPart:
        """Write a section; returns where it is, once that was read back.

        Raises `StoreUnavailable`, `DiskFull`: of the fragment that it was in.
        """
        done: asyncio.Future[HandOverPart] = asyncio.get_running_loop().create_future()
        self._waiting.append((section, done))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all())
        return await done

    async def aclose(self) -> None:
        """Give up what is under way."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                if await self._write_one() > 1:
                    await asyncio.sleep(_GATHER_S)
        finally:
            self._writing = None
            for _, done in self._waiting:
                done.cancel()
            self._waiting.clear()

    async def _write_one(self) -> int:
        """Write what waits, as far as it fits into one object; returns of how many topics that was."""
        builder = FragmentBuilder(self._broker_id)
        taken = []
        while self._waiting and not builder.is_full:
            section, done = self._waiting.popleft()
            if not done.cancelled():
                taken.append((builder.add(section), done))
        try:
            key = await self._fragments.write(builder.finish())
        except ClusterError as error:
            for _, done in taken:
                if not done.done():
                    done.set_exception(error)
            return 0
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
        return len(taken)
