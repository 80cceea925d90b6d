"""Avro schemas and data that are small to write and long to follow."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest
from pydanube_broker.schema.formats import differences_between, parse_schema, payload_check
from pydanube_broker.schema.vocabulary import CompatibilityMode, SchemaType
from pydanube_core.errors import PayloadInvalid, SchemaInvalid


def parsed(schema: Any) -> Any:
    return parse_schema(SchemaType.AVRO, json.dumps(schema).encode())


def doubling(leaf: Any, levels: int = 40) -> Any:
    """Records of two fields of one type, which is a record of two fields of one type, …"""
    kind = leaf
    for level in range(levels):
        name = f"R{level}"
        kind = {
            "type": "record",
            "name": name,
            "fields": [
                {"name": "a", "type": kind},
                {"name": "b", "type": leaf if level == 0 else f"R{level - 1}"},
            ],
        }
    return kind


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    began = time.process_time()
    yield
    assert time.process_time() - began < 5


def test_records_that_take_no_bytes_are_not_walked() -> None:
    check = payload_check(parsed(doubling("null")))
    check(b"")
    with pytest.raises(PayloadInvalid, match="left over"):
        check(b"\0")
    payload_check(parsed({"type": "array", "items": doubling("null")}))(b"\x02\x00")


@pytest.mark.parametrize("leaf", ["float", "double", "int", "string"])
def test_a_datum_that_ends_too_early_is_left_at_its_end(leaf: str) -> None:
    with pytest.raises(PayloadInvalid, match="too early"):
        payload_check(parsed(doubling(leaf)))(b"\0\0\0\0")


def test_a_count_of_data_that_take_no_bytes_is_not_believed() -> None:
    def number(value: int) -> bytes:
        value <<= 1
        found = bytearray()
        while value > 127:
            found.append(value & 127 | 128)
            value >>= 7
        return bytes([*found, value])

    def text(data: bytes) -> bytes:
        return number(len(data)) + data

    head = b"Obj\x01" + number(1) + text(b"avro.schema") + text(b'"null"') + b"\0" + b"m" * 16
    check = payload_check(parsed("null"))
    check(head + number(1 << 61) + text(b"") + b"m" * 16)
    with pytest.raises(PayloadInvalid, match="more records than its count"):
        check(head + number(1 << 61) + text(b"x") + b"m" * 16)


def test_a_default_that_fits_no_branch_of_many_levels_is_refused_quickly() -> None:
    levels = 24
    fields: list[Any] = [{"name": "f", "type": "int"}]
    types: list[Any] = []
    for level in range(levels):
        types.append([{"type": "record", "name": f"{side}{level}", "fields": fields} for side in "AB"])
        fields = [{"name": "f", "type": [f"A{level}", f"B{level}"]}]
    value: Any = "no number"
    for _ in range(levels + 1):
        value = {"f": value}
    whole = {
        "type": "record",
        "name": "Root",
        "fields": [
            *({"name": f"n{level}", "type": each} for level, each in enumerate(types)),
            {"name": "last", "type": fields[0]["type"], "default": value["f"]},
        ],
    }
    with pytest.raises(SchemaInvalid, match="default"):
        parsed(whole)


def test_unions_of_thousands_against_each_other_come_to_an_end() -> None:
    def union(count: int, letter: str) -> Any:
        kinds = [{"type": "fixed", "name": f"{letter}{index}", "size": 1} for index in range(count)]
        names = [each["name"] for each in kinds]
        fields = [{"name": "f0", "type": kinds}] + [
            {"name": f"f{index}", "type": {"type": "array", "items": names}} for index in range(1, 4)
        ]
        return {"type": "record", "name": "R", "fields": fields}

    found = differences_between(
        parsed(union(2500, "A")), parsed(union(2500, "B")), CompatibilityMode.BACKWARD
    )
    assert found


@pytest.mark.parametrize("start", [b"Obj\x01", b"\xc3\x01" + bytes.fromhex("0000000000000000")])
def test_a_fixed_may_have_any_bytes(start: bytes) -> None:
    check = payload_check(parsed({"type": "fixed", "name": "F", "size": len(start)}))
    check(start)
    with pytest.raises(PayloadInvalid):
        check(start + b"more")


def test_a_fixed_may_have_the_bytes_of_its_own_fingerprint() -> None:
    schema = {"type": "fixed", "name": "F", "size": 10}
    canonical = fastavro.schema.to_parsing_canonical_form(schema)
    fingerprint = bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))
    payload_check(parsed(schema))(b"\xc3\x01" + fingerprint)
