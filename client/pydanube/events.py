"""Events for listeners. Each has a bounded queue, and the oldest events are dropped and counted."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from pydanube.facts import ClientEvent

_QUEUE: Final = 1000


class _Listener:
    __slots__ = ("dropped", "events", "wake")

    def __init__(self) -> None:
        self.events: deque[ClientEvent] = deque()
        self.dropped = 0
        self.wake = asyncio.Event()


class EventHub:
    """Hands each event to every listener."""

    def __init__(self) -> None:
        self._listeners: set[_Listener] = set()
        self._closed = False

    def emit(self, event: ClientEvent) -> None:
        for listener in self._listeners:
            if len(listener.events) >= _QUEUE:
                listener.events.popleft()
                listener.dropped += 1
            listener.events.append(event)
            listener.wake.set()

    def close(self) -> None:
        self._closed = True
        for listener in self._listeners:
            listener.wake.set()

    def listen(self) -> AsyncIterator[ClientEvent]:
        """Yield events from now on, until the client closes."""
        listener = _Listener()
        self._listeners.add(listener)
        return self._iterate(listener)

    async def _iterate(self, listener: _Listener) -> AsyncIterator[ClientEvent]:
        try:
            while True:
                while listener.events:
                    event = listener.events.popleft()
                    if listener.dropped:
                        event = replace(event, dropped=listener.dropped)
                        listener.dropped = 0
                    yield event
                if self._closed:
                    return
                listener.wake.clear()
                await listener.wake.wait()
        finally:
            self._listeners.discard(listener)
