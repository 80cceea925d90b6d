"""Decode JSON into columns, by the types of a JSON Schema.

The column's type comes from the reader's version. JSON is self-describing, so payloads of other versions are read in the
same way: properties that the reader's schema does not have are dropped, missing ones are null. A value without a single
type (no `type`, several, different alternatives, a recursive schema) is JSON text.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pydanube_core.json_types import json_type_of
from pydanube_core.schema_formats.json_schema.references import References

from pydanube_storage.topics.decoding.fault import Fault, micros_in_range, micros_of, text

_TIME: Final = pa.timestamp("us", tz="UTC")
_EPOCH_DAY: Final = datetime.date(1970, 1, 1).toordinal()
_MAX_DEPTH: Final = 64  # nested types. Deeper ones are JSON text
_COLUMNS: Final = 2000  # further ones are JSON text, because references may unfold without bound

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Shape:
    """A column type, and the conversion of a JSON value to it. `fields` are a struct's, by name."""

    type: Any
    convert: Convert
    fields: Mapping[str, _Shape] | None = None


class JsonFormat:
    """The reader's version of a JSON Schema."""

    def __init__(self, definition: bytes) -> None:
        shape = _Unfolding(json.loads(definition)).shape_of_root()
        self.type = shape.type
        self._convert = shape.convert

    def reading(self, writer: bytes) -> Callable[[bytes], Any]:
        convert = self._convert
        return lambda payload: _nullable(convert, _parsed(payload))


