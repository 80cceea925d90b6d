"""Strict parsing of JSON from outside, and canonical output."""

from __future__ import annotations

import json
import math
from typing import Any, Final, NoReturn

from pydanube_core.errors import SchemaInvalid

MAX_SCHEMA_NESTING: Final = 128  # nested brackets, because comparisons of schemas are recursive


def loads_strict(data: bytes | str) -> Any:
    """Parse UTF-8 JSON. Raises `ValueError` for anything outside RFC 8259 and for excessive nesting."""
    try:
        text = data if isinstance(data, str) else data.decode()
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start})") from None


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def canonical(value: Any) -> bytes:
    """Return the canonical JSON of a value: keys sorted, no blanks."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )


def value_key(value: Any) -> bytes:
    """Return a key that is equal exactly for equal JSON values: 1 equals 1.0, but not true."""
    return canonical(_plain(value))


def _plain(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {name: _plain(item) for name, item in value.items()}
        case _:
            return value


def parse_definition(definition: bytes, *, what: str) -> Any:
    """Parse the JSON of a schema definition. Raises `SchemaInvalid`, with line and column of the error."""
    try:
        value = loads_strict(definition)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise SchemaInvalid(
            f"{what} is not JSON at {place}: {error.msg}",
            field="schema_definition",
            path=place,
            value=error.doc[max(0, error.pos - 20) : error.pos + 20],
        ) from None
    except ValueError as error:
        raise SchemaInvalid(f"{what} is not JSON: {error}", field="schema_definition", path="") from None
    if _nesting(value) > MAX_SCHEMA_NESTING:
        raise SchemaInvalid(
            f"{what} is nested deeper than {MAX_SCHEMA_NESTING}", field="schema_definition", path=""
        )
    return value


def _nesting(value: Any) -> int:
    """Return the depth of nested lists and objects."""
    level, layer = 0, [value]
    while layer := [inner for inner in layer if isinstance(inner, (dict, list))]:
        level += 1
        layer = [inner for outer in layer for inner in (outer.values() if isinstance(outer, dict) else outer)]
    return level
