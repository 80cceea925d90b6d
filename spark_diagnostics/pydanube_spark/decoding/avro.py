"""Decode Avro: read with the writer's version and resolved to the reader's, after the specification 1.12.

A pair of versions becomes one function, built once: it reads the bytes as they were written and gives what the reader
wants. What a payload can cost is bounded by its length, also where a type takes no bytes.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from pydanube_spark.decoding.avro_schema import MAX_PRECISION, AvroTree, Node, branches, wide_type
from pydanube_spark.decoding.fault import Fault, day_in_range, micros_in_range

_EMPTY_ITEMS: Final = 65_536  # items of a payload that take no bytes
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")
_PROMOTED: Final = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "double": ("double",),
    "string": ("string", "bytes"),
    "bytes": ("bytes", "string"),
}
_UNITS: Final = {
    "timestamp-millis": 1000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1000,
    "local-timestamp-micros": 1,
}


class _Bytes:
    """A payload and the position of the next byte."""

    __slots__ = ("at", "data", "items")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.items = len(data) + _EMPTY_ITEMS

    def take(self, count: int) -> bytes:
        end = self.at + count
        if count < 0 or end > len(self.data):
            raise Fault(f"it ends at byte {len(self.data)}, in the middle of a value")
        found = self.data[self.at : end]
        self.at = end
        return found

    def long(self) -> int:
        found = shift = 0
        while True:
            if self.at >= len(self.data) or shift > 63:
                raise Fault(f"there is no whole number at byte {self.at}")
            byte = self.data[self.at]
            self.at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        found &= 0xFFFF_FFFF_FFFF_FFFF
        return (found >> 1) ^ -(found & 1)


Read = Callable[[_Bytes], Any]


class AvroFormat:
    """The reader's version of an Avro schema."""

    def __init__(self, definition: bytes) -> None:
        self._tree = AvroTree(definition)
        self.type = self._tree.arrow(self._tree.root)

    def reading(self, writer: bytes) -> Callable[[bytes], Any]:
        tree = AvroTree(writer)
        read = _Pair(tree, self._tree).reading(tree.root, self._tree.root, frozenset())

        def whole(payload: bytes) -> Any:
            source = _Bytes(payload)
            value = read(source)
            if source.at != len(payload):
                hint = ": it is an Avro container file, not a datum" if payload[:4] == b"Obj\x01" else ""
                raise Fault(f"{len(payload) - source.at} bytes are left over{hint}")
            return value

        return whole


