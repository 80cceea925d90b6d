"""The data directory: its lock, its format and its broker id.

`format.json` has the format version, `broker-id` the identity that survives restarts. `LOCK` is held with an exclusive
lock for as long as the broker lives (a lone broker's lease), and has its process id. `clock.json` has the wall clock of
one boot of the machine, as its distance from the time since that boot, so that a start finds out if the clock was set.

Formats: 1, the first. 2, producer sessions have tokens, and the beginning of a journal segment may be in a file of its
own.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final, Self

from pydanube_core.errors import DataDirForeign, DataDirLocked, DiskFull, FormatTooNew, InvalidArgument
from pydanube_storage.boot import boot_id
from pydanube_storage.folders import own_folder, sync_folder

if sys.platform != "win32":
    import fcntl

log = logging.getLogger("pydanube.broker")


FORMAT_VERSION: Final = 2
# Files that may be left by a start that was killed before it wrote format.json, and those of an empty file system.
_HARMLESS: Final = frozenset({"LOCK", "broker-id", "broker-id.new", "format.json.new", "lost+found"})
_MEMORY_PREFIX: Final = "danube-memory-"


class DataDir:
    """Open, check and lock a data directory. None makes one in memory that is gone at the end.

    Raises (on entering):
        DataDirLocked: another process has it. Names the pid.
        DataDirForeign: it holds something else.
        FormatTooNew: it was written by a newer version. Nothing was touched.
        DiskFull: its volume has no room for the few files of a beginning.
        InvalidArgument: it is unusable, or it is of an older format, and `upgrade` is False.
    """

    def __init__(self, path: Path | None, *, upgrade: bool = True) -> None:
        self.memory = path is None
        self.format_version = FORMAT_VERSION  # as found
        self._upgrade = upgrade
        self.path = own_folder(_MEMORY_PREFIX, _memory_root()) if path is None else path.absolute()
        self.broker_id = 0
        self._clock: tuple[str, int] | None = None  # boot, and offset as kept
        self._lock: int | None = None

    def __enter__(self) -> Self:
        try:
            _make_synced(self.path)
            self._check_format()
            self._take_lock()
            self._write_format()
            self.broker_id = self._read_broker_id()
            self._clock = self._read_clock()
            _make_synced(self.path / "journal")
            _make_synced(self.path / "objects")
        except OSError as error:
            self.__exit__(None, None, None)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(
                    f"the data directory {self.path} cannot be used: {error.strerror}. Make room, or choose another with "
                    "--data-dir",
                    path=str(self.path),
                ) from error
            raise unusable(self.path, error) from error
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            if self.memory:
                shutil.rmtree(self.path, ignore_errors=True)

    def _check_format(self) -> None:
        version = read_format(self.path)
        if version is None:
            return
        self.format_version = version
        if version < FORMAT_VERSION and not self._upgrade:
            raise InvalidArgument(
                f"{self.path} has format {version}, this version writes {FORMAT_VERSION}, which an earlier one cannot "
                "read: leave out --no-upgrade to go on, or use the earlier version",
                field="no_upgrade",
                value=True,
                format_version=version,
                supported=FORMAT_VERSION,
            )

    def upgraded(self) -> None:
        """Record the present format version, after everything of the older format was read."""
        if self.format_version < FORMAT_VERSION:
            log.info(
                "data_dir_upgraded",
                extra={
                    "path": str(self.path),
                    "from_format": self.format_version,
                    "to_format": FORMAT_VERSION,
                },
            )
            write_synced(self.path / "format.json", _format_text())
            self.format_version = FORMAT_VERSION

    def _write_format(self) -> None:
        file = self.path / "format.json"
        if not file.exists():
            write_synced(file, _format_text())

    def _take_lock(self) -> None:
        self._lock = os.open(self.path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if sys.platform != "win32":
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pid = os.pread(self._lock, 64, 0).decode("ascii", "replace").strip() or "unknown"
                os.close(self._lock)
                self._lock = None
                raise DataDirLocked(
                    f"{self.path} is used by the broker with process id {pid}: stop it, or choose another with "
                    "--data-dir",
                    field="data.dir",
                    value=str(self.path),
                    pid=int(pid) if pid.isdigit() else None,
                ) from None
        text = f"{os.getpid()}\n".encode()
        with contextlib.suppress(OSError):  # a full disk: the lock counts, the number is for operators
            os.pwrite(self._lock, text, 0)  # over the old one, which has the room already
            os.ftruncate(self._lock, len(text))

    def clock_offset_ms(self) -> int | None:
        """Return the wall clock minus the machine's counter, as kept. None if nothing was kept in this boot."""
        return None if self._clock is None or self._clock[0] != boot_id() else self._clock[1]

    def keep_clock_offset_ms(self, offset_ms: int) -> None:
        """Keep the offset for the next start. Raises `OSError`."""
        if boot := boot_id():
            write_synced(self.path / "clock.json", json.dumps({"boot": boot, "offset_ms": offset_ms}) + "\n")
            self._clock = boot, offset_ms

    def _read_clock(self) -> tuple[str, int] | None:
        try:
            found = json.loads((self.path / "clock.json").read_text())
            return str(found["boot"]), int(found["offset_ms"])
        except (OSError, ValueError, KeyError, TypeError):
            return None  # a hint: without it, a start has one witness less

    def _read_broker_id(self) -> int:
        file = self.path / "broker-id"
        with contextlib.suppress(FileNotFoundError):
            text = file.read_text().strip()
            if text.isascii() and text.isdigit() and 0 < int(text) < 1 << 63:
                return int(text)
            raise DataDirForeign(
                f"{file} is damaged: it should hold one decimal number",
                field="data.dir",
                value=str(self.path),
            )
        # 1 … 2^63-1: the original's Java client holds ids as signed numbers
        broker_id = secrets.randbelow((1 << 63) - 1) + 1
        write_synced(file, f"{broker_id}\n")
        return broker_id


