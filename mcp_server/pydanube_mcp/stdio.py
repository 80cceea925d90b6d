"""MCP over stdin and stdout, bounded: the length of a line, and the requests that are not answered yet.

A thread of our own reads stdin, and no exit waits for it. The SDK's reader holds a thread of a pool in a
blocking read, so that after Ctrl-C the process would wait for the next line. Reading the descriptor itself
takes no lock that the interpreter needs at its end.

The SDK starts a task for each request, without limit. A client that sends without reading the answers would
fill the memory with them.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Self

import anyio
from anyio.from_thread import BlockingPortal
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared._stream_protocols import WriteStream
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError
from pydanube_admin.jsonrpc import INVALID_REQUEST

from pydanube_mcp.envelopes import refusal, refused

MAX_LINE_BYTES: Final = 8 * 1024 * 1024  # the admin core takes 4 MiB of arguments, which JSON may escape
_CHUNK: Final = 65_536
_WAITING: Final = 16  # lines that were read and not yet taken
# Requests under way and answers not written yet. A result has at most about 100 kB
MOST_UNDERWAY: Final = 128


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

    async def until_room(self, method: str) -> None:
        """Wait until fewer than `MOST_UNDERWAY` are left. For a ping, which shows life: that many unwritten messages."""
        while (self._unwritten if method == "ping" else self._count) >= MOST_UNDERWAY:
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


class StdinLines:
    """An asynchronous iterator over the messages of a descriptor, which ends with the input.

    Args:
        refuse: sends the answer to an invalid or too long line. Such a line is skipped.
        underway: nothing after a request is read while this is full.
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
            self._portal.call(self._send.aclose)
        except (OSError, RuntimeError, CancelledError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # the loop is gone, or no reader is left

    def _take(self, line: bytes, *, too_long: bool) -> None:
        if too_long:
            why = f"the line is longer than {MAX_LINE_BYTES} bytes: send less in one call"
            self._portal.call(self._refuse, refused(INVALID_REQUEST, why))
        elif line.strip():
            answer = refusal(line)
            if answer is not None:
                self._portal.call(self._refuse, answer)
                return
            message = json.loads(line)
            # Only requests wait. Calls wait for answers to our own questions, and a notification may cancel a call
            waits_as = message["method"] if "id" in message and "method" in message else None
            self._portal.call(self._hand_on, line.decode(), waits_as)

    async def _hand_on(self, line: str, waits_as: str | None) -> None:
        if waits_as is not None:
            await self._underway.until_room(waits_as)
        await self._send.send(line)

    def __aiter__(self) -> AsyncIterator[str]:
        return self._receive.__aiter__()