class _Pair:
    """The resolution of one version to another."""

    def __init__(self, writer: AvroTree, reader: AvroTree) -> None:
        self._writer = writer
        self._reader = reader
        self._written: dict[str, Read] = {}  # records, as values of JSON

    def reading(self, writer: Any, reader: Any, above: frozenset[str]) -> Read:
        """Return the reader for a pair of types. Raises `Fault` if data of the one can never be the other."""
        wrote, wants = self._writer.node(writer), self._reader.node(reader)
        if wrote["type"] == "union":
            return self._any_of([self._or_fault(each, reader, above) for each in wrote["branches"]])
        if wants["type"] == "union":
            return self._into_union(writer, wrote, wants, above)
        return self._one(wrote, wants, above)

    def _or_fault(self, writer: Any, reader: Any, above: frozenset[str]) -> Read:
        """Return the reader of a branch; if it cannot be resolved, only data of that branch fail."""
        try:
            return self.reading(writer, reader, above)
        except Fault as fault:
            message = str(fault)

        def fail(source: _Bytes) -> Any:
            raise Fault(message)

        return fail

    @staticmethod
    def _any_of(found: list[Read]) -> Read:
        def read(source: _Bytes) -> Any:
            number = source.long()
            if not 0 <= number < len(found):
                raise Fault(f"a union of {len(found)} types has no branch {number}")
            return found[number](source)

        return read

    def _into_union(self, writer: Any, wrote: Node, wants: Node, above: frozenset[str]) -> Read:
        if wrote["type"] == "null":
            if all(self._reader.node(each)["type"] != "null" for each in wants["branches"]):
                raise Fault("null is none of the union's types")
            return lambda source: None
        members = branches(self._reader, wants)
        exact = [n for n, each in enumerate(members) if _same(wrote, self._reader.node(each))]
        for number in [*exact, *(n for n in range(len(members)) if n not in exact)]:
            try:
                read = self.reading(writer, members[number], above)
            except Fault:
                continue
            if len(members) == 1 or wide_type(self._reader, members) is not None:
                return read
            name = f"member{number}"
            return lambda source: {name: read(source)}
        raise Fault(f"{_said(wrote)} is none of the union's types")

    def _one(self, wrote: Node, wants: Node, above: frozenset[str]) -> Read:
        kind, wanted = wrote["type"], wants["type"]
        if kind in _PROMOTED and wanted in _PROMOTED[kind]:
            return _leaf(wrote, wants)
        if kind != wanted:
            raise Fault(f"{_said(wrote)} cannot be read as {_said(wants)}")
        match kind:
            case "null":
                return lambda source: None
            case "boolean":
                return _boolean
            case "fixed":
                if _simple(wrote) != _simple(wants) or wrote["size"] != wants["size"]:
                    raise Fault(f"{_said(wrote)} cannot be read as {_said(wants)}")
                return _leaf(wrote, wants)
            case "enum":
                return _enum(wrote, wants)
            case "array":
                return _array(self.reading(wrote["items"], wants["items"], above))
            case "map":
                return _map(self.reading(wrote["values"], wants["values"], above))
            case _:
                return self._record(wrote, wants, above)

    def _record(self, wrote: Node, wants: Node, above: frozenset[str]) -> Read:
        if not _same(wrote, wants):
            raise Fault(f"{_said(wrote)} cannot be read as {_said(wants)}")
        if wants["name"] in above:
            read = self._as_written(wrote)
            return lambda source: json.dumps(read(source), ensure_ascii=False, separators=(",", ":"))
        inside = above | {wants["name"]}
        by_name: dict[str, Mapping[str, Any]] = {}
        for field in wants["fields"]:
            for name in (field["name"], *field.get("aliases", ())):
                by_name.setdefault(name, field)
        steps: list[tuple[str | None, Read]] = []
        given: set[str] = set()
        for field in wrote["fields"]:
            target = by_name.get(field["name"])
            if target is None or target["name"] in given:
                steps.append((None, self._as_written(self._writer.node(field["type"]))))
                continue
            given.add(target["name"])
            try:
                steps.append((target["name"], self.reading(field["type"], target["type"], inside)))
            except Fault as fault:
                raise Fault(f"{field['name']}: {fault}") from None
        defaults = {}
        for field in wants["fields"]:
            if field["name"] not in given:
                if "default" not in field:
                    raise Fault(f"field {field['name']} was not written, and has no default")
                defaults[field["name"]] = _default(self._reader, field["type"], field["default"], inside)

        def read_record(source: _Bytes) -> Any:
            found = dict(defaults)
            for name, read in steps:
                value = read(source)
                if name is not None:
                    found[name] = value
            return found

        return read_record

    def _as_written(self, wrote: Node) -> Read:
        """Return the reader of JSON values: for data that the reader's type lacks, and for recursive types."""
        tree = self._writer
        match wrote["type"]:
            case "union":
                return self._any_of([self._as_written(tree.node(each)) for each in wrote["branches"]])
            case "array":
                return _array(self._as_written(tree.node(wrote["items"])))
            case "map":
                read_map = _map(self._as_written(tree.node(wrote["values"])))
                return lambda source: dict(read_map(source))
            case "enum":
                return _enum(wrote, wrote)
            case "boolean":
                return _boolean
            case "null":
                return lambda source: None
            case "bytes" | "fixed":
                read_bytes = _raw(wrote)
                return lambda source: read_bytes(source).decode("latin-1")
            case "record":
                return self._written_record(wrote)
            case _:
                return _raw(wrote)

    def _written_record(self, wrote: Node) -> Read:
        name = wrote["name"]
        if name in self._written:
            return lambda source: self._written[name](source)
        self._written[name] = lambda source: None  # until its fields are known
        steps = [(f["name"], self._as_written(self._writer.node(f["type"]))) for f in wrote["fields"]]
        self._written[name] = lambda source: {field: read(source) for field, read in steps}
        return self._written[name]


def _simple(node: Node) -> str:
    return str(node["name"]).rpartition(".")[2]


def _same(wrote: Node, wants: Node) -> bool:
    """Return whether two types are the same, by name if they have one, or by an alias of the reader's."""
    if wrote["type"] != wants["type"] or "name" not in wrote:
        return bool(wrote["type"] == wants["type"])
    aliases = {str(each).rpartition(".")[2] for each in wants.get("aliases", ())}
    return _simple(wrote) in {_simple(wants), *aliases}


def _said(node: Node) -> str:
    return f"{node['type']} {node['name']}" if "name" in node else str(node["type"])


def _boolean(source: _Bytes) -> bool:
    byte = source.take(1)[0]
    if byte > 1:
        raise Fault(f"a boolean is 0 or 1, not {byte}")
    return byte == 1


def _raw(node: Node) -> Read:
    """Return the function that reads numbers, text and bytes without a logical type."""
    match node["type"]:
        case "int":
            return _int
        case "long":
            return _Bytes.long
        case "float":
            return lambda source: _FLOAT.unpack(source.take(4))[0]
        case "double":
            return lambda source: _DOUBLE.unpack(source.take(8))[0]
        case "string":
            return lambda source: source.take(source.long()).decode()
        case "bytes":
            return lambda source: source.take(source.long())
        case _:
            size = node["size"]
            return lambda source: source.take(size)


def _int(source: _Bytes) -> int:
    found = source.long()
    if not -(2**31) <= found < 2**31:
        raise Fault(f"{found} is no int")
    return found


