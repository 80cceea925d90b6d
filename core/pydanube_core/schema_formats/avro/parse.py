"""Parse the JSON of an Avro schema into a tree. Errors have the place in the schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pydanube_core.errors import SchemaInvalid
from pydanube_core.schema_formats.avro.model import (
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
    branch_name,
)

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
MAX_DEPTH: Final = 64
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_INT: Final = (-(1 << 31), (1 << 31) - 1)
_LONG: Final = (-(1 << 63), (1 << 63) - 1)


def parse_avro(schema: Any) -> AvroType:
    """Parse a schema.

    Raises `SchemaInvalid`: `details["path"]` is a JSON pointer into the schema.
    """
    parser = _Parser()
    root = parser.type(schema, "", "", depth=0)
    parser.height(root, "")
    return root


class _Parser:
    """Parser of one schema. A name must be defined before its use, in the order of the text ("Names")."""

    def __init__(self) -> None:
        self._named: dict[str, Fixed | Enumeration | Record] = {}
        # Records whose fields are being read: their defaults cannot be checked yet
        self._open: set[str] = set()
        self._heights: dict[str, int] = {}
        # (record, value) of the default that is being looked at
        self._fitting: dict[tuple[int, int], bool] = {}

    def height(self, kind: AvroType, path: str) -> int:
        """Return how deeply types are nested, with recursion counted once. Names can nest deeper than the JSON.

        The depth is bounded, because code that walks a schema or its data recurses.
        """
        match kind:
            case Array(items=inner) | MapType(values=inner):
                found = 1 + self.height(inner, path)
            case Union(branches=branches):
                found = 1 + max(self.height(branch, path) for branch in branches)
            case Record(full_name=name):
                found = self._heights.get(name, 1)
            case _:
                found = 1
        if found > MAX_DEPTH:
            raise _bad(path, None, f"types are nested deeper than {MAX_DEPTH}")
        return found

    def type(self, schema: Any, namespace: str, path: str, *, depth: int) -> AvroType:
        if depth > MAX_DEPTH:
            raise _bad(path, None, f"types are nested deeper than {MAX_DEPTH}")
        match schema:
            case str():
                return self._reference(schema, namespace, path)
            case list():
                return self._union(schema, namespace, path, depth)
            case dict():
                return self._object(schema, namespace, path, depth)
            case _:
                raise _bad(path, schema, "a schema is a name, an object or a list of schemas (a union)")

    def _reference(self, name: str, namespace: str, path: str) -> AvroType:
        if name in PRIMITIVES:
            return Primitive(name=name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self._named.get(full) or self._named.get(name)
        if found is None:
            raise _bad(
                path,
                name,
                f"type {name!r} does not exist: use a primitive type, or define it before this place",
            )
        return found

    def _union(self, schemas: list[Any], namespace: str, path: str, depth: int) -> AvroType:
        branches = tuple(
            self.type(branch, namespace, f"{path}/{index}", depth=depth + 1)
            for index, branch in enumerate(schemas)
        )
        seen: set[str] = set()
        for index, branch in enumerate(branches):
            if isinstance(branch, Union):
                raise _bad(f"{path}/{index}", schemas[index], "a union does not directly contain a union")
            name = branch_name(branch)
            if name in seen:
                raise _bad(f"{path}/{index}", schemas[index], f"a union holds {name} only once")
            seen.add(name)
        if not branches:
            raise _bad(path, schemas, "a union has at least one branch")
        return Union(branches=branches)

    def _object(self, schema: Mapping[str, Any], namespace: str, path: str, depth: int) -> AvroType:
        kind = schema.get("type")
        match kind:
            case "array":
                items = self._inner(schema, "items", namespace, path, depth)
                return Array(items=items)
            case "map":
                values = self._inner(schema, "values", namespace, path, depth)
                return MapType(values=values)
            case "record" | "error":
                return self._record(schema, namespace, path, depth)
            case "enum":
                return self._enumeration(schema, namespace, path)
            case "fixed":
                return self._fixed(schema, namespace, path)
            case str() if kind in PRIMITIVES:
                decimal = _decimal(schema) if kind == "bytes" else None
                return Primitive(name=kind, decimal=decimal, logical=_logical(schema))
            case str():
                return self._reference(kind, namespace, f"{path}/type")
            case None:
                raise _bad(path, None, "an object needs a 'type'")
            case _:
                raise _bad(f"{path}/type", kind, "'type' is the name of a type here")

    def _inner(self, schema: Mapping[str, Any], key: str, namespace: str, path: str, depth: int) -> AvroType:
        if key not in schema:
            raise _bad(path, None, f"{schema['type']} needs {key!r}")
        return self.type(schema[key], namespace, f"{path}/{key}", depth=depth + 1)

    def _names(self, schema: Mapping[str, Any], namespace: str, path: str) -> tuple[str, str, frozenset[str]]:
        """Return the full name, its namespace, and the full aliases."""
        name = schema.get("name")
        if not isinstance(name, str) or not name:
            raise _bad(f"{path}/name", name, f"{schema['type']} needs a name")
        if "." in name:
            namespace = name.rpartition(".")[0]
        else:
            given = schema.get("namespace", namespace)
            if not isinstance(given, str):
                raise _bad(f"{path}/namespace", given, "a namespace is text")
            namespace = given
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        for part in full.split("."):
            if not _NAME.match(part):
                raise _bad(f"{path}/name", full, "names are letters, digits and '_', and begin with no digit")
        if full in self._named or full in PRIMITIVES:
            raise _bad(f"{path}/name", full, f"{full!r} is defined already")
        aliases = frozenset(
            alias if "." in alias or not namespace else f"{namespace}.{alias}"
            for alias in _texts(schema.get("aliases", []), f"{path}/aliases")
        )
        return full, namespace, aliases

    def _fixed(self, schema: Mapping[str, Any], namespace: str, path: str) -> Fixed:
        full, _, aliases = self._names(schema, namespace, path)
        size = schema.get("size")
        if type(size) is not int or size < 0:
            raise _bad(f"{path}/size", size, "a fixed has a size in bytes, 0 or more")
        made = Fixed(
            full_name=full, aliases=aliases, size=size, decimal=_decimal(schema), logical=_logical(schema)
        )
        self._named[full] = made
        return made

    def _enumeration(self, schema: Mapping[str, Any], namespace: str, path: str) -> Enumeration:
        full, _, aliases = self._names(schema, namespace, path)
        symbols = _texts(schema.get("symbols"), f"{path}/symbols")
        for index, symbol in enumerate(symbols):
            if not _NAME.match(symbol):
                raise _bad(f"{path}/symbols/{index}", symbol, "a symbol is spelled like a name")
            if symbol in symbols[:index]:
                raise _bad(f"{path}/symbols/{index}", symbol, "a symbol stands once in an enum")
        default = schema.get("default")
        if default is not None and default not in symbols:
            raise _bad(f"{path}/default", default, "the default of an enum is one of its symbols")
        made = Enumeration(full_name=full, aliases=aliases, symbols=tuple(symbols), default=default)
        self._named[full] = made
        return made

    def _record(self, schema: Mapping[str, Any], namespace: str, path: str, depth: int) -> Record:
        full, namespace, aliases = self._names(schema, namespace, path)
        made = Record(full_name=full, aliases=aliases)
        self._named[full] = made
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise _bad(f"{path}/fields", fields, "a record has a list of fields")
        self._open.add(full)
        names: set[str] = set()
        for index, entry in enumerate(fields):
            at = f"{path}/fields/{index}"
            if not isinstance(entry, dict):
                raise _bad(at, entry, "a field is an object with a name and a type")
            name = entry.get("name")
            if not isinstance(name, str) or not _NAME.match(name):
                raise _bad(f"{at}/name", name, "a field needs a name of letters, digits and '_'")
            if name in names:
                raise _bad(f"{at}/name", name, "a field stands once in a record")
            names.add(name)
            if "type" not in entry:
                raise _bad(at, name, f"field {name!r} needs a type")
            kind = self.type(entry["type"], namespace, f"{at}/type", depth=depth + 1)
            has_default = "default" in entry
            self._fitting.clear()
            if has_default and not self._fits(kind, entry["default"]):
                raise _bad(
                    f"{at}/default", entry["default"], f"the default of {name!r} is no value of its type"
                )
            made.fields.append(
                Field(
                    name=name,
                    aliases=frozenset(_texts(entry.get("aliases", []), f"{at}/aliases")),
                    type=kind,
                    has_default=has_default,
                    default=entry.get("default"),
                )
            )
        self._open.discard(full)
        inner_height = max((self.height(field.type, path) for field in made.fields), default=0)
        self._heights[full] = 1 + inner_height
        self.height(made, path)
        return made

    def _fits(self, kind: AvroType, value: Any) -> bool:
        """Return whether a JSON value can be the default of a type."""
        match kind:
            case Primitive(name=name):
                return _fits_primitive(name, value)
            case Fixed(size=size):
                return _is_bytes(value) and len(value) == size
            case Enumeration(symbols=symbols):
                return value in symbols
            case Array(items=items):
                return isinstance(value, list) and all(self._fits(items, item) for item in value)
            case MapType(values=values):
                return isinstance(value, dict) and all(self._fits(values, item) for item in value.values())
            case Union(branches=branches):
                return any(self._fits(branch, value) for branch in branches)
            case Record(full_name=full, fields=fields):
                if not isinstance(value, dict):
                    return False
                if full in self._open:  # its fields are not complete yet
                    return True
                key = (id(kind), id(value))
                if key not in self._fitting:  # cached, because nested unions of records would need 2^n checks
                    self._fitting[key] = all(
                        self._fits(field.type, value[field.name])
                        if field.name in value
                        else field.has_default
                        for field in fields
                    )
                return self._fitting[key]


def fits_default(kind: AvroType, value: Any) -> bool:
    """Return whether a JSON value can be the default of a type (table "field default values")."""
    return _Parser()._fits(kind, value)


def _fits_primitive(name: str, value: Any) -> bool:
    match name:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int":
            return type(value) is int and _INT[0] <= value <= _INT[1]
        case "long":
            return type(value) is int and _LONG[0] <= value <= _LONG[1]
        case "float" | "double":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case "bytes":
            return _is_bytes(value)
        case _:
            return isinstance(value, str)


def _is_bytes(value: Any) -> bool:
    return isinstance(value, str) and all(ord(character) < 256 for character in value)


def _decimal(schema: Mapping[str, Any]) -> Decimal | None:
    """Return the decimal of a bytes or fixed type, or None. A malformed one is ignored, as the specification requires."""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if schema.get("logicalType") != "decimal" or type(precision) is not int or type(scale) is not int:
        return None
    if precision < 1 or not 0 <= scale <= precision:
        return None
    return Decimal(precision=precision, scale=scale)


def _logical(schema: Mapping[str, Any]) -> str | None:
    found = schema.get("logicalType")
    return found if isinstance(found, str) else None


def _texts(value: Any, path: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _bad(path, value, "this is a list of names")
    return value


def _bad(path: str, value: Any, why: str) -> SchemaInvalid:
    shown = value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)[:120]
    return SchemaInvalid(
        f"the Avro schema is wrong at {path or '/'}: {why}",
        field="schema_definition",
        path=path or "/",
        value=shown,
    )
