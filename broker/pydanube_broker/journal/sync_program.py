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


def full_sync(fd: int) -> None:
    """fsync, and on macOS what fsync does elsewhere: its own leaves the bytes in the drive's cache."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


def datasync(fd: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        full_sync(fd)


def rename_new(old: str | os.PathLike[str], new: str | os.PathLike[str]) -> None:
    """Rename, but never over a file that exists.

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
    """A file of zeros under a temporary name, synced, renamed, its directory synced: there whole or not at all."""
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


def read_exactly(sock: socket.socket, size: int) -> tuple[bytes | None, list[int]]:
    data = b""
    fds: list[int] = []
    while len(data) < size:
        chunk, new, _, _ = socket.recv_fds(sock, size - len(data), 1)
        if not chunk:
            return None, fds
        data += chunk
        fds += new
    return data, fds


def main(number: int) -> None:
    slots: dict[int, int] = {}
    with socket.socket(fileno=number) as sock:
        while True:
            message, fds = read_exactly(sock, MESSAGE.size)
            if message is None:
                return
            kind, slot, lsn, size = MESSAGE.unpack(message)
            if kind == b"O":
                slots[slot] = fds[0]
                continue
            if kind == b"C":
                os.close(slots.pop(slot))
                continue
            start = time.monotonic_ns()
            error = 0
            try:
                if kind == b"S":
                    datasync(slots[slot])
                else:
                    body, _ = read_exactly(sock, size)
                    if body is None:
                        return
                    order = json.loads(body)
                    prepare(order["path"], order["bytes"], bytes.fromhex(order["header"]))
            except OSError as problem:
                error = problem.errno or 5
            sock.sendall(MESSAGE.pack(kind, error, lsn, time.monotonic_ns() - start))


if __name__ == "__main__":
    import contextlib
    import signal

    # Ctrl-C goes to the whole process group; the broker decides when to stop, not the terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(ConnectionError, BrokenPipeError):
        main(int(sys.argv[1]))
