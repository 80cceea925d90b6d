"""Read stdin as messages and write to stdout without blocking the event loop.

A thread reads and splits, and the loop takes the gathered messages. A line is the bytes up to `\n`, which is
not part of it. `\r` stays. An empty line and a last line without `\n` are messages. It is a daemon thread of
our own, because reading a terminal or a slow pipe may block for ever, and a blocked worker thread would keep
the process from ending.

Gathered messages are bounded (`MAX_GATHERED_BYTES`, `MAX_GATHERED_LINES`): at the bound the thread waits. So
a fast file is sent in large pieces and a slow pipe line by line, without a timer.

A pipe with a slow reader blocks its writer, which in the loop would also stop acks, credit and keep-alives.
So a daemon thread writes as well, one piece at a time. A regular file never blocks for long: the loop writes
it itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import select
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

from pydanube_core.errors import ClusterError, InvalidArgument, MessageTooLarge

READ_BYTES: Final = 1 << 20
MAX_GATHERED_BYTES: Final = 8 << 20
MAX_GATHERED_LINES: Final = 200_000
# No topic takes a message of this size (a frame is below 4 MiB), so that gathering on would only cost memory.
MAX_MESSAGE_BYTES: Final = 64 << 20

Pieces = Iterator[bytes]


def file_pieces(path: Path, *, repeat: int = 1) -> Pieces:
    """Yield a file in pieces, `repeat` times over, as if the copies followed each other."""
    for _ in range(repeat):
        with path.open("rb", buffering=0) as file:
            while piece := file.read(READ_BYTES):
                yield piece


def stdin_pieces() -> Pieces:
    """Yield the bytes of stdin as they arrive."""
    descriptor = sys.stdin.fileno()
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(descriptor, os.O_BINARY)
    while True:
        try:
            piece = os.read(descriptor, READ_BYTES)
        except BlockingIOError:  # another process made the descriptor non-blocking
            select.select([descriptor], [], [])
            continue
        if not piece:
            return
        yield piece


class Gathered:
    """Messages in order, and the bytes of their payloads."""

    __slots__ = ("payload_bytes", "payloads")

    def __init__(self, payloads: list[bytes], payload_bytes: int) -> None:
        self.payloads = payloads
        self.payload_bytes = payload_bytes


def split_lines(
    pieces: Pieces, *, max_bytes: int = MAX_MESSAGE_BYTES, cut: bool = False
) -> Iterator[list[bytes]]:
    """Yield lists of lines, one for each piece that ended at least one line.

    Args:
        cut: of a line that is not over after `max_bytes`, keep one byte more than that, which shows it, and go on.

    Raises:
        MessageTooLarge: a line that is not over after `max_bytes`, if it is not to be cut.
    """
    rest: list[bytes] = []  # of a line that spans pieces: joined once, not once a piece
    rest_bytes = 0
    for piece in pieces:
        lines = piece.split(b"\n")
        tail = lines.pop()
        if lines:
            if rest:
                lines[0] = b"".join((*rest, lines[0]))
                rest, rest_bytes = [], 0
            yield lines
        if tail:
            rest_bytes += len(tail)
            if rest_bytes > max_bytes:
                if not cut:
                    raise _too_large(rest_bytes, max_bytes)
                tail = tail[: len(tail) - (rest_bytes - max_bytes - 1)]
                rest_bytes = max_bytes + 1
            rest.append(tail)
    if rest:
        yield [b"".join(rest)]


def whole(pieces: Pieces, *, max_bytes: int = MAX_MESSAGE_BYTES) -> Iterator[list[bytes]]:
    """Yield the whole input as one message. Empty input is an empty message.

    Raises:
        MessageTooLarge: before memory is full of it.
    """
    parts: list[bytes] = []
    size = 0
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size > max_bytes:
            raise _too_large(size, max_bytes)
    yield [b"".join(parts)]


def each(pieces: Pieces) -> Iterator[list[bytes]]:
    """Yield each piece as a message of its own."""
    for piece in pieces:
        yield [piece]


def _too_large(size: int, limit: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"a message of more than {limit} bytes, and no topic takes that. Is --delimiter right?",
        field="payload",
        value=size,
        max_message_bytes=limit,
    )


class LineSource:
    """Messages from a blocking iterator, for one asyncio task.

    Args:
        messages: yields lists of messages, in the thread.
    """

    def __init__(self, messages: Callable[[], Iterator[list[bytes]]]) -> None:
        self._messages = messages
        self._change = threading.Condition()
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._ended = False
        self._stopped = False
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, name="danube input", daemon=True).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        self._loop = None

    def stop(self) -> None:
        """End the input: `take` returns None immediately. The daemon thread may stay in a read."""
        with self._change:
            self._stopped = True
            self._change.notify_all()
        self._ready.set()

    async def take(self) -> Gathered | None:
        """Return all gathered messages, at least one, or None at the end.

        Raises:
            ClusterError: the input cannot be read. Raised after all messages before it were taken.
        """
        while True:
            await self._ready.wait()
            with self._change:
                if self._stopped:
                    return None
                if self._gathered:
                    taken = Gathered(self._gathered, self._gathered_bytes)
                    self._gathered, self._gathered_bytes = [], 0
                    self._change.notify_all()
                    if not self._ended:
                        self._ready.clear()
                    return taken
                if self._error is not None:
                    raise self._error
                if self._ended:
                    return None
                self._ready.clear()

    def _read(self) -> None:
        error: BaseException | None = None
        try:
            for messages in self._messages():
                if not self._put(messages):
                    return
        except ClusterError as refused:
            error = refused
        except OSError as broken:
            name = broken.filename or "stdin"
            error = InvalidArgument(f"cannot read {name}: {broken.strerror}", field="file", value=str(name))
        except BaseException as unforeseen:
            error = unforeseen
        with self._change:
            self._ended = True
            self._error = error
        self._wake()

    def _put(self, messages: list[bytes]) -> bool:
        """Hand over messages. Return False if the input was stopped."""
        size = sum(map(len, messages))
        with self._change:
            while not self._stopped and (
                self._gathered_bytes > MAX_GATHERED_BYTES or len(self._gathered) > MAX_GATHERED_LINES
            ):
                self._change.wait()
            if self._stopped:
                return False
            wake = not self._gathered
            self._gathered += messages
            self._gathered_bytes += size
        if wake:
            self._wake()
        return True

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._ready.set)
            except RuntimeError:
                return  # the loop is closed: the command has ended


class Outlet:
    """Writes whole pieces to a descriptor, in order. One `write` at a time."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = sys.stdout.fileno() if descriptor is None else descriptor
        if sys.platform == "win32":
            import msvcrt

            msvcrt.setmode(self._descriptor, os.O_BINARY)
        self._direct = stat.S_ISREG(os.fstat(self._descriptor).st_mode)
        self._pieces: queue.SimpleQueue[tuple[bytes, Callable[[OSError | None], None]] | None] = (
            queue.SimpleQueue()
        )

    async def __aenter__(self) -> Self:
        if not self._direct:
            threading.Thread(target=self._run, name="danube output", daemon=True).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pieces.put(None)

    async def write(self, data: bytes) -> None:
        """Write all of `data`. Return when it has left the process.

        Raises:
            OSError: BrokenPipeError when the reader is gone.

        After a cancellation the piece is still written, as far as the reader takes it.
        """
        await asyncio.shield(self.begin(data))

    def begin(self, data: bytes) -> asyncio.Future[None]:
        """Start writing. The future is done when `data` has left the process, with the `OSError` of `write`."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        if self._direct:
            try:
                self._write_all(data)
            except OSError as error:
                done.set_exception(error)
            else:
                done.set_result(None)
            return done

        def settle(error: OSError | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        def report(error: OSError | None) -> None:
            # The loop may be closed by now: then no task waits any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, error)

        self._pieces.put((data, report))
        return done

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            data, report = piece
            try:
                self._write_all(data)
            except OSError as error:
                report(error)
            else:
                report(None)

    def _write_all(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
