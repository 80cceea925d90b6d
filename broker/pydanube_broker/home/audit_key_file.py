"""The file with the key of a broker's audit records."""

from __future__ import annotations

import logging
import os
import secrets
import stat
import sys
import tempfile
from pathlib import Path

from pydanube_core.audit_key import KEY_BYTES, AuditKey
from pydanube_storage.folders import sync_folder

from pydanube_broker.home.data_dir import DataDir

log = logging.getLogger("pydanube.broker")


def load_audit_key(data_dir: DataDir, named: Path | None) -> AuditKey:
    """Return the key of this broker's audit records, created if there is none: a file *beside* the data directory.

    So no copy of the directory has it. With the key, audit records that verify can be forged. It is in no metadata, no
    export and no bundle (docs/backup.md#the-key-of-the-audit).

    A key that can neither be read nor created never prevents a start. The broker then uses a key that ends with the
    process, and logs a remedy. Its records verify as "chain only" afterwards.

    Args:
        named: the key's file from the settings. None for the place beside the data directory.
    """
    if data_dir.memory and named is None:
        return AuditKey(secrets.token_bytes(KEY_BYTES))
    file = named or data_dir.path.with_name(f"{data_dir.path.name}.audit-key")
    try:
        return AuditKey(_read(file) or _made(file))
    except (OSError, ValueError) as error:
        log.warning(
            "audit_key_unusable",
            extra={
                "path": str(file),
                "error": str(error),
                "remedy": "correct it, or name another file in admin.audit_key. Until then the key ends with this "
                "process",
            },
        )
        return AuditKey(secrets.token_bytes(KEY_BYTES))


def _read(file: Path) -> bytes | None:
    """Read the key. None if there is no such file. Raises `ValueError`: it is no key, or others may read it."""
    try:
        source = file.open("rb")
    except FileNotFoundError:
        return None
    with source:
        found = os.fstat(source.fileno())
        if sys.platform != "win32":
            if found.st_mode & stat.S_IRWXO:
                raise ValueError("every user of this machine may read or write it: chmod 600")
            if found.st_uid not in (0, os.geteuid()):
                raise ValueError("it is another user's")
        text = source.read(2 * KEY_BYTES + 2)
    key = bytes.fromhex(text.decode("ascii"))
    if len(key) != KEY_BYTES:
        raise ValueError(f"it is no key of {KEY_BYTES} bytes in hexadecimal digits")
    return key


def _made(file: Path) -> bytes:
    """Make a key and write it to stable storage."""
    key = secrets.token_bytes(KEY_BYTES)
    # 0600, with this user as its owner.
    number, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(number, "w") as out:
            out.write(key.hex() + "\n")
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise
    sync_folder(file.parent)
    return key
