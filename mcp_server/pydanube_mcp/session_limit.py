"""Make room for a new session of the 2025 protocol at the limit, by ending the longest idle one.

Programs that end without closing their sessions leave them behind: 256 of them kept every new client out
until the first was ten minutes old. A session is ended as its client would end it, by DELETE. If that client
still exists, its next request is answered 404, upon which the protocol has it start a new session.

With authentication on, the caller with the most sessions loses one first: a caller cannot end others'
sessions by opening many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pydanube_admin.http import AsgiApp, Message, Receive, Scope, Send
from pydanube_core.security.identity import current_identity
from pydanube_core.security.permissions import Principal

SESSION: Final = b"mcp-session-id"
_FULL: Final = 503
_MOST_KNOWN: Final = 1024  # several times the limit: some have ended unnoticed


@dataclass(slots=True)
class _Session:
    owner: Principal | None  # None: authentication is off
    under_way: int = 0  # requests and open streams


class SessionLimit:
    """An ASGI application in front of the MCP one, with its sessions in the order of their last use."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self._sessions: dict[bytes, _Session] = {}  # the last used comes last

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
            self._sessions.pop(session, None)

    async def _open(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request without a session. If it is refused for lack of room, make some and retry."""
        heard: list[Message] = []
        identity = current_identity.get()
        owner = None if identity is None else identity.principal

        async def hear() -> Message:
            heard.append(await receive())
            return heard[-1]

        while True:
            again = iter(tuple(heard))

            async def from_the_beginning(again: Iterator[Message] = again) -> Message:
                return next(again, None) or await hear()

            answer = _Answer(send)
            leaving = self._first_to_go(owner)
            await self._app(scope, from_the_beginning, answer.held if leaving is not None else answer.passed)
            if answer.refused is None:
                break
            assert leaving is not None
            await self._end(scope, leaving)
        if answer.session is not None:
            self._sessions[answer.session] = _Session(owner)
            if len(self._sessions) > _MOST_KNOWN:  # sessions that ended by idling come first
                self._sessions.pop(self._first_to_go(owner) or b"", None)

    def _first_to_go(self, newcomer: Principal | None) -> bytes | None:
        """Return the session to end for a new one: the longest idle one of the caller with most sessions.

        A session in use is ended only if its owner has more than the newcomer will have. None: no session may
        end.
        """
        of = Counter(each.owner for each in self._sessions.values())
        of[newcomer] += 1
        found: tuple[int, bool] | None = None
        first: bytes | None = None
        for session, each in self._sessions.items():
            rank = of[each.owner], not each.under_way
            may_go = of[each.owner] > of[newcomer] or (of[each.owner] == of[newcomer] and not each.under_way)
            if may_go and (found is None or rank > found):
                found, first = rank, session
        return first

    async def _end(self, scope: Scope, session: bytes) -> None:
        self._sessions.pop(session, None)
        headers = [(name, value) for name, value in scope["headers"] if name in (b"host", b"authorization")]
        own = {**scope, "method": "DELETE", "headers": [*headers, (SESSION, session), (b"accept", b"*/*")]}

        async def nothing() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def unheard(message: MutableMapping[str, Any]) -> None:
            pass

        await self._app(own, nothing, unheard)

    @contextmanager
    def _used(self, session: bytes) -> Iterator[None]:
        used = self._sessions.pop(session, None)
        if used is None:  # the application does not have it, or it has just ended
            yield
            return
        self._sessions[session] = used
        used.under_way += 1
        try:
            yield
        finally:
            used.under_way -= 1
            if self._sessions.pop(session, None) is not None:
                self._sessions[session] = used


class _Answer:
    """Passes the application's answer on, unless it refuses for lack of room."""

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
