"""A message that shows why two JSON Schemas do not go together: the one takes it, the other refuses it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from pydanube_broker.schema.json_schema.counterexample import MOST_BYTES, counterexample
from pydanube_broker.schema.json_schema.document import parse_json_schema

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}


def changed(**more: Any) -> dict[str, Any]:
    return {**PERSON, **more}


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (PERSON, changed(required=["name", "age"])),
        (
            PERSON,
            changed(
                properties={**PERSON["properties"], "mail": {"type": "string"}}, required=["name", "mail"]
            ),
        ),
        (PERSON, changed(properties={"name": {"type": "string"}, "age": {"type": "string"}})),
        (PERSON, changed(properties={"name": {"type": "string"}, "age": {"type": "integer", "minimum": 18}})),
        (PERSON, changed(properties={"name": {"type": "string", "maxLength": 3}})),
        (PERSON, changed(additionalProperties=False)),
        ({"enum": ["a", "b"]}, {"enum": ["a"]}),
        ({"type": ["string", "null"]}, {"type": "string"}),
        ({"type": "array", "items": PERSON}, {"type": "array", "items": changed(required=["name", "age"])}),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, {"type": "string"}),
        (
            {"$ref": "#/$defs/p", "$defs": {"p": PERSON}},
            {"$ref": "#/$defs/p", "$defs": {"p": changed(required=["name", "age"])}},
        ),
    ],
)
def test_a_message_that_only_the_writer_takes_is_found(writer: Any, reader: Any) -> None:
    document, takes = parse_json_schema(writer)
    _, refuses = parse_json_schema(reader)
    found = counterexample(document, takes, refuses)
    assert found is not None
    message = json.loads(found.message)
    assert takes.is_valid(message)
    assert not refuses.is_valid(message)
    assert len(found.message.encode()) <= MOST_BYTES
    assert found.why
    assert counterexample(document, takes, takes) is None


def test_a_schema_of_many_parts_takes_no_longer() -> None:
    node: dict[str, Any] = {
        "type": "object",
        "properties": {f"f{number}": {"$ref": "#"} for number in range(40)},
    }
    document, takes = parse_json_schema(node)
    begun = time.process_time()
    counterexample(document, takes, takes)
    assert time.process_time() - begun < 2