def unusable(path: Path, error: OSError) -> InvalidArgument:
    why = "it is a file" if path.is_file() else error.strerror or error
    return InvalidArgument(
        f"the data directory {path} cannot be used: {why}. Choose another with --data-dir, or correct its permissions",
        field="data.dir",
        value=str(path),
    )


def read_format(path: Path) -> int | None:
    """Return the format of a data directory without opening it. None for an empty one.

    Raises:
        DataDirForeign: it holds something else.
        FormatTooNew: it was written by a newer version.
    """
    file = path / "format.json"
    try:
        text = file.read_text()
    except FileNotFoundError:
        strangers = [entry.name for entry in path.iterdir() if entry.name not in _HARMLESS]
        if strangers:
            raise DataDirForeign(
                f"{path} is not empty and not a data directory (found {strangers[0]!r}): choose another "
                "with --data-dir",
                field="data.dir",
                value=str(path),
                found=sorted(strangers)[:5],
            ) from None
        return None
    try:
        version = json.loads(text)["format_version"]
        known = isinstance(version, int) and version >= 1
    except (ValueError, KeyError, TypeError, RecursionError):
        version, known = None, False
    if not known:
        raise DataDirForeign(
            f'{file} is not ours or damaged: it should hold {{"format_version": {FORMAT_VERSION}}}',
            field="data.dir",
            value=str(path),
        )
    if version > FORMAT_VERSION:
        raise FormatTooNew(
            f"{path} has format {version}, this version reads up to {FORMAT_VERSION}: nothing was "
            "touched. Use the newer version of pydanube",
            field="data.dir",
            value=str(path),
            format_version=version,
            supported=FORMAT_VERSION,
        )
    return int(version)


def _format_text() -> str:
    return json.dumps({"format_version": FORMAT_VERSION}) + "\n"


def _make_synced(folder: Path) -> None:
    """Create a folder and its missing parents, each synced in its parent, so that it survives a power cut."""
    missing = [folder]
    while not missing[-1].exists() and missing[-1] != missing[-1].parent:
        missing.append(missing[-1].parent)
    for one in reversed(missing):
        if not one.is_dir():
            one.mkdir(exist_ok=True)
            sync_folder(one.parent)


def write_synced(file: Path, text: str) -> None:
    """Replace a file as a whole. Durable on return."""
    temporary = file.with_name(file.name + ".new")
    with open(temporary, "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)
    sync_folder(file.parent)


def _memory_root() -> Path:
    """Return the folder of a RAM disk, or else the temporary folder."""
    return Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
