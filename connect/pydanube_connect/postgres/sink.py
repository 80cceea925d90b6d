"""`postgres-sink`: insert, upsert and delete rows of a table, exactly once.

The positions are in the table `danube_positions` of the same database. A batch is one transaction. It moves the
positions, provided that they still equal the start of the batch, and writes the rows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from types import NoneType
from typing import Any, Final, Literal

import psycopg
from psycopg import sql
from pydantic import Field
from pydanube_core.errors import InvalidArgument

from pydanube_connect.connector import Guarantee, Settings, Sink
from pydanube_connect.postgres.connecting import Connection, translated
from pydanube_connect.postgres.tables import (
    MOST_COLUMNS,
    adapt,
    columns_of,
    inferred,
    name_of,
    primary_key,
)
from pydanube_connect.records import Batch, Place, Record, Refused
from pydanube_connect.shaping import key_text
from pydanube_connect.writing import Overtaken

_POSITIONS: Final = """
CREATE TABLE IF NOT EXISTS danube_positions (
  connector text, topic text, partition integer, next_offset bigint NOT NULL, PRIMARY KEY (connector, topic, partition))
"""
#: held until the transaction ends. Of two concurrent CREATE TABLE IF NOT EXISTS of a table, PostgreSQL fails one
_ONE_AT_A_TIME: Final = "SELECT pg_advisory_xact_lock(7310012207)"


class PostgresSinkSettings(Settings):
    """Settings of `postgres-sink`."""

    dsn: str = Field(description="postgresql://user:${env:PG_PASSWORD}@host/database")
    table: str = Field(description="table or schema.table, made from the first batch where it does not exist")
    mode: Literal["insert", "upsert"] = Field(
        default="insert", description="a row for each record, or the newest row of each key, and deletions"
    )
    key: list[str] = Field(
        default=[], description="key columns of upsert. Unset: the primary key of the table"
    )
    evolve: bool = Field(default=True, description="make the table, and add columns for new fields")


class PostgresSink(Sink[PostgresSinkSettings]):
    """Writes rows."""

    def __init__(self, settings: PostgresSinkSettings, *, name: str) -> None:
        super().__init__(settings, name=name)
        self._table = name_of(settings.table)
        self._connection = Connection(settings.dsn)
        self._types: dict[str, str] = {}
        self._key: list[str] = []

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    async def open(self) -> None:
        connection = await self._connection.open()
        with translated("the table danube_positions"):
            if await columns_of(connection, sql.Identifier("danube_positions")) == {}:
                async with connection.transaction():
                    await connection.execute(_ONE_AT_A_TIME)
                    await connection.execute(_POSITIONS)
            await self._look(connection)

    async def close(self) -> None:
        await self._connection.close()

    async def check(self) -> list[str]:
        connection = await self._connection.open()
        await self._look(connection)
        if not self._types:
            return [f"table {self.settings.table} does not exist: it is made from the first batch"]
        return [f"table {self.settings.table} has the columns {', '.join(self._types)}"]

    async def _look(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Read the table's columns and key, and check them against the settings."""
        settings = self.settings
        self._types = await columns_of(connection, self._table)
        if not self._types and not settings.evolve:
            raise InvalidArgument(
                f"table {settings.table} does not exist. Create it, or set settings.evolve = true.",
                field="settings.table", value=settings.table,
            )  # fmt: skip
        self._key = settings.key or (await primary_key(connection, self._table) if self._types else [])
        if settings.mode == "upsert" and not self._key:
            raise InvalidArgument(
                f"settings.mode = 'upsert' needs a key, and table {settings.table} has no primary key. Add key = [\"id\"] to "
                "[settings].", field="settings.key", value=[],
            )  # fmt: skip

    async def positions(self, places: Collection[Place]) -> Mapping[Place, int]:
        connection = self._connection.opened
        if await columns_of(connection, sql.Identifier("danube_positions")) == {}:
            return {}
        cursor = await connection.execute(
            "SELECT topic, partition, next_offset FROM danube_positions WHERE connector = %s", [self.name]
        )
        found = {(topic, partition): offset for topic, partition, offset in await cursor.fetchall()}
        return {place: found[_row(place)] for place in places if _row(place) in found}

    async def write(self, batch: Batch) -> None:
        await self._write(batch, rehearsal=False)

    async def rehearse(self, batch: Batch) -> None:
        await self._write(batch, rehearsal=True)
        self._types = await columns_of(self._connection.opened, self._table)

    async def _write(self, batch: Batch, *, rehearsal: bool) -> None:
        connection = self._connection.opened
        if not {*map(type, batch.values)} <= {dict, NoneType}:
            wrong = [record for record in batch if not isinstance(record.value, dict | None)]
            raise Refused(wrong, "a row is an object, and the value is none")
        try:
            with translated(f"writing to {self.settings.table}"):
                async with connection.transaction(force_rollback=rehearsal):
                    if rehearsal:  # the locks of a rehearsal must not stand in the way of others
                        await connection.execute("SET LOCAL lock_timeout = '2s'")
                        await connection.execute(_POSITIONS)
                    else:
                        await self._move_positions(connection, batch)
                    await self._write_rows(connection, batch)
        except (psycopg.DataError, psycopg.IntegrityError, psycopg.NotSupportedError) as error:
            self._types = await columns_of(connection, self._table)  # added columns are rolled back
            raise Refused(None, _reason(error)) from None

    async def _move_positions(self, connection: psycopg.AsyncConnection[Any], batch: Batch) -> None:
        """Move the positions from the start of the batch to its end. Their rows stay locked until the commit.

        Raises:
            Overtaken: a position is not at the start of the batch.
        """
        for place, end in sorted(batch.ends.items(), key=lambda each: _row(each[0])):
            start = batch.starts.get(place)
            if start is None:
                cursor = await connection.execute(
                    "INSERT INTO danube_positions VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
                    [self.name, *_row(place), end],
                )
            else:
                cursor = await connection.execute(
                    "UPDATE danube_positions SET next_offset = %s WHERE connector = %s AND topic = %s AND partition = %s "
                    "AND next_offset = %s",
                    [end, self.name, *_row(place), start],
                )
            if cursor.rowcount != 1:
                raise Overtaken

    async def _write_rows(self, connection: psycopg.AsyncConnection[Any], batch: Batch) -> None:
        if self.settings.mode == "insert":
            rows = batch.values
            if None in rows:
                deletions = [record for record in batch if record.value is None]
                raise Refused(deletions, "the record has no value: mode = 'upsert' deletes rows")
            await self._fit(connection, rows)
            if rows:
                await self._copy(connection, self._table, rows)
            return
        newest: dict[tuple[str, ...], Record] = {self._key_of(record): record for record in batch}
        rows = [record.value for record in newest.values() if record.value is not None]
        await self._fit(connection, rows)
        if rows:
            await self._upsert(connection, rows)
        gone = [key for key, record in newest.items() if record.value is None]
        if gone and self._types:
            condition = sql.SQL(" AND ").join(
                sql.SQL("{} = %s::{}").format(sql.Identifier(name), sql.SQL(self._types[name]))
                for name in self._key
            )
            async with connection.cursor() as cursor:
                await cursor.executemany(
                    sql.SQL("DELETE FROM {} WHERE {}").format(self._table, condition), gone
                )

    def _key_of(self, record: Record) -> tuple[str, ...]:
        """Return the key of a record as texts: fields of its value, or the record key of a deletion."""
        if record.value is not None:
            return tuple(key_text(record.field(name)) for name in self._key)
        if record.key is None:
            raise Refused([record], "a deletion needs a key, and the record has none")
        if len(self._key) == 1:
            return (record.key,)
        try:
            parts = json.loads(record.key)
            found = [parts[name] for name in self._key] if isinstance(parts, dict) else list(parts)
        except (ValueError, KeyError, TypeError, RecursionError):
            found = []
        if len(found) != len(self._key):
            raise Refused(
                [record], f"the key of a deletion is a JSON array or object of {', '.join(self._key)}"
            )
        return tuple(map(key_text, found))

    async def _fit(
        self, connection: psycopg.AsyncConnection[Any], values: Sequence[Mapping[str, Any]]
    ) -> None:
        """Create the table, or add columns for fields that have none."""
        if not set().union(*values) - self._types.keys():
            return
        await connection.execute(_ONE_AT_A_TIME)
        self._types = await columns_of(connection, self._table)  # another sink may have made them
        if not set().union(*values) - self._types.keys():
            return
        missing = inferred(values, self._types)
        if not self.settings.evolve:
            names = ", ".join(missing)
            raise Refused(
                None,
                f"table {self.settings.table} has no column {names}: set settings.evolve = true or drop it",
            )
        if len(self._types) + len(missing) > MOST_COLUMNS:
            raise Refused(None, f"table {self.settings.table} would have more than {MOST_COLUMNS} columns")
        columns = [
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in missing.items()
        ]
        if self._types:
            added = sql.SQL(", ").join(
                sql.SQL("ADD COLUMN IF NOT EXISTS {}").format(column) for column in columns
            )
            await connection.execute(sql.SQL("ALTER TABLE {} {}").format(self._table, added))
        else:
            if self.settings.mode == "upsert":
                key = sql.SQL(", ").join(map(sql.Identifier, self._key))
                columns.append(sql.SQL("PRIMARY KEY ({})").format(key))
            body = sql.SQL(", ").join(columns)
            await connection.execute(sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(self._table, body))
        self._types = await columns_of(connection, self._table)

    async def _copy(
        self,
        connection: psycopg.AsyncConnection[Any],
        table: sql.Identifier,
        values: Sequence[Mapping[str, Any]],
    ) -> list[str]:
        """Copy rows into a table. Return the columns that they fill."""
        present = set().union(*values)
        columns = [name for name in self._types if name in present]
        if not columns:
            raise Refused(None, f"the record has no field of table {self.settings.table}")
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        async with connection.cursor() as cursor:
            changes = adapt(cursor, columns, self._types)
            async with cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(table, names)) as copy:
                add = copy.formatter.write_row  # the copy's own `write_row` would wait once for each row
                for value in values:
                    row = list(map(value.get, columns))
                    for at, change in changes:
                        row[at] = change(row[at])
                    if full := add(row):
                        await copy.write(full)
        return columns

    async def _upsert(
        self, connection: psycopg.AsyncConnection[Any], values: Sequence[Mapping[str, Any]]
    ) -> None:
        own = sql.Identifier("danube_batch")
        await connection.execute(
            sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT * FROM {} WITH NO DATA").format(
                own, self._table
            )
        )
        columns = await self._copy(connection, own, values)
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        changed = [name for name in columns if name not in self._key]
        change: sql.Composable = sql.SQL("NOTHING")
        if changed:
            each = [sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in changed]
            change = sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(each))
        key = sql.SQL(", ").join(map(sql.Identifier, self._key))
        await connection.execute(
            sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} ON CONFLICT ({}) DO {}").format(
                self._table, names, names, own, key, change
            )
        )


def _row(place: Place) -> tuple[str, int]:
    return place.topic, -1 if place.partition is None else place.partition


def _reason(error: psycopg.Error) -> str:
    where = error.diag.column_name or error.diag.constraint_name
    text = error.diag.message_primary or " ".join(str(error).split())
    return f"{text} ({where})" if where else text
