"""Metadata rows in one SQLite file: WAL mode, `synchronous=FULL`, so a commit is an fsync of the write-ahead log.

Tables: `kv` (current keys), `history` (events of the newest revisions), `leases`, `counters` (revision, compacted,
last lease id, which is never reused). `user_version` is the format version, `application_id` marks the file as ours. One
connection locks the file exclusively. A second process is refused, because as a second writer its cached revision would
be wrong. After a crash SQLite recovers its log when the file is opened.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydanube_core.errors import (
    ClusterError,
    DataDirForeign,
    DataDirLocked,
    DiskFull,
    FormatTooNew,
    MetadataUnavailable,
)

from pydanube_storage.folders import sync_folder
from pydanube_storage.metadata.engine import Counters, Place
from pydanube_storage.metadata.errors import CorruptMetadata
from pydanube_storage.metadata.model import Event, EventKind, KeyRange, KeyValue, LeaseId, Revision

METADATA_FORMAT_VERSION: Final = 2  # the highest that this build reads
_FIRST_FORMAT: Final = 1  # of a new file, until `raise_format`
_APPLICATION_ID: Final = 0x44614E62  # "DaNb"

_SCHEMA: Final = (

    """CREATE TABLE kv (
        key TEXT PRIMARY KEY, value BLOB NOT NULL,
        create_revision INTEGER NOT NULL, mod_revision INTEGER NOT NULL, lease_id INTEGER
    ) WITHOUT ROWID""",
    "CREATE INDEX kv_by_lease ON kv (lease_id, key) WHERE lease_id IS NOT NULL",
    """CREATE TABLE history (
        revision INTEGER NOT NULL, position INTEGER NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL,
        value BLOB NOT NULL, create_revision INTEGER NOT NULL, lease_id INTEGER,
        PRIMARY KEY (revision, position)
    ) WITHOUT ROWID""",
    "CREATE TABLE leases (lease_id INTEGER PRIMARY KEY, ttl_ms INTEGER NOT NULL)",
    """CREATE TABLE counters (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        revision INTEGER NOT NULL, compacted INTEGER NOT NULL, last_lease INTEGER NOT NULL
    )""",
)  # fmt: skip
_KV_COLUMNS: Final = "key, value, create_revision, mod_revision, lease_id"


def _primary_code(error: sqlite3.Error) -> int:
    code = getattr(error, "sqlite_errorcode", None)  # absent on errors that Python's module raises itself
    return int(code) & 0xFF if code is not None else sqlite3.SQLITE_ERROR


def is_terminal(error: sqlite3.Error) -> bool:
    """Return whether the file must be reopened before the next write: after every error except a full disk."""
    return _primary_code(error) != sqlite3.SQLITE_FULL


def translate(error: sqlite3.Error, *, path: Path, outcome: str | None = None) -> ClusterError:
    """Return our error for SQLite's. `outcome` is "unknown" if the transaction may have happened."""
    facts: dict[str, Any] = {
        "path": str(path),
        "reason": getattr(error, "sqlite_errorname", None) or str(error),
    }
    if outcome is not None:
        facts["outcome"] = outcome
    match _primary_code(error):
        case sqlite3.SQLITE_FULL:
            return DiskFull(f"{path}: no room for metadata. Nothing was changed: make room", **facts)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return DataDirLocked(f"{path} is in use by another process. Stop it first", **facts)
        case sqlite3.SQLITE_NOTADB:
            return DataDirForeign(f"{path} is not a metadata file. Move it away", **facts)
        case sqlite3.SQLITE_CORRUPT:
            return CorruptMetadata(f"{path} is damaged ({error}). Restore it from a copy", **facts)
    return MetadataUnavailable(f"{path}: {error}. Writing stops until the broker is started again", **facts)


