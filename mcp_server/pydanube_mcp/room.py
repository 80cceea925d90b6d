"""Room for a new session of the 2025 protocol, where there are as many as are kept: the one idle longest goes.

Programs that end without a farewell leave their sessions behind, and 256 of them kept every new client out until the
first was ten minutes old. A session that goes is ended as its client would end it, by DELETE; if that client is still
there, its next request is answered 404, which by the protocol means that it begins anew.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final

from pydanube_admin.http import AsgiApp, Message, Receive, Scope, Send

SESSION: Final = b"mcp-session-id"
_FULL: Final = 503
_MOST_KNOWN: Final = 1024  # several times as many as are kept: some have ended without our seeing it


class RoomForSessions:
    """The application in front of which it stands, with its sessions in the order in which they were last used."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self._under_way: dict[
            bytes, int
        ] = {}  # by session: requests and open streams; the last used comes last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        session = _session_of(scope["headers"])
        if session is None:
            await self._open(scope, receive, send)
            return
        with self._used(session):
            await self._app(scope, receive, send)
        if scope["method"] == "DELETE":
            self._under_way.pop(session, None)

    async def _open(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request without a session on; if it is refused for want of room, make some and pass it on again."""
        heard: list[Message] = []

        async def hear() -> Message:
            heard.append(await receive())
            return heard[-1]

        while True:
            again = iter(tuple(heard))

            async def from_the_beginning(again: Iterator[Message] = again) -> Message:
                return next(again, None) or await hear()

            answer = _Answer(send)
            idle = self._longest_idle()
            await self._app(scope, from_the_beginning, answer.held if idle is not None else answer.passed)
            if answer.refused is None:
                break
            assert idle is not None
            await self._end(scope, idle)
        if answer.session is not None:
            self._under_way[answer.session] = 0
            if len(self._under_way) > _MOST_KNOWN:  # those that ended by being idle come first
                self._under_way.pop(self._longest_idle() or b"", None)

    def _longest_idle(self) -> bytes | None:
        return next((session for session, requests in self._under_way.items() if not requests), None)

    async def _end(self, scope: Scope, session: bytes) -> None:
        self._under_way.pop(session, None)
        headers = [(name, value) for name, value in scope["headers"] if name in (b"host", b"authorization")]
        own = {**scope, "method": "DELETE", "headers": [*headers, (SESSION, session), (b"accept", b"*/*")]}

        async def nothing() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def unheard(message: MutableMapping[str, Any]) -> None:
            pass

        await self._app(own, nothing, unheard)

    @contextmanager
    def _used(self, session: bytes) -> Iterator[None]:
        if session not in self._under_way:  # one that the application does not know, or that has just gone
            yield
            return
        self._under_way[session] = self._under_way.pop(session) + 1
        try:
            yield
        finally:
            if session in self._under_way:
                self._under_way[session] = self._under_way.pop(session) - 1


class _Answer:
    """What the application answers, passed on unless it is a refusal for want of room."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.refused: int | None = None
        self.session: bytes | None = None

    async def held(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == _FULL:
            self.refused = _FULL
        if self.refused is None:
            await self.passed(message)

    async def passed(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] < 400:
            self.session = _session_of(message["headers"])
        await self._send(message)


def _session_of(headers: Any) -> bytes | None:
    return next((value for name, value in headers if name.lower() == SESSION), None)
