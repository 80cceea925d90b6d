"""Events of streams that a client may take up again: the suite breaks one off and wants the rest."""

from __future__ import annotations

from collections import deque
from typing import Final

from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp.types import JSONRPCMessage

KEPT: Final = 1_000


class EventsInMemory(EventStore):
    """The last events of all streams."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, StreamId, JSONRPCMessage | None]] = deque(maxlen=KEPT)
        self._last = 0

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        self._last += 1
        self._events.append((self._last, stream_id, message))
        return str(self._last)

    async def replay_events_after(
        self, last_event_id: EventId, send_callback: EventCallback
    ) -> StreamId | None:
        last = int(last_event_id) if last_event_id.isdecimal() else -1
        stream = next((stream for number, stream, _ in self._events if number == last), None)
        if stream is None:
            return None
        for number, of, message in list(self._events):
            if of == stream and number > last and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream
