"""End streams whose permission was withdrawn after they were opened: a binding, a token, its expiry.

A change of grants takes effect when this broker reads it, an expiry in the next round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import anyio
from pydanube_core.errors import ClusterError

from pydanube_broker.rpc.caller import Called
from pydanube_broker.security.locks import Locks
from pydanube_broker.serving.topic_access import Action, TopicAccess
from pydanube_broker.topics.topic import Topic

ROUND_S: Final = 2.0  # a consumer whose right has expired stops within 5 s
AT_ONCE: Final = 256  # streams checked in one turn of the loop


@dataclass(frozen=True, slots=True)
class Right:
    """The permission by which a stream was opened."""

    called: Called
    action: Action
    topic: Topic


class PermittedStream(Protocol):
    """A stream that stays open as long as its client wants."""

    @property
    def right(self) -> Right | None:
        """The permission. None: the stream has not begun, or has ended."""

    def end(self, error: ClusterError) -> None: ...


class RightsWatch:
    """Checks open streams periodically. `streams`: returns them."""

    def __init__(
        self, locks: Locks, access: TopicAccess, streams: Callable[[], Iterable[PermittedStream]]
    ) -> None:
        self._locks = locks
        self._access = access
        self._streams = streams

    async def run(self) -> None:
        """Check open streams periodically, until cancelled."""
        changed = self._locks.access_records.changed
        while True:
            with anyio.move_on_after(ROUND_S):
                await changed.wait()
            changed.clear()
            await self.look()

    async def look(self) -> None:
        """End the streams whose permission is gone."""
        for number, stream in enumerate(tuple(self._streams())):
            if (right := stream.right) is not None:
                try:
                    self._access.check_again(right.called, right.action, right.topic)
                except ClusterError as error:
                    stream.end(error)
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
