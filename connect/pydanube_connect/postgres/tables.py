"""Tables of a PostgreSQL sink: their columns, and the column types of new fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.adapt import Dumper
from pydantic_core import to_json
from pydanube_core.errors import InvalidArgument

#: maximum columns of a PostgreSQL table
MOST_COLUMNS: Final = 1_600
_LARGEST: Final = 1 << 63

#: index of a column, and what changes its value
Change = tuple[int, Callable[[Any], Any]]


def name_of(table: str) -> sql.Identifier:
    """Return `table` or `schema.table` as an identifier. Raises `InvalidArgument`."""
    parts = table.split(".")
    if len(parts) > 2 or not all(parts):
        raise InvalidArgument(
            f"settings.table = {table!r}: write table or schema.table", field="settings.table", value=table
        )
    return sql.Identifier(*parts)


async def columns_of(connection: psycopg.AsyncConnection[Any], table: sql.Identifier) -> dict[str, str]:
    """Return name → type of a table's columns. Empty if the table does not exist."""
    cursor = await connection.execute(
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 "
        "AND NOT attisdropped AND attgenerated = ''",
        [table.as_string(connection)],
    )
    return dict(await cursor.fetchall())


async def primary_key(connection: psycopg.AsyncConnection[Any], table: sql.Identifier) -> list[str]:
    """Return the columns of the primary key in key order."""
    cursor = await connection.execute(
        "SELECT a.attname FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k(attnum, at) JOIN pg_attribute a "
        "ON a.attrelid = i.indrelid AND a.attnum = k.attnum WHERE i.indrelid = to_regclass(%s) AND i.indisprimary ORDER BY at",
        [table.as_string(connection)],
    )
    return [name for (name,) in await cursor.fetchall()]


def inferred(values: Iterable[Mapping[str, Any]], known: Mapping[str, str]) -> dict[str, str]:
    """Return name → type of the fields that `known` lacks, inferred from the values of a batch."""
    found: dict[str, str | None] = {}
    for value in values:
        for name, field in value.items():
            if name in known:
                continue
            kind = _type_of(field)
            found[name] = kind if found.get(name) is None else _wider(found[name], kind)
    return {name: kind or "text" for name, kind in found.items()}


def _type_of(value: Any) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "boolean"
        case int():
            return "bigint" if -_LARGEST <= value < _LARGEST else "numeric"
        case float():
            return "double precision"
        case dict() | list():
            return "jsonb"
        case _:
            return "text"


def _wider(first: str | None, second: str | None) -> str | None:
    if second is None or first == second:
        return first
    numbers = {"bigint": 0, "numeric": 1, "double precision": 2}
    if first in numbers and second in numbers:
        return max(first, second, key=numbers.__getitem__)
    return "text"


class _JsonText(Dumper):
    """Writes an object or a list as JSON, into a column of any type but an array."""

    def dump(self, value: Any) -> bytes:
        return to_json(value)


def adapt(cursor: psycopg.AsyncCursor[Any], columns: Sequence[str], types: Mapping[str, str]) -> list[Change]:
    """Let a cursor copy JSON values into columns. Return the changes that each row needs before."""
    arrays = any(types[name].endswith("[]") for name in columns)
    for kind in (dict,) if arrays else (dict, list):
        cursor.adapters.register_dumper(kind, _JsonText)
    found: list[Change] = []
    for at, name in enumerate(columns):
        if types[name] in ("json", "jsonb"):
            found.append((at, _json_of))
        elif arrays and not types[name].endswith("[]"):
            found.append((at, _text_of_list))
    return found


def _json_of(value: Any) -> str | None:
    return None if value is None else to_json(value).decode()


def _text_of_list(value: Any) -> Any:
    return to_json(value).decode() if isinstance(value, list) else value
