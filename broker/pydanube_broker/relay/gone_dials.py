"""Dial the last addresses of brokers that are not registered any more, so that a finding says what was tried."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from pydanube_core.facts import DialFacts

from pydanube_broker.cluster.coordinator import Coordinator
from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.relay.link import Links

AGAIN_S: Final = 5.0  # between two attempts
FIRST_S: Final = 0.5  # how long a caller waits for the first one: a dead machine refuses nothing


class GoneDials:
    """See the module. Attempts are made while there is interest in them. Single user: the loop."""

    def __init__(
        self,
        coordinator: Callable[[], Coordinator],
        links: Links,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._coordinator = coordinator
        self._links = links
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._found: dict[BrokerId, tuple[DialFacts, float]] = {}  # and the time of the loop
        self._under_way: dict[BrokerId, asyncio.Event] = {}

    def last(self, broker_id: BrokerId) -> DialFacts | None:
        """Return the last attempt, None before the first one ends. An old one is repeated in the background."""
        coordinator = self._coordinator()
        members = coordinator.members
        self._found = {each: found for each, found in self._found.items() if each not in members}
        if broker_id in members:
            return None
        address = coordinator.address(broker_id)
        if address is None:
            return DialFacts(address=None, failure=None)
        found, at_s = self._found.get(broker_id, (None, 0.0))
        if found is not None and found.address != address.broker_url:
            found = None
        is_old = found is None or self._loop.time() - at_s >= AGAIN_S
        if is_old and broker_id not in self._under_way:
            self._under_way[broker_id] = asyncio.Event()
            self._spawn(self._dial(broker_id, address.broker_url))
        return found

    async def first(self, broker_id: BrokerId) -> DialFacts | None:
        """As `last`, and wait up to `FIRST_S` for the first attempt."""
        found = self.last(broker_id)
        ended = self._under_way.get(broker_id)
        if found is None and ended is not None:
            try:
                async with asyncio.timeout(FIRST_S):
                    await ended.wait()
            except TimeoutError:
                return None
            found, _ = self._found.get(broker_id, (None, 0.0))
        return found

    async def _dial(self, broker_id: BrokerId, url: str) -> None:
        try:
            found = await self._links.dial(url)
            self._found[broker_id] = found, self._loop.time()
        finally:
            self._under_way.pop(broker_id).set()
