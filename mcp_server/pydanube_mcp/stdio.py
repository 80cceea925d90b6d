"""MCP over stdin and stdout, bounded: the length of a line, and the requests that are not answered yet.

A thread of our own reads stdin, and no exit waits for it. The SDK's reader holds a thread of a pool in a
blocking read, so that after Ctrl-C the process would wait for the next line. Reading the descriptor itself
takes no lock that the interpreter needs at its end.

The SDK starts a task for each request, without limit. A client that sends without reading the answers would
fill the memory with them.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from contextvars import ContextVar
from traceback import walk_tb
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import anyio
from anyio.from_thread import BlockingPortal
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared._stream_protocols import WriteStream
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError
from pydanube_admin.jsonrpc import INVALID_REQUEST

from pydanube_mcp.envelopes import parsed, refused

MAX_LINE_BYTES: Final = 8 * 1024 * 1024  # the admin core takes 4 MiB of arguments, which JSON may escape
_CHUNK: Final = 65_536
_WAITING: Final = 16  # lines that were read and not yet taken
# Requests under way and answers not written yet. A result has at most about 100 kB
MOST_UNDERWAY: Final = 128
# Requests beyond these, which wait while later notifications and answers go on: one of them may cancel a call
MOST_HELD: Final = 16
MAX_HELD_CHARS: Final = 8 * 1024 * 1024  # of all their lines, except that one line of any length is held


@contextmanager
def reader_gone() -> Iterator[None]:
    """Context that ends without an error if the client closed its end of stdout: an assistant that goes away.

    Errors of closed streams that the SDK or this module sends to are its consequences. All others are raised.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        broken, _ = group.split(BrokenPipeError)
        _, rest = group.split(_is_of_a_gone_reader)
        if broken is None:
            raise
        if rest is not None:
            raise rest from None


def _is_of_a_gone_reader(error: BaseException) -> bool:
    if not isinstance(error, anyio.BrokenResourceError | anyio.ClosedResourceError):
        return isinstance(error, BrokenPipeError)
    modules = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    users = [name for name in modules if name.partition(".")[0] != "anyio"]
    return bool(users) and (users[-1] == __name__ or users[-1].startswith("mcp."))


class Underway:
    """Counts requests from their start until their answer is written. Single user: the loop."""

    def __init__(self) -> None:
        self._count = 0
        self._unwritten = 0  # of them, messages that wait to be written
        self._room = anyio.Event()

    def begin(self) -> None:
        self._count += 1

    def end(self) -> None:
        self._count -= 1
        self._room.set()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Count a message while it waits to be written."""
        self.begin()
        self._unwritten += 1
        try:
            yield
        finally:
            self._unwritten -= 1
            self.end()

    def has_room(self, method: str) -> bool:
        """Return whether fewer than `MOST_UNDERWAY` are left. For a ping, which shows life: that many unwritten messages."""
        return (self._unwritten if method == "ping" else self._count) < MOST_UNDERWAY

    async def until_room(self, method: str) -> None:
        """Wait until there is room."""
        while not self.has_room(method):
            if self._room.is_set():  # others may wait for it
                self._room = anyio.Event()
            await self._room.wait()

    async def counted(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Middleware: count a message while it is handled."""
        token = _counting.set(self)
        self.begin()
        try:
            return await call_next(ctx)
        finally:
            self.end()
            _counting.reset(token)


_counting: ContextVar[Underway | None] = ContextVar("_counting", default=None)


@contextmanager
def not_counted() -> Iterator[None]:
    """Context in which the request of this task does not count as under way. It needs a bound of its own.

    For what ends by a later line only: a question to a person, and a subscription. If these counted, the line
    that ends them might never be read.
    """
    underway = _counting.get()
    if underway is None:
        yield
        return
    underway.end()
    try:
        yield
    finally:
        underway.begin()


class CountedAnswers:
    """A stream of messages that counts those which wait to be written."""

    def __init__(self, stream: WriteStream[SessionMessage], underway: Underway) -> None:
        self._stream = stream
        self._underway = underway

    async def send(self, item: SessionMessage, /) -> None:
        with self._underway.writing():
            await self._stream.send(item)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stream.__aexit__(kind, error, trace)


