"""Decides whether a reader's schema resolves everything a writer's schema can write ("Schema Resolution").

The specification resolves one datum. This module decides for all of them, so every branch of a writer's union and
every symbol of its enums must be readable. For a reader's union, the first matching branch must resolve, as at run time.

Where libraries differ, "compatible" means that both Avro's own (Java) and fastavro read the data:

* From a reader's union, one library takes the first matching branch, the other the first branch of exactly the
  writer's type and name. Both must resolve.
* Java renames the writer's types and fields by the reader's aliases before it compares, anywhere in the schema. An
  alias shared by two fields, a field with several sources, and a type that is another type's alias are not read
  reliably, so they are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydanube_core.schema_formats.avro.model import (
    PROMOTIONS,
    Array,
    AvroType,
    Decimal,
    Enumeration,
    Field,
    Fixed,
    MapType,
    Named,
    Primitive,
    Record,
    Union,
    branch_name,
    describe,
    same_name,
)

from pydanube_broker.schema.differences import Difference, Direction, Findings
from pydanube_broker.schema.step_budget import StepBudget, TooComplex

MAX_STEPS: Final = 1_000_000  # types and branches visited: about a second, in a thread


def resolve(writer: AvroType, reader: AvroType, direction: Direction) -> list[Difference]:
    """Return all differences that prevent `reader` from reading data of `writer`. Empty if it reads everything."""
    findings = Findings(direction)
    if same_shape(writer, reader):
        return []
    try:
        _Resolver(findings, reader).types(writer, reader, branch_name(reader))
    except TooComplex:
        findings.add("", "too_complex_to_compare", writer=None, reader=None)
    return findings.found


class _Resolver:
    def __init__(self, findings: Findings, reader: AvroType) -> None:
        self._findings = findings
        self._budget = StepBudget(MAX_STEPS)
        self._renamed: dict[str, set[str]] = {}  # alias → full names of the reader's types with that alias
        self._names: set[str] = set()  # full names of the reader's types
        for named in _named_types(reader):
            self._names.add(named.full_name)
            for alias in named.aliases - {named.full_name}:
                self._renamed.setdefault(alias, set()).add(named.full_name)
        self._seen: set[tuple[int, int]] = set()  # pairs of records, because schemas may be recursive

    def types(self, writer: AvroType, reader: AvroType, path: str) -> None:
        self._budget.spend(1)
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
        self._budget.spend(len(reader.branches))
        first = next((branch for branch in reader.branches if _matches(writer, branch)), None)
        if first is None:
            self._findings.add(path, "no_matching_branch", writer=describe(writer), reader=describe(reader))
            return
        self.types(writer, first, path)
        exact = next((branch for branch in reader.branches if _is_exactly(writer, branch)), first)
        if exact is not first:
            self.types(writer, exact, path)

    def _named(self, writer: Named, reader: Named, path: str) -> None:
        renamed = self._renamed.get(writer.full_name, {writer.full_name})
        astray = any(
            name.rpartition(".")[2] != reader.simple_name
            or (name in self._names and name != reader.full_name)
            for name in renamed
        )
        if astray or not same_name(writer, reader):
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
        aliases_count = _is_named_by(writer, reader)
        taken: dict[str, str] = {}  # writer's field → reader's field that reads it
        also: dict[str, str] = {alias: field.name for field in reader.fields for alias in field.aliases}
        for field in reader.fields:
            at = f"{path}.{field.name}"
            names = {field.name} | (field.aliases if aliases_count else frozenset())
            sources = sorted(name for name in names if name in written)
            if sources and aliases_count and also.get(field.name, field.name) != field.name:
                # Renamed to this field, and then to the other
                self._findings.add(
                    at, "alias_is_shared", writer=sources, reader=[field.name, also[field.name]]
                )
            for source in sources:
                other = taken.setdefault(source, field.name)
                if other != field.name:
                    self._findings.add(at, "alias_is_shared", writer=source, reader=[other, field.name])
            if len(sources) > 1:
                self._findings.add(at, "alias_is_ambiguous", writer=sources, reader=field.name)
            elif sources:
                self.types(written[sources[0]].type, field.type, at)
            elif not field.has_default:
                self._findings.add(at, "field_without_default", writer=None, reader=describe(field.type))

    def _add(self, path: str, rule: str, writer: AvroType, reader: AvroType) -> None:
        self._findings.add(path, rule, writer=describe(writer), reader=describe(reader))


def _is_named_by(writer: Named, reader: Named) -> bool:
    return writer.full_name == reader.full_name or writer.full_name in reader.aliases


def _is_exactly(writer: AvroType, reader: AvroType) -> bool:
    """Return whether Java takes this branch before it tries promotions."""
    match writer, reader:
        case Primitive(), Primitive():
            return writer.name == reader.name
        case Named(), Named():
            return type(writer) is type(reader) and _is_named_by(writer, reader)
        case _:
            return False


def _named_types(root: AvroType) -> Iterator[Named]:
    seen: set[int] = set()
    work = [root]
    while work:
        kind = work.pop()
        match kind:
            case Array(items=inner) | MapType(values=inner):
                work.append(inner)
            case Union(branches=branches):
                work += branches
            case Fixed() | Enumeration() | Record() if id(kind) not in seen:
                seen.add(id(kind))
                yield kind
                if isinstance(kind, Record):
                    work += [field.type for field in kind.fields]


def same_shape(one: AvroType, other: AvroType) -> bool:
    """Return whether two schemas differ only in aliases and texts, so that every library reads one as the other."""
    seen: set[tuple[int, int]] = set()
    work = [(one, other)]
    while work:
        left, right = work.pop()
        if type(left) is not type(right):
            return False
        if (id(left), id(right)) in seen:
            continue
        seen.add((id(left), id(right)))
        match left, right:
            case Primitive(), Primitive():
                same = left == right
            case Array(), Array():
                same = True
                work.append((left.items, right.items))
            case MapType(), MapType():
                same = True
                work.append((left.values, right.values))
            case Union(), Union():
                same = len(left.branches) == len(right.branches)
                work += zip(left.branches, right.branches, strict=False)
            case Fixed(), Fixed():
                same = (left.full_name, left.size, left.decimal) == (
                    right.full_name,
                    right.size,
                    right.decimal,
                )
            case Enumeration(), Enumeration():
                same = (left.full_name, left.symbols) == (right.full_name, right.symbols)
            case Record(), Record():
                same = left.full_name == right.full_name and [_fact(field) for field in left.fields] == [
                    _fact(field) for field in right.fields
                ]
                work += [(mine.type, its.type) for mine, its in zip(left.fields, right.fields, strict=False)]
            case _:
                same = False
        if not same:
            return False
    return True


def _fact(field: Field) -> tuple[str, bool, str]:
    return field.name, field.has_default, repr(field.default)


def _matches(writer: AvroType, reader: AvroType) -> bool:
    """Return whether the two match, in the specification's sense for choosing a branch of the reader's union."""
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
            return writer.size == reader.size and _is_named_by(writer, reader)
        case Enumeration(), Enumeration():
            return _is_named_by(writer, reader)
        case Record(), Record():
            return same_name(writer, reader)
        case _:
            return False
