"""The id of a journal: random, created in an empty folder, and kept as long as the folder."""

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
    """Return the id of the journal in a folder. Create one, durably, if the folder has none.

    Raises:
        CorruptJournal: the file is damaged. A guessed id could be that of another journal.
        OSError: the file cannot be read or written.
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
