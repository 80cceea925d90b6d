"""Avro: named cases, each by a clause of the Avro specification 1.12, "Schema Resolution" unless it says otherwise."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from pydanube_broker.schema.formats import differences_between, parse_schema
from pydanube_broker.schema.vocabulary import CompatibilityMode, SchemaType


def record(*fields: Any, name: str = "Order", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any = "int", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, name: str = "State", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "Hash", **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`expected`: (path, rule) of every difference when the new schema reads data of the old one."""

    name: str
    clause: str
    old: Any
    new: Any
    expected: tuple[tuple[str, str], ...] = ()


LIST = record(field("value"), field("next", ["null", "Order"]))
CASES = [
    Case(name="same primitive", clause="same primitive type", old="long", new="long"),
    Case(name="int to long", clause="int is promotable to long, float, or double", old="int", new="long"),
    Case(name="int to double", clause="int is promotable to long, float, or double", old="int", new="double"),
    Case(name="long to float", clause="long is promotable to float or double", old="long", new="float"),
    Case(name="float to double", clause="float is promotable to double", old="float", new="double"),
    Case(name="string to bytes", clause="string is promotable to bytes", old="string", new="bytes"),
    Case(name="bytes to string", clause="bytes is promotable to string", old="bytes", new="string"),
    Case(name="long to int", clause="promotions go one way", old="long", new="int", expected=(("int", "type_changed"),)),
    Case(name="double to float", clause="promotions go one way", old="double", new="float",
         expected=(("float", "type_changed"),)),
    Case(name="int to string", clause="it is an error if the two schemas do not match", old="int", new="string",
         expected=(("string", "type_changed"),)),
    Case(name="boolean to int", clause="it is an error if the two schemas do not match", old="boolean", new="int",
         expected=(("int", "type_changed"),)),
    Case(name="field added with default", clause="reader's field with a default that the writer lacks: the default",
         old=record(field("a")), new=record(field("a"), field("b", "string", default=""))),
    Case(name="field added without default", clause="reader's field without default that the writer lacks: an error",
         old=record(field("a")), new=record(field("a"), field("b", "string")),
         expected=(("Order.b", "field_without_default"),)),
    Case(name="nullable field added without default", clause="a union with null is no default",
         old=record(field("a")), new=record(field("a"), field("b", ["null", "int"])),
         expected=(("Order.b", "field_without_default"),)),
    Case(name="field removed", clause="writer's field that the reader lacks: the value is ignored",
         old=record(field("a"), field("b")), new=record(field("a"))),
    Case(name="fields in another order", clause="the ordering of fields may be different: matched by name",
         old=record(field("a"), field("b", "string")), new=record(field("b", "string"), field("a"))),
    Case(name="type of a field", clause="schemas for fields with the same name are resolved recursively",
         old=record(field("a", "string")), new=record(field("a", "int")),
         expected=(("Order.a", "type_changed"),)),
    Case(name="two faults at once", clause="every difference is listed",
         old=record(field("a", "string")), new=record(field("a", "int"), field("b")),
         expected=(("Order.a", "type_changed"), ("Order.b", "field_without_default"))),
    Case(name="field renamed", clause="fields are matched by name",
         old=record(field("a")), new=record(field("b")), expected=(("Order.b", "field_without_default"),)),
    Case(name="field renamed with alias", clause="Aliases: the reader's alias stands for the writer's name",
         old=record(field("a")), new=record(field("b", aliases=["a"]))),
    Case(name="record renamed", clause="both schemas are records with the same (unqualified) name",
         old=record(field("a")), new=record(field("a"), name="Sale"), expected=(("Sale", "name_changed"),)),
    Case(name="record renamed with alias", clause="Aliases: of named types",
         old=record(field("a")), new=record(field("a"), name="Sale", aliases=["Order"])),
    Case(name="record in another namespace", clause="same (unqualified) name",
         old=record(field("a"), namespace="eu"), new=record(field("a"), namespace="us")),
    Case(name="nested record", clause="resolved recursively",
         old=record(field("inner", record(field("x"), name="Inner"))),
         new=record(field("inner", record(field("x"), field("y"), name="Inner"))),
         expected=(("Order.inner.y", "field_without_default"),)),
    Case(name="items of an array", clause="arrays: resolved recursively between their item schemas",
         old={"type": "array", "items": "string"}, new={"type": "array", "items": "int"},
         expected=(("array[]", "type_changed"),)),
    Case(name="items of an array widened", clause="arrays: resolved recursively between their item schemas",
         old={"type": "array", "items": "int"}, new={"type": "array", "items": "long"}),
    Case(name="values of a map", clause="maps: resolved recursively between their value schemas",
         old={"type": "map", "values": "double"}, new={"type": "map", "values": "long"},
         expected=(("map{}", "type_changed"),)),
    Case(name="array to map", clause="it is an error if the two schemas do not match",
         old={"type": "array", "items": "int"}, new={"type": "map", "values": "int"},
         expected=(("map", "type_changed"),)),
    Case(name="made nullable", clause="reader's is a union, writer's is not: the first branch that matches",
         old=record(field("a", "int")), new=record(field("a", ["null", "int"]))),
    Case(name="union without the writer's type", clause="if none matches, an error is signalled",
         old=record(field("a", "string")), new=record(field("a", ["null", "int"])),
         expected=(("Order.a", "no_matching_branch"),)),
    Case(name="promotion inside a union", clause="the first schema that matches, promotions included",
         old="int", new=["null", "long"]),
    Case(name="first matching branch decides", clause="the first schema in the reader's union that matches",
         old=record(field("a"), name="Part"),
         new=["null", record(field("a"), field("b"), name="Part")],
         expected=(("union.b", "field_without_default"),)),
    Case(name="no longer nullable", clause="writer's is a union: the selected branch must match the reader's",
         old=record(field("a", ["null", "int"])), new=record(field("a", "int")),
         expected=(("Order.a<null>", "type_changed"),)),
    Case(name="branch removed", clause="both are unions: the selected branch needs one that matches",
         old=["null", "int", "string"], new=["null", "int"], expected=(("union<string>", "no_matching_branch"),)),
    Case(name="branch added", clause="both are unions", old=["null", "int"], new=["null", "int", "string"]),
    Case(name="symbol added", clause="enums: the writer's symbol is one of the reader's",
         old=enum("NEW"), new=enum("NEW", "PAID")),
    Case(name="symbol removed", clause="enums: a symbol that the reader lacks, without default: an error",
         old=enum("NEW", "PAID"), new=enum("NEW"), expected=(("State", "enum_symbol_unknown"),)),
    Case(name="symbol removed with default", clause="enums: a symbol that the reader lacks: the reader's default",
         old=enum("NEW", "PAID"), new=enum("NEW", default="NEW")),
    Case(name="enum renamed", clause="both schemas are enums whose (unqualified) names match",
         old=enum("NEW"), new=enum("NEW", name="Status"), expected=(("Status", "name_changed"),)),
    Case(name="size of a fixed", clause="both schemas are fixed whose sizes and (unqualified) names match",
         old=fixed(16), new=fixed(20), expected=(("Hash", "fixed_size_changed"),)),
    Case(name="fixed to bytes", clause="it is an error if the two schemas do not match",
         old=fixed(16), new="bytes", expected=(("bytes", "type_changed"),)),
    Case(name="scale of a decimal", clause='Logical Types, "Decimal": match if their scales and precisions match',
         old=decimal(9, 2), new=decimal(9, 3), expected=(("bytes", "decimal_changed"),)),
    Case(name="precision of a decimal", clause='Logical Types, "Decimal": match if their scales and precisions match',
         old=decimal(9, 2), new=decimal(12, 2), expected=(("bytes", "decimal_changed"),)),
    Case(name="logical type left out", clause="Logical Types: otherwise the underlying type is resolved",
         old={"type": "long", "logicalType": "timestamp-millis"}, new="long"),
    Case(name="recursive and unchanged", clause="Names: a schema may refer to itself", old=LIST, new=LIST),
    Case(name="recursive with a new field", clause="resolved recursively",
         old=LIST, new=record(field("value"), field("next", ["null", "Order"]), field("note", "string")),
         expected=(("Order.note", "field_without_default"),)),
    Case(name="documentation only", clause="doc and order do not take part",
         old=record(field("a")), new=record(field("a", doc="how many"), doc="an order")),
]  # fmt: skip


