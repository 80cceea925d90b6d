"""The id of a journal: random, made with an empty folder, kept as long as the folder is."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from pydanube_core.errors import CorruptJournal

from pydanube_broker.journal.disk import Disk

_FILE: Final = "journal-id"
_BITS: Final = 64


def journal_id(folder: Path, disk: Disk | None = None) -> int:
    """Return the id of the journal in a folder. A folder without one gets one, durable on return.

    Raises:
        CorruptJournal: the file is damaged. An id that is guessed could be another journal's.
        OSError: it cannot be read or written.
    """
    file = folder / _FILE
    try:
        text = file.read_text().strip()
    except FileNotFoundError:
        return _make(file, disk or Disk())
    if text.isascii() and text.isdigit() and 0 < int(text) < 1 << _BITS:
        return int(text)
    raise CorruptJournal(
        f"{file} is damaged: it should hold one decimal number. Restore the file from a backup",
        segment=None,
        offset=0,
        value=str(file),
    )


def _make(file: Path, disk: Disk) -> int:
    number = secrets.randbelow((1 << _BITS) - 1) + 1
    temporary = file.with_name(file.name + ".new")
    with open(temporary, "w") as out:
        out.write(f"{number}\n")
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)
    disk.sync_dir(file.parent)
    return number
