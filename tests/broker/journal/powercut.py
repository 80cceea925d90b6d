"""A disk that remembers in which order it was asked, and what a power cut at any instant may leave of it.

The model: what a completed sync covered is there. Of every sector written since, the disk holds any of the states it
went through, whatever its neighbours hold; of the changes to the folder since its last sync, any may be missing. A
sync covers what was written before it was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydanube_broker.journal import Disk
from pydanube_broker.journal.disk import Buffer
from pydanube_broker.journal.helper import SyncDone


@dataclass(slots=True)
class File:
    durable: bytearray
    pending: list[tuple[int, int, bytes]] = field(default_factory=list)  # (event, at, bytes)


class RecordingDisk(Disk):
    """The real disk, with a list of everything that changes it."""

    def __init__(self, folder: Path) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.initial: dict[str, tuple[int, bytes]] = {}
        self._numbers: dict[str, int] = {}
        self._files = 0
        self._fds: dict[int, int] = {}
        if folder.exists():
            for path in sorted(folder.iterdir()):
                if path.suffix != ".index":
                    self._numbers[path.name] = self._files
                    self.initial[path.name] = (self._files, path.read_bytes())
                    self._files += 1

    def note(self, *event: Any) -> None:
        self.events.append(event)

    def open_rw(self, path: Path) -> int:
        fd = super().open_rw(path)
        self._fds[fd] = self._numbers[path.name]
        return fd

    def create(self, path: Path) -> int:
        fd = super().create(path)
        self._fds[fd] = self._numbers[path.name] = self._files
        self.note("add", path.name, self._files)
        self._files += 1
        return fd

    def pwritev(self, fd: int, buffers: Sequence[Buffer], at: int) -> None:
        super().pwritev(fd, buffers, at)
        self.note("write", self._fds[fd], at, b"".join(buffers))

    def datasync(self, fd: int) -> None:
        self.finish_sync(fd, len(self.events))

    def finish_sync(self, fd: int, asked: int) -> None:
        """A sync that was asked for when there were `asked` events has returned now."""
        self.note("sync", self._fds[fd], asked)

    def sync_dir(self, path: Path) -> None:
        self.note("sync_dir")

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        number = self._numbers[new.name] = self._numbers.pop(old.name)
        self.note("add", new.name, number)
        self.note("remove", old.name)

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        if self._numbers.pop(path.name, None) is not None:
            self.note("remove", path.name)


class SyncedDisk(Protocol):
    """A disk that notes each sync, with the bytes that were written when it was asked for."""

    events: list[Any]

    def finish_sync(self, fd: int, asked: int) -> None: ...


class SlowSyncer:
    """Syncs that return when the test says so; the writer goes on writing meanwhile."""

    def __init__(self, disk: SyncedDisk) -> None:
        self.done: SyncDone = lambda lsn, error, seconds, waited_s: None
        self.by_itself = True
        self._disk = disk
        self._fds: dict[int, int] = {}
        self._asked: tuple[tuple[int, ...], int, int] | None = None

    def open(self, slot: int, fd: int) -> None:
        self._fds[slot] = fd

    def forget(self, slot: int) -> None:
        del self._fds[slot]

    def sync(self, slots: tuple[int, ...], lsn: int) -> None:
        assert self._asked is None
        self._asked = (slots, lsn, len(self._disk.events))
        if self.by_itself:
            asyncio.get_running_loop().call_soon(self.finish)

    def finish(self) -> None:
        """The sync in flight, if any, returns."""
        if self._asked is None:
            return
        slots, lsn, asked = self._asked
        self._asked = None
        for slot in slots:
            self._disk.finish_sync(self._fds[slot], asked)
        self.done(lsn, None, 0.0, 0.0)

    def close(self) -> None:
        self._asked = None


class Remains:
    """The state of the disk when the power goes after the first `instant` events."""

    def __init__(self, disk: RecordingDisk, instant: int) -> None:
        self.files = {number: File(bytearray(data)) for number, data in disk.initial.values()}
        self._names = {name: number for name, (number, _) in disk.initial.items()}
        self._changes: list[tuple[Any, ...]] = []
        for i, event in enumerate(disk.events[:instant]):
            match event:
                case ("add", _, number):
                    self.files.setdefault(number, File(bytearray()))
                    self._changes.append(event)
                case ("remove", _):
                    self._changes.append(event)
                case ("write", number, at, data):
                    self.files[number].pending.append((i, at, data))
                case ("sync", number, asked):
                    file = self.files[number]
                    for _, at, data in (change for change in file.pending if change[0] < asked):
                        _put(file.durable, at, data)
                    file.pending = [change for change in file.pending if change[0] >= asked]
                case ("sync_dir",):
                    self._names = self._named([True] * len(self._changes))
                    self._changes = []

    def open_choices(self, sector_bytes: int) -> int:
        """Return the number of choices that `write_to` asks for."""
        return len(self._changes) + sum(
            len({s for _, at, data in file.pending for s in _sectors(at, data, sector_bytes)})
            for file in self.files.values()
        )

    def write_to(
        self, folder: Path, choose: Callable[[int], int], *, sector_bytes: int = 512, lost: str = ""
    ) -> None:
        """Write the bytes that survive to a folder.

        Args:
            choose: given n, which of the states 0 (as last synced) to n (as last written) a sector is in.
            lost: name of a file of which nothing is left that was not synced.
        """
        folder.mkdir()
        keep = [bool(choose(1)) for _ in self._changes]
        contents = {}
        lost_file = self._named([True] * len(keep)).get(lost)
        for number, file in self.files.items():
            states: dict[int, list[bytes]] = {}
            whole = bytearray(file.durable)
            for _, at, data in file.pending:
                _put(whole, at, data)
                for sector in _sectors(at, data, sector_bytes):
                    start = sector * sector_bytes
                    states.setdefault(sector, []).append(bytes(whole[start : start + sector_bytes]))
            left = bytearray(file.durable)
            for sector, versions in sorted(states.items()):
                if (state := choose(len(versions))) and number != lost_file:
                    _put(left, sector * sector_bytes, versions[state - 1])
            contents[number] = bytes(left)
        for name, number in self._named(keep).items():
            (folder / name).write_bytes(contents[number])

    def _named(self, keep: Sequence[bool]) -> dict[str, int]:
        names = dict(self._names)
        for event, kept in zip(self._changes, keep, strict=True):
            if kept and event[0] == "add":
                names[event[1]] = event[2]
            elif kept:
                names.pop(event[1], None)
        return names


def _put(target: bytearray, at: int, data: bytes) -> None:
    if len(target) < at + len(data):
        target.extend(bytes(at + len(data) - len(target)))
    target[at : at + len(data)] = data


def _sectors(at: int, data: bytes, sector_bytes: int) -> range:
    return range(at // sector_bytes, (at + len(data) - 1) // sector_bytes + 1)
