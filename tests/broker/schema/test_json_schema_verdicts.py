"""The strict profile held against what payload checks say: "compatible" must be true of every document."""

from __future__ import annotations

import copy
import json
import os
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_broker.schema.formats import differences_between, parse_schema, payload_check
from pydanube_broker.schema.vocabulary import CompatibilityMode, JsonProfile, SchemaType
from pydanube_core.errors import ClusterError, PayloadInvalid

from tests.broker.schema.json_samples import Schemas, of_known_names

DIALECTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
Json = dict[str, Any]


def parsed(schema: Any) -> Any:
    return parse_schema(SchemaType.JSON_SCHEMA, json.dumps(schema).encode())


def strictly(old: Any, new: Any, mode: CompatibilityMode = CompatibilityMode.BACKWARD) -> tuple[Any, ...]:
    return differences_between(parsed(old), parsed(new), mode, profile=JsonProfile.STRICT)


def accepts(schema: Any, value: Any) -> bool:
    try:
        payload_check(parsed(schema))(json.dumps(value).encode())
    except PayloadInvalid:
        return False
    return True


# (old, new, a document that the old schema takes and the new one refuses)
WRONG: dict[str, tuple[Json, Json, Any]] = {
    "format_becomes_an_assertion": (
        {"$schema": DIALECTS[2020], "format": "ipv4"},
        {"$schema": DIALECTS[7], "format": "ipv4"},
        "x",
    ),
    "content_encoding_becomes_an_assertion": (
        {"$schema": DIALECTS[2020], "contentEncoding": "base64"},
        {"$schema": DIALECTS[7], "contentEncoding": "base64"},
        "*",
    ),
    "integer_no_longer_takes_1.0": (
        {"$schema": DIALECTS[7], "type": "integer"},
        {"$schema": DIALECTS[4], "type": "integer"},
        1.0,
    ),
    "unevaluated_begins_to_count": (
        {"$schema": DIALECTS[7], "unevaluatedProperties": False},
        {"$schema": DIALECTS[2020], "unevaluatedProperties": False},
        {"a": 1},
    ),
    "min_contains_is_forgotten": (
        {"$schema": DIALECTS[2020], "contains": {"type": "string"}, "minContains": 0},
        {"$schema": DIALECTS[7], "contains": {"type": "string"}, "minContains": 0},
        [1],
    ),
    "siblings_of_ref_begin_to_count": (
        {"$schema": DIALECTS[7], "$ref": "#/definitions/a", "minimum": 5, "definitions": {"a": {}}},
        {"$schema": DIALECTS[2020], "$ref": "#/definitions/a", "minimum": 5, "definitions": {"a": {}}},
        1,
    ),
    "dependent_required_is_no_schema": (
        {"enum": [{"title": 1}], "dependentRequired": {"x": ["y"]}},
        {"dependentRequired": {"title": ["b"]}},
        {"title": 1},
    ),
    "recursive_ref_means_the_root": (
        {"$schema": DIALECTS[2019], "properties": {"a": {"enum": [{"b": 1}]}}},
        {
            "$schema": DIALECTS[2019],
            "properties": {"a": {"properties": {"b": {"$recursiveRef": "#"}}}},
            "type": "object",
        },
        {"a": {"b": 1}},
    ),
    "dynamic_ref_means_the_root": (
        {"properties": {"a": {"enum": [{"b": 1}]}}},
        {
            "$dynamicAnchor": "node",
            "properties": {"a": {"properties": {"b": {"$dynamicRef": "#node"}}}},
            "type": "object",
        },
        {"a": {"b": 1}},
    ),
    "a_reference_is_of_its_resource": (
        {"properties": {"a": {"type": "string"}}},
        {
            "$id": "https://example.org/outer",
            "$defs": {"x": {"type": "string"}},
            "properties": {
                "a": {
                    "$id": "https://example.org/inner",
                    "$ref": "#/$defs/x",
                    "$defs": {"x": {"type": "integer"}},
                }
            },
        },
        {"a": "text"},
    ),
    "a_reference_of_the_old_is_of_its_resource": (
        {
            "$id": "https://example.org/outer",
            "$defs": {"x": {"type": "string"}},
            "properties": {
                "a": {
                    "$id": "inner",
                    "$ref": "#/$defs/x",
                    "$defs": {"x": {"type": "integer"}},
                }
            },
        },
        {"properties": {"a": {"type": "string"}}},
        {"a": 1},
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_refuses_an_old_document_is_not_called_compatible(name: str) -> None:
    old, new, document = WRONG[name]
    assert accepts(old, document)
    assert not accepts(new, document)
    assert strictly(old, new)


def titled(schema: Any, seed: int) -> Any:
    """The schema with remarks in places where schemas stand."""
    roll = random.Random(seed)
    if not isinstance(schema, dict):
        return schema
    made = copy.deepcopy(schema)
    for word in ("properties", "$defs", "patternProperties"):
        for name, inner in made.get(word, {}).items():
            made[word][name] = titled(inner, seed + 1)
    for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if word in made:
            made[word] = [titled(inner, seed + 2) for inner in made[word]]
    if roll.random() < 0.7:
        made["title"] = "a title"
        made["description"] = "and more"
    return made


def test_every_schema_is_compatible_with_itself_and_a_title() -> None:
    for seed in range(400):
        schema = Schemas(seed).whole()
        assert not strictly(schema, titled(schema, seed), CompatibilityMode.FULL), seed


SAME: dict[str, Json] = {
    "one_of_behind_a_reference": {
        "$defs": {"one": {"oneOf": [{"type": "integer"}, {"multipleOf": 2}]}},
        "properties": {"a": {"$ref": "#/$defs/one"}},
    },
    "unevaluated": {
        "$ref": "#/$defs/a",
        "unevaluatedProperties": False,
        "$defs": {"a": {"properties": {"b": {}}}},
    },
    "dynamic": {
        "$dynamicAnchor": "node",
        "properties": {"children": {"items": {"$dynamicRef": "#node"}}, "n": {"type": "integer"}},
    },
    "recursive": {
        "$schema": DIALECTS[2019],
        "$recursiveAnchor": True,
        "items": {"$recursiveRef": "#"},
        "type": ["array", "integer"],
    },
    "enumerated_tree": {"properties": {"kind": {"enum": ["a"]}, "next": {"$ref": "#"}}, "required": ["kind"]},
    "anchors": {
        "$defs": {"x": {"$anchor": "here", "type": "integer"}},
        "properties": {"a": {"$ref": "#here"}},
    },
    "resources": {
        "$id": "https://example.org/outer",
        "properties": {"a": {"$ref": "inner#/$defs/x"}},
        "$defs": {"i": {"$id": "inner", "$defs": {"x": {"type": "integer"}}}},
    },
    "condition": {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
}


@pytest.mark.parametrize("name", SAME)
def test_a_title_changes_nothing(name: str) -> None:
    assert not strictly(SAME[name], {**SAME[name], "title": "a title"}, CompatibilityMode.FULL)


def test_what_a_reference_leads_to_may_widen_and_not_narrow() -> None:
    schema = SAME["anchors"]
    wider = {**schema, "$defs": {"x": {"$anchor": "here", "type": "number"}}}
    assert not strictly(schema, wider)
    assert strictly(wider, schema)


# -- a random differential test ------------------------------------------------------------------------------------

INSTANCES: list[Any] = [
    *(None, True, 0, 1, 1.0, 2, 2.5, -3, "", "a", "x", "1.2.3.4", "YQ==", "2024-01-01", "*"),
    *([], [1], [1, "a"], ["a"], [[1]], [1.0, 1], [{"a": 1}]),
    *(
        {},
        {"a": 1},
        {"a": "x"},
        {"b": 1},
        {"a": 1, "b": "x"},
        {"a": {"a": 1}},
        {"a": {"b": 1}},
        {"a": {}, "b": []},
    ),
    *({"title": 1}, {"a": [1]}, {"b": {"a": "x"}}, {"a": {"a": {"a": 1}}}),
]
SMALL = st.sampled_from(INSTANCES)


def _leaves() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.sampled_from(["integer", "number", "string", "object", "array", "null"]).map(
            lambda t: {"type": t}
        ),
        st.sampled_from(["ipv4", "date"]).map(lambda f: {"format": f}),
        st.just({"contentEncoding": "base64"}),
        st.lists(SMALL, min_size=1, max_size=3).map(lambda values: {"enum": values}),
        SMALL.map(lambda value: {"const": value}),
        st.integers(0, 3).map(lambda n: {"minimum": n}),
        st.integers(1, 3).map(lambda n: {"multipleOf": n}),
        st.sampled_from(["^a", "."]).map(lambda p: {"pattern": p}),
        st.sampled_from(["#", "#/$defs/d", "#/properties/a", "#anchor", "inner#/$defs/d"]).map(
            lambda r: {"$ref": r}
        ),
        st.just({"$recursiveRef": "#"}),
        st.sampled_from(["#node", "#"]).map(lambda r: {"$dynamicRef": r}),
        st.sampled_from([{}, {"title": "x"}]),
    )


def _nested(inner: st.SearchStrategy[Any], *, without: tuple[str, ...] = ()) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["a", "b", "title"])
    words = {
        "properties": st.dictionaries(names, inner, max_size=2),
        "required": st.lists(names, unique=True, min_size=1, max_size=2),
        "additionalProperties": inner | st.just(False),
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "t"]), inner, min_size=1, max_size=1),
        "propertyNames": inner,
        "unevaluatedProperties": st.just(False) | inner,
        "unevaluatedItems": st.just(False) | inner,
        "items": inner,
        "prefixItems": st.lists(inner, min_size=1, max_size=2),
        "contains": inner,
        "minContains": st.integers(0, 2),
        "dependentRequired": st.dictionaries(names, st.lists(names, max_size=1), max_size=1),
        "dependentSchemas": st.dictionaries(names, inner, max_size=1),
        "dependencies": st.dictionaries(names, inner | st.lists(names, min_size=1, max_size=1), max_size=1),
        "allOf": st.lists(inner, min_size=1, max_size=2),
        "anyOf": st.lists(inner, min_size=1, max_size=2),
        "oneOf": st.lists(inner, min_size=1, max_size=2),
        "not": inner,
        "if": inner,
        "then": inner,
        "$id": st.just("inner"),
        "$anchor": st.just("anchor"),
        "$dynamicAnchor": st.just("node"),
        "$recursiveAnchor": st.just(True),
        "$defs": st.fixed_dictionaries({"d": inner}),
        "type": st.sampled_from(["object", "array", "integer", "number"]),
        "uniqueItems": st.just(True),
        "maxProperties": st.integers(0, 2),
    }
    several = st.lists(
        st.sampled_from([word for word in words if word not in without]), min_size=1, max_size=3, unique=True
    )
    return several.flatmap(lambda chosen: st.fixed_dictionaries({word: words[word] for word in chosen}))