class _Held(NamedTuple):
    """A request that waits for room, without its parsed form, which may have 15 times the size of its line."""

    id: str | int
    method: str
    line: str


class StdinLines:
    """An asynchronous iterator over the messages of a descriptor, which ends with the input.

    Args:
        refuse: sends the answer to an invalid or too long line. Such a line is skipped.
        underway: while this is full, requests wait, `MOST_HELD` and `MAX_HELD_CHARS` of them. Nothing is
            read behind these. A ping passes those that are held.
    """

    def __init__(
        self,
        fd: int,
        portal: BlockingPortal,
        refuse: Callable[[JSONRPCError], Awaitable[None]],
        underway: Underway,
    ) -> None:
        self._fd = fd
        self._portal = portal
        self._refuse = refuse
        self._underway = underway
        self._send, self._receive = anyio.create_memory_object_stream[str](_WAITING)
        self._held: deque[_Held] = deque()
        self._passing = 0  # requests that were held and are being passed on
        self._fewer = anyio.Event()  # of both

    def start(self) -> None:
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def _read(self) -> None:
        parts: list[bytes] = []  # of the present line
        size, too_long = 0, False
        try:
            while chunk := os.read(self._fd, _CHUNK):
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    self._take(b"".join((*parts, line)), too_long=too_long)
                    parts, size, too_long = [], 0, False
                parts.append(rest)
                size += len(rest)
                if size > MAX_LINE_BYTES:
                    parts, size, too_long = [], 0, True
            self._take(b"".join(parts), too_long=too_long)
            self._portal.call(self._end)
        except (OSError, RuntimeError, CancelledError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # the loop is gone, or no reader is left

    def _take(self, line: bytes, *, too_long: bool) -> None:
        if too_long:
            why = f"the line is longer than {MAX_LINE_BYTES} bytes: send less in one call"
            self._portal.call(self._refuse, refused(INVALID_REQUEST, why))
        elif line.strip():
            message = parsed(line)
            if isinstance(message, JSONRPCError):
                self._portal.call(self._refuse, message)
            elif self._portal.call(self._hand_on, message, line.decode()):
                self._portal.start_task_soon(self._release)

    async def _hand_on(self, message: dict[str, Any], line: str) -> bool:
        """Pass a message on, or hold it. Return whether it is the first that is held, and needs `_release`.

        Only requests wait. Calls wait for answers to our own questions, and a notification may cancel a call.
        """
        method = message.get("method", "")
        behind = self._held and method != "ping"
        if "id" in message and method and (behind or not self._underway.has_room(method)):
            while self._held and not self._can_hold(line):
                await self._until_fewer()
            self._held.append(_Held(message["id"], method, line))
            return len(self._held) == 1
        if method != "notifications/cancelled" or not self._cancel_held(message):
            await self._send.send(line)
        return False

    def _can_hold(self, line: str) -> bool:
        chars = sum(len(each.line) for each in self._held) + len(line)
        return len(self._held) < MOST_HELD and chars <= MAX_HELD_CHARS

    def _cancel_held(self, message: dict[str, Any]) -> bool:
        """Drop the held request that is cancelled: MCP has no answer to one. Return whether it was held."""
        params = message.get("params")
        wanted = params.get("requestId") if isinstance(params, dict) else None
        for each in self._held:
            if each.id == wanted and type(each.id) is type(wanted):
                self._held.remove(each)
                self._fewer.set()
                return True
        return False

    async def _release(self) -> None:
        """Pass held requests on as there is room."""
        while self._held:
            first = self._held[0]
            await self._underway.until_room(first.method)
            if not self._held or self._held[0] is not first:
                continue  # cancelled meanwhile
            self._held.popleft()
            self._passing += 1
            try:
                await self._send.send(first.line)
            finally:
                self._passing -= 1
                self._fewer.set()

    async def _until_fewer(self) -> None:
        self._fewer = anyio.Event()
        await self._fewer.wait()

    async def _end(self) -> None:
        while self._held or self._passing:
            await self._until_fewer()
        await self._send.aclose()

    def __aiter__(self) -> AsyncIterator[str]:
        return self._receive.__aiter__()