class SqliteRows:
    """Rows over one connection, used only in the thread that opened it. Methods raise `sqlite3.Error`."""

    def __init__(self, path: Path, *, first_revision: int = 0) -> None:
        """Open the file, or create one that begins at that revision.

        Raises:
            DataDirLocked, DataDirForeign, FormatTooNew, CorruptMetadata, MetadataUnavailable: the file is unchanged.
        """
        self.path = path
        is_new = not path.exists()
        try:
            self._connection = sqlite3.connect(path, isolation_level=None, timeout=0.0)
        except sqlite3.Error as error:
            raise translate(error, path=path) from error
        try:
            self._prepare(first_revision)
            if is_new:
                sync_folder(path.parent)
        except sqlite3.Error as error:
            self._connection.close()
            raise translate(error, path=path) from error
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self, first_revision: int) -> None:
        run = self._connection.execute
        # Set before the first access in WAL mode, which then needs no shared-memory file
        run("PRAGMA locking_mode = EXCLUSIVE")
        application_id = int(run("PRAGMA application_id").fetchone()[0])
        version = int(run("PRAGMA user_version").fetchone()[0])
        is_empty = run("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if not is_empty and application_id != _APPLICATION_ID:
            raise DataDirForeign(
                f"{self.path} is an SQLite file of another program. Move it away", path=str(self.path)
            )
        if version > METADATA_FORMAT_VERSION:
            raise FormatTooNew(
                f"{self.path} has format {version}, this version reads up to {METADATA_FORMAT_VERSION}: upgrade",
                path=str(self.path),
                value=version,
                limit=METADATA_FORMAT_VERSION,
            )
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")
        run("PRAGMA fullfsync = ON")  # macOS: reach the platter, not only the drive
        run("PRAGMA checkpoint_fullfsync = ON")
        self.begin()
        if is_empty:
            for statement in _SCHEMA:
                run(statement)
            run("INSERT INTO counters VALUES (1, ?, ?, 0)", (first_revision, first_revision))
            run(f"PRAGMA application_id = {_APPLICATION_ID}")
            run(f"PRAGMA user_version = {_FIRST_FORMAT}")
        self.commit()

    def close(self) -> None:
        self._connection.close()

    def raise_format(self, version: int) -> int:
        """Let only builds that read this format open the file. Return the format in force, which never decreases."""
        raised = max(version, int(self._connection.execute("PRAGMA user_version").fetchone()[0]))
        self._connection.execute(f"PRAGMA user_version = {raised}")
        return raised

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def roll_back(self) -> None:
        """End the open transaction, if SQLite has not done so itself."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    # Rows

    def get(self, key: str) -> KeyValue | None:
        row = self._connection.execute(f"SELECT {_KV_COLUMNS} FROM kv WHERE key = ?", (key,)).fetchone()
        return None if row is None else _key_value(row)

    def scan(self, range_: KeyRange, *, limit: int, descending: bool) -> list[KeyValue]:
        order = "DESC" if descending else "ASC"
        rows = self._connection.execute(
            f"SELECT {_KV_COLUMNS} FROM kv WHERE key >= ? AND key < ? ORDER BY key {order} LIMIT ?",
            (range_.start, range_.end, limit),
        )
        return [_key_value(row) for row in rows.fetchall()]

    def put(self, item: KeyValue) -> None:
        self._connection.execute(
            f"INSERT OR REPLACE INTO kv ({_KV_COLUMNS}) VALUES (?, ?, ?, ?, ?)",
            (item.key, item.value, item.create_revision, item.mod_revision, item.lease_id),
        )

    def delete(self, key: str) -> None:
        self._connection.execute("DELETE FROM kv WHERE key = ?", (key,))

    def keys_of_lease(self, lease_id: LeaseId) -> list[str]:
        rows = self._connection.execute("SELECT key FROM kv WHERE lease_id = ? ORDER BY key", (lease_id,))
        return [row[0] for row in rows.fetchall()]

    def append_events(self, events: Sequence[Event]) -> None:
        self._connection.executemany(
            "INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (e.revision, position, e.kind.value, e.key, e.value, e.create_revision, e.lease_id)
                for position, e in enumerate(events)
            ],
        )

    def events(self, range_: KeyRange, place: Place, *, limit: int) -> list[tuple[Event, Place]]:
        rows = self._connection.execute(
            "SELECT revision, position, kind, key, value, create_revision, lease_id FROM history"
            " WHERE (revision, position) >= (?, ?) AND key >= ? AND key < ?"
            " ORDER BY revision, position LIMIT ?",
            (*place, range_.start, range_.end, limit),
        )
        return [
            (
                Event(
                    kind=EventKind(kind),
                    revision=Revision(revision),
                    key=key,
                    value=value,
                    create_revision=Revision(create_revision),
                    lease_id=None if lease_id is None else LeaseId(lease_id),
                ),
                Place(Revision(revision), position),
            )
            for revision, position, kind, key, value, create_revision, lease_id in rows.fetchall()
        ]

    def forget_events(self, up_to: Revision) -> None:
        self._connection.execute("DELETE FROM history WHERE revision <= ?", (up_to,))

    def put_lease(self, lease_id: LeaseId, ttl_ms: int) -> None:
        self._connection.execute("INSERT INTO leases VALUES (?, ?)", (lease_id, ttl_ms))

    def delete_lease(self, lease_id: LeaseId) -> None:
        self._connection.execute("DELETE FROM leases WHERE lease_id = ?", (lease_id,))

    def leases(self) -> dict[LeaseId, int]:
        rows = self._connection.execute("SELECT lease_id, ttl_ms FROM leases")
        return {LeaseId(lease_id): ttl_ms for lease_id, ttl_ms in rows.fetchall()}

    def counters(self) -> Counters:
        row = self._connection.execute("SELECT revision, compacted, last_lease FROM counters").fetchone()
        return Counters(revision=Revision(row[0]), compacted=Revision(row[1]), last_lease=LeaseId(row[2]))

    def put_counters(self, counters: Counters) -> None:
        self._connection.execute(
            "UPDATE counters SET revision = ?, compacted = ?, last_lease = ?",
            (counters.revision, counters.compacted, counters.last_lease),
        )


def _key_value(row: tuple[str, bytes, int, int, int | None]) -> KeyValue:
    key, value, create_revision, mod_revision, lease_id = row
    return KeyValue(
        key=key,
        value=value,
        create_revision=Revision(create_revision),
        mod_revision=Revision(mod_revision),
        lease_id=None if lease_id is None else LeaseId(lease_id),
    )