SCHEMAS = st.recursive(_leaves(), _nested, max_leaves=6)


def of_any_name(schema: Any) -> Any:
    """The same, saying of every name that it may be there: then nothing is taken as never written."""
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for word, inner in schema.items():
        match word:
            case "properties" | "patternProperties" | "dependentSchemas" | "dependencies" | "$defs":
                made[word] = {name: of_any_name(each) for name, each in inner.items()}
            case "allOf" | "anyOf" | "oneOf" | "prefixItems":
                made[word] = [of_any_name(each) for each in inner]
            case "enum" | "const" | "dependentRequired":
                pass
            case _:
                made[word] = of_any_name(inner)
    return {**made, "patternProperties": {"": {}, **made.get("patternProperties", {})}}


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Json, Json]:
    """Two documents that share most of what they say, and may hold anything under any name."""
    base = of_any_name({"$defs": {"d": draw(SCHEMAS)}, **draw(SCHEMAS)})
    other = copy.deepcopy(base)
    for _ in range(draw(st.integers(0, 2))):
        places = [other, *(each for each in other.values() if isinstance(each, dict))]
        place = draw(st.sampled_from(places))
        if place and draw(st.booleans()):
            place.pop(draw(st.sampled_from([*place])))
        elif place is other:
            place.update(draw(SCHEMAS))
    years = draw(
        st.sampled_from(
            [
                (2020, 2020),
                (2020, 2020),
                (2019, 2019),
                (7, 2020),
                (2020, 7),
                (4, 7),
                (7, 4),
                (6, 2019),
                (2019, 2020),
                (2020, 2019),
                (7, 7),
            ]
        )
    )
    old, new = ({**each, "$schema": DIALECTS[year]} for each, year in zip((base, other), years, strict=True))
    return old, new


