"""Schemas of strangers that are small to write and long to follow."""

from __future__ import annotations

import json
import time
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_broker.schema.formats import admit_schema, differences_between, parse_schema, payload_check
from pydanube_broker.schema.json_schema.cost import admit
from pydanube_broker.schema.json_schema.document import Document
from pydanube_broker.schema.payload_process import check_apart
from pydanube_broker.schema.vocabulary import CompatibilityMode, JsonProfile, SchemaType
from pydanube_core.errors import PayloadInvalid, SchemaInvalid


def doubling(levels: int, *, below: str = "") -> dict[str, Any]:
    """Definitions that each name the one before twice, in place or below a property."""
    definitions: dict[str, Any] = {"d0": {"type": "integer"}}
    for level in range(1, levels + 1):
        one = {"$ref": f"#/$defs/d{level - 1}"}
        definitions[f"d{level}"] = {
            "allOf": [{"properties": {below: one}}, {"properties": {below: one}}] if below else [one, one]
        }
    return {"$defs": definitions, "$ref": f"#/$defs/d{levels}"}


def admitted(schema: Any) -> float:
    return admit(Document(schema))


REFUSED: dict[str, Any] = {
    "in_place": doubling(40),
    "endless": {"allOf": [{"$ref": "#"}]},
    "endless_pair": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}},
        "$ref": "#/$defs/a",
    },
    "look_ahead": {"type": "object", "patternProperties": {"^(a|a)*(?=b)$": {"type": "integer"}}},
    "back_reference": {"properties": {"name": {"pattern": r"^(.*)\1\1x$"}}},
    "large_expression": {"pattern": "((a{50}){50}){20}"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_bounded_is_refused_when_it_is_registered(name: str) -> None:
    began = time.process_time()
    with pytest.raises(SchemaInvalid, match="not taken") as caught:
        admit_schema(parse_schema(SchemaType.JSON_SCHEMA, json.dumps(REFUSED[name]).encode()))
    assert time.process_time() - began < 5
    assert caught.value.details["path"]


def test_what_grows_with_the_depth_of_payloads_is_checked_apart() -> None:
    assert admitted(doubling(40, below="a")) == inf
    both = {"properties": {"next": {"$ref": "#"}}}
    assert admitted({"allOf": [both, both]}) == inf
    assert admitted({"items": {"format": "regex"}}) == inf


def test_trees_and_lists_are_cheap() -> None:
    tree = {
        "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}},
        "additionalProperties": {"$ref": "#"},
        "items": {"$ref": "#"},
    }
    assert admitted(tree) < 10
    assert admitted({"properties": {f"p{i}": {"type": "string"} for i in range(1000)}}) < 10


@given(levels=st.integers(1, 12), branches=st.integers(1, 3))
@settings(max_examples=30)
def test_the_count_is_what_it_says(levels: int, branches: int) -> None:
    schema: dict[str, Any] = {"type": "integer"}
    definitions = {}
    for level in range(levels):
        definitions[f"d{level}"] = schema
        schema = {"anyOf": [{"$ref": f"#/$defs/d{level}"}] * branches}
    # each level has itself, its references and what they lead to
    expected = 1
    for _ in range(levels):
        expected = 1 + branches * (1 + expected)
    schema = {**schema, "$defs": definitions}
    if expected > 20_000:
        with pytest.raises(SchemaInvalid):
            admitted(schema)
    else:
        assert admitted(schema) == expected


async def test_a_check_without_end_ends_with_a_refusal() -> None:
    """The loop goes on meanwhile: the limit would not fire otherwise."""
    payload = b'{"a":' * 60 + b"1" + b"}" * 60
    schema = json.dumps(doubling(60, below="a")).encode()
    with pytest.raises(PayloadInvalid, match=r"could not be checked against its JSON Schema in 0.5 s"):
        await check_apart(schema, payload, limit_s=0.5)


async def test_a_check_apart_gives_the_verdict_of_the_check_here() -> None:
    schema = json.dumps({"properties": {"a": {"type": "integer"}}}).encode()
    check = payload_check(parse_schema(SchemaType.JSON_SCHEMA, schema))
    await check_apart(schema, b'{"a": 1}', limit_s=60)
    with pytest.raises(PayloadInvalid) as here:
        check(b'{"a": "1"}')
    with pytest.raises(PayloadInvalid) as there:
        await check_apart(schema, b'{"a": "1"}', limit_s=60)
    assert (there.value.message, there.value.details) == (here.value.message, here.value.details)


PAIRS: dict[str, tuple[Any, Any]] = {
    "doubling": (doubling(60), doubling(60) | {"minimum": 1}),
    "doubling_below": (doubling(60, below="a"), doubling(60, below="a") | {"minProperties": 1}),
    "doubling_in_not": (
        {"type": "object"},
        doubling(60)
        | {"$ref": "#/$defs/no", "$defs": doubling(60)["$defs"] | {"no": {"not": {"$ref": "#/$defs/d60"}}}},
    ),
    "doubling_and_values": ({"enum": [1, {"a": {"a": 1}}]}, doubling(60, below="a")),
    "expression_in_names": (
        {"properties": {"a" * 40: True}},
        {"patternProperties": {"^(a|a)*$|^(a*)*b$": {"type": "integer"}}},
    ),
    "many_parts": ({"allOf": [{"type": "object"}] * 8000}, {"allOf": [{"minProperties": 1}] * 4000}),
    "conditions": tuple(
        {
            "allOf": [
                {"if": {"properties": {"k": {"const": n}}}, "then": {"required": [f"r{n}"]}}
                for n in range(size)
            ]
        }
        for size in (30, 31)
    ),
    "unions": tuple(
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"k": {"const": n}, f"f{n}": {"type": "string"}},
                    "required": ["k"],
                }
                for n in range(size)
            ]
        }
        for size in (60, 61)
    ),
    "expressions": (
        {"allOf": [{"pattern": f"a{n}.*b{n}.*c"} for n in range(200)]},
        {"allOf": [{"pattern": f"^b{n}.*c"} for n in range(200)]},
    ),
    "unique_values": tuple(
        {"type": "array", "uniqueItems": True, "items": {"enum": [*range(3000)]}, "minItems": least}
        for least in (2000, 2001)
    ),
    "values": ({"enum": [*range(20_000)]}, {"enum": [*range(1, 20_001)]}),
    "huge_number": ({"multipleOf": 10**400}, {"multipleOf": 10**399}),
    "huge_number_and_fraction": ({"multipleOf": 10**400}, {"multipleOf": 0.5}),
    "huge_bounds": ({"minimum": 10**400, "type": "integer"}, {"minimum": 1.5, "multipleOf": 3}),
    "huge_value": ({"const": 10**400}, {"multipleOf": 2}),
}


@pytest.mark.parametrize("profile", JsonProfile)
@pytest.mark.parametrize("name", PAIRS)
def test_comparing_ends_whatever_is_compared(name: str, profile: JsonProfile) -> None:
    old, new = (parse_schema(SchemaType.JSON_SCHEMA, json.dumps(one).encode()) for one in PAIRS[name])
    began = time.process_time()
    differences_between(old, new, CompatibilityMode.FULL, profile=profile)
    assert time.process_time() - began < 5


def test_a_number_beyond_all_numbers_is_no_json() -> None:
    with pytest.raises(SchemaInvalid, match="too large"):
        parse_schema(SchemaType.JSON_SCHEMA, b'{"multipleOf": 1e400}')
