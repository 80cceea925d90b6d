"""The chain file of a journal's folder, and the restoration from the chain of records that the disk has lost."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import anyio.to_thread
from pydanube_core.errors import CorruptJournal, CorruptObject
from pydanube_storage.folders import sync_folder

from pydanube_broker.chain.piece import (
    HEADER_BYTES,
    Group,
    Place,
    Safe,
    decode_header,
    decode_piece,
    piece_key,
)
from pydanube_broker.chain.store import ChainStore
from pydanube_broker.journal.disk import Disk
from pydanube_broker.journal.records import FILE_HEADER_BYTES, encode_file_header
from pydanube_broker.journal.segments import CHAIN_FILE

_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFile:
    """The chain of a folder.

    needed: topics are stored by it, so a start fails without it.
    place: distinguishes the folder from a copy of it, which must not fence it.
    """

    cluster: str
    journal: int
    term: int = 1
    from_number: int = 1
    needed: bool = False
    place: str = ""

    @staticmethod
    def read(folder: Path) -> ChainFile | None:
        """Read the chain file of a folder. Return None if the journal has no chain. Raises `CorruptJournal`."""
        file = folder / CHAIN_FILE
        try:
            known = json.loads(file.read_text())
            return ChainFile(
                cluster=str(known["cluster"]),
                journal=int(known["journal"]),
                term=int(known["term"]),
                from_number=int(known["from_number"]),
                needed=bool(known["needed"]),
                place=str(known["place"]),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptJournal(
                f"{file} is damaged ({error!r}). It names the chain of this journal in the object store. Restore the file "
                "from a backup",
                segment=None,
                offset=0,
                value=str(file),
            ) from error

    def write(self, folder: Path) -> None:
        """Replace the file, durable on return. Blocking. Raises `OSError`."""
        temporary = folder / f"{CHAIN_FILE}.new"
        text = json.dumps({"version": _VERSION, **asdict(self), "journal": str(self.journal)}, indent=1)
        with open(temporary, "w") as out:
            out.write(text + "\n")
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(folder / CHAIN_FILE)
        sync_folder(folder)


async def restore_lost(store: ChainStore, file: ChainFile, place: Place, folder: Path) -> int:
    """Write the records of the chain that the folder's segments lack. Return the number of bytes that differed.

    After a power cut the disk may have lost unsynced records. A folder restored from a backup is older than the chain.
    Pieces are read backwards from the end, until a piece has records that the disk reported as safe and still has.

    Raises `StoreUnavailable`, `CorruptObject`, `OSError`.
    """
    disk, lost = Disk(), list[Group]()
    safe: int | None = None
    number, digest = place.number, place.before
    while number > file.from_number:
        number -= 1
        key = piece_key(file.cluster, file.journal, number)
        head = await store.read(key, HEADER_BYTES)
        if head is None:
            raise CorruptObject(
                f"piece {number} of the chain of journal {file.journal} is missing", cause="chain"
            )
        header = decode_header(head, journal=file.journal, number=number)
        if header.digest != digest:
            continue  # a stray
        digest = header.before
        _, items = decode_piece(await store.read(key) or b"", journal=file.journal, number=number)
        if safe is None:
            safe = max((item.lsn for item in items if isinstance(item, Safe)), default=None)
        groups = [item for item in items if isinstance(item, Group)]
        differing = await anyio.to_thread.run_sync(_differing, folder, groups, disk)
        lost += differing
        if safe is not None and any(each.lsn <= safe and each not in differing for each in groups):
            break
    return await anyio.to_thread.run_sync(_write, folder, lost, disk)


def _differing(folder: Path, groups: list[Group], disk: Disk) -> list[Group]:
    """Return the groups whose bytes differ from the segments."""
    found: list[Group] = []
    for group in groups:
        try:
            fd = disk.open_ro(_segment(folder, group))
        except FileNotFoundError:
            found.append(group)
            continue
        try:
            if disk.pread(fd, len(group.records), group.lsn - group.base) != group.records:
                found.append(group)
        finally:
            disk.close(fd)
    return found


def _write(folder: Path, groups: list[Group], disk: Disk) -> int:
    """Write groups in order, so that a crash leaves a prefix of them. Raises `CorruptObject`, `OSError`."""
    for group in sorted(groups, key=lambda each: each.lsn):
        path = _segment(folder, group)
        if path.exists():
            fd = disk.open_rw(path)
        elif group.lsn == group.base + FILE_HEADER_BYTES:
            fd = disk.create(path)
            disk.pwritev(fd, [b"\0"], group.segment_bytes - 1)
            disk.pwritev(fd, [encode_file_header(group.base, group.segment_bytes)], 0)
        else:
            raise CorruptObject(
                f"the journal in {folder} has no segment {path.name}, and its chain in the object store begins later: the "
                "folder is older than the chain. Restore a newer backup",
                cause="chain",
            )
        try:
            disk.pwritev(fd, [group.records], group.lsn - group.base)
            disk.datasync(fd)
        finally:
            disk.close(fd)
    disk.sync_dir(folder)
    return sum(len(group.records) for group in groups)


def _segment(folder: Path, group: Group) -> Path:
    return folder / f"{group.base:020d}.journal"