def differences(old: Any, new: Any, mode: str) -> list[tuple[str, str]]:
    parsed = [parse_schema(SchemaType.AVRO, json.dumps(schema).encode()) for schema in (old, new)]
    found = differences_between(parsed[0], parsed[1], CompatibilityMode(mode))
    return [(difference.path, difference.rule) for difference in found]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reader_of_the_new_schema(case: Case) -> None:
    assert differences(case.old, case.new, "backward") == list(case.expected), case.clause


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_forward_is_backward_with_the_roles_exchanged(case: Case) -> None:
    backward = {rule for _, rule in differences(case.old, case.new, "backward")}
    forward = {rule for _, rule in differences(case.new, case.old, "forward")}
    assert backward == forward
    assert differences(case.old, case.new, "none") == []


def test_at_least_twenty_cases_half_of_them_incompatible() -> None:
    incompatible = sum(bool(case.expected) for case in CASES)
    assert len(CASES) >= 20
    assert incompatible * 2 >= len(CASES) - 1


def test_full_asks_both_ways_and_lists_both() -> None:
    old, new = record(field("a"), field("b")), record(field("a"), field("c"))
    assert differences(old, new, "full") == [
        ("Order.c", "field_without_default"),
        ("Order.b", "field_without_default"),
    ]


def test_a_difference_shows_what_was_before_and_what_is_after() -> None:
    parsed = [
        parse_schema(SchemaType.AVRO, json.dumps(record(field("a", kind))).encode())
        for kind in ("string", "int")
    ]
    (difference,) = differences_between(parsed[0], parsed[1], CompatibilityMode.BACKWARD)
    assert difference.to_dict() == {
        "path": "Order.a",
        "rule": "type_changed",
        "before": "string",
        "after": "int",
    }
    (difference,) = differences_between(parsed[0], parsed[1], CompatibilityMode.FORWARD)
    assert difference.to_dict()["before"] == "string"
