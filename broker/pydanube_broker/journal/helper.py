"""The broker's side of the helper processes: request a sync or a segment, and receive the result in the loop.

A thread in the broker would starve: the loop never sleeps while it serves a catch-up reader, and a thread, which needs
the interpreter lock after `fdatasync`, reached 60-210 acknowledgements per second (docs/design.md#4-the-journal). A
process needs no lock. Its death counts as a failed sync, because an error it received is lost with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from pydanube_broker.journal import sync_program
from pydanube_broker.journal.disk import Disk
from pydanube_broker.journal.records import encode_file_header
from pydanube_broker.journal.sync_program import MESSAGE

_PROGRAM: Final = str(Path(sync_program.__file__).resolve())

#: called with (requested LSN, None or the error, seconds the sync took, seconds until it began)
SyncDone = Callable[[int, OSError | None, float, float], None]
#: called with (base lsn, None or the error)
PrepareDone = Callable[[int, OSError | None], None]


class Syncer(Protocol):
    """Makes written bytes durable. One request at a time. `done` is called from the loop."""

    done: SyncDone

    def open(self, slot: int, fd: int) -> None: ...

    def forget(self, slot: int) -> None: ...

    def sync(self, slots: tuple[int, ...], lsn: int) -> None: ...

    def close(self) -> None: ...


class Preparer(Protocol):
    """Makes segment files of zeros, durable under their name. One request at a time."""

    done: PrepareDone

    def prepare(self, path: Path, base_lsn: int, segment_bytes: int) -> None: ...

    def close(self) -> None: ...


def spawn(theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Start the helper program, which inherits `theirs`, one end of a socket pair."""
    # -S -E: no site packages and no environment. The program needs only the standard library
    return subprocess.Popen(
        [sys.executable, "-S", "-E", _PROGRAM, str(theirs.fileno())],
        pass_fds=(theirs.fileno(),),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


class _Process:
    """One helper program and the socket to it."""

    def __init__(
        self, on_answer: Callable[[bytes, int, int, int, int], None], on_death: Callable[[], None]
    ) -> None:
        ours, theirs = socket.socketpair()
        self._sock = ours
        try:
            self._child = spawn(theirs)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self.pid = self._child.pid
        self._on_answer = on_answer
        self._on_death = on_death
        self._buffer = b""
        ours.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(ours.fileno(), self._readable)
        self._closed = False

    def send(self, data: bytes, fds: tuple[int, ...] = ()) -> None:
        """Send a request. Requests are small and answered one at a time, so the socket's buffer always has room."""
        if self._closed:
            return
        try:
            if fds:
                socket.send_fds(self._sock, [data], list(fds))
            elif self._sock.send(data) < len(data):
                raise ConnectionError("the helper's socket is full")
        except OSError:
            self._died()

    def _readable(self) -> None:
        try:
            chunk = self._sock.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._died()
            return
        if len(chunk) == MESSAGE.size and not self._buffer:  # nearly always: one answer at a time
            self._on_answer(*MESSAGE.unpack(chunk))
            return
        self._buffer += chunk
        while len(self._buffer) >= MESSAGE.size:
            message, self._buffer = self._buffer[: MESSAGE.size], self._buffer[MESSAGE.size :]
            self._on_answer(*MESSAGE.unpack(message))

    def _died(self) -> None:
        if not self._closed:
            self.close()
            self._on_death()

    def close(self) -> None:
        """Close the socket, which ends the program. Everything it holds is on disk or reported."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        try:
            self._child.wait(timeout=5)
        except subprocess.TimeoutExpired:  # stuck in a sync that does not return
            self._child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a hanging disk also delays the kill
                self._child.wait(timeout=1)


class HelperSyncer:
    """Syncs in a process of its own."""

    def __init__(self) -> None:
        self.done: SyncDone = lambda lsn, error, seconds, waited_s: None
        self._process = _Process(self._answer, self._death)
        self._requested: int | None = None
        self._left = 0
        self._ns = 0
        self._waited_ns: int | None = None  # from the request until the first sync of the group began

    @property
    def pid(self) -> int:
        return self._process.pid

    def open(self, slot: int, fd: int) -> None:
        self._process.send(MESSAGE.pack(b"O", slot, 0, 0, 0), (fd,))

    def forget(self, slot: int) -> None:
        self._process.send(MESSAGE.pack(b"C", slot, 0, 0, 0))

    def sync(self, slots: tuple[int, ...], lsn: int) -> None:
        assert self._requested is None, "one sync at a time"
        self._requested, self._left, self._ns, self._waited_ns = lsn, len(slots), 0, None
        asked_ns = time.monotonic_ns()
        for slot in slots:
            self._process.send(MESSAGE.pack(b"S", slot, lsn, 0, asked_ns))

    def _answer(self, kind: bytes, error: int, lsn: int, ns: int, waited_ns: int) -> None:
        if self._requested is None:
            return
        self._left -= 1
        self._ns += ns
        if self._waited_ns is None:  # the second file of a group waits for the sync of the first
            self._waited_ns = waited_ns
        if error or self._left == 0:
            self._requested = None
            problem = OSError(error, errno.errorcode.get(error, "sync")) if error else None
            self.done(lsn, problem, self._ns / 1e9, self._waited_ns / 1e9)

    def _death(self) -> None:
        lsn, self._requested = self._requested, None
        self.done(lsn or 0, OSError(errno.EIO, "the sync helper process died"), 0.0, 0.0)

    def close(self) -> None:
        self._process.close()


class InlineSyncer:
    """Syncs in the loop, which blocks on the disk. For tests, and for disks that sync in < 0.3 ms."""

    def __init__(self, disk: Disk) -> None:
        self.done: SyncDone = lambda lsn, error, seconds, waited_s: None
        self._disk = disk
        self._fds: dict[int, int] = {}

    def open(self, slot: int, fd: int) -> None:
        self._fds[slot] = fd

    def forget(self, slot: int) -> None:
        del self._fds[slot]

    def sync(self, slots: tuple[int, ...], lsn: int) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        error: OSError | None = None
        try:
            for slot in slots:
                self._disk.datasync(self._fds[slot])
        except OSError as problem:
            error = problem
        loop.call_soon(self.done, lsn, error, loop.time() - start, 0.0)

    def close(self) -> None:
        self._fds.clear()


class HelperPreparer:
    """Prepares segments in a process of its own, started with the first request."""

    def __init__(self) -> None:
        self.done: PrepareDone = lambda base, error: None
        self._process: _Process | None = None
        self._requested: int | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def prepare(self, path: Path, base_lsn: int, segment_bytes: int) -> None:
        assert self._requested is None, "one segment at a time"
        self._requested = base_lsn
        if self._process is None:
            try:
                self._process = _Process(self._answer, self._death)
            except OSError as error:  # out of processes or descriptors
                self._requested = None
                asyncio.get_running_loop().call_soon(self.done, base_lsn, error)
                return
        order = json.dumps(
            {
                "path": str(path),
                "bytes": segment_bytes,
                "header": encode_file_header(base_lsn, segment_bytes).hex(),
            }
        ).encode()
        self._process.send(MESSAGE.pack(b"P", 0, base_lsn, len(order), 0) + order)

    def _answer(self, kind: bytes, error: int, lsn: int, ns: int, waited_ns: int) -> None:
        self._requested = None
        self.done(lsn, OSError(error, errno.errorcode.get(error, "prepare")) if error else None)

    def _death(self) -> None:
        self._process = None  # nothing durable depends on it: the next request starts another
        base, self._requested = self._requested, None
        if base is not None:
            self.done(base, OSError(errno.EAGAIN, "the segment helper process died"))

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None
