"""Decode `pgoutput`, the plugin of PostgreSQL's logical replication, protocol version 1. Pure.

Source of the format: PostgreSQL documentation, "Logical Replication Message Formats". Values are texts in PostgreSQL's
notation. The server omits unchanged out-of-line values (TOAST). They are decoded as `UNCHANGED`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Toast(Enum):
    """Marks a value that the server omitted because it did not change."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Toast.UNCHANGED
Values = list[str | Toast | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationColumn:
    name: str
    type_oid: int
    in_key: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """The definition of a table for the changes that follow."""

    oid: int
    schema: str
    name: str
    identity: str  # d: primary key, n: nothing, f: full, i: index
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    final_lsn: int  # LSN of the commit
    committed_us: int  # microseconds since 2000-01-01
    xid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    end_lsn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of one row. `old` is the previous row, or its key columns, if the server sent them."""

    kind: str  # insert, update, delete
    relation: int
    old: Values | None = None
    old_is_key: bool = False
    new: Values | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    relations: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message that an application wrote into the log with `pg_logical_emit_message`."""

    lsn: int
    prefix: str
    content: bytes


Event = Begin | Commit | Relation | Change | Truncate | Message
_KINDS: Final = {"I": "insert", "U": "update", "D": "delete"}


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def numbers(self, form: str) -> tuple[int, ...]:
        found: tuple[int, ...] = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(f">{form}")
        return found

    def char(self) -> str:
        self._at += 1
        return chr(self._data[self._at - 1])

    def text(self) -> str:
        end = self._data.index(b"\0", self._at)
        found = self._data[self._at : end].decode()
        self._at = end + 1
        return found

    def bytes(self, size: int) -> bytes:
        if self._at + size > len(self._data):
            raise ValueError("a value reaches beyond its message")
        self._at += size
        return self._data[self._at - size : self._at]

    def values(self) -> Values:
        found: Values = []
        for _ in range(self.numbers("H")[0]):
            match self.char():
                case "n":
                    found.append(None)
                case "u":
                    found.append(UNCHANGED)
                case "t":
                    found.append(self.bytes(self.numbers("I")[0]).decode())
                case other:
                    raise ValueError(f"pgoutput has no value of kind {other!r}")
        return found


def decode(data: bytes) -> Event | None:
    """Return the event of a message, or None for origins and types.

    Raises:
        ValueError: the message violates the protocol.
    """
    try:
        return _decode(_Reader(data))
    except (struct.error, IndexError) as error:
        raise ValueError(f"a message of pgoutput ends too early: {data[:32]!r}") from error


def _decode(read: _Reader) -> Event | None:
    kind = read.char()
    match kind:
        case "B":
            lsn, at_us, xid = read.numbers("QqI")
            return Begin(final_lsn=lsn, committed_us=at_us, xid=xid)
        case "C":
            _, _, end_lsn, _ = read.numbers("BQQq")
            return Commit(end_lsn=end_lsn)
        case "R":
            (oid,) = read.numbers("I")
            schema, name, identity = read.text(), read.text(), read.char()
            columns = []
            for _ in range(read.numbers("H")[0]):
                (flags,) = read.numbers("B")
                column = read.text()
                type_oid, _ = read.numbers("Ii")
                columns.append(RelationColumn(name=column, type_oid=type_oid, in_key=bool(flags & 1)))
            return Relation(oid=oid, schema=schema, name=name, identity=identity, columns=tuple(columns))
        case "I" | "U" | "D":
            (relation,) = read.numbers("I")
            old: Values | None = None
            part = before = read.char()
            if part in "KO":
                old = read.values()
                part = read.char() if kind == "U" else ""
            new = read.values() if part == "N" else None
            return Change(kind=_KINDS[kind], relation=relation, old=old, old_is_key=before == "K", new=new)
        case "T":
            count, _ = read.numbers("IB")
            return Truncate(relations=read.numbers(f"{min(count, 100_000)}I"))
        case "M":
            _, lsn = read.numbers("BQ")
            prefix = read.text()
            (size,) = read.numbers("I")
            return Message(lsn=lsn, prefix=prefix, content=read.bytes(size))
        case "O" | "Y":
            return None
        case _:
            raise ValueError(f"pgoutput has no message of kind {kind!r}")
