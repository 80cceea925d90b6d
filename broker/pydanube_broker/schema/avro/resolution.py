"""Whether a reader's schema resolves everything a writer's schema can write ("Schema Resolution").

The specification resolves one datum; we ask about all of them. So every branch a writer's union may have chosen and
every symbol it may have written has to be readable, and a reader's union is taken as it is at run time: the first
branch that matches is the one that has to resolve.
"""

from __future__ import annotations

from typing import Final

from pydanube_broker.schema.avro.model import (
    Array,
    AvroType,
    Decimal,
    Enumeration,
    Field,
    Fixed,
    MapType,
    Primitive,
    Record,
    Union,
    describe,
)
from pydanube_broker.schema.avro.parse import branch_name
from pydanube_broker.schema.differences import Difference, Direction, Findings

__all__ = ["PROMOTIONS", "resolve"]

# writer -> readers that take it, beside itself
PROMOTIONS: Final = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}


def resolve(writer: AvroType, reader: AvroType, direction: Direction) -> list[Difference]:
    """Everything that keeps `reader` from reading data of `writer`; empty if it reads all of it."""
    findings = Findings(direction)
    _Resolver(findings).types(writer, reader, branch_name(reader))
    return findings.found


class _Resolver:
    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._seen: set[tuple[int, int]] = set()  # pairs of records: a recursive schema comes by again

    def types(self, writer: AvroType, reader: AvroType, path: str) -> None:
        if isinstance(writer, Union):
            for branch in writer.branches:
                self.types(branch, reader, f"{path}<{branch_name(branch)}>")
            return
        if isinstance(reader, Union):
            self._into_union(writer, reader, path)
            return
        match writer, reader:
            case Primitive(), Primitive():
                if writer.name != reader.name and reader.name not in PROMOTIONS.get(writer.name, ()):
                    self._add(path, "type_changed", writer, reader)
                else:
                    self._decimals(writer.decimal, reader.decimal, writer, reader, path)
            case Array(), Array():
                self.types(writer.items, reader.items, f"{path}[]")
            case MapType(), MapType():
                self.types(writer.values, reader.values, f"{path}{{}}")
            case Fixed(), Fixed():
                self._named(writer, reader, path)
                if writer.size != reader.size:
                    self._findings.add(path, "fixed_size_changed", writer=writer.size, reader=reader.size)
                self._decimals(writer.decimal, reader.decimal, writer, reader, path)
            case Enumeration(), Enumeration():
                self._named(writer, reader, path)
                self._symbols(writer, reader, path)
            case Record(), Record():
                self._named(writer, reader, path)
                if (id(writer), id(reader)) not in self._seen:
                    self._seen.add((id(writer), id(reader)))
                    self._fields(writer, reader, path)
            case _:
                self._add(path, "type_changed", writer, reader)

    def _into_union(self, writer: AvroType, reader: Union, path: str) -> None:
        for branch in reader.branches:
            if _matches(writer, branch):
                self.types(writer, branch, path)
                return
        self._findings.add(path, "no_matching_branch", writer=describe(writer), reader=describe(reader))

    def _named(
        self, writer: Fixed | Enumeration | Record, reader: Fixed | Enumeration | Record, path: str
    ) -> None:
        if not _same_name(writer, reader):
            self._findings.add(path, "name_changed", writer=writer.full_name, reader=reader.full_name)

    def _symbols(self, writer: Enumeration, reader: Enumeration, path: str) -> None:
        unknown = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
        if unknown and reader.default is None:
            self._findings.add(
                path, "enum_symbol_unknown", writer=list(writer.symbols), reader=list(reader.symbols)
            )

    def _decimals(
        self, old: Decimal | None, new: Decimal | None, writer: AvroType, reader: AvroType, path: str
    ) -> None:
        if old is not None and new is not None and old != new:
            self._add(path, "decimal_changed", writer, reader)

    def _fields(self, writer: Record, reader: Record, path: str) -> None:
        written = {field.name: field for field in writer.fields}
        for field in reader.fields:
            source = _source_of(field, written)
            at = f"{path}.{field.name}"
            if source is not None:
                self.types(source.type, field.type, at)
            elif not field.has_default:
                self._findings.add(at, "field_without_default", writer=None, reader=describe(field.type))

    def _add(self, path: str, rule: str, writer: AvroType, reader: AvroType) -> None:
        self._findings.add(path, rule, writer=describe(writer), reader=describe(reader))


def _source_of(field: Field, written: dict[str, Field]) -> Field | None:
    """The writer's field that a reader's field takes its value from: by name, else by the reader's aliases."""
    if field.name in written:
        return written[field.name]
    return next((written[alias] for alias in sorted(field.aliases) if alias in written), None)


def _same_name(writer: Fixed | Enumeration | Record, reader: Fixed | Enumeration | Record) -> bool:
    return writer.simple_name == reader.simple_name or writer.full_name in reader.aliases


def _matches(writer: AvroType, reader: AvroType) -> bool:
    """Whether the two match as the specification uses the word for choosing a branch of the reader's union."""
    if isinstance(writer, Union) or isinstance(reader, Union):
        return True
    match writer, reader:
        case Primitive(), Primitive():
            return writer.name == reader.name or reader.name in PROMOTIONS.get(writer.name, ())
        case Array(), Array():
            return _matches(writer.items, reader.items)
        case MapType(), MapType():
            return _matches(writer.values, reader.values)
        case Fixed(), Fixed():
            return writer.size == reader.size and _same_name(writer, reader)
        case Enumeration(), Enumeration():
            return _same_name(writer, reader)
        case Record(), Record():
            return _same_name(writer, reader)
        case _:
            return False
