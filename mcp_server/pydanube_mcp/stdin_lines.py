"""Lines of stdin for the stdio transport, read by a thread that no exit has to wait for.

The SDK's own reader holds a thread of a pool in a blocking read, and a process that Ctrl-C ended would wait for the
next line. Reading the descriptor itself takes no lock that the interpreter wants at its end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError
from typing import Final

import anyio
from anyio.from_thread import BlockingPortal

MAX_LINE_BYTES: Final = 8 * 1024 * 1024  # the admin core takes 4 MiB of arguments; JSON may escape them
_CHUNK: Final = 65_536
_WAITING: Final = 16  # lines that were read and not yet taken


class StdinLines:
    """An asynchronous iterator over the lines of a descriptor; it ends with the input, or with a line too long."""

    def __init__(self, fd: int, portal: BlockingPortal) -> None:
        self._fd = fd
        self._portal = portal
        self._send, self._receive = anyio.create_memory_object_stream[str](_WAITING)

    def start(self) -> None:
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def _read(self) -> None:
        rest = b""
        try:
            while chunk := os.read(self._fd, _CHUNK):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._portal.call(self._send.send, line.decode("utf-8", "replace"))
                if len(rest) > MAX_LINE_BYTES:
                    break
            else:
                if rest:
                    self._portal.call(self._send.send, rest.decode("utf-8", "replace"))
            self._portal.call(self._send.aclose)
        except (OSError, RuntimeError, CancelledError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # the loop is gone, or nobody listens any more

    def __aiter__(self) -> AsyncIterator[str]:
        return self._receive.__aiter__()
