"""Avro payloads: the encodings that are taken, and hostile bytes that must cost a refusal and nothing else."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from pydanube_broker.schema.formats import parse_schema as parse_definition
from pydanube_broker.schema.formats import payload_check
from pydanube_broker.schema.vocabulary import SchemaType
from pydanube_core.errors import PayloadInvalid, SchemaInvalid

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
DATUM = {"id": 7, "state": "PAID", "note": "soon"}


def check_of(schema: Any) -> Any:
    return payload_check(parse_definition(SchemaType.AVRO, json.dumps(schema).encode()))


def bare(schema: Any, datum: Any) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(json.loads(json.dumps(schema))), datum)
    return target.getvalue()


def container(schema: Any, *data: Any, codec: str = "null") -> bytes:
    target = io.BytesIO()
    fastavro.writer(target, fastavro.parse_schema(json.loads(json.dumps(schema))), data, codec=codec)
    return target.getvalue()


def test_a_bare_datum() -> None:
    check_of(ORDER)(bare(ORDER, DATUM))


def test_single_object_encoding_of_this_schema() -> None:
    canonical = fastavro.schema.to_parsing_canonical_form(json.loads(json.dumps(ORDER)))
    fingerprint = bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))
    check_of(ORDER)(b"\xc3\x01" + fingerprint + bare(ORDER, DATUM))


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_container_file_as_the_reference_broker_asks_for(codec: str) -> None:
    check_of(ORDER)(container(ORDER, DATUM, DATUM, codec=codec))


def test_a_container_file_of_a_schema_that_ours_reads() -> None:
    older = {**ORDER, "fields": ORDER["fields"][:2]}  # type: ignore[index]
    check_of(ORDER)(container(older, {"id": 1, "state": "NEW"}))


def test_a_container_file_of_another_schema_is_refused() -> None:
    other = {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": "id", "type": "string"}],
    }
    with pytest.raises(PayloadInvalid, match=r"cannot read: Order.id: type_changed|Order\.id"):
        check_of(ORDER)(container(other, {"id": "x"}))


def test_a_damaged_container_file_is_refused() -> None:
    whole = container(ORDER, DATUM, codec="deflate")
    check = check_of(ORDER)
    for cut in range(4, len(whole)):
        with pytest.raises(PayloadInvalid):
            check(whole[:cut] if cut < len(whole) - 1 else whole + b"x")


def test_an_enum_index_below_zero_is_refused() -> None:
    with pytest.raises(PayloadInvalid, match="symbols"):
        check_of(ORDER)(b"\x02\x01\x00")


@pytest.mark.parametrize("levels", [1_000, 1_000_000])
def test_a_deep_linked_list_is_refused_and_the_process_lives(levels: int) -> None:
    schema = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
    with pytest.raises(PayloadInvalid, match="nested deeper"):
        check_of(schema)(b"\x02" * levels + b"\x00")


@pytest.mark.parametrize("items", ["null", {"type": "record", "name": "Nothing", "fields": []}])
def test_a_count_of_what_takes_no_bytes_is_bounded(items: Any) -> None:
    """2^63 of them would cost us nothing, and the consumer that builds them everything."""
    check = check_of({"type": "array", "items": items})
    check(b"\x06\x00")
    with pytest.raises(PayloadInvalid, match="no bytes"):
        check(b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00")


def test_a_count_beyond_the_payload_is_refused() -> None:
    with pytest.raises(PayloadInvalid, match="too early"):
        check_of({"type": "array", "items": "int"})(b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02")


def test_a_date_beyond_the_calendar_is_a_datum() -> None:
    check_of({"type": "long", "logicalType": "timestamp-millis"})(bare("long", 10**17))


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "Foo"}]}, "/fields/0/type"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": "x"}]},
            "/fields/0/default",
        ),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2}, "/fields/1/name"),
        ({"type": "record", "name": "1R", "fields": []}, "/name"),
        ({"type": "record", "fields": []}, "/name"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "/symbols/1"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "/default"),
        ({"type": "fixed", "name": "F", "size": -1}, "/size"),
        (["int", "int"], "/1"),
        ([["int"], "string"], "/0"),
        ({"type": "array"}, "/"),
        ({"items": "int"}, "/"),
        (17, "/"),
        ({"type": "array", "items": {"type": "map", "values": "strng"}}, "/items/values"),
    ],
)
def test_a_faulty_schema_is_refused_with_its_place(schema: Any, path: str) -> None:
    with pytest.raises(SchemaInvalid) as caught:
        parse_definition(SchemaType.AVRO, json.dumps(schema).encode())
    assert caught.value.details["path"] == path
    assert caught.value.details["field"] == "schema_definition"


def test_text_that_is_no_json_is_refused_with_line_and_column() -> None:
    with pytest.raises(SchemaInvalid) as caught:
        parse_definition(SchemaType.AVRO, b'{"type":\n  "int",}')
    assert caught.value.details["path"].startswith("line 2, column")


@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON_SCHEMA])
def test_absurd_nesting_is_refused(kind: SchemaType) -> None:
    for text in (b"[" * 100_000, b'{"items":' * 500 + b"1" + b"}" * 500):
        with pytest.raises(SchemaInvalid):
            parse_definition(kind, text)


def test_a_tower_of_named_types_is_refused() -> None:
    names = [
        {"type": "record", "name": f"R{i}", "fields": [{"name": "x", "type": f"R{i - 1}" if i else "int"}]}
        for i in range(500)
    ]
    with pytest.raises(SchemaInvalid, match="nested deeper"):
        parse_definition(SchemaType.AVRO, json.dumps(names).encode())


def test_fingerprints_see_through_blanks_and_order_of_keys() -> None:
    one = parse_definition(SchemaType.AVRO, json.dumps(ORDER).encode())
    other = parse_definition(SchemaType.AVRO, json.dumps(ORDER, indent=3, sort_keys=True).encode())
    assert one.fingerprint == other.fingerprint
    assert one.fingerprint.startswith("sha256:")
    assert parse_definition(SchemaType.NUMBER, b"anything").fingerprint == "number"
