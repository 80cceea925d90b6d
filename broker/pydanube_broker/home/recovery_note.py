"""The note that `danube cluster recover` leaves in the data directory: the next start rebuilds the audit's key terms.

An etcd that was restored from an older snapshot may lack the terms, which the broker wrote after it. The note is in the
directory and not in etcd, so a program that can only write to etcd can neither write it nor keep a copy of it for later.
It is deleted once the terms are rebuilt.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Final

from pydanube_core.audit_recovery import AuditRecovery
from pydanube_storage.folders import sync_folder

from pydanube_broker.home.data_dir import write_synced

log = logging.getLogger("pydanube.broker")

NOTE_FILE: Final = "audit-recovery.json"


def write_note(folder: Path, note: AuditRecovery) -> None:
    """Write the note to stable storage."""
    write_synced(folder / NOTE_FILE, json.dumps(asdict(note)) + "\n")


def read_note(folder: Path) -> AuditRecovery | None:
    """Return the note, or None if there is none. Log that it cannot be read."""
    file = folder / NOTE_FILE
    try:
        return AuditRecovery(**json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        log.warning(
            "audit_recovery_unreadable",
            extra={
                "path": str(file),
                "error": str(error),
                "remedy": "let the broker's user read it and restart the broker, or delete it: then audit.verify reports "
                "records that the restored etcd has lost the key of",
            },
        )
        return None


def delete_note(folder: Path) -> None:
    """Delete the note durably."""
    (folder / NOTE_FILE).unlink(missing_ok=True)
    sync_folder(folder)
