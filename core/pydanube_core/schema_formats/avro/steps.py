"""Functions that read Avro data ("Binary Encoding"). A reader is composed of them.

Each function reads one value at a position, appends it to a list, and returns the position behind it. Without a list it
builds nothing. The broker checks payloads in this way, and a reader skips fields that its schema lacks.

The cost of a payload is bounded by its length: nesting is limited, and an item of a list or an entry of a map takes at
least one byte. Items of zero bytes have a limit per payload. fastavro 1.13 recurses in C instead, and a linked list with
5 000 levels crashes the process (observed).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from pydanube_core.schema_formats.avro.model import Enumeration
from pydanube_core.schema_formats.fault import Fault

CONTAINER_MAGIC: Final = b"Obj\x01"
MAX_NESTING: Final = 200  # records within records. The schema is nested at most parse.MAX_DEPTH deep
MAX_EMPTY_ITEMS: Final = 100_000  # items and records of zero bytes per payload

_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


class Room:
    """The rest of one payload's limits."""

    __slots__ = ("empty_items", "nesting")

    def __init__(self) -> None:
        self.nesting = MAX_NESTING
        self.empty_items = MAX_EMPTY_ITEMS

    def take(self, items: int, at: int) -> None:
        self.empty_items -= items
        if self.empty_items < 0:
            raise Fault(f"more than {MAX_EMPTY_ITEMS} items that take no bytes", at)


#: (data, position, limits, values or None) → position behind the value
ReadStep = Callable[[bytes, int, Room, list[Any] | None], int]


def read_whole(step: ReadStep, data: bytes, at: int, out: list[Any] | None) -> None:
    """Read one datum that begins at a position and ends with the data. Raises `Fault`."""
    try:
        end = step(data, at, Room(), out)
    except (IndexError, struct.error):
        raise Fault("the datum ends too early", len(data)) from None
    except RecursionError:
        raise Fault("the datum is nested too deeply", at) from None
    if end > len(data):
        raise Fault("the datum ends too early", len(data))
    if end < len(data):
        hint = ": it is an Avro container file, not a datum" if data.startswith(CONTAINER_MAGIC) else ""
        raise Fault(f"{len(data) - end} bytes are left over behind the datum{hint}", end)


# Reading. A position beyond the end raises IndexError at the next byte, or `Fault` at the end (`read_whole`).


