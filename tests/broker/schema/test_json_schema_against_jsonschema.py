"""Strict verdicts and payload checks against a second library: jsonschema, which shares no code with jsonschema-rs."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from pydanube_broker.schema.formats import differences_between, parse_schema, payload_check
from pydanube_broker.schema.vocabulary import CompatibilityMode, JsonProfile, SchemaType
from pydanube_core.errors import PayloadInvalid, SchemaInvalid

from tests.broker.schema.json_samples import Instances, Schemas, of_known_names


def parsed(schema: Any) -> Any:
    return parse_schema(SchemaType.JSON_SCHEMA, json.dumps(schema).encode())


def test_what_is_called_compatible_accepts_every_document_of_names_that_the_old_schema_speaks_of() -> None:
    """At least 1 000 documents that are written by the old schema are valid for the new one."""
    held = compatible = incompatible = shown = 0
    for seed in range(900):
        schemas = Schemas(seed)
        old = schemas.whole()
        new = old
        for _ in range(8):
            new = schemas.changed(new)
        one, other = parsed(old), parsed(new)
        found = differences_between(one, other, CompatibilityMode.BACKWARD, profile=JsonProfile.STRICT)
        writer, reader = jsonschema.Draft202012Validator(old), jsonschema.Draft202012Validator(new)
        only_known = jsonschema.Draft202012Validator(of_known_names(old))
        instances = Instances(seed, old)
        refused = None
        for _ in range(12):
            instance = instances.instance()
            if not writer.is_valid(instance) or not only_known.is_valid(instance):
                continue
            held += not found
            if not reader.is_valid(instance):
                refused = instance
                break
        if found:
            incompatible += 1
            shown += refused is not None
        else:
            compatible += 1
            assert refused is None, f"seed {seed}: {json.dumps(old)} → {json.dumps(new)}: {refused}"
    assert held >= 1000
    assert compatible >= 200
    assert incompatible >= 200
    # "Incompatible" may only mean that there is no proof; that must stay the smaller part.
    assert shown >= incompatible * 0.4


def test_nearly_every_schema_is_compatible_with_itself() -> None:
    """What cannot be proved even of equal schemas is a oneOf behind a reference, and its like."""
    unproved = 0
    for seed in range(300):
        document = Schemas(seed).whole()
        found = differences_between(
            parsed(document), parsed(document), CompatibilityMode.FULL, profile=JsonProfile.STRICT
        )
        unproved += bool(found)
    assert unproved <= 15


def test_payloads_are_judged_alike() -> None:
    taken = refused = 0
    for seed in range(150):
        document = Schemas(seed).whole()
        check, judge = payload_check(parsed(document)), jsonschema.Draft202012Validator(document)
        instances = Instances(seed, document)
        for _ in range(8):
            instance = instances.instance()
            payload = json.dumps(instance).encode()
            if judge.is_valid(instance):
                taken += 1
                check(payload)
            else:
                refused += 1
                with pytest.raises(PayloadInvalid):
                    check(payload)
    assert taken >= 300
    assert refused >= 300


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"\xff", b'{"a": NaN}', b"[" * 100_000, b"1" * 6_000, b'"\\ud800'], ids=repr
)
def test_what_is_no_json_is_refused(payload: bytes) -> None:
    with pytest.raises(PayloadInvalid):
        payload_check(parsed({"type": "object"}))(payload)


def test_a_refusal_names_the_place_in_the_payload() -> None:
    schema = {"type": "object", "properties": {"lines": {"items": {"required": ["price"]}}}}
    with pytest.raises(PayloadInvalid) as caught:
        payload_check(parsed(schema))(b'{"lines": [{"price": 1}, {}]}')
    assert caught.value.details["path"] == "/lines/1"
    assert "price" in caught.value.message


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "strin"}, "/type"),
        ({"properties": {"a": {"minimum": "x"}}}, "/properties/a/minimum"),
        ({"pattern": "("}, "/pattern"),
        ({"$ref": "#/nowhere"}, "/"),
        ({"$ref": "http://127.0.0.1:9/schema.json"}, "/"),
        ([], "/"),
    ],
)
def test_a_faulty_schema_is_refused_with_its_place(schema: Any, path: str) -> None:
    with pytest.raises(SchemaInvalid) as caught:
        parsed(schema)
    assert caught.value.details["path"] == path
