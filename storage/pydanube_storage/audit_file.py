"""A file of audit records, one a line, which an export creates and later exports continue.

A second file beside it, `NAME.head`, has the last record that is certainly on stable storage, and the byte at which it
ends. The head is written before the first record and after each group of records. After a crash the file can have whole
records above the head, and the beginning of one more.

An export writes only to files that are provably its own:

- A new file is created exclusively, and so is its head.
- An existing file is continued if it is a regular file, if the record at its head has the hash of the head, and if all
  that follows are records that continue the chain. An incomplete last line must be the beginning of the next record. It
  is completed, so nothing is ever cut off.
- The file is locked while it is open, so that two exports do not mix their records.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from pydanube_core.errors import AlreadyExists, ClusterError, Conflict, DiskFull, InvalidArgument, InvalidName

from pydanube_storage.folders import is_full, sync_folder

if sys.platform != "win32":
    import fcntl

# Maximum of a file's name, so that hidden and temporary names, which are longer, fit
NAME_BYTES: Final = 255 - len(".01234567.tmp") - 1
_HEAD_BYTES: Final = 64 * 1024  # a head is about 300 bytes. At most so much of another file is read
_RECORD_BYTES: Final = 256 * 1024  # the largest record is shorter
_ABOVE_BYTES: Final = 64 << 20  # records above the head are one group, at most 4 MiB
_HASH: Final = b',"hash":"'  # the hashed part of a record ends here


def check_file_name(path: Path) -> None:
    """Raise `InvalidName` if the names of the files beside `path` would be longer than a file system takes."""
    size = len(os.fsencode(path.name))
    if size > NAME_BYTES:
        raise InvalidName(
            f"to: the file name has {size} bytes, and {NAME_BYTES} is the maximum, because temporary files have "
            "longer names. Give a shorter name",
            field="to",
            value=path.name,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHead:
    """The last record on stable storage. `bytes` is the end of its line, None in the head of an earlier version."""

    seq: int  # -1 before record 0
    hash: str
    mac: str | None = None
    key_id: str | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class _Record:
    seq: int
    prev_hash: str
    hash: str
    mac: str | None
    key_id: str | None


def _record_of(line: bytes) -> _Record | None:
    """Parse a line. Return None if it is not a record, or if its hash is wrong."""
    text, _, rest = line.rpartition(_HASH)
    try:
        body = json.loads(line)
        found = _Record(
            int(body["seq"]), str(body["prev_hash"]), str(body["hash"]), body.get("mac"), body.get("key_id")
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    right = hashlib.sha256(text + b"}").hexdigest()
    return found if rest[:64] == right.encode() and found.hash == right else None


class AuditFile:
    """An open file of audit records. Call `append` with groups of records in order, then `close`. A context manager.

    Attributes:
        next_seq: number of the record that continues the file, or None for a new file.

    Raises:
        InvalidName: the name is too long.
        InvalidArgument: the path is not an exported audit, or cannot be written. Nothing was changed.
        AlreadyExists: another process created a file of this name, or a file named as the head is not a head.
        Conflict: another export writes this file.
    """

    def __init__(self, path: Path) -> None:
        check_file_name(path)
        self.path = path
        self.next_seq: int | None = None
        self._beside = path.with_name(path.name + ".head")
        self._head: FileHead | None = None  # as stored
        self._hash: str | None = None  # of the last record of the file
        self._size = 0
        self._incomplete = b""  # last line
        self._fd: int | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and release its lock. May be called again."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def next_after(self, start: int | None) -> int | None:
        """Return the number of the record to export first, or None for the oldest.

        Args:
            start: the number that the caller gave, or None.

        Raises `InvalidArgument`: the file continues with another record.
        """
        if start is not None and self.next_seq is not None and start != self.next_seq:
            raise InvalidArgument(
                f"from_seq: {self.path} continues with record {self.next_seq}, not {start}. Leave from_seq out, or name "
                "a new file",
                field="from_seq",
                value=start,
            )
        return self.next_seq if start is None else start

    def append(self, lines: Sequence[bytes]) -> None:
        """Append records, and move the head behind them. They are on stable storage on return.

        Raises as the class, and `InvalidArgument` if the records do not continue the file. Then the file is unchanged.
        """
        if not lines:
            return
        first, last = _record_of(lines[0]), _record_of(lines[-1])
        if first is None or last is None:
            raise InvalidArgument("these are not audit records, or they are damaged: see danube audit verify")
        self._check_next(first)
        data = b"".join([line + b"\n" for line in lines])
        if not data.startswith(self._incomplete):
            raise self._foreign(f"its last line is not the beginning of record {first.seq}")
        try:
            if self._head is None:
                before = FileHead(seq=first.seq - 1, hash=first.prev_hash, bytes=0)
                self._write_head(before)
            if self._fd is None:
                self._fd = self._opened(os.O_CREAT | os.O_EXCL)
                sync_folder(self.path.parent)
            self._write(data[len(self._incomplete) :])
            self._size += len(data) - len(self._incomplete)
            self._incomplete = b""
            self._hash, self.next_seq = last.hash, last.seq + 1
            self._write_head(
                FileHead(seq=last.seq, hash=last.hash, mac=last.mac, key_id=last.key_id, bytes=self._size)
            )
        except OSError as error:
            raise self._failed(error) from error

    # -- opening ---------------------------------------------------------------------------------------------

    def _open(self) -> None:
        try:
            there = _kind(self.path)
            if there is not None:
                if not stat.S_ISREG(there):
                    raise self._foreign("it is not a regular file")
                self._fd = self._opened(0)
            self._head = self._stored_head()
            if self._fd is None:
                # The file is new, after a crash before its first record or because it was moved away
                if self._head is not None:
                    self._head = FileHead(seq=self._head.seq, hash=self._head.hash, bytes=0)
                    self._hash, self.next_seq = self._head.hash, self._head.seq + 1
                return
            self._size = os.fstat(self._fd).st_size
            self._verify(self._fd)
        except OSError as error:
            raise self._failed(error) from error

    def _opened(self, flags: int) -> int:
        """Open the file without following a symlink or waiting for a FIFO, and lock it."""
        flags |= os.O_RDWR | os.O_APPEND
        flags |= sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
        fd = os.open(self.path, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise self._foreign("it is not a regular file")
            if sys.platform != "win32":
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise Conflict(f"another export writes {self.path}. Repeat it when that one has ended") from None
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _stored_head(self) -> FileHead | None:
        """Return the head beside the file, or None."""
        kind = _kind(self._beside)
        if kind is None:
            return None
        try:
            if not stat.S_ISREG(kind):
                raise ValueError(kind)
            with self._beside.open("rb") as file:
                found = json.loads(file.read(_HEAD_BYTES))
            size = found.get("bytes")
            return FileHead(
                seq=int(found["seq"]),
                hash=str(found["hash"]),
                mac=found["mac"],
                key_id=found["key_id"],
                bytes=None if size is None else int(size),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise AlreadyExists(
                f"{self._beside} is not the head of an exported audit. Name another file",
                field="to",
                value=str(self.path),
            ) from None

    def _verify(self, fd: int) -> None:
        """Check that the file continues its head, and find where it ends."""
        head = self._head
        if head is None:
            raise self._foreign(f"{self._beside.name} is not beside it")
        begin = head.bytes
        if begin is None:  # an earlier version wrote it once, at the end
            tail = os.pread(fd, _RECORD_BYTES, max(0, self._size - _RECORD_BYTES))
            begin = self._size - len(tail) + tail.rfind(b"\n") + 1
        if not 0 <= begin <= self._size:
            raise self._foreign("it is shorter than the length in its head")
        if begin > 0:
            at = max(0, begin - _RECORD_BYTES)
            before = os.pread(fd, begin - at, at)
            record = _record_of(before[:-1].rpartition(b"\n")[2])
            if (
                not before.endswith(b"\n")
                or record is None
                or (record.seq, record.hash) != (head.seq, head.hash)
            ):
                raise self._foreign("it does not have the record of its head at the place in the head")
        if self._size - begin > _ABOVE_BYTES:
            raise self._foreign("it has more above its head than an export writes")
        above = os.pread(fd, self._size - begin, begin)
        *lines, self._incomplete = above.split(b"\n")
        self._hash, self.next_seq = head.hash, head.seq + 1
        for line in lines:
            record = _record_of(line)
            if record is None:
                raise self._foreign("it has lines above its head that are no records")
            self._check_next(record)
            self._hash, self.next_seq = record.hash, record.seq + 1

    def _check_next(self, record: _Record) -> None:
        """Check that a record continues the file. Records in between may be missing, because retention deletes them."""
        if self.next_seq is None:
            return
        if record.seq < self.next_seq or (record.seq == self.next_seq and record.prev_hash != self._hash):
            raise self._foreign(f"record {record.seq} does not continue it after record {self.next_seq - 1}")

    # -- writing ---------------------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        assert self._fd is not None, "opened"
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        os.fsync(self._fd)

    def _write_head(self, head: FileHead) -> None:
        """Write the head to stable storage. The first one is created exclusively. Later ones replace the verified head."""
        fresh = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.tmp")
        with fresh.open("xb") as file:  # created exclusively, so no symlink is followed
            try:
                os.chmod(fresh, 0o600)
                file.write(json.dumps(asdict(head)).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
                if self._head is None:
                    os.link(fresh, self._beside)
                    os.unlink(fresh)
                else:
                    os.replace(fresh, self._beside)
            except BaseException:
                fresh.unlink(missing_ok=True)
                raise
        sync_folder(self.path.parent)
        self._head = head

    # -- errors ----------------------------------------------------------------------------------------------

    def _foreign(self, why: str) -> InvalidArgument:
        return InvalidArgument(
            f"to: {self.path} holds something else than an exported audit: {why}. Nothing was changed. Name another file",
            field="to",
            value=str(self.path),
        )

    def _failed(self, error: OSError) -> ClusterError:
        details: dict[str, Any] = {"field": "to", "value": str(self.path)}
        if isinstance(error, FileExistsError):
            return AlreadyExists(
                f"{error.filename2 or error.filename or self.path} exists already. Name another file, or move it away",
                **details,
            )
        cause = error.strerror or str(error)
        if is_full(error):
            return DiskFull(f"there is no room for {self.path}: free some on its disk", path=str(self.path))
        return InvalidArgument(
            f"to: {self.path} cannot be written ({cause}). Name a file in a folder that exists and may be written to",
            cause=cause,
            **details,
        )


def _kind(path: Path) -> int | None:
    """Return the mode of `path` without following a symlink, or None if it does not exist."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None
