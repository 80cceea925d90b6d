"""The broker's side of the tier's process: start it on demand, call it, start it again if it ends.

If it dies, waiting callers retry. Nothing is lost, because an object counts only once the catalog lists it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from dataclasses import asdict
from typing import Any, Final

from pydanube_core.errors import ClosedResource, ClusterError, Unavailable
from pydanube_storage.objects import StoreOptions

from pydanube_broker.tier.messages import HEAD, encode_message

log = logging.getLogger("pydanube.tier")

_END_S: Final = 0.05  # seconds that the loop waits for the end of a killed process
_PIECE_BYTES: Final = 256 << 10  # copied by one callback of the loop
# Settings of the process's allocator. The process handles blocks of up to 16 MB in eight threads. By default glibc keeps
# an arena per thread with freed blocks of up to 32 MB, and Arrow's allocator keeps a pool per thread as well: four times
# the memory in use. With these settings, freed blocks above 256 KiB return to the system. Other C libraries ignore them.
# Variables of the environment override them.
ALLOCATION: Final = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(256 << 10),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 20),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


class ChildDied(Unavailable):
    """The tier's process ended before it answered."""


class TierChild:
    """The tier's process, started by the first `call`. Single user: the loop."""

    def __init__(self, options: StoreOptions, *, work: str = "tier") -> None:
        self._options = options
        self._work = work  # `tier`, or `chain` for a process that serves the calls of the chain
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[tuple[dict[str, Any], memoryview]]] = {}
        self._begun_s: dict[int, float] = {}  # when each waiting call began
        self._writer: asyncio.StreamWriter | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._closed = False
        self.ready = False  # the process has started: a call is not delayed by its imports
        self.deaths = 0

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def call(
        self, name: str, arguments: dict[str, Any], blob: bytes = b""
    ) -> tuple[dict[str, Any], memoryview]:
        """Call `TierWork` in the process. A cancelled call continues there, and its answer is dropped.

        Raises `ChildDied` if the process ended (retry), else the error of the call.
        """
        await self._started()
        return await self._request({"call": name, "arguments": arguments}, blob)

    async def _request(self, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], memoryview]:
        assert self._writer is not None
        number = next(self._numbers)
        self._begun_s[number] = asyncio.get_running_loop().time()
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(encode_message(number, body, len(blob)))
            self._writer.write(blob)
            found: tuple[dict[str, Any], memoryview] = await answer
            return found
        finally:
            self._waiting.pop(number, None)
            self._begun_s.pop(number, None)

    def longest_wait_s(self) -> float:
        """Return how long the oldest call has waited, 0 if no call waits."""
        oldest_s = min(self._begun_s.values(), default=None)
        return 0.0 if oldest_s is None else asyncio.get_running_loop().time() - oldest_s

    async def _started(self) -> None:
        async with self._starting:
            if self._closed:
                raise ClosedResource("the tier is closed")
            if self._writer is not None:
                return
            ours, theirs = socket.socketpair()
            try:
                self._process = spawn(theirs)
            except OSError:
                ours.close()
                raise
            finally:
                theirs.close()
            ours.setblocking(False)
            reader, self._writer = await asyncio.open_connection(sock=ours)
            self._listener = asyncio.get_running_loop().create_task(self._listen(reader))
            try:
                await self._request({"options": asdict(self._options), "work": self._work}, b"")
            except ClusterError:
                await self._stop()
                raise

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                number, text_bytes, blob_bytes = HEAD.unpack(await reader.readexactly(HEAD.size))
                body = json.loads(await reader.readexactly(text_bytes))
                blob = memoryview(bytearray(blob_bytes))
                at = 0
                while at < blob_bytes:
                    piece = await reader.read(min(_PIECE_BYTES, blob_bytes - at))
                    if not piece:
                        raise EOFError
                    blob[at : at + len(piece)] = piece
                    at += len(piece)
                self.ready = True
                answer = self._waiting.pop(number, None)
                if answer is None or answer.done():
                    continue
                if "error" in body:
                    answer.set_exception(ClusterError.from_dict(body["error"]))
                else:
                    answer.set_result((body["result"], blob.toreadonly()))
        except (EOFError, OSError):
            pass
        finally:
            self._lost()

    def _lost(self) -> None:
        self.ready = False
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            try:
                code: int | None = process.wait(_END_S)
            except subprocess.TimeoutExpired:
                # The machine is busy, or the process waits for a hanging disk and cannot be killed: it ends when the
                # disk is back. Nothing it does then counts.
                code = None
                threading.Thread(target=process.wait, name="end of the tier's process", daemon=True).start()
            if not self._closed:
                self.deaths += 1
                log.warning("tier_process_died", extra={"exit": code})
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(
                    ChildDied("the tier's process ended. It is started again", retry_after_ms=500)
                )

    async def _stop(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._listener = None

    async def close(self) -> None:
        """End the process as a crash would."""
        self._closed = True
        await self._stop()
        self._lost()


def spawn(theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Start the program with a descriptor, because a fork would copy a process with threads."""
    return subprocess.Popen(
        [sys.executable, "-m", "pydanube_broker.tier.process", str(theirs.fileno())],
        pass_fds=(theirs.fileno(),),
        stdin=subprocess.DEVNULL,
        env=ALLOCATION | os.environ,
        start_new_session=True,  # Ctrl-C goes to the broker alone, and the process nices the session
    )
