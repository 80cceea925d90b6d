"""Describe a connector's settings for `danube connect list` and the documentation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic_core import PydanticUndefined


class SettingFact(NamedTuple):
    """One setting. Its default is `required`, `unset`, or the value in TOML notation."""

    name: str
    type: str
    default: str
    about: str


def settings_of(model: type[BaseModel]) -> Iterator[SettingFact]:
    """Yield the settings of a model in the order of its fields."""
    schema = model.model_json_schema()["properties"]
    for name, info in model.model_fields.items():
        default = "required" if info.is_required() else _toml(info.get_default(call_default_factory=True))
        yield SettingFact(name, _type(schema[info.alias or name]), default, info.description or "")


def _toml(value: Any) -> str:
    match value:
        case None:
            return "unset"
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case _ if value is PydanticUndefined:
            return "required"
        case _:
            return str(value)


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    if "anyOf" in schema:
        return " | ".join(_type(one) for one in schema["anyOf"] if one.get("type") != "null")
    names = {
        "string": "text",
        "integer": "number",
        "object": "table",
        "array": "list",
        "boolean": "true | false",
    }
    kind = str(schema.get("type", "value"))
    return names.get(kind, kind)
