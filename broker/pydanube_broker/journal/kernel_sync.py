"""Syncs by the kernel's own asynchronous I/O (Linux): no process to wake, no thread that needs the interpreter's lock.

`io_submit` hands an `fdatasync` to a worker of the kernel and returns; its answer is an event of the loop. What that saves
against the helper process is a program that has gone cold on its way to the disk and back, 0 to 0.1 ms of a lone
publish; it is not the default, and why is in docs/design.md#4-the-journal. The standard library does not know these
system calls, so they are made by number, through `ctypes`. Where they are not to be had (another system, a sandbox
that refuses them, a file system without) `best_syncer` takes the helper process.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import platform
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from pydanube_broker.journal.helper import HelperSyncer, SyncDone, Syncer

#: machine → numbers of io_setup, io_destroy, io_submit, io_getevents
_NUMBERS: Final = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}
_FDSYNC: Final = 3
_TELL_EVENT: Final = 1  # the descriptor at the end of the request is told of the answer
#: number, key, flags; what, priority, descriptor; address, bytes, offset, reserved; flags, event (both machines: little-endian)
_REQUEST: Final = struct.Struct("<QIIHhIQQqQII")
#: number, address of the request, result, second result
_ANSWER: Final = struct.Struct("<QQqq")
_ROOM: Final = 64  # requests at a time: one for each segment of a group, which are two at most


class KernelSyncer:
    """See the module.

    Raises:
        OSError: the kernel gives no context.
    """

    def __init__(self) -> None:
        self.done: SyncDone = lambda lsn, error, seconds: None
        known = sys.platform == "linux" and ctypes.sizeof(ctypes.c_void_p) == 8
        if not known or platform.machine() not in _NUMBERS:
            raise OSError(errno.ENOSYS, "the calls of this machine's kernel are not known")
        setup, self._destroy, self._submit, self._getevents = _NUMBERS[platform.machine()]
        # PyDLL keeps the interpreter's lock: these calls put and fetch, and wait for nothing.
        self._function = ctypes.PyDLL(None, use_errno=True).syscall
        self._function.restype = ctypes.c_long
        self._context = ctypes.c_ulong(0)
        self._call(setup, ctypes.c_long(_ROOM), ctypes.byref(self._context))
        try:
            self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            self._call(self._destroy, self._context)
            raise
        self._requests = ctypes.create_string_buffer(_REQUEST.size * _ROOM)
        start = ctypes.addressof(self._requests)
        self._addresses = (ctypes.c_void_p * _ROOM)(*(start + _REQUEST.size * at for at in range(_ROOM)))
        self._answers = ctypes.create_string_buffer(_ANSWER.size * _ROOM)
        self._fetch = (ctypes.c_long(0), ctypes.c_long(_ROOM), self._answers, None)
        self._fds: dict[int, int] = {}
        self._number = 0  # of the sync that was asked for last
        self._lsn: int | None = None  # what it was asked for; None: it is answered
        self._asked_at = 0.0
        self._left = 0
        self._under_way = 0  # requests that the kernel has, also those of a sync that has failed already
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._event, self._readable)

    def _call(self, number: int, *arguments: object) -> int:
        """
        Raises:
            OSError: as the kernel says.
        """
        result: int = self._function(ctypes.c_long(number), *arguments)
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result

    def open(self, slot: int, fd: int) -> None:
        self._fds[slot] = fd

    def forget(self, slot: int) -> None:
        del self._fds[slot]

    def sync(self, slots: tuple[int, ...], lsn: int) -> None:
        assert self._lsn is None, "one sync at a time"
        assert len(slots) <= _ROOM, "a group has few segments"
        self._number += 1
        self._lsn, self._left, self._asked_at = lsn, len(slots), time.monotonic()
        for at, slot in enumerate(slots):
            _REQUEST.pack_into(
                self._requests, _REQUEST.size * at,
                self._number, 0, 0, _FDSYNC, 0, self._fds[slot], 0, 0, 0, 0, _TELL_EVENT, self._event,
            )  # fmt: skip
        try:
            taken = 0
            # It stops at one that it cannot take, and says why when that is the first.
            while taken < len(slots):
                rest = ctypes.byref(self._addresses, taken * ctypes.sizeof(ctypes.c_void_p))
                more = self._call(self._submit, self._context, ctypes.c_long(len(slots) - taken), rest)
                self._under_way += more
                taken += more
        except OSError as error:
            self._loop.call_soon(self._answer, self._number, error)

    def _readable(self) -> None:
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return
        found = self._call(self._getevents, self._context, *self._fetch)
        self._under_way -= found
        for at in range(found):
            number, _, result, _ = _ANSWER.unpack_from(self._answers, _ANSWER.size * at)
            self._answer(number, OSError(-result, os.strerror(-result)) if result < 0 else None)

    def _answer(self, number: int, error: OSError | None) -> None:
        lsn = self._lsn
        if number != self._number or lsn is None or self._closed:
            return
        self._left -= 1
        if error is not None or not self._left:
            self._lsn = None
            self.done(lsn, error, time.monotonic() - self._asked_at)

    def close(self) -> None:
        """A disk that hangs is not waited for: the context then lives as long as the process."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._event)
        if not self._under_way:  # it would wait for them, with the interpreter's lock
            self._call(self._destroy, self._context)
        os.close(self._event)

    # -- at the start ------------------------------------------------------------------------------------------

    def try_out(self, folder: Path) -> None:
        """One sync of a file in this folder, waited for.

        Raises:
            OSError: it cannot be had here.
        """
        with tempfile.TemporaryFile(dir=folder) as file:
            _REQUEST.pack_into(self._requests, 0, 0, 0, 0, _FDSYNC, 0, file.fileno(), 0, 0, 0, 0, 0, 0)
            self._under_way = self._call(self._submit, self._context, ctypes.c_long(1), self._addresses)
            self._under_way -= self._call(self._getevents, self._context, ctypes.c_long(1), *self._fetch[1:])
            result: int = _ANSWER.unpack_from(self._answers)[2]
            if result < 0:
                raise OSError(-result, os.strerror(-result))


def best_syncer(folder: Path, by: str) -> Syncer:
    """For files of this folder: `process` is the helper process, `kernel` this module where it works here."""
    if by == "kernel":
        folder.mkdir(parents=True, exist_ok=True)
        try:
            syncer = KernelSyncer()
        except (OSError, AttributeError):  # the latter of a libc without `syscall`
            return HelperSyncer()
        try:
            syncer.try_out(folder)
        except OSError:
            syncer.close()
        else:
            return syncer
    return HelperSyncer()
