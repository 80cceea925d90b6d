"""Files of this machine that operations write: allowed paths."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydanube_core.errors import InvalidArgument
from pydanube_core.security.identity import relayed_by
from pydanube_storage.audit_file import check_file_name

EXPORTS: Final = "exports"  # folder of the data directory for exports to a bare name


def export_path(data_dir: Path, to: str, *, any_folder: bool) -> Path:
    """Return the file for a name: a bare name in the data directory, or with `any_folder` any path.

    A call that another broker relays must not name a path, because its caller is on another machine.

    Raises:
        InvalidArgument: it is not the name of a file, or it is a path where none is allowed.
        InvalidName: the name is too long.
    """
    given = Path(to)
    if "\0" in to or not given.name or given.name in (".", ".."):
        raise InvalidArgument(f"to: {to!r} is not the name of a file", field="to", value=to)
    check_file_name(given)
    if any_folder and given.is_absolute() and not relayed_by.get():
        return given
    if len(given.parts) > 1:
        raise InvalidArgument(
            f"to: {to!r} is a path. From here give a bare name, and the broker that has the data writes the file in "
            f"{EXPORTS}/ of its data directory. A path is for the commands `danube objects export` and `danube audit "
            "export`, which write the file themselves with --broker, and for the operator at the broker's own socket",
            field="to",
            value=to,
        )
    folder = data_dir / EXPORTS
    folder.mkdir(exist_ok=True)
    return folder / given.name
