"""JSON Schema: named cases of both profiles.

The default profile's clauses are lines of docs/research/data-plane.md#115-results-per-rpc; the strict profile's are
sections of JSON Schema 2020-12 Validation (V) and Core (C): every document that is written by the old schema, of the
names that it speaks of, must be valid for the new one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from pydanube_broker.schema.formats import differences_between, parse_schema
from pydanube_broker.schema.vocabulary import CompatibilityMode, JsonProfile, SchemaType


def obj(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object", "properties": properties}
    return made if required is None else {**made, "required": required}


STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    clause: str
    old: Any
    new: Any
    backward: tuple[tuple[str, str], ...] = ()
    forward: tuple[tuple[str, str], ...] = ()


TYPE = "fails when a shared property's type changes"
DEFAULT_CASES = [
    Case(name="unchanged", clause="nothing to refuse", old=obj(a=STRING), new=obj(a=STRING)),
    Case(name="required property removed", clause="backward: a formerly required field is no longer a property",
         old=obj(["a"], a=STRING), new=obj(), backward=(("/properties/a", "required_property_removed"),)),
    Case(name="optional property removed", clause="not among the rules", old=obj(a=STRING), new=obj()),
    Case(name="property became required", clause="backward: an existing optional field becomes required",
         old=obj(a=STRING), new=obj(["a"], a=STRING), backward=(("/properties/a", "property_became_required"),)),
    Case(name="property no longer required", clause="not among the rules", old=obj(["a"], a=STRING), new=obj(a=STRING)),
    Case(name="type changed", clause=f"both: {TYPE}", old=obj(a=STRING), new=obj(a=INTEGER),
         backward=(("/properties/a/type", "type_changed"),), forward=(("/properties/a/type", "type_changed"),)),
    Case(name="integer to number", clause=f"both: {TYPE}", old=obj(a=INTEGER), new=obj(a=NUMBER),
         backward=(("/properties/a/type", "type_changed"),), forward=(("/properties/a/type", "type_changed"),)),
    Case(name="new required property", clause="a brand-new required field passes; forward: fails on it",
         old=obj(a=STRING), new=obj(["b"], a=STRING, b=STRING),
         forward=(("/properties/b", "required_property_added"),)),
    Case(name="new optional property", clause="not among the rules", old=obj(), new=obj(b=STRING)),
    Case(name="a list of one type", clause="a type is the same however it is spelled",
         old=obj(a={"type": ["string"]}), new=obj(a=STRING)),
    Case(name="null added to a type", clause=f"both: {TYPE}", old=obj(a=STRING), new=obj(a={"type": ["string", "null"]}),
         backward=(("/properties/a/type", "type_changed"),), forward=(("/properties/a/type", "type_changed"),)),
    Case(name="types in another order", clause="a set of types", old=obj(a={"type": ["null", "string"]}),
         new=obj(a={"type": ["string", "null"]})),
    Case(name="nested type changed", clause=f"carried through nesting: {TYPE}",
         old=obj(a=obj(b=STRING)), new=obj(a=obj(b=INTEGER)),
         backward=(("/properties/a/properties/b/type", "type_changed"),),
         forward=(("/properties/a/properties/b/type", "type_changed"),)),
    Case(name="nested required removed", clause="carried through nesting: a required field is no longer a property",
         old=obj(a=obj(["b"], b=STRING)), new=obj(a=obj()),
         backward=(("/properties/a/properties/b", "required_property_removed"),)),
    Case(name="items changed type", clause=f"carried through nesting: {TYPE}",
         old=obj(a={"type": "array", "items": STRING}), new=obj(a={"type": "array", "items": INTEGER}),
         backward=(("/properties/a/items/type", "type_changed"),),
         forward=(("/properties/a/items/type", "type_changed"),)),
    Case(name="required inside items", clause="carried through nesting: an optional field becomes required",
         old={"type": "array", "items": obj(a=STRING)}, new={"type": "array", "items": obj(["a"], a=STRING)},
         backward=(("/items/properties/a", "property_became_required"),)),
    Case(name="tuple place changed type", clause=f"carried through nesting: {TYPE}",
         old={"prefixItems": [STRING, INTEGER]}, new={"prefixItems": [STRING, STRING]},
         backward=(("/prefixItems/1/type", "type_changed"),), forward=(("/prefixItems/1/type", "type_changed"),)),
    Case(name="additional properties changed type", clause=f"carried through nesting: {TYPE}",
         old={"additionalProperties": STRING}, new={"additionalProperties": INTEGER},
         backward=(("/additionalProperties/type", "type_changed"),),
         forward=(("/additionalProperties/type", "type_changed"),)),
    Case(name="behind a reference", clause=f"carried through references: {TYPE}",
         old={**obj(a={"$ref": "#/$defs/A"}), "$defs": {"A": STRING}},
         new={**obj(a={"$ref": "#/$defs/B"}), "$defs": {"B": INTEGER}},
         backward=(("/properties/a/type", "type_changed"),), forward=(("/properties/a/type", "type_changed"),)),
    Case(name="recursive", clause="references may be recursive",
         old={**obj(next={"$ref": "#"}, a=STRING)}, new={**obj(next={"$ref": "#"}, a=INTEGER)},
         backward=(("/properties/a/type", "type_changed"),), forward=(("/properties/a/type", "type_changed"),)),
    Case(name="name with a slash", clause="paths are JSON pointers (RFC 6901)",
         old=obj(["a/b"], **{"a/b": STRING}), new=obj(),
         backward=(("/properties/a~1b", "required_property_removed"),)),
    Case(name="all at once", clause="every difference is listed",
         old=obj(["a"], a=STRING, b=STRING, c=STRING), new=obj(["b"], b=STRING, c=INTEGER),
         backward=(("/properties/a", "required_property_removed"), ("/properties/b", "property_became_required"),
                   ("/properties/c/type", "type_changed")),
         forward=(("/properties/c/type", "type_changed"),)),
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Strict:
    """`expected`: what keeps an instance of the old schema from being one of the new."""

    name: str
    clause: str
    old: Any
    new: Any
    expected: tuple[tuple[str, str], ...] = ()


DRAFT7 = "http://json-schema.org/draft-07/schema#"
STRICT_CASES = [
    Strict(name="integer to number", clause="V 6.1.1 type", old=INTEGER, new=NUMBER),
    Strict(name="number to integer", clause="V 6.1.1 type", old=NUMBER, new=INTEGER,
           expected=(("/type", "type_narrowed"),)),
    Strict(name="null no longer allowed", clause="V 6.1.1 type", old={"type": ["string", "null"]}, new=STRING,
           expected=(("/type", "type_narrowed"),)),
    Strict(name="root type changed", clause="V 6.1.1 type", old=STRING, new=INTEGER,
           expected=(("/type", "type_narrowed"),)),
    Strict(name="anything to something", clause="C 4.3.2 boolean schemas", old=True, new=STRING,
           expected=(("/type", "type_narrowed"),)),
    Strict(name="enum value removed", clause="V 6.1.2 enum", old={"enum": ["a", "b"]}, new={"enum": ["a"]},
           expected=(("/enum", "values_narrowed"),)),
    Strict(name="enum value added", clause="V 6.1.2 enum", old={"enum": ["a"]}, new={"enum": ["a", "b"]}),
    Strict(name="enum introduced", clause="V 6.1.2 enum", old=STRING, new={"type": "string", "enum": ["a"]},
           expected=(("/enum", "values_narrowed"),)),
    Strict(name="const within an enum", clause="V 6.1.3 const", old={"const": 1}, new={"enum": [1.0, 2]}),
    Strict(name="const changed", clause="V 6.1.3 const", old={"const": 1}, new={"const": 2},
           expected=(("/const", "values_narrowed"),)),
    Strict(name="maximum lowered", clause="V 6.2.2 maximum", old={**INTEGER, "maximum": 9}, new={**INTEGER, "maximum": 8},
           expected=(("/maximum", "bound_narrowed"),)),
    Strict(name="minimum lowered", clause="V 6.2.4 minimum", old={**INTEGER, "minimum": 3}, new={**INTEGER, "minimum": 1}),
    Strict(name="minimum made exclusive", clause="V 6.2.5 exclusiveMinimum", old={**NUMBER, "minimum": 3},
           new={**NUMBER, "exclusiveMinimum": 3}, expected=(("/exclusiveMinimum", "bound_narrowed"),)),
    Strict(name="multiple of a multiple", clause="V 6.2.1 multipleOf", old={**INTEGER, "multipleOf": 6},
           new={**INTEGER, "multipleOf": 3}),
    Strict(name="multiple narrowed", clause="V 6.2.1 multipleOf", old={**INTEGER, "multipleOf": 3},
           new={**INTEGER, "multipleOf": 6}, expected=(("/multipleOf", "step_narrowed"),)),
    Strict(name="text may be shorter only", clause="V 6.3.1 maxLength", old=STRING, new={**STRING, "maxLength": 5},
           expected=(("/maxLength", "bound_narrowed"),)),
    Strict(name="pattern introduced", clause="V 6.3.3 pattern", old=STRING, new={**STRING, "pattern": "^a"},
           expected=(("/pattern", "pattern_changed"),)),
    Strict(name="pattern dropped", clause="V 6.3.3 pattern", old={**STRING, "pattern": "^a"}, new=STRING),
    Strict(name="items narrowed", clause="C 10.3.1.2 items", old={"type": "array", "items": NUMBER},
           new={"type": "array", "items": INTEGER}, expected=(("/items/type", "type_narrowed"),)),
    Strict(name="items of an array that is empty", clause="V 6.4.1 maxItems",
           old={"type": "array", "maxItems": 0}, new={"type": "array", "items": INTEGER}),
    Strict(name="tuple place", clause="C 10.3.1.1 prefixItems", old={"type": "array", "prefixItems": [INTEGER]},
           new={"type": "array", "prefixItems": [INTEGER, INTEGER]}, expected=(("/prefixItems/1/type", "type_narrowed"),)),
    Strict(name="unique items", clause="V 6.4.3 uniqueItems", old={"type": "array"},
           new={"type": "array", "uniqueItems": True}, expected=(("/uniqueItems", "items_must_be_unique"),)),
    Strict(name="brand-new required property", clause="V 6.5.3 required: where the default profile is wrong",
           old=obj(a=STRING), new=obj(["b"], a=STRING), expected=(("/properties/b", "property_not_always_written"),)),
    Strict(name="property became required", clause="V 6.5.3 required", old=obj(a=STRING), new=obj(["a"], a=STRING),
           expected=(("/properties/a", "property_not_always_written"),)),
    Strict(name="required property dropped", clause="V 6.5.3 required", old=obj(["a"], a=STRING), new=obj()),
    Strict(name="object closed", clause="C 10.3.2.3 additionalProperties", old=obj(a=STRING),
           new={**obj(a=STRING), "additionalProperties": False},
           expected=(("/additionalProperties", "additional_properties_refused"),)),
    Strict(name="closed object with one property more", clause="C 10.3.2.3 additionalProperties",
           old={**obj(a=STRING), "additionalProperties": False},
           new={**obj(a=STRING, b=STRING), "additionalProperties": False}),
    Strict(name="property gone from a closed object", clause="C 10.3.2.3 additionalProperties",
           old={**obj(a=STRING, b={"type": "string"}), "additionalProperties": False},
           new={**obj(a=STRING), "additionalProperties": False},
           expected=(("/properties/b", "nothing_accepted"),)),
    Strict(name="new optional property of an open object", clause="C 10.3.2.1 properties: nobody has written it",
           old=obj(a=STRING), new=obj(a=STRING, b={"type": "object"})),
    Strict(name="new optional property of an object that says it is open", clause="C 10.3.2.3: true is the default",
           old={**obj(a=STRING), "additionalProperties": True},
           new={**obj(a=STRING, b=STRING), "additionalProperties": True}),
    Strict(name="new optional property further down", clause="C 10.3.2.1 properties",
           old=obj(a={"type": "array", "items": obj(b=STRING)}),
           new=obj(a={"type": "array", "items": obj(b=STRING, c=INTEGER)})),
    Strict(name="new optional property behind a reference", clause="C 8.2.3.1 $ref",
           old={**obj(a={"$ref": "#/$defs/A"}), "$defs": {"A": obj(b=STRING)}},
           new={**obj(a={"$ref": "#/$defs/A"}), "$defs": {"A": obj(b=STRING, c=INTEGER)}}),
    Strict(name="new optional property of one of a union", clause="C 10.2.1.3 oneOf: the other speaks of it",
           old={"oneOf": [obj(["k"], k={"const": "a"}), obj(["k"], k={"const": "b"}, n=STRING)]},
           new={"oneOf": [obj(["k"], k={"const": "a"}, n=INTEGER), obj(["k"], k={"const": "b"}, n=STRING)]}),
    Strict(name="new optional property and a new required one", clause="V 6.5.3 required",
           old=obj(a=STRING), new=obj(["c"], a=STRING, b=STRING, c=STRING),
           expected=(("/properties/c", "property_not_always_written"),)),
    Strict(name="optional property removed", clause="C 10.3.2.1 properties", old=obj(a=STRING, b=STRING), new=obj(a=STRING)),
    Strict(name="property that was always written without a type", clause="V 6.5.3 required: it has been there",
           old=obj(["b"], a=STRING), new=obj(["b"], a=STRING, b=STRING),
           expected=(("/properties/b/type", "type_narrowed"),)),
    Strict(name="first property of a map of anything", clause="C 10.3.2.1 properties: it may have been there",
           old={"type": "object"}, new=obj(b=STRING), expected=(("/properties/b/type", "type_narrowed"),)),
    Strict(name="property of anything at all", clause="C 4.3.2 boolean schemas", old=obj(a={}), new=obj(a=obj(b=STRING)),
           expected=(("/properties/a/type", "type_narrowed"), ("/properties/a/properties/b/type", "type_narrowed"))),
    Strict(name="new property among typed additional ones", clause="C 10.3.2.3 additionalProperties",
           old={**obj(a=STRING), "additionalProperties": INTEGER},
           new={**obj(a=STRING, b=STRING), "additionalProperties": INTEGER},
           expected=(("/properties/b/type", "type_narrowed"),)),
    Strict(name="new property under an old pattern", clause="C 10.3.2.2 patternProperties",
           old={**obj(a=STRING), "patternProperties": {"^b": INTEGER}}, new=obj(a=STRING, b=STRING),
           expected=(("/properties/b/type", "type_narrowed"),)),
    Strict(name="new property of a map with named keys", clause="C 10.3.2.4 propertyNames",
           old={**obj(a=STRING), "propertyNames": {"maxLength": 3}}, new=obj(a=STRING, b=STRING),
           expected=(("/properties/b/type", "type_narrowed"),)),
    Strict(name="new property that a condition speaks of", clause="C 10.2.2 if",
           old={**obj(a=STRING), "if": {"required": ["a"]}, "then": {"properties": {"b": INTEGER}}},
           new=obj(a=STRING, b=STRING), expected=(("/properties/b/type", "type_narrowed"),)),
    Strict(name="union of sixty with one more", clause="C 10.2.1.3 oneOf",
           old={"oneOf": [obj(["k"], k={"const": n}) for n in range(60)]},
           new={"oneOf": [obj(["k"], k={"const": n}, x=STRING) for n in range(61)]}),
    Strict(name="one of many values removed", clause="V 6.1.2 enum", old={"enum": [*range(300)]},
           new={"enum": [*range(1, 300)]}, expected=(("/enum", "values_narrowed"),)),
    Strict(name="many values become a type", clause="V 6.1.2 enum", old={"enum": [*range(300)]}, new=INTEGER),
    Strict(name="pattern properties", clause="C 10.3.2.2 patternProperties",
           old={"type": "object", "patternProperties": {"^x": INTEGER}},
           new={"type": "object", "patternProperties": {"^x": NUMBER}}),
    Strict(name="branch of anyOf removed", clause="C 10.2.1.2 anyOf", old={"anyOf": [STRING, INTEGER]},
           new={"anyOf": [STRING]}, expected=(("/anyOf", "no_branch_covers"),)),
    Strict(name="branch of anyOf added", clause="C 10.2.1.2 anyOf", old={"anyOf": [STRING]},
           new={"anyOf": [{"type": "integer"}, STRING]}),
    Strict(name="oneOf told apart by type", clause="C 10.2.1.3 oneOf", old={"oneOf": [STRING]},
           new={"oneOf": [INTEGER, STRING]}),
    Strict(name="oneOf told apart by a discriminator", clause="C 10.2.1.3 oneOf",
           old={"oneOf": [obj(["k"], k={"const": "a"})]},
           new={"oneOf": [obj(["k"], k={"const": "a"}), obj(["k"], k={"const": "b"}, n=INTEGER)]}),
    Strict(name="oneOf that overlaps", clause="C 10.2.1.3 oneOf", old={"oneOf": [INTEGER]},
           new={"oneOf": [INTEGER, NUMBER]}, expected=(("/oneOf", "branches_overlap"),)),
    Strict(name="allOf", clause="C 10.2.1.1 allOf", old={"allOf": [STRING, {"minLength": 3}]},
           new={"type": "string", "minLength": 2}),
    Strict(name="not", clause="C 10.2.1.4 not", old=INTEGER, new={"not": {"type": "string"}}),
    Strict(name="not narrowed", clause="C 10.2.1.4 not", old=NUMBER, new={"not": {"type": "integer"}},
           expected=(("/not", "may_be_excluded"),)),
    Strict(name="recursive", clause="C 8.2.3.1 $ref: proved going down",
           old=obj(n={"$ref": "#"}, v=INTEGER), new=obj(n={"$ref": "#"}, v=NUMBER)),
    Strict(name="recursive and narrowed", clause="C 8.2.3.1 $ref", old=obj(n={"$ref": "#"}, v=NUMBER),
           new=obj(n={"$ref": "#"}, v=INTEGER), expected=(("/properties/v/type", "type_narrowed"),)),
    Strict(name="siblings of $ref in draft 7", clause="draft-07 C 8.3: siblings of $ref are ignored",
           old={"$schema": DRAFT7, "$ref": "#/definitions/s", "maxLength": 3, "definitions": {"s": STRING}},
           new={"$schema": DRAFT7, "type": "string", "maxLength": 3}, expected=(("/maxLength", "bound_narrowed"),)),
    Strict(name="dependent required", clause="V 6.5.4 dependentRequired", old=obj(a=STRING),
           new={**obj(a=STRING), "dependentRequired": {"a": ["b"]}}, expected=(("/dependentRequired/a", "dependency_added"),)),
]  # fmt: skip


def differences(old: Any, new: Any, mode: str, profile: JsonProfile) -> list[tuple[str, str]]:
    parsed = [parse_schema(SchemaType.JSON_SCHEMA, json.dumps(schema).encode()) for schema in (old, new)]
    found = differences_between(parsed[0], parsed[1], CompatibilityMode(mode), profile=profile)
    return [(difference.path, difference.rule) for difference in found]


@pytest.mark.parametrize("case", DEFAULT_CASES, ids=lambda case: case.name)
def test_default_profile(case: Case) -> None:
    for mode, expected in (("backward", case.backward), ("forward", case.forward)):
        found = differences(case.old, case.new, mode, JsonProfile.DEFAULT)
        assert found == list(expected), f"{mode}: {case.clause}"
    full = differences(case.old, case.new, "full", JsonProfile.DEFAULT)
    assert set(full) == {*case.backward, *case.forward}
    assert differences(case.old, case.new, "none", JsonProfile.DEFAULT) == []


@pytest.mark.parametrize("case", STRICT_CASES, ids=lambda case: case.name)
def test_strict_profile(case: Strict) -> None:
    found = differences(case.old, case.new, "backward", JsonProfile.STRICT)
    assert sorted(found) == sorted(case.expected), case.clause
    forward = differences(case.new, case.old, "forward", JsonProfile.STRICT)
    assert sorted(forward) == sorted(case.expected), case.clause
    assert differences(case.old, case.old, "full", JsonProfile.STRICT) == [] or "oneOf" in case.name


def test_at_least_twenty_cases_a_profile_half_of_them_incompatible() -> None:
    assert len(DEFAULT_CASES) >= 20
    assert sum(bool(case.backward or case.forward) for case in DEFAULT_CASES) * 2 >= len(DEFAULT_CASES)
    assert len(STRICT_CASES) >= 20
    assert sum(bool(case.expected) for case in STRICT_CASES) * 2 >= len(STRICT_CASES)
