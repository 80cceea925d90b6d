"""`postgres-source`: publish the rows of tables, then every change of them in commit order.

The snapshot is at least once, because an interrupted snapshot starts from the beginning. The changes after it are
exactly once. An application can have the rows of a table read again between two changes. It writes a message into the log:
`pg_logical_emit_message(true, 'danube', 'snapshot public.orders')`. A position is the end of the last whole transaction and
the number of records of the next one. The slot keeps the changes that are not stored yet.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql
from pydantic import Field
from pydanube_core.errors import InvalidArgument, PermissionDenied

from pydanube_connect.connector import Settings, Source
from pydanube_connect.postgres.connecting import Connection, translated
from pydanube_connect.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Change,
    Commit,
    Message,
    Relation,
    RelationColumn,
    Truncate,
    Values,
    decode,
)
from pydanube_connect.postgres.replication import Replication, lsn_of, lsn_text, time_of
from pydanube_connect.postgres.tables import name_of, primary_key
from pydanube_connect.records import Batch, Record, RetryLater

_WAIT_S: Final = 1.0
_CATCH_UP_S: Final = 10.0  # seconds that one `read` spends on changes of other tables
_BATCH_BYTES: Final = 1 << 20
_SNAPSHOT_ROWS: Final = 1_000
_BOOL: Final = 16
_INTEGERS: Final = frozenset({20, 21, 23, 26})
_FLOATS: Final = frozenset({700, 701})
_JSON: Final = frozenset({114, 3802})
_STREAM: Final = ""  # the shard of the changes
log = logging.getLogger("pydanube.connect")


class PostgresSourceSettings(Settings):
    """Settings of `postgres-source`."""

    dsn: str = Field(description="postgresql://user:${env:PG_PASSWORD}@host/database. The user may replicate")
    tables: list[str] = Field(min_length=1, max_length=1_000, description="table or schema.table, each")
    slot: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9_]{1,63}$",
        description="replication slot. Unset: danube_ and the connector's name",
    )
    publication: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9_]{1,63}$",
        description="made where it does not exist. Unset: named like the slot",
    )
    snapshot: bool = Field(default=True, description="read the rows that are there before the first change")


class _Slot(NamedTuple):
    wal_status: str | None
    pid: int | None  # process of the server that reads it


class PostgresSource(Source[PostgresSourceSettings]):
    """Reads rows and changes."""

    deterministic = True

    def __init__(self, settings: PostgresSourceSettings, *, name: str) -> None:
        super().__init__(settings, name=name)
        own = "danube_" + re.sub(r"[^a-z0-9_]", "_", name.lower())[:56]
        self._slot = settings.slot or own
        self._publication = settings.publication or own
        self._tables = [table if "." in table else f"public.{table}" for table in settings.tables]
        for table in self._tables:
            name_of(table)
        self._connection = Connection(settings.dsn)
        self._replication: Replication | None = None
        self._snapshot: AsyncIterator[Batch] | None = None
        self._relations: dict[int, Relation] = {}
        self._keys: dict[str, list[str]] = {}
        self._begin: Begin | None = None
        self._whole = 0  # LSN at the end of the last whole transaction
        self._count = 0  # records of the transaction after it
        self._skip = 0  # of these, the number that was stored before
        self._target = 0  # the server's LSN when the stream began. `--once` reads up to it
        self._emitted: str | None = None
        self._streaming = False
        self._published: set[str] = set()  # tables of the publication. Empty: it does not exist
        self._made_slot = False
        self._held: list[bytes] = []  # messages after a signal, until its rows are read

    async def open(self) -> None:
        connection = await self._connection.open()
        with translated("making the publication"):
            await self._prepare(connection)
            if not self._published:
                names = sql.SQL(", ").join(map(name_of, self._tables))
                await connection.execute(
                    sql.SQL("CREATE PUBLICATION {} FOR TABLE {}").format(
                        sql.Identifier(self._publication), names
                    )
                )

    async def close(self) -> None:
        self._snapshot = None
        if self._replication is not None:
            await self._replication.close()
            self._replication = None
        await self._connection.close()

    async def check(self) -> list[str]:
        connection = await self._connection.open()
        with translated("reading the tables"):
            await self._prepare(connection)
        slot = await self._slot_now(connection)
        if slot is not None and slot.pid is not None:
            raise InvalidArgument(
                f"{self._in_use(slot.pid)} Stop the other connector, or set settings.slot.",
                field="settings.slot", value=self._slot,
            )  # fmt: skip
        return [f"tables {', '.join(self._tables)} can be read, slot {self._slot}"]

    async def held_bytes(self) -> int | None:
        if not self._connection.is_open or self._snapshot is not None:
            return None
        cursor = await self._connection.opened.execute(
            "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint FROM pg_replication_slots "
            "WHERE slot_name = %s", [self._slot],
        )  # fmt: skip
        row = await cursor.fetchone()
        return None if row is None else row[0]

    def _in_use(self, pid: int) -> str:
        return f"the replication slot {self._slot} is in use by the process {pid} of PostgreSQL."

    async def _slot_now(self, connection: psycopg.AsyncConnection[Any]) -> _Slot | None:
        cursor = await connection.execute(
            "SELECT wal_status, active_pid FROM pg_replication_slots WHERE slot_name = %s", [self._slot]
        )
        row = await cursor.fetchone()
        return None if row is None else _Slot(*row)

    async def _prepare(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Check server, rights, tables and publication, before anything is changed."""
        ((level,),) = await (await connection.execute("SHOW wal_level")).fetchall()
        if level != "logical":
            raise InvalidArgument(
                f"PostgreSQL runs with wal_level = {level}. Set wal_level = logical in postgresql.conf and restart it.",
                field="settings.dsn", value=None,
            )  # fmt: skip
        may = "SELECT rolreplication OR rolsuper, rolname FROM pg_roles WHERE rolname = current_user"
        ((replicates, user),) = await (await connection.execute(may)).fetchall()
        if not replicates:
            raise PermissionDenied(
                f"PostgreSQL does not let {user} replicate. Run ALTER ROLE {user} REPLICATION."
            )
        for table in self._tables:
            name = name_of(table)
            ((readable,),) = await (
                await connection.execute(
                    "SELECT has_table_privilege(to_regclass(%s), 'SELECT')", [name.as_string(connection)]
                )
            ).fetchall()
            if readable is False:
                raise PermissionDenied(
                    f"PostgreSQL does not let {user} read {table}. Run GRANT SELECT ON {table} TO {user}."
                )
            if readable is None:
                raise InvalidArgument(
                    f"table {table} does not exist. Correct settings.tables.",
                    field="settings.tables",
                    value=table,
                )
            self._keys[table] = await primary_key(connection, name)
        cursor = await connection.execute(
            "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = %s",
            [self._publication],
        )
        self._published = published = {name for (name,) in await cursor.fetchall()}
        if published and (missing := set(self._tables) - published):
            raise InvalidArgument(
                f"publication {self._publication} lacks {', '.join(sorted(missing))}. Run ALTER PUBLICATION "
                f"{self._publication} ADD TABLE {', '.join(sorted(missing))}.", field="settings.tables", value=sorted(missing),
            )  # fmt: skip

    async def start(self, positions: Mapping[str, str]) -> None:
        connection = self._connection.opened
        slot = await self._slot_now(connection)
        position = positions.get(_STREAM)
        if slot is not None and slot.pid is not None:  # also for a while after the host of a worker is lost
            raise RetryLater(reason=self._in_use(slot.pid))
        if position is not None and (slot is None or slot.wal_status == "lost"):
            raise InvalidArgument(
                f"the replication slot {self._slot} is gone, and with it changes since {position.partition(' ')[0]}. To read "
                f"all rows again, delete the topic connect-{self.name}-positions and start the connector.",
                field="settings.slot", value=self._slot,
            )  # fmt: skip
        self._streaming, self._held = False, []
        self._replication = Replication(self.settings.dsn)
        await self._replication.open()
        if position is None:
            if slot is not None:
                if self.settings.slot is not None and not self._made_slot:
                    raise InvalidArgument(
                        f"the replication slot {self._slot} exists, and may be another connector's. If it is not, drop it: "
                        f"SELECT pg_drop_replication_slot('{self._slot}'). Else correct settings.slot.",
                        field="settings.slot", value=self._slot,
                    )  # fmt: skip
                # it is this connector's by its name, left by an interrupted snapshot
                await connection.execute("SELECT pg_drop_replication_slot(%s)", [self._slot])
            lsn, snapshot = await self._replication.create_slot(self._slot)
            self._made_slot = True
            self._snapshot = self._rows(lsn, snapshot)
        else:
            text, _, count = position.partition(" ")
            await self._stream(lsn_of(text), int(count))

    async def _stream(self, lsn: int, skip: int) -> None:
        assert self._replication is not None
        await self._replication.start(self._slot, lsn, self._publication)
        self._relations.clear()
        self._begin = None
        self._whole, self._count, self._skip = lsn, 0, skip
        ((now,),) = await (
            await self._connection.opened.execute("SELECT pg_current_wal_lsn()::text")
        ).fetchall()
        self._target = lsn_of(now)
        self._streaming = True

    # -- the snapshot ----------------------------------------------------------------------------------------

    async def _rows(self, lsn: int, snapshot: str) -> AsyncIterator[Batch]:
        """Yield the rows as of the start of the slot, then the position of the first change."""
        for table in self._tables if self.settings.snapshot else ():
            async for batch in self._rows_of(table, lsn, snapshot):
                yield batch
        yield Batch([], position=f"{lsn_text(lsn)} 0", shard=_STREAM)
        await self._stream(lsn, 0)

    async def _rows_of(self, table: str, lsn: int, snapshot: str | None) -> AsyncIterator[Batch]:
        """Yield the rows of a table as of a snapshot, or as of now."""
        connection = self._connection.opened
        # Each attempt has its own producer, so its rows never count as repeated
        shard = f"snapshot-{lsn:x}-{secrets.token_hex(3)}"
        async with connection.transaction():
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            if snapshot is not None:
                await connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
            columns = await self._columns(connection, table)
            texts = sql.SQL(", ").join(
                sql.SQL("{}::text").format(sql.Identifier(column.name)) for column in columns
            )
            async with connection.cursor(name="danube_snapshot") as cursor:
                await cursor.execute(sql.SQL("SELECT {} FROM {}").format(texts, name_of(table)))
                while rows := await cursor.fetchmany(_SNAPSHOT_ROWS):
                    records = [
                        self._record("read", table, columns, None, list(row), lsn, None) for row in rows
                    ]
                    yield Batch(records, position=table, shard=shard)
                    if self._streaming and self._replication is not None:
                        self._replication.report()  # the server ends a stream that is silent for a minute

    async def _columns(self, connection: psycopg.AsyncConnection[Any], table: str) -> list[RelationColumn]:
        cursor = await connection.execute(
            "SELECT attname, atttypid FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped "
            "AND attgenerated = '' ORDER BY attnum",
            [name_of(table).as_string(connection)],
        )
        return [
            RelationColumn(name=name, type_oid=oid, in_key=name in self._keys[table])
            for name, oid in await cursor.fetchall()
        ]

    # -- changes ---------------------------------------------------------------------------------------------

    async def read(self) -> Batch | None:
        if self._snapshot is not None:
            async for batch in self._snapshot:
                return batch
            self._snapshot = None
        assert self._replication is not None
        until = time.monotonic() + _CATCH_UP_S
        while True:
            messages = self._held or await self._replication.messages(_WAIT_S, _BATCH_BYTES)
            self._held = []
            records = self._records(messages)
            if records:
                self._emitted = f"{lsn_text(self._whole)} {self._count}"
                return Batch(records, position=self._emitted, shard=_STREAM)
            if self._snapshot is not None:
                return await self.read()
            self._idle(self._replication, quiet=not messages)
            behind = self._replication.seen_lsn < self._target
            if time.monotonic() >= until or not (messages or behind):
                return None

    def _records(self, messages: list[bytes]) -> list[Record]:
        """Return the records of messages, up to a signal. Messages after it wait until its rows are read."""
        records = []
        for at, message in enumerate(messages):
            if (record := self._of(message)) is not None:
                records.append(record)
            if self._snapshot is not None:
                self._held = messages[at + 1 :]
                break
        return records

    def _signalled(self, message: Message) -> None:
        if message.prefix != "danube":
            return
        word, _, table = message.content.decode(errors="replace").strip().partition(" ")
        table = table if "." in table else f"public.{table}"
        if word == "snapshot" and table in self._tables:
            self._snapshot = self._rows_of(table, message.lsn, None)
        else:
            log.warning(
                "connector_signal_refused",
                extra={"connector": self.name, "signal": f"{word} {table}"[:200], "tables": self._tables},
            )

    def _idle(self, replication: Replication, *, quiet: bool) -> None:
        """Let the server discard changes of other tables, so that they do not fill the disk of a quiet database."""
        if not self._count and self._emitted is None and self._snapshot is None:
            seen = replication.seen_lsn if quiet and self._begin is None else 0
            replication.stored_lsn = max(replication.stored_lsn, self._whole, seen)
        replication.report()

    async def stored(self, batch: Batch) -> None:
        if batch.shard != _STREAM or batch.position is None or self._replication is None:
            return
        if batch.position == self._emitted:
            self._emitted = None
        if self._streaming:
            self._replication.stored_lsn = lsn_of(batch.position.partition(" ")[0])
            self._replication.report()

    def _of(self, message: bytes) -> Record | None:
        event = decode(message)
        match event:
            case Relation():
                self._relations[event.oid] = event
            case Begin():
                self._begin = event
            case Commit():
                self._begin = None
                self._whole, self._count, self._skip = event.end_lsn, 0, 0
            case Change():
                return self._changed(event)
            case Truncate():
                names = [
                    f"{self._relations[oid].schema}.{self._relations[oid].name}" for oid in event.relations
                ]
                return self._counted(Record(self._value("truncate", ", ".join(names), None, None, [], None)))
            case Message():
                self._signalled(event)
            case None:
                pass
        return None

    def _changed(self, change: Change) -> Record | None:
        relation = self._relations[change.relation]
        table = f"{relation.schema}.{relation.name}"
        return self._counted(
            self._record(change.kind, table, relation.columns, change.old, change.new, 0, change)
        )

    def _counted(self, record: Record) -> Record | None:
        """Count a record of the transaction. Return None if it was stored before."""
        self._count += 1
        return record if self._count > self._skip else None

    def _record(
        self,
        op: str,
        table: str,
        columns: Any,
        old: Values | None,
        new: Values | None,
        lsn: int,
        change: Change | None,
    ) -> Record:
        shown = old if change is None or not change.old_is_key else None
        before = None if shown is None else _object(columns, shown)
        after = None if new is None else _object(columns, new)
        unchanged = [
            column.name for column, value in zip(columns, new or (), strict=False) if value is UNCHANGED
        ]
        if after is not None and before is not None:
            after |= {name: before[name] for name in unchanged if name in before}
            unchanged = [name for name in unchanged if name not in before]
        keys = self._keys.get(table) or [column.name for column in columns if column.in_key]
        of_key = after if after is not None else _object(columns, old or [])
        parts = [None if of_key.get(name) is None else str(of_key[name]) for name in keys]
        key = (
            None
            if not parts
            else parts[0]
            if len(parts) == 1
            else json.dumps([of_key.get(name) for name in keys])
        )
        return Record(self._value(op, table, before, after, unchanged, lsn or None), key)

    def _value(
        self, op: str, table: str, before: Any, after: Any, unchanged: list[str], lsn: int | None
    ) -> dict[str, Any]:
        begin = self._begin if op != "read" else None
        found = {
            "op": op, "table": table, "before": before, "after": after,
            "lsn": lsn_text(lsn or (begin.final_lsn if begin is not None else 0)),
            "xid": begin.xid if begin is not None else None,
            "committed_at": time_of(begin.committed_us).isoformat() if begin is not None else None,
        }  # fmt: skip
        return found | ({"unchanged": unchanged} if unchanged else {})


def _object(columns: Any, values: Values) -> dict[str, Any]:
    return {
        column.name: _value_of(column.type_oid, value)
        for column, value in zip(columns, values, strict=False)
        if value is not UNCHANGED
    }


def _value_of(oid: int, text: Any) -> Any:
    """Return a column's text as a JSON value. Text that JSON cannot represent exactly is returned unchanged."""
    if text is None:
        return None
    if oid == _BOOL:
        return text in ("t", "true")
    if oid in _INTEGERS:
        return int(text)
    if oid in _FLOATS and text not in ("NaN", "Infinity", "-Infinity"):
        return float(text)
    return json.loads(text) if oid in _JSON else text
