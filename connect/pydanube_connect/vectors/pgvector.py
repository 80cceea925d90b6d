"""Points as rows of PostgreSQL with the extension pgvector: `id`, `embedding`, `payload`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb
from pydanube_core.errors import InvalidArgument

from pydanube_connect.postgres.connecting import Connection, translated
from pydanube_connect.postgres.tables import columns_of, name_of
from pydanube_connect.values import json_payload
from pydanube_connect.vectors.points import Point

_OPERATORS: Final = {"cosine": "vector_cosine_ops", "l2": "vector_l2_ops", "dot": "vector_ip_ops"}
_MOST_INDEXED: Final = 2_000  # dimensions that an index of pgvector may have
_DIMENSIONS: Final = """
SELECT atttypmod FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = 'embedding' AND NOT attisdropped
"""


class PgVector:
    """A table with a vector column."""

    def __init__(self, dsn: str, table: str, distance: str) -> None:
        self._text = table
        self._table = name_of(table)
        self._distance = distance
        self._connection = Connection(dsn)

    async def open(self) -> None:
        await self._connection.open()

    async def close(self) -> None:
        await self._connection.close()

    async def dimensions(self) -> int | None:
        connection = self._connection.opened
        columns = await columns_of(connection, self._table)
        if not columns:
            return None
        missing = {"id", "embedding", "payload"} - columns.keys()
        if missing or not columns["embedding"].startswith("vector"):
            raise InvalidArgument(
                f"table {self._text} needs the columns id text PRIMARY KEY, embedding vector(N), payload jsonb. Correct it, or "
                "choose another settings.collection.", field="settings.collection", value=self._text,
            )  # fmt: skip
        cursor = await connection.execute(_DIMENSIONS, [self._table.as_string(connection)])
        row = await cursor.fetchone()
        return row[0] if row is not None and row[0] > 0 else None

    async def make(self, dimensions: int) -> None:
        connection = self._connection.opened
        index = sql.Identifier(f"{self._text.rpartition('.')[2]}_embedding"[:63])
        operators = sql.SQL(_OPERATORS[self._distance])
        try:
            with translated(self._text):
                await connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
                await connection.execute(
                    sql.SQL(
                        "CREATE TABLE IF NOT EXISTS {} (id text PRIMARY KEY, embedding vector({}), payload jsonb)"
                    ).format(self._table, sql.Literal(dimensions))
                )
                if dimensions <= _MOST_INDEXED:
                    await connection.execute(
                        sql.SQL("CREATE INDEX IF NOT EXISTS {} ON {} USING hnsw (embedding {})").format(
                            index, self._table, operators
                        )
                    )
        except (psycopg.errors.UndefinedFile, psycopg.errors.FeatureNotSupported) as error:
            if "vector" not in str(error):
                raise
            raise InvalidArgument(
                "the PostgreSQL of settings.url has no extension pgvector. Install it there.",
                field="settings.url", value=None,
            ) from None  # fmt: skip

    async def write(self, points: Sequence[Point]) -> None:
        connection = self._connection.opened
        upsert = sql.SQL(
            "INSERT INTO {} (id, embedding, payload) VALUES (%s, %s::vector, %s) "
            "ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding, payload = excluded.payload"
        ).format(self._table)
        rows = [
            (point.id, f"[{','.join(map(repr, point.vector))}]", Jsonb(point.payload, dumps=json_payload))
            for point in points if point.payload is not None
        ]  # fmt: skip
        gone = [point.id for point in points if point.payload is None]
        with translated(self._text):
            async with connection.transaction():
                if gone:
                    await connection.execute(
                        sql.SQL("DELETE FROM {} WHERE id = ANY(%s)").format(self._table), [gone]
                    )
                if rows:
                    async with connection.cursor() as cursor:
                        await cursor.executemany(upsert, rows)
