"""JSON payloads as columns, by the types of a JSON Schema."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_storage.topics.decoding.fault import FAULTS, Fault
from pydanube_storage.topics.decoding.json_schema import JsonFormat


def read(schema: Any, payload: Any) -> Any:
    wants = JsonFormat(json.dumps(schema).encode())
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return pa.array([wants.reading(b"")(data)], wants.type).to_pylist()[0]


def kind(schema: Any) -> str:
    return str(JsonFormat(json.dumps(schema).encode()).type)


ORDER = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": ["string", "null"]},
        "state": {"enum": ["new", "paid", None]},
        "on": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
        "labels": {"type": "object", "additionalProperties": {"type": "number"}},
        "rest": {},
    },
    "$defs": {"line": {"type": "object", "properties": {"sku": {"type": "string"}, "n": {"type": "number"}}}},
}


def test_an_order_is_a_struct_of_typed_columns() -> None:
    found = read(
        ORDER,
        {
            **{"id": 7, "state": "new", "on": "2026-02-03", "at": "2026-02-03T04:05:06.5+02:00"},
            **{"lines": [{"sku": "a", "n": 2, "more": True}, {"sku": "b"}], "labels": {"x": 1}},
            **{"rest": {"any": [1, "thing"]}, "unknown": 1},
        },
    )
    assert found == {
        "id": 7,
        "note": None,
        "state": "new",
        "on": datetime.date(2026, 2, 3),
        "at": datetime.datetime(2026, 2, 3, 2, 5, 6, 500000, tzinfo=datetime.UTC),
        "lines": [{"sku": "a", "n": 2.0}, {"sku": "b", "n": None}],
        "labels": [("x", 1.0)],
        "rest": '{"any":[1,"thing"]}',
    }


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"id": "7"}, "id: string, where the schema has a whole number"),
        ({"id": 2**63}, "id: a whole number of more than 64 bits"),
        ({"id": 1, "lines": [{"n": True}]}, "lines: n: boolean, where the schema has a number"),
        ([1], "array, where the schema has an object"),
        (b'{"id": NaN}', "NaN is no JSON"),
    ],
)
def test_a_payload_of_another_kind_is_a_fault_that_names_the_place(payload: Any, said: str) -> None:
    with pytest.raises(Fault) as caught:
        read(ORDER, payload)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        (True, "string"),
        ({"type": ["integer", "number"]}, "double"),
        ({"type": ["string", "integer"]}, "string"),
        ({"const": 3}, "int64"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string"),
        ({"type": "integer", "allOf": [{"minimum": 3}]}, "int64"),
        (
            {
                "oneOf": [
                    {"properties": {"a": {"type": "string"}}},
                    {"properties": {"b": {"type": "boolean"}}},
                ]
            },
            "struct<a: string, b: bool>",
        ),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "string"}},
                "allOf": [{"properties": {"b": {"type": "integer"}}}, {"required": ["a"]}],
            },
            "struct<b: int64, a: string>",
        ),
        (
            {"type": "object", "properties": {"up": {"$ref": "#"}, "n": {"type": "number"}}},
            "struct<up: string, n: double>",
        ),
        ({"type": "array", "prefixItems": [{"type": "string"}]}, "list<item: string>"),
        ({"$ref": "https://example.org/other.json"}, "string"),
        ({"$ref": "#n", "$defs": {"x": {"$anchor": "n", "type": "integer"}}}, "int64"),
        ({"$ref": "urn:n", "$defs": {"x": {"$id": "urn:n", "type": "integer"}}}, "int64"),
        ({"type": "object"}, "string"),
    ],
)
def test_types(schema: Any, found: str) -> None:
    assert kind(schema) == found


def test_references_that_unfold_without_end_are_cut() -> None:
    schema: dict[str, Any] = {"$defs": {"d0": {"type": "integer"}}}
    for level in range(1, 40):
        inner = {"$ref": f"#/$defs/d{level - 1}"}
        schema["$defs"][f"d{level}"] = {"type": "object", "properties": {"a": inner, "b": inner}}
    assert len(kind({**schema, "$ref": "#/$defs/d39"})) < 200_000


VALUES = st.fixed_dictionaries(
    {"id": st.integers(-(2**63), 2**63 - 1)},
    optional={
        "note": st.none() | st.text(st.characters(codec="utf-8"), max_size=5),
        "on": st.dates().map(str),
        "labels": st.dictionaries(
            st.text(st.characters(codec="utf-8"), max_size=3),
            st.floats(allow_nan=False, allow_infinity=False),
            max_size=3,
        ),
        "lines": st.lists(
            st.fixed_dictionaries({"sku": st.text(st.characters(codec="utf-8"), max_size=3)}), max_size=3
        ),
        "rest": st.recursive(st.none() | st.booleans() | st.integers(), lambda x: st.lists(x, max_size=2)),
    },
)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_what_was_sent_is_what_the_column_holds(value: dict[str, Any]) -> None:
    found = read(ORDER, value)
    assert found["id"] == value["id"]
    assert found["note"] == value.get("note")
    assert (found["on"] and str(found["on"])) == value.get("on")
    assert dict(found["labels"] or {}) == value.get("labels", {})
    assert [line["sku"] for line in found["lines"] or []] == [line["sku"] for line in value.get("lines", [])]
    assert json.loads(found["rest"] or "null") == value.get("rest")


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=40)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
        lambda x: (
            st.lists(x, max_size=3) | st.dictionaries(st.sampled_from([*ORDER["properties"], "sku"]), x)
        ),
    ).map(lambda value: json.dumps(value).encode())
    | st.just(b"[" * 50_000)
    | st.just(rb'{"id": 1, "note": "\ud800"}')
)
def test_bytes_of_anybody_are_a_value_or_a_fault(payload: bytes) -> None:
    try:
        read(ORDER, payload)
    except FAULTS:
        return
