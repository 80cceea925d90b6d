"""Points as rows of PostgreSQL with the extension pgvector: `id`, `embedding`, `payload`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb
from pydanube_core.errors import InvalidArgument

from pydanube_connect.postgres.connecting import connected, translated
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
        self._dsn = dsn
        self._text = table
        self._table = name_of(table)
        self._distance = distance
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def open(self) -> None:
        self._connection = await connected(self._dsn, autocommit=True)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def dimensions(self) -> int | None:
        assert self._connection is not None
        columns = await columns_of(self._connection, self._table)
        if not columns:
            return None
        missing = {"id", "embedding", "payload"} - columns.keys()
        if missing or not columns["embedding"].startswith("vector"):
            raise InvalidArgument(
                f"table {self._text} needs the columns id text PRIMARY KEY, embedding vector(N), payload jsonb. Correct it, or "
                "choose another settings.collection.", field="settings.collection", value=self._text,
            )  # fmt: skip
        cursor = await self._connection.execute(_DIMENSIONS, [self._table.as_string(self._connection)])
        row = await cursor.fetchone()
        return row[0] if row is not None and row[0] > 0 else None

    async def make(self, dimensions: int) -> None:
        assert self._connection is not None
        index = sql.Identifier(f"{self._text.rpartition('.')[2]}_embedding"[:63])
        operators = sql.SQL(_OPERATORS[self._distance])
        try:
            with translated(self._text):
                await self._connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
                await self._connection.execute(
                    sql.SQL(
                        "CREATE TABLE IF NOT EXISTS {} (id text PRIMARY KEY, embedding vector({}), payload jsonb)"
                    ).format(self._table, sql.Literal(dimensions))
                )
                if dimensions <= _MOST_INDEXED:
                    await self._connection.execute(
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
        assert self._connection is not None
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
            async with self._connection.transaction():
                if gone:
                    await self._connection.execute(
                        sql.SQL("DELETE FROM {} WHERE id = ANY(%s)").format(self._table), [gone]
                    )
                if rows:
                    async with self._connection.cursor() as cursor:
                        await cursor.executemany(upsert, rows)
