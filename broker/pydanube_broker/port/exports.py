"""Files of this machine that operations write: allowed paths, and the audit as JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydanube_core.errors import InvalidArgument

EXPORTS: Final = "exports"  # folder of the data directory for what is exported by a bare name
TAIL_BYTES: Final = 256 * 1024  # more than a record has


def export_path(data_dir: Path, to: str, *, any_folder: bool) -> Path:
    """Return the file for a name: a bare name in the data directory, or with `any_folder` any path.

    Raises `InvalidArgument`: it is not the name of a file, or a path where none may be given.
    """
    given = Path(to)
    if "\0" in to or not given.name or given.name in (".", ".."):
        raise InvalidArgument(f"to: {to!r} is not the name of a file", field="to", value=to)
    if any_folder and given.is_absolute():
        return given
    if len(given.parts) > 1:
        raise InvalidArgument(
            f"to: {to!r} is a path; from here give a bare name, the file then is in {EXPORTS}/ of the broker's data "
            "directory. On the command line an absolute path is taken",
            field="to",
            value=to,
        )
    folder = data_dir / EXPORTS
    folder.mkdir(exist_ok=True)
    return folder / given.name


def next_in(path: Path) -> int | None:
    """Return the number of the record that continues a file; None for a missing or empty one.

    What a crash left of a last line is cut off.

    Raises `InvalidArgument`: its last line is no record of the audit.
    """
    if not path.exists():
        return None
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        begin = max(0, size - TAIL_BYTES)
        file.seek(begin)
        tail = file.read()
        whole = tail[: tail.rfind(b"\n") + 1]
        file.truncate(begin + len(whole))
    if not whole:
        return None
    try:
        return int(json.loads(whole.splitlines()[-1])["seq"]) + 1
    except (ValueError, KeyError, TypeError):
        raise InvalidArgument(
            f"to: {path} holds something else than the audit; name another file", field="to", value=str(path)
        ) from None


def append(path: Path, records: Sequence[bytes]) -> None:
    """Append records, one a line; on stable storage on return."""
    made = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(made, "ab") as file:
        file.writelines(record + b"\n" for record in records)
        file.flush()
        os.fsync(file.fileno())


def write_head(path: Path, head: Mapping[str, Any]) -> None:
    """Write the chain's head beside the file, so that a truncated file is recognised."""
    beside = path.with_name(path.name + ".head")
    fresh = path.with_name(path.name + ".head.new")
    fresh.write_text(json.dumps(head) + "\n", encoding="utf-8")
    fresh.chmod(0o600)
    fresh.replace(beside)
