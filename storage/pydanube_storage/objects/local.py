"""Objects as files in a folder: the default store.

This is not fsspec's store, because the journal is trimmed when `put` has returned: a file is synced before it gets its
name, and its folder is synced before `put` returns. The name is created by a link, which never replaces an object.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

from pydanube_core.errors import CorruptObject, ObjectMissing, StoreUnavailable

from pydanube_storage.folders import sync_file, sync_folder
from pydanube_storage.objects.protocol import ObjectFact, check_key

_SPOOL: Final = ".spool"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_ATTEMPTS: Final = 20  # of a put whose folder is removed by a delete


class LocalStore:
    """A folder, created if needed. `spool` is the name of this writer's spool if several write there."""

    def __init__(self, root: Path, *, spool: str = "") -> None:
        self._root = root.absolute()
        self._spool = self._root / _SPOOL / spool
        try:
            self._spool.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._fail("", error)

    @property
    def url(self) -> str:
        return str(self._root)

    @property
    def spool(self) -> Path:
        try:
            # A removed spool is created again, but not the root, which may be unmounted
            (self._root / _SPOOL).mkdir(exist_ok=True)
            self._spool.mkdir(exist_ok=True)
        except OSError as error:
            self._fail("", error)
        return self._spool

    def put(self, key: str, source: Path | bytes) -> None:
        target = self._root / check_key(key)
        if isinstance(source, Path) and source.parent == self._spool:
            temporary = source
        else:
            temporary = self.spool / f"{secrets.token_hex(8)}.put"
        try:
            with contextlib.suppress(FileNotFoundError):  # `_link` makes it again
                self._make_folders(target.parent)
            if isinstance(source, bytes):
                temporary.write_bytes(source)
            elif temporary is not source:
                temporary.write_bytes(source.read_bytes())
            sync_file(temporary)
            self._link(temporary, target)
        except OSError as error:
            self._fail(key, error)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()

    def create(self, key: str, data: bytes) -> bool:
        try:
            self.put(key, data)  # a link never replaces
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, FileExistsError):
                raise
            return False
        return True

    def put_new(self, key: str, data: bytes) -> None:
        if not (self._root / check_key(key)).exists():
            self.create(key, data)

    def _link(self, temporary: Path, target: Path) -> None:
        """Give a file its name. A delete may have removed its folder, which is then made again."""
        for attempt in range(_ATTEMPTS):
            try:
                if attempt:
                    self._make_folders(target.parent)
                os.link(temporary, target)
            except FileNotFoundError:
                if attempt == _ATTEMPTS - 1 or not temporary.exists():
                    raise
            else:
                sync_folder(target.parent)
                return

    def _make_folders(self, folder: Path) -> None:
        """Create missing folders, each durable in its parent.

        Raises:
            FileNotFoundError: a delete has removed one of them meanwhile.
        """
        missing: list[Path] = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for each in reversed(missing):
            with contextlib.suppress(FileExistsError):
                each.mkdir()
            sync_folder(each.parent)

    def read(self, key: str, start: int, end: int) -> bytes:
        try:
            # Opening a pipe would wait for its writer
            fd = os.open(self._root / check_key(key), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise CorruptObject(
                        f"object {key} in {self.url} is no regular file",
                        store=self.url,
                        key=key,
                        cause="no file",
                    )
                data = _pread(fd, start, end)
            finally:
                os.close(fd)
        except OSError as error:
            self._fail(key, error)
        if len(data) != end - start:
            raise CorruptObject(
                f"object {key} in {self.url} ends at byte {start + len(data)}, bytes {start} to {end} were wanted",
                store=self.url,
                key=key,
                cause="short",
            )
        return data

    def size(self, key: str) -> int:
        try:
            return (self._root / check_key(key)).stat().st_size
        except OSError as error:
            self._fail(key, error)

    def list(self, prefix: str) -> Iterator[ObjectFact]:
        folder = self._root / check_key(prefix) if prefix else self._root
        found: list[ObjectFact] = []
        try:
            for parent, folders, names in os.walk(folder, onerror=_unless_gone):
                if parent == str(self._root) and _SPOOL in folders:
                    folders.remove(_SPOOL)
                for name in names:
                    path = os.path.join(parent, name)
                    try:
                        facts = os.stat(path)
                    except OSError as error:
                        # Deleted concurrently, or a link to nothing
                        if error.errno in (errno.ENOENT, errno.ELOOP):
                            continue
                        raise
                    if not stat.S_ISREG(facts.st_mode):
                        continue
                    key = os.path.relpath(path, self._root).replace(os.sep, "/")
                    found.append(
                        ObjectFact(key=key, bytes=facts.st_size, modified_ms=facts.st_mtime_ns // 1_000_000)
                    )
        except OSError as error:
            self._fail(prefix, error)
        yield from sorted(found, key=lambda fact: fact.key)

    def folders(self, prefix: str) -> Sequence[str]:
        folder = self._root / check_key(prefix) if prefix else self._root
        try:
            with os.scandir(folder) as entries:
                found = [entry.name for entry in entries if entry.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            self._fail(prefix, error)
        return sorted(name for name in found if prefix or name != _SPOOL)

    def delete(self, key: str) -> None:
        path = self._root / check_key(key)
        try:
            path.unlink()
            sync_folder(path.parent)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._fail(key, error)
        # Otherwise each deleted topic would leave its folders. One with an object in it stays
        with contextlib.suppress(OSError):
            for folder in path.parents:
                if folder == self._root:
                    break
                folder.rmdir()

    def close(self) -> None:
        pass

    def _fail(self, key: str, error: OSError) -> NoReturn:
        if isinstance(error, FileNotFoundError) and key:
            raise ObjectMissing(
                f"object {key} is not in {self.url}", store=self.url, key=key, cause="missing"
            ) from error
        cause = error.strerror or str(error)
        remedy = (
            "free space there"
            if error.errno in _FULL
            else "let the broker's user write there"
            if isinstance(error, PermissionError)
            else "check tier.url and the disk behind it"
        )
        raise StoreUnavailable(
            f"the object store {self.url} failed at {key or 'its folder'} ({cause}): {remedy}. It is tried again",
            store=self.url,
            key=key,
            cause=cause,
            remedy=remedy,
        ) from error


def _pread(fd: int, start: int, end: int) -> bytes:
    """Read `[start, end)`, fewer bytes only at the end of the file. One system call may return fewer."""
    parts: list[bytes] = []
    while start < end:
        part = os.pread(fd, end - start, start)
        if not part:
            break
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _unless_gone(error: OSError) -> None:
    """Raise if a folder cannot be read, which `os.walk` otherwise treats as empty."""
    if not isinstance(error, FileNotFoundError):
        raise error