def _parsed(payload: bytes) -> Any:
    return json.loads(payload.decode(), parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise Fault(f"{name} is no JSON")


def _nullable(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


class _Unfolding:
    """Computes the shape of one schema."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._references = References(root)
        self._left = _COLUMNS

    def shape_of_root(self) -> _Shape:
        return self._shape(self._root, ())

    def _shape(self, schema: Any, above: tuple[int, ...]) -> _Shape:
        self._left -= 1
        if not isinstance(schema, Mapping) or len(above) > _MAX_DEPTH or self._left < 0:
            return _TEXT
        found, inside = self._followed(schema, above)
        if found is None:
            return _TEXT
        parts = list(_merged_alternatives(found))
        if len(parts) > 1 or parts[0] is not found:
            shapes = [self._shape(part, inside) for part in parts]
            return _together(shapes)
        kind = _kind_of(found)
        match kind:
            case "object":
                return self._object(found, inside)
            case "array":
                return self._array(found, inside)
            case "string":
                return _STRINGS.get(str(found.get("format")), _STRING)
            case "integer":
                return _INTEGER
            case "number":
                return _NUMBER
            case "boolean":
                return _BOOLEAN
            case _:
                return _TEXT

    def _followed(
        self, schema: Mapping[str, Any], above: tuple[int, ...]
    ) -> tuple[Mapping[str, Any] | None, tuple[int, ...]]:
        """Resolve references. Return None for the schema if they leave the document or are recursive."""
        found: Any = schema
        while True:
            if not isinstance(found, Mapping) or id(found) in above:
                return None, above
            above = (*above, id(found))
            target = found.get("$ref")
            if target is None:
                return (None if "$dynamicRef" in found or "$recursiveRef" in found else found), above
            found = self._references.target(str(target), found)

    def _object(self, schema: Mapping[str, Any], above: tuple[int, ...]) -> _Shape:
        properties = schema.get("properties")
        if properties:
            return _struct({name: self._shape(each, above) for name, each in properties.items()})
        values = schema.get("additionalProperties")
        if isinstance(values, Mapping) and not schema.get("patternProperties"):
            return _map(self._shape(values, above))
        return _TEXT

    def _array(self, schema: Mapping[str, Any], above: tuple[int, ...]) -> _Shape:
        items = schema.get("items")
        if "prefixItems" in schema or not isinstance(items, Mapping):
            return _list(_TEXT)
        return _list(self._shape(items, above))


def _kind_of(schema: Mapping[str, Any]) -> str | None:
    """Return the only JSON type of a schema, apart from null."""
    said = schema.get("type")
    kinds = {said} if isinstance(said, str) else set(said or ())
    if not kinds:
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        kinds = {json_type_of(value) for value in values}
        if not kinds and "properties" in schema:
            kinds = {"object"}
    kinds.discard("null")
    if kinds == {"integer", "number"}:
        return "number"
    return str(next(iter(kinds))) if len(kinds) == 1 else None


def _merged_alternatives(schema: Mapping[str, Any]) -> Iterable[Any]:
    """Return the schemas of allOf, oneOf and anyOf whose types a value may have. Without them, the schema itself."""
    found: list[Any] = []
    for word in ("allOf", "oneOf", "anyOf"):
        found += [each for each in schema.get(word, ()) if each != {"type": "null"}]
    if not found:
        return [schema]
    rest = {name: each for name, each in schema.items() if name not in ("allOf", "oneOf", "anyOf")}
    if _kind_of(rest) is not None and (rest.get("properties") or _kind_of(rest) not in ("object", "array")):
        found.append(rest)
    # A branch that only narrows (required, minimum) has no type.
    telling = [each for each in found if not isinstance(each, Mapping) or _tells(each)]
    return telling or found


def _tells(schema: Mapping[str, Any]) -> bool:
    words = ("type", "properties", "enum", "const", "$ref", "allOf", "oneOf", "anyOf", "$dynamicRef")
    return any(word in schema for word in words) and set(schema) - {"type"} != {"required"}


def _together(shapes: list[_Shape]) -> _Shape:
    """Return one shape for values of several shapes: a common one, a struct of all fields, a number, or JSON text."""
    first = shapes[0]
    if all(each.type == first.type for each in shapes[1:]):
        return first
    if all(each.fields is not None for each in shapes):
        fields: dict[str, _Shape] = {}
        for each in shapes:
            for name, shape in (each.fields or {}).items():
                fields[name] = shape if name not in fields else _together([fields[name], shape])
        return _struct(fields)
    if {str(each.type) for each in shapes} == {"int64", "double"}:
        return _NUMBER
    return _TEXT


def _struct(fields: Mapping[str, _Shape]) -> _Shape:
    pairs = [(name, shape.convert) for name, shape in fields.items()]

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        found = {}
        for name, each in pairs:
            inner = value.get(name)
            if inner is not None:
                try:
                    inner = each(inner)
                except Fault as fault:
                    raise Fault(f"{name}: {fault}") from None
            found[name] = inner
        return found

    return _Shape(pa.struct([(name, shape.type) for name, shape in fields.items()]), convert, dict(fields))


def _map(values: _Shape) -> _Shape:
    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        return [(text(name), _nullable(values.convert, each)) for name, each in value.items()]

    return _Shape(pa.map_(pa.string(), values.type), convert)


def _list(items: _Shape) -> _Shape:
    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            raise _wrong(value, "an array")
        return [_nullable(items.convert, each) for each in value]

    return _Shape(pa.list_(items.type), convert)


def _as_text(value: Any) -> str:
    return text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _as_string(value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(value, "a string")
    return text(value)


def _as_integer(value: Any) -> int:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)  # 1.0 is an integer in JSON Schema
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(value, "a whole number")
    if not -(2**63) <= value < 2**63:
        raise Fault("a whole number of more than 64 bits")
    return value


def _as_number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong(value, "a number")
    found = float(value)
    if found in (float("inf"), float("-inf")):
        raise Fault("a number that a double cannot hold")
    return found


def _as_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, "true or false")
    return value


def _as_day(value: Any) -> int:
    return datetime.date.fromisoformat(_as_string(value)).toordinal() - _EPOCH_DAY


def _as_time(value: Any) -> int:
    return micros_in_range(micros_of(datetime.datetime.fromisoformat(_as_string(value))))


def _wrong(value: Any, wanted: str) -> Fault:
    return Fault(f"{json_type_of(value)}, where the schema has {wanted}")


_TEXT: Final = _Shape(pa.string(), _as_text)
_STRING: Final = _Shape(pa.string(), _as_string)
_INTEGER: Final = _Shape(pa.int64(), _as_integer)
_NUMBER: Final = _Shape(pa.float64(), _as_number)
_BOOLEAN: Final = _Shape(pa.bool_(), _as_boolean)
_STRINGS: Final = {
    "date": _Shape(pa.date32(), _as_day),
    "date-time": _Shape(_TIME, _as_time),
}