def held(old: Json, new: Json) -> None:
    try:
        one, other = parsed(old), parsed(new)
    except ClusterError:
        return  # no schema of its dialect
    if differences_between(one, other, CompatibilityMode.BACKWARD, profile=JsonProfile.STRICT):
        return
    checks = payload_check(one), payload_check(other)
    if max(check.weight for check in checks) > 1e5:
        return
    for instance in INSTANCES:
        payload = json.dumps(instance).encode()
        taken = []
        for check in checks:
            try:
                check(payload)
                taken.append(True)
            except PayloadInvalid:
                taken.append(False)
        assert taken != [True, False], instance


NAMING = st.recursive(
    _leaves(), lambda inner: _nested(inner, without=("anyOf", "oneOf")), max_leaves=8
)  # in a union one alternative speaks, which `unevaluatedProperties` cannot say


@st.composite
def named_pairs(draw: st.DrawFn) -> tuple[Json, Json]:
    """An object of some properties, and the same with others beside them or in place of them."""
    names = st.sampled_from(["a", "b", "title"])
    objects = st.dictionaries(names, NAMING, min_size=1, max_size=2)
    old = {**draw(NAMING), "properties": draw(objects), "$defs": {"d": draw(NAMING)}}
    new = {**old, "properties": {**old["properties"], **draw(objects)}}
    return old, new


