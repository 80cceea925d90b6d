"""Build functions that read Avro data by its schema, or as another schema ("Schema Resolution" in Avro's specification).

The broker's check and the columns of tables use it. The SDK uses fastavro unless the schema is recursive, because fastavro
is faster: 9 µs for a record that takes 17 µs here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from pydanube_core.schema_formats.avro.model import (
    PROMOTIONS,
    Array,
    AvroType,
    Enumeration,
    Field,
    Fixed,
    MapType,
    Named,
    Primitive,
    Record,
    Union,
    same_name,
)
from pydanube_core.schema_formats.avro.parse import fits_default
from pydanube_core.schema_formats.avro.steps import (
    PRIMITIVES,
    ReadStep,
    Room,
    converted,
    read_entries,
    read_enumeration,
    read_fixed,
    read_items,
    read_record,
    read_union,
    read_whole,
    skipped,
)
from pydanube_core.schema_formats.fault import Fault


class Shape:
    """The Python form of values. This class leaves numbers, text and bytes as they are. Records and maps are dicts."""

    def leaf(self, writer: AvroType, reader: AvroType) -> Callable[[Any], Any] | None:
        """Return the conversion of a number, text or bytes, already promoted to the type `reader`, or None."""
        return None

    def member(self, union: Union, branch: AvroType) -> str | None:
        """Return the key of a dict around a union's value, or None for the value without a dict."""
        return None

    def entries(self, found: dict[str, Any]) -> Any:
        """Return the form of a map."""
        return found


class JsonShape(Shape):
    """Values for JSON. Bytes become text with one character per byte."""

    def leaf(self, writer: AvroType, reader: AvroType) -> Callable[[Any], Any] | None:
        is_bytes = isinstance(reader, Fixed) or (isinstance(reader, Primitive) and reader.name == "bytes")
        return _latin if is_bytes else None


def resolving_reader(writer: AvroType, reader: AvroType, shape: Shape) -> Callable[[bytes], Any]:
    """Return a function that reads data of one schema as another. Raises `Fault`: the schemas do not resolve."""
    step = AvroReader(shape).resolved(writer, reader, frozenset())

    def read(data: bytes) -> Any:
        out: list[Any] = []
        read_whole(step, data, 0, out)
        return out[0]

    return read