def _leaf(wrote: Node, wants: Node) -> Read:
    if wrote.get("logicalType") == wants.get("logicalType") == "decimal" and wrote.get(
        "scale", 0
    ) != wants.get("scale", 0):
        raise Fault(
            f"a decimal of scale {wrote.get('scale', 0)} cannot be read as one of {wants.get('scale', 0)}"
        )
    read = _raw(wrote)
    kinds = wrote["type"], wants["type"]
    if kinds == ("string", "bytes"):
        text = read
        read = lambda source: text(source).encode()  # noqa: E731
    elif kinds == ("bytes", "string"):
        data = read
        read = lambda source: data(source).decode()  # noqa: E731
    elif kinds[1] in ("float", "double"):
        number = read
        read = lambda source: float(number(source))  # noqa: E731
    made = _logical(wants, _UNITS.get(str(wrote.get("logicalType"))))
    return read if made is None else lambda source: made(read(source))


def _logical(node: Node, written_unit: int | None = None) -> Callable[[Any], Any] | None:
    """Return the conversion from a stored value to the column's. `written_unit`: microseconds of one, if the writer says."""
    kind, logical = node["type"], node.get("logicalType")
    if kind == "int" and logical == "date":
        return day_in_range
    if kind == "long" and logical in _UNITS:
        unit = written_unit or _UNITS[logical]
        return lambda value: micros_in_range(value * unit)
    if kind == "fixed" and logical == "uuid" and node["size"] == 16:
        return lambda value: str(uuid.UUID(bytes=value))
    if kind in ("bytes", "fixed") and logical == "decimal":
        precision, scale = int(node["precision"]), int(node.get("scale", 0))
        return lambda value: _decimal(value, precision, scale)
    return None


def _decimal(value: bytes, precision: int, scale: int) -> Any:
    unscaled = int.from_bytes(value, "big", signed=True)
    digits = str(abs(unscaled))
    if len(digits) > precision:
        raise Fault(f"a decimal of {len(digits)} digits, where {precision} are allowed")
    found = Decimal((unscaled < 0, tuple(map(int, digits)), -scale))
    return found if precision <= MAX_PRECISION else f"{found:f}"


def _enum(wrote: Node, wants: Node) -> Read:
    if not _same(wrote, wants):
        raise Fault(f"{_said(wrote)} cannot be read as {_said(wants)}")
    symbols = wrote["symbols"]
    known = set(wants["symbols"])
    default = wants.get("default")

    def read(source: _Bytes) -> str:
        number = source.long()
        if not 0 <= number < len(symbols):
            raise Fault(f"enum {wrote['name']} has no symbol number {number}")
        found: str | None = symbols[number] if symbols[number] in known else default
        if found is None:
            raise Fault(f"enum {wants['name']} has no symbol {symbols[number]!r}, and no default")
        return found

    return read


def _blocks(source: _Bytes) -> int:
    """Return the number of items of the next block; 0: the end."""
    count = source.long()
    if count < 0:
        count = -count
        source.long()
    source.items -= count
    if source.items < 0:
        raise Fault("it says to have more items than it has bytes")
    return count


def _array(read: Read) -> Read:
    def items(source: _Bytes) -> list[Any]:
        found: list[Any] = []
        while count := _blocks(source):
            found.extend(read(source) for _ in range(count))
        return found

    return items


def _map(read: Read) -> Read:
    def pairs(source: _Bytes) -> list[tuple[str, Any]]:
        found: dict[str, Any] = {}
        while count := _blocks(source):
            for _ in range(count):
                key = source.take(source.long()).decode()
                found[key] = read(source)
        return list(found.items())

    return pairs


def _default(tree: AvroTree, schema: Any, value: Any, above: frozenset[str]) -> Any:
    """Return a JSON default as the column's value."""
    node = tree.node(schema)
    match node["type"]:
        case "union":
            return _union_default(tree, node, value, above)
        case "record":
            if node["name"] in above:
                return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            inside = above | {node["name"]}
            return {
                field["name"]: _default(
                    tree, field["type"], value.get(field["name"], field.get("default")), inside
                )
                for field in node["fields"]
            }
        case "array":
            return [_default(tree, node["items"], each, above) for each in value]
        case "map":
            return [(key, _default(tree, node["values"], each, above)) for key, each in value.items()]
        case kind:
            raw = value.encode("latin-1") if kind in ("bytes", "fixed") else value
            if kind in ("float", "double"):
                raw = float(raw)
            made = _logical(node)
            return raw if made is None else made(raw)


def _union_default(tree: AvroTree, node: Node, value: Any, above: frozenset[str]) -> Any:
    if value is None:
        return None
    members = branches(tree, node)
    if len(members) == 1 or wide_type(tree, members) is not None:
        return _default(tree, members[0], value, above)
    for number, each in enumerate(members):
        if _could_be(tree.node(each)["type"], value):
            return {f"member{number}": _default(tree, each, value, above)}
    raise Fault(f"the default {value!r} is none of the union's types")


def _could_be(kind: str, value: Any) -> bool:
    match value:
        case bool():
            return kind == "boolean"
        case int():
            return kind in ("int", "long", "float", "double")
        case float():
            return kind in ("float", "double")
        case str():
            return kind in ("string", "bytes", "fixed", "enum")
        case list():
            return kind == "array"
        case _:
            return kind in ("record", "map")
