"""The types of JSON values, as JSON Schema names them. Pure."""

from __future__ import annotations

from typing import Any


def json_type_of(value: Any) -> str:
    """Return the type of a value as `json.loads` returns it."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