def read_number(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint of at most 10 bytes, and the position behind it."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise Fault("a number is longer than 64 bits", at)
    value = (value >> 1) ^ -(value & 1)
    if not -(1 << 63) <= value < 1 << 63:
        raise Fault("a number is longer than 64 bits", at)
    return value, at


def read_count(data: bytes, at: int) -> tuple[int, int]:
    """Return the number of items in a block of an array or a map, and the position behind it. 0 ends the blocks."""
    count, at = read_number(data, at)
    if count < 0:  # a negative count is followed by the size in bytes
        _, at = read_number(data, at)
        count = -count
    return count, at


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """Return bytes with a length prefix, and the position behind them."""
    size, at = read_number(data, at)
    if size < 0 or at + size > len(data):
        raise Fault(f"{size} bytes are announced, {len(data) - at} are left", at)
    return data[at : at + size], at + size


def read_fixed(size: int) -> ReadStep:
    def step(data: bytes, at: int, room: Room, out: list[Any] | None) -> int:
        if out is not None:
            out.append(data[at : at + size])
        return at + size

    return step


def _null(data: bytes, at: int, room: Room, out: list[Any] | None) -> int:
    if out is not None:
        out.append(None)
    return at


def _boolean(data: bytes, at: int, room: Room, out: list[Any] | None) -> int:
    if data[at] > 1:
        raise Fault(f"a boolean is 0 or 1, not {data[at]}", at)
    if out is not None:
        out.append(data[at] == 1)
    return at + 1


def _int(data: bytes, at: int, room: Room, out: list[Any] | None) -> int:
    value, end = read_number(data, at)
    if not -(1 << 31) <= value < 1 << 31:
        raise Fault(f"{value} is no int", at)
    if out is not None:
        out.append(value)
    return end


def _long(data: bytes, at: int, room: Room, out: list[Any] | None) -> int:
    value, end = read_number(data, at)
    if out is not None:
        out.append(value)
    return end


def _bytes(data: bytes, at: int, room: Room, out: list[Any] | None) -> int:
    value, end = read_bytes(data, at)
    if out is not None:
        out.append(value)
    return end


def _string(data: bytes, at: int, room: Room, out: list[Any] | None) -> int:
    found, end = read_bytes(data, at)
    try:
        text = found.decode()
    except UnicodeDecodeError as error:
        raise Fault("a string is not UTF-8", end - len(found) + error.start) from None
    if out is not None:
        out.append(text)
    return end


def _float(data: bytes, at: int, room: Room, out: list[Any] | None) -> int:
    if out is not None:
        out.append(_FLOAT.unpack_from(data, at)[0])
    return at + 4


def _double(data: bytes, at: int, room: Room, out: list[Any] | None) -> int:
    if out is not None:
        out.append(_DOUBLE.unpack_from(data, at)[0])
    return at + 8


PRIMITIVES: Final[dict[str, ReadStep]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
}


def converted(step: ReadStep, make: Callable[[Any], Any]) -> ReadStep:
    def convert(data: bytes, at: int, room: Room, out: list[Any] | None) -> int:
        end = step(data, at, room, out)
        if end > len(data):  # convert whole values only
            raise Fault("the datum ends too early", len(data))
        if out is not None:
            out[-1] = make(out[-1])
        return end

    return convert


def skipped(step: ReadStep) -> ReadStep:
    def skip(data: bytes, at: int, room: Room, out: list[Any] | None) -> int:
        if out is not None:
            out.append(None)
        return step(data, at, room, None)

    return skip


def read_enumeration(kind: Enumeration, symbols: list[str | None] | tuple[str, ...]) -> ReadStep:
    """Read an enum. `symbols` has the reader's symbol, or None, for each of the writer's symbols."""

    def step(data: bytes, at: int, room: Room, out: list[Any] | None) -> int:
        index, end = read_number(data, at)
        if not 0 <= index < len(symbols):
            raise Fault(f"an enum of {len(symbols)} symbols has none of index {index}", at)
        if out is not None:
            found = symbols[index]
            if found is None:
                raise Fault(
                    f"enum {kind.full_name} has no symbol {kind.symbols[index]!r}, and no default", at
                )
            out.append(found)
        return end

    return step


def read_union(branches: list[ReadStep]) -> ReadStep:
    def step(data: bytes, at: int, room: Room, out: list[Any] | None) -> int:
        index, end = read_number(data, at)
        if not 0 <= index < len(branches):
            raise Fault(f"a union of {len(branches)} branches has none of index {index}", at)
        return branches[index](data, end, room, out)

    return step


def read_record(
    fields: list[tuple[str, ReadStep]], defaults: dict[str, Any] | None, *, takes_no_bytes: bool
) -> ReadStep:
    """Read a record.

    Args:
        fields: may be completed after this call, for a recursive record. A field with an empty name is skipped.
        defaults: values of the reader's fields that the writer lacks. None to read with the writer's schema alone.
    """
    names: list[str] = []

    def step(data: bytes, at: int, room: Room, out: list[Any] | None) -> int:
        if takes_no_bytes:
            if out is None:
                return at
            room.take(1, at)
        if not room.nesting:
            raise Fault(f"the datum is nested deeper than {MAX_NESTING}", at)
        room.nesting -= 1
        values: list[Any] | None = None if out is None else []
        for _, field in fields:
            at = field(data, at, room, values)
            if at > len(data):  # some types do not check their length, so check it here
                raise Fault("the datum ends too early", len(data))
        room.nesting += 1
        if out is not None and values is not None:
            found = dict(zip(names or _names(fields, names), values, strict=True))
            if defaults is not None:
                found = {**defaults, **found}
                found.pop("", None)
            out.append(found)
        return at

    return step


def _names(fields: list[tuple[str, ReadStep]], into: list[str]) -> list[str]:
    into[:] = [name for name, _ in fields]
    return into


def read_items(item: ReadStep, *, takes_no_bytes: bool) -> ReadStep:
    def step(data: bytes, at: int, room: Room, out: list[Any] | None) -> int:
        found: list[Any] | None = None if out is None else []
        while True:
            count, at = read_count(data, at)
            if not count:
                break
            if takes_no_bytes:
                room.take(count, at)
                if out is None:
                    continue
            for _ in range(count):
                at = item(data, at, room, found)
                if at > len(data):
                    raise Fault("the datum ends too early", len(data))
        if out is not None:
            out.append(found)
        return at

    return step


def read_entries(value: ReadStep, form: Callable[[dict[str, Any]], Any]) -> ReadStep:
    def step(data: bytes, at: int, room: Room, out: list[Any] | None) -> int:
        found: dict[str, Any] = {}
        while True:
            count, at = read_count(data, at)
            if not count:
                break
            for _ in range(count):
                pair: list[Any] | None = None if out is None else []
                at = value(data, _string(data, at, room, pair), room, pair)
                if pair is not None:
                    found[pair[0]] = pair[1]
        if out is not None:
            out.append(form(found))
        return at

    return step
