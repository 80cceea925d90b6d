"""An Avro schema as a tree in which every name points at its type. A recursive schema is a cyclic graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

# writer -> other types that a reader may have
PROMOTIONS: Final = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decimal:
    """The only logical type that resolution checks ("Decimal": scale and precision must match)."""

    precision: int
    scale: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Primitive:
    name: str  # null, boolean, int, long, float, double, bytes, string
    decimal: Decimal | None = None
    logical: str | None = field(default=None, compare=False)  # resolution ignores it


@dataclass(slots=True, kw_only=True, eq=False)
class Named:
    """A type with a name. `aliases` are full names, too."""

    full_name: str
    aliases: frozenset[str]

    @property
    def simple_name(self) -> str:
        return self.full_name.rpartition(".")[2]


@dataclass(slots=True, kw_only=True, eq=False)
class Fixed(Named):
    size: int
    decimal: Decimal | None = None
    logical: str | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Enumeration(Named):
    symbols: tuple[str, ...]
    default: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    name: str
    aliases: frozenset[str]
    type: AvroType
    has_default: bool
    default: Any


@dataclass(slots=True, kw_only=True, eq=False)
class Record(Named):
    # Filled after the name is defined, so that fields can refer to it
    fields: list[Field] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    items: AvroType


@dataclass(frozen=True, slots=True, kw_only=True)
class MapType:
    values: AvroType


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    branches: tuple[AvroType, ...]


AvroType: TypeAlias = Primitive | Fixed | Enumeration | Record | Array | MapType | Union


def describe(kind: AvroType) -> Any:
    """Return a type as short JSON, in which a named type is its name."""
    match kind:
        case Primitive(name=name, decimal=None):
            return name
        case Primitive(name=name, decimal=decimal):
            assert decimal is not None
            return {
                "type": name,
                "logicalType": "decimal",
                "precision": decimal.precision,
                "scale": decimal.scale,
            }
        case Array(items=items):
            return {"type": "array", "items": describe(items)}
        case MapType(values=values):
            return {"type": "map", "values": describe(values)}
        case Union(branches=branches):
            return [describe(branch) for branch in branches]
        case Fixed(full_name=name, size=size):
            return {"type": "fixed", "name": name, "size": size}
        case Enumeration(full_name=name):
            return {"type": "enum", "name": name}
        case Record(full_name=name):
            return {"type": "record", "name": name}


def branch_name(kind: AvroType) -> str:
    """Return the name of a union's branch: its full name if it has one, otherwise its type."""
    match kind:
        case Primitive(name=name):
            return name
        case Array():
            return "array"
        case MapType():
            return "map"
        case Union():
            return "union"
        case Fixed(full_name=name) | Enumeration(full_name=name) | Record(full_name=name):
            return name


def same_name(writer: Named, reader: Named) -> bool:
    """Return whether the names of two types match: without the namespace, or by an alias of the reader's."""
    return writer.simple_name == reader.simple_name or writer.full_name in reader.aliases


def is_recursive(kind: AvroType) -> bool:
    """Return whether a record contains itself. `parse_avro` bounds the depth."""
    return _reaches_itself(kind, set(), set())


def _reaches_itself(kind: AvroType, above: set[int], done: set[int]) -> bool:
    match kind:
        case Array(items=inner) | MapType(values=inner):
            return _reaches_itself(inner, above, done)
        case Union(branches=branches):
            return any(_reaches_itself(each, above, done) for each in branches)
        case Record(fields=fields) if id(kind) not in done:
            if id(kind) in above:
                return True
            found = any(_reaches_itself(each.type, above | {id(kind)}, done) for each in fields)
            done.add(id(kind))
            return found
        case _:
            return False