class AvroReader:
    """Builds the functions of one schema, or of one pair."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._records: dict[int, list[tuple[str, ReadStep]]] = {}
        self._empty: dict[int, bool] = {}

    def written(self, kind: AvroType) -> ReadStep:
        """Return the function that reads a type as it was written."""
        match kind:
            case Primitive() | Fixed():
                return self._leaf(kind, kind)
            case Enumeration(symbols=symbols):
                return read_enumeration(kind, symbols)
            case Union(branches=branches):
                return read_union([self._in_member(kind, each, self.written(each)) for each in branches])
            case Array(items=items):
                return self._items(items, self.written(items))
            case MapType(values=values):
                return read_entries(self.written(values), self._shape.entries)
            case Record():
                fields = self._records.get(id(kind))
                # A recursive record uses this list, which is complete before data are read
                if fields is None:
                    fields = self._records[id(kind)] = []
                    fields += [(field.name, self.written(field.type)) for field in kind.fields]
                return read_record(fields, None, takes_no_bytes=self._takes_no_bytes(kind))

    def resolved(self, writer: AvroType, reader: AvroType, above: frozenset[str]) -> ReadStep:
        """Return a function that reads one type as another. A reader's recursive record becomes JSON text.

        Args:
            above: full names of the reader's records around this place.

        Raises:
            Fault: the types do not resolve.
        """
        if isinstance(writer, Union):
            return read_union([self._or_fault(each, reader, above) for each in writer.branches])
        match writer, reader:
            case _, Union():
                return self._into_union(writer, reader, above)
            case Primitive(), Primitive() if writer.name == reader.name or reader.name in PROMOTIONS.get(
                writer.name, ()
            ):
                _check_decimals(writer, reader)
                return self._leaf(writer, reader)
            case Fixed(), Fixed() if writer.simple_name == reader.simple_name and writer.size == reader.size:
                _check_decimals(writer, reader)
                return self._leaf(writer, reader)
            case Enumeration(), Enumeration() if same_name(writer, reader):
                known = set(reader.symbols)
                symbols = [each if each in known else reader.default for each in writer.symbols]
                return read_enumeration(writer, symbols)
            case Array(), Array():
                return self._items(writer.items, self.resolved(writer.items, reader.items, above))
            case MapType(), MapType():
                return read_entries(self.resolved(writer.values, reader.values, above), self._shape.entries)
            case Record(), Record() if same_name(writer, reader):
                return self._resolved_record(writer, reader, above)
        raise _unreadable(writer, reader)

    def default(self, kind: AvroType, value: Any, above: frozenset[str]) -> Any:
        """Return a JSON default in this shape."""
        match kind:
            case Union(branches=branches):
                branch = next((each for each in branches if fits_default(each, value)), None)
                if branch is None:
                    raise Fault(f"the default {value!r:.100} is none of the union's types")
                found, name = self.default(branch, value, above), self._shape.member(kind, branch)
                return found if name is None else {name: found}
            case Record(full_name=full) if full in above:
                return _json_text(value)
            case Record(full_name=full, fields=fields):
                return {
                    field.name: self.default(field.type, value.get(field.name, field.default), above | {full})
                    for field in fields
                }
            case Array(items=items):
                return [self.default(items, each, above) for each in value]
            case MapType(values=values):
                found = {key: self.default(values, each, above) for key, each in value.items()}
                return self._shape.entries(found)
            case Primitive(name="float" | "double"):
                value = float(value)
            case Primitive(name="bytes") | Fixed():
                value = value.encode("latin-1")
            case _:
                pass
        made = self._shape.leaf(kind, kind)
        return value if made is None else made(value)

    def _leaf(self, writer: Primitive | Fixed, reader: Primitive | Fixed) -> ReadStep:
        if isinstance(writer, Fixed):
            step = read_fixed(writer.size)
        else:
            step = PRIMITIVES[writer.name]
            assert isinstance(reader, Primitive)
            promote = None if writer.name == reader.name else _PROMOTE.get(reader.name)
            step = step if promote is None else converted(step, promote)
        make = self._shape.leaf(writer, reader)
        return step if make is None else converted(step, make)

    def _items(self, writer: AvroType, item: ReadStep) -> ReadStep:
        return read_items(item, takes_no_bytes=self._takes_no_bytes(writer))

    def _in_member(self, union: Union, branch: AvroType, step: ReadStep) -> ReadStep:
        name = self._shape.member(union, branch)
        return step if name is None else converted(step, lambda value: {name: value})

    def _or_fault(self, writer: AvroType, reader: AvroType, above: frozenset[str]) -> ReadStep:
        """Return the function of a branch. If the branch does not resolve, only its data fail."""
        try:
            return self.resolved(writer, reader, above)
        except Fault as fault:
            why = fault.why

        def fail(data: bytes, at: int, room: Room, out: list[Any] | None) -> int:
            raise Fault(why, at)

        return fail

    def _into_union(self, writer: AvroType, reader: Union, above: frozenset[str]) -> ReadStep:
        exact = [each for each in reader.branches if _is_same(writer, each)]
        for branch in [*exact, *(each for each in reader.branches if not _is_same(writer, each))]:
            try:
                return self._in_member(reader, branch, self.resolved(writer, branch, above))
            except Fault:
                continue
        raise Fault(f"{_described(writer)} is none of the union's types")

    def _resolved_record(self, writer: Record, reader: Record, above: frozenset[str]) -> ReadStep:
        if reader.full_name in above:
            return converted(AvroReader(JsonShape()).written(writer), _json_text)
        inside = above | {reader.full_name}
        targets: dict[str, Field] = {}
        for field in reader.fields:
            for name in (field.name, *sorted(field.aliases)):
                targets.setdefault(name, field)
        steps: list[tuple[str, ReadStep]] = []
        missing = {field.name: field for field in reader.fields}
        for field in writer.fields:
            target = targets.get(field.name)
            if target is None or missing.pop(target.name, None) is None:
                steps.append(("", skipped(self.written(field.type))))
                continue
            try:
                steps.append((target.name, self.resolved(field.type, target.type, inside)))
            except Fault as fault:
                raise Fault(f"{field.name}: {fault.why}") from None
        for field in missing.values():
            if not field.has_default:
                raise Fault(f"field {field.name} was not written, and has no default")
        defaults = {name: self.default(each.type, each.default, inside) for name, each in missing.items()}
        return read_record(steps, defaults, takes_no_bytes=self._takes_no_bytes(writer))

    def _takes_no_bytes(self, kind: AvroType) -> bool:
        """Return whether data take no bytes, cached for each record because paths through fields can be 2^n."""
        match kind:
            case Primitive(name=name):
                return name == "null"
            case Fixed(size=size):
                return size == 0
            case Record(fields=fields):
                if id(kind) not in self._empty:
                    # A record that must contain itself cannot have data
                    self._empty[id(kind)] = False
                    self._empty[id(kind)] = all(self._takes_no_bytes(field.type) for field in fields)
                return self._empty[id(kind)]
            case _:
                return False


def _is_same(writer: AvroType, reader: AvroType) -> bool:
    """Return whether two types are the same without promotion: by name if they have one, or by an alias of the reader's."""
    if isinstance(writer, Named) and isinstance(reader, Named):
        return type(writer) is type(reader) and same_name(writer, reader)
    if isinstance(writer, Primitive) and isinstance(reader, Primitive):
        return writer.name == reader.name
    return type(writer) is type(reader)


def _check_decimals(writer: Primitive | Fixed, reader: Primitive | Fixed) -> None:
    old, new = writer.decimal, reader.decimal
    if old is not None and new is not None and old.scale != new.scale:
        raise Fault(f"a decimal of scale {old.scale} cannot be read as one of {new.scale}")


def _described(kind: AvroType) -> str:
    match kind:
        case Primitive(name=name):
            return name
        case Named(full_name=name):
            return f"{ {Fixed: 'fixed', Enumeration: 'enum', Record: 'record'}[type(kind)] } {name}"
        case _:
            return {Array: "array", MapType: "map", Union: "union"}[type(kind)]


def _unreadable(writer: AvroType, reader: AvroType) -> Fault:
    return Fault(f"{_described(writer)} cannot be read as {_described(reader)}")


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _latin(value: bytes) -> str:
    return value.decode("latin-1")


_PROMOTE: Final[dict[str, Callable[[Any], Any]]] = {
    "float": float,
    "double": float,
    "bytes": str.encode,
    "string": bytes.decode,
}
