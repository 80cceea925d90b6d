"""Stdout as a place to write bytes to without stopping the event loop.

A pipe whose reader is slow blocks the writer; in the loop that would also stop acks, credit and keep-alives. So a
thread writes, one piece at a time; a daemon thread, for a reader that never reads again must not keep the process
from ending. A regular file never blocks for long: there the loop writes itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import stat
import sys
import threading
from collections.abc import Callable
from typing import Self


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
        """Write all of `data`; returns when it has left the process.

        Raises:
            OSError: BrokenPipeError when the reader is gone.

        Cancelled, the piece is still written, as far as the reader takes it.
        """
        await asyncio.shield(self.begin(data))

    def begin(self, data: bytes) -> asyncio.Future[None]:
        """Start writing; the future is done when `data` has left the process, and has the `OSError` of `write`."""
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
            # The loop may be closed by now: then nobody waits any more.
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
