"""The helper process: syncs the files written by the broker's loop, and prepares new segment files.

The broker starts it by path, without a fork, with the standard library only. It reads requests of 32 bytes from the
socket whose number is its first argument and answers each with 32 bytes. The last field of a request is the machine's
monotonic clock at the request, that of an answer the nanoseconds from then until the work began:

    S slot lsn     fdatasync the descriptor in `slot`         → S errno, lsn, nanoseconds it took
    O slot         keep the attached descriptor (SCM_RIGHTS) in `slot`  → no answer
    C slot         close it                                   → no answer
    P …            prepare a segment: `lsn` is its base, followed by JSON of `size` bytes → P errno, lsn, ns

The broker runs two: one only syncs, so that no sync waits for 64 MiB of zeros, and one only prepares. End of file on
the socket ends the program, so it does not outlive its broker.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time

MESSAGE = struct.Struct("<cxxxIQQQ")  # kind, slot or errno, lsn, size or ns, asked at or waited ns
FD = struct.Struct("i")
CONTROL_BYTES = socket.CMSG_SPACE(FD.size)  # one descriptor per message


def full_sync(fd: int) -> None:
    """Sync a file. On macOS use F_FULLFSYNC, because its fsync leaves the bytes in the drive's cache."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


datasync = getattr(os, "fdatasync", full_sync)


def rename_new(old: str | os.PathLike[str], new: str | os.PathLike[str]) -> None:
    """Rename a file, but never over an existing one.

    After its broker was killed, a helper still finishes its file. The next broker may have created and filled a
    segment of that name by then: a rename over it would lose acknowledged records.
    """
    try:
        os.link(old, new)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(new):
            raise
        os.rename(old, new)
    else:
        os.unlink(old)


def prepare(path: str, size: int, header: bytes) -> None:
    """Create a file of zeros atomically: write it under a temporary name, sync, rename, sync its directory."""
    # a unique name: the helper of a killed broker may still be writing zeros into another
    temporary = f"{path}.{os.getpid()}-{time.monotonic_ns()}.new"
    try:
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            zeros = bytes(1 << 20)
            at = 0
            while at < size:
                at += os.pwrite(fd, zeros[: min(len(zeros), size - at)], at)
            os.pwrite(fd, header, 0)
            full_sync(fd)
        finally:
            os.close(fd)
        rename_new(temporary, path)
    except OSError:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        full_sync(folder)
    finally:
        os.close(folder)


def read_exactly(sock: socket.socket, size: int) -> bytes | None:
    """Return the next `size` bytes. None at the end of the file."""
    data = b""
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            return None
        data += chunk
    return data


def main(number: int) -> None:
    slots: dict[int, int] = {}
    size = MESSAGE.size
    with socket.socket(fileno=number) as sock:
        # Few calls between request and sync, because a lone publish waits for each of them.
        receive, send, clock_ns = sock.recvmsg, sock.send, time.monotonic_ns
        while True:
            message, ancillary, _, _ = receive(size, CONTROL_BYTES)
            if len(message) < size:
                rest = read_exactly(sock, size - len(message)) if message else None
                if rest is None:
                    return
                message += rest
            kind, slot, lsn, length, asked = MESSAGE.unpack(message)
            if kind == b"O":
                slots[slot] = FD.unpack_from(ancillary[0][2])[0]
                continue
            if kind == b"C":
                os.close(slots.pop(slot))
                continue
            error = 0
            start = clock_ns()
            try:
                if kind == b"S":
                    datasync(slots[slot])
                else:
                    body = read_exactly(sock, length)
                    if body is None:
                        return
                    order = json.loads(body)
                    prepare(order["path"], order["bytes"], bytes.fromhex(order["header"]))
            except OSError as problem:
                error = problem.errno or 5
            answer = MESSAGE.pack(kind, error, lsn, clock_ns() - start, max(0, start - asked))
            if send(answer) < size:
                raise ConnectionError("the broker does not take an answer of 32 bytes")


if __name__ == "__main__":
    import contextlib
    import signal

    # Ctrl-C goes to the whole process group, but the broker decides when the helper stops.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(ConnectionError, BrokenPipeError):
        main(int(sys.argv[1]))
