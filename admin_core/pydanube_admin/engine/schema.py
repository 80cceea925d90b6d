"""JSON Schemas for people and models: pydantic's, without the noise.

A model reads every byte of an input schema on every turn, so titles are removed, references are resolved and
a nullable type is one `type`. The schemas stay plain JSON Schema 2020-12, which old and new clients can read.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel


@cache
def input_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of a request: optional arguments are left out rather than null, so null is not mentioned."""
    schema: dict[str, Any] = _tidy(model.model_json_schema(), {}, nullable=False)
    schema.pop("description", None)
    # pydantic puts inherited fields first. The operation's own arguments belong before those of paging.
    properties = schema.get("properties", {})
    shared = [
        name for name in ("limit", "page", "filter", "sort", "top", "changed_since") if name in properties
    ]
    schema["properties"] = {
        name: properties[name] for name in [*(name for name in properties if name not in shared), *shared]
    }
    return schema


@cache
def output_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of a result, as it is serialized (by alias)."""
    schema: dict[str, Any] = _tidy(model.model_json_schema(by_alias=True), {}, nullable=True)
    return schema


def _tidy(node: Any, defs: dict[str, Any], *, nullable: bool) -> Any:
    if isinstance(node, list):
        return [_tidy(item, defs, nullable=nullable) for item in node]
    if not isinstance(node, dict):
        return node
    defs = defs | node.get("$defs", {})
    if "$ref" in node:
        # Siblings of a reference (a field's description) override its target.
        target = defs[node["$ref"].removeprefix("#/$defs/")]
        return _tidy(
            target | {key: value for key, value in node.items() if key != "$ref"}, defs, nullable=nullable
        )
    if "anyOf" in node:
        rest = {key: value for key, value in node.items() if key != "anyOf"}
        return _tidy(_without_null(node["anyOf"], nullable=nullable) | rest, defs, nullable=nullable)
    tidy: dict[str, Any] = {}
    for key, value in node.items():
        match key:
            case "title" | "$defs":
                continue
            case "properties":  # its keys are our names, one of which may be `title`
                tidy[key] = {name: _tidy(field, defs, nullable=nullable) for name, field in value.items()}
            case "default" if value is None:
                continue
            case "const" | "enum" | "examples" | "default" | "required":
                tidy[key] = value
            case _:
                tidy[key] = _tidy(value, defs, nullable=nullable)
    return tidy


def _without_null(options: list[dict[str, Any]], *, nullable: bool) -> dict[str, Any]:
    """`X | null` as one schema. Our models have no other unions."""
    real = [option for option in options if option.get("type") != "null"]
    assert (len(real), len(options)) == (1, 2), f"a union we do not write: {options}"
    if not nullable:
        return dict(real[0])
    assert "type" in real[0], f"null beside a reference: {options}"
    return {**real[0], "type": [real[0]["type"], "null"]}
