"""Decode Avro as a column: the Arrow type of the reader's version, and values in the form that Arrow accepts.

A union of null and one type is that type. A union of several types is a struct `member0, member1, …` of which one is not
null, as in Spark's own `from_avro`. A recursive type is JSON text, because no column can hold it. Data are read with the
writer's version and resolved to the reader's (`pydanube_core.schema_formats.avro.reading`).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from pydanube_core.schema_formats.avro.model import (
    Array,
    AvroType,
    Enumeration,
    Fixed,
    MapType,
    Primitive,
    Record,
    Union,
)
from pydanube_core.schema_formats.avro.parse import parse_avro
from pydanube_core.schema_formats.avro.reading import Shape, resolving_reader

from pydanube_storage.topics.decoding.fault import Fault, day_in_range, micros_in_range

MAX_PRECISION: Final = 38  # of a decimal in Spark
# Of one value including nested ones, because types that use each other twice grow by 2^n
MAX_COLUMNS: Final = 10_000

_PLAIN: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_TIME: Final = pa.timestamp("us", tz="UTC")
_TIMES: Final = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): _TIME,
    ("long", "timestamp-micros"): _TIME,
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_UNITS: Final = {  # microseconds
    "timestamp-millis": 1000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1000,
    "local-timestamp-micros": 1,
}
_WIDE: Final = ({"int", "long"}, {"float", "double"})
_NULL: Final = Primitive(name="null")


class AvroFormat:
    """The reader's version of an Avro schema."""

    def __init__(self, definition: bytes) -> None:
        self._tree = parse_avro(json.loads(definition))
        self._columns = 0
        self.type = self._arrow(self._tree, frozenset())

    def reading(self, writer: bytes) -> Callable[[bytes], Any]:
        """Return the function that reads payloads of a version. Raises `Fault` if none can be read as `type`."""
        return resolving_reader(parse_avro(json.loads(writer)), self._tree, _ArrowShape())

    def _arrow(self, kind: AvroType, above: frozenset[str]) -> Any:
        self._columns += 1
        if self._columns > MAX_COLUMNS:
            raise Fault(f"the type has more than {MAX_COLUMNS} parts")
        match kind:
            case Record(full_name=full, fields=fields):
                if full in above:
                    return pa.string()
                inside = above | {full}
                return pa.struct([(field.name, self._arrow(field.type, inside)) for field in fields])
            case Array(items=items):
                return pa.list_(self._arrow(items, above))
            case MapType(values=values):
                return pa.map_(pa.string(), self._arrow(values, above))
            case Union():
                members = _members(kind)
                wide = _wide_type(members)
                if wide is not None:
                    return _PLAIN[wide]
                if len(members) == 1:
                    return self._arrow(members[0], above)
                return pa.struct([(f"member{n}", self._arrow(each, above)) for n, each in enumerate(members)])
            case Enumeration():
                return pa.string()
            case Primitive() | Fixed():
                return _leaf_type(kind)


def _leaf_type(kind: Primitive | Fixed) -> Any:
    if kind.decimal is not None:
        exact = kind.decimal.precision <= MAX_PRECISION
        return pa.decimal128(kind.decimal.precision, kind.decimal.scale) if exact else pa.string()
    if isinstance(kind, Fixed):
        return pa.string() if _is_uuid(kind) else pa.binary()
    return _TIMES.get((kind.name, str(kind.logical)), _PLAIN[kind.name])


def _is_uuid(kind: Fixed) -> bool:
    return kind.logical == "uuid" and kind.size == 16


def _members(union: Union) -> list[AvroType]:
    """Return the branches of a union without null."""
    return [each for each in union.branches if each != _NULL] or [_NULL]


def _wide_type(members: list[AvroType]) -> str | None:
    """Return the widest number type of a union whose members are all integers or all floats, else None."""
    if len(members) != 2:
        return None
    kinds = {each.name for each in members if isinstance(each, Primitive) and each.logical is None}
    return ("long" if "long" in kinds else "double") if kinds in _WIDE else None


class _ArrowShape(Shape):
    """Values in the form that Arrow accepts for the types above."""

    def leaf(self, writer: AvroType, reader: AvroType) -> Callable[[Any], Any] | None:
        match reader:
            case Primitive(decimal=None, name="int", logical="date"):
                return day_in_range
            case Primitive(decimal=None, name="long", logical=str(logical)) if logical in _UNITS:
                written = writer.logical if isinstance(writer, Primitive) else None
                unit = _UNITS.get(str(written), _UNITS[logical])
                return lambda value: micros_in_range(value * unit)
            case Primitive(decimal=decimal) | Fixed(decimal=decimal) if decimal is not None:
                return lambda value: _decimal(value, decimal.precision, decimal.scale)
            case Fixed() if _is_uuid(reader):
                return lambda value: str(uuid.UUID(bytes=value))
            case _:
                return None

    def member(self, union: Union, branch: AvroType) -> str | None:
        members = _members(union)
        if branch == _NULL or len(members) == 1 or _wide_type(members) is not None:
            return None
        return f"member{members.index(branch)}"

    def entries(self, found: dict[str, Any]) -> Any:
        return list(found.items())


def _decimal(value: bytes, precision: int, scale: int) -> Any:
    unscaled = int.from_bytes(value, "big", signed=True)
    digits = str(abs(unscaled))
    if len(digits) > precision:
        raise Fault(f"a decimal of {len(digits)} digits, where {precision} are allowed")
    found = Decimal((unscaled < 0, tuple(map(int, digits)), -scale))
    return found if precision <= MAX_PRECISION else f"{found:f}"