@given(pair=named_pairs())
@settings(max_examples=250, deadline=None)
def test_what_the_old_schema_speaks_of_is_read_by_one_with_more_properties(pair: tuple[Json, Json]) -> None:
    old, new = pair
    only_known = of_known_names(old)
    try:
        parsed(old), parsed(new), parsed(only_known)
    except ClusterError:
        return  # no schema
    if strictly(old, new):
        return
    for instance in INSTANCES:
        if accepts(old, instance) and accepts(only_known, instance):
            assert accepts(new, instance), instance


@pytest.mark.parametrize(
    ("word", "gone", "instance"),
    [
        ("unevaluatedProperties", {"patternProperties": {"": {}}}, {"a": 1}),
        ("unevaluatedProperties", {"allOf": [{"properties": {"a": {}}}]}, {"a": 1}),
        ("unevaluatedItems", {"prefixItems": [{}]}, [1]),
    ],
)
def test_a_keyword_that_no_longer_evaluates_counts_where_the_rest_is_refused(
    word: str, gone: Json, instance: Json
) -> None:
    refused = {"$schema": DIALECTS[2020], word: False}
    assert accepts({**refused, **gone}, instance)
    assert not accepts(refused, instance)
    assert strictly({**refused, **gone}, refused)


@given(pair=pairs())
@settings(max_examples=250, deadline=None)
def test_compatible_is_true_of_every_document_whatever_the_dialect(pair: tuple[Json, Json]) -> None:
    held(*pair)


@pytest.mark.long
@given(pair=pairs())
@settings(max_examples=int(os.environ.get("PYDANUBE_SCHEMA_PAIRS", "30000")), deadline=None)
def test_compatible_is_true_of_every_document_whatever_the_dialect_at_length(pair: tuple[Json, Json]) -> None:
    held(*pair)
