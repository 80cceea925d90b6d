"""The helper process: syncs what the broker's loop has written, and prepares new segment files.

Started by path with the standard library only, not forked and not imported by the broker. It reads requests of 24
bytes from the socket whose number is its first argument and answers each with 24 bytes:

    S slot lsn     fdatasync the descriptor in `slot`         → S errno, lsn, nanoseconds it took
    O slot         keep the descriptor that came along (SCM_RIGHTS) in `slot`; no answer
    C slot         close it; no answer
    P …            a segment to prepare: `lsn` is its base, followed by JSON of `size` bytes → P errno, lsn, ns

The broker runs two: one that only syncs, so that no sync waits behind 64 MiB of zeros, and one that only prepares.
End of file on the socket ends the program: it does not outlive its broker.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time

MESSAGE = struct.Struct("<cxxxIQQ")  # kind, slot or errno, lsn, size or ns
FD = struct.Struct("i")
CONTROL_BYTES = socket.CMSG_SPACE(FD.size)  # one descriptor comes along at a time


def full_sync(fd: int) -> None:
    """Sync a file; on macOS with F_FULLFSYNC, as its fsync leaves the bytes in the drive's cache."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


datasync = getattr(os, "fdatasync", full_sync)


def rename_new(old: str | os.PathLike[str], new: str | os.PathLike[str]) -> None:
    """Rename a file, but never over an existing one.

    A helper outlives a broker that was killed until it has finished its file. Were it to rename that over a segment
    which the next broker has made and filled meanwhile, acknowledged records would be gone.
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
    """Make a file of zeros under a temporary name, sync, rename, sync its directory: it exists completely or not at all."""
    # a name of its own: the helper of a broker that was killed may still be writing zeros into another
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
    """The next `size` bytes; None at the end of the file."""
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
        # Few calls between request and sync: a lone publish waits for each of them.
        receive, send, clock_ns = sock.recvmsg, sock.send, time.monotonic_ns
        while True:
            message, ancillary, _, _ = receive(size, CONTROL_BYTES)
            if len(message) < size:
                rest = read_exactly(sock, size - len(message)) if message else None
                if rest is None:
                    return
                message += rest
            kind, slot, lsn, length = MESSAGE.unpack(message)
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
            answer = MESSAGE.pack(kind, error, lsn, clock_ns() - start)
            if send(answer) < size:
                raise ConnectionError("the broker does not take an answer of 24 bytes")


if __name__ == "__main__":
    import contextlib
    import signal

    # Ctrl-C goes to the whole process group; the broker decides when to stop, not the terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(ConnectionError, BrokenPipeError):
        main(int(sys.argv[1]))
