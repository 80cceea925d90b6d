"""The reader of Avro data: without values it walks the same way as with them, and both are bounded."""

from __future__ import annotations

import copy
import io
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_core.schema_formats.avro.model import is_recursive
from pydanube_core.schema_formats.avro.parse import parse_avro
from pydanube_core.schema_formats.avro.reading import AvroReader, Shape
from pydanube_core.schema_formats.avro.steps import read_whole
from pydanube_core.schema_formats.fault import Fault

from tests.broker.schema.avro_samples import Data, Schemas


def fault_of(schema: Any, payload: bytes, out: list[Any] | None) -> str | None:
    try:
        read_whole(AvroReader(Shape()).written(parse_avro(schema)), payload, 0, out)
    except Fault as fault:
        return fault.why
    return None


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 500), st.binary(max_size=40))
def test_a_check_accepts_exactly_the_bytes_that_are_read(seed: int, payload: bytes) -> None:
    schema = Schemas(seed).schema(depth=1)
    assert fault_of(schema, payload, None) == fault_of(schema, payload, [])


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2000))
def test_values_are_those_of_fastavro(seed: int) -> None:
    schema = Schemas(seed).record(depth=2)
    library = fastavro.parse_schema(copy.deepcopy(schema))
    target = io.BytesIO()
    fastavro.schemaless_writer(target, library, Data(seed, schema).datum())
    found: list[Any] = []
    assert fault_of(schema, target.getvalue(), found) is None
    assert found == [fastavro.schemaless_reader(io.BytesIO(target.getvalue()), library, None)]


def test_records_that_take_no_bytes_are_bounded_when_they_are_built() -> None:
    kind: Any = "null"
    for level in range(40):
        name = f"R{level}"
        again = "null" if level == 0 else f"R{level - 1}"
        kind = {"type": "record", "name": name, "fields": [{"name": "a", "type": kind}, {"name": "b", "type": again}]}  # fmt: skip
    assert fault_of(kind, b"", None) is None
    assert "take no bytes" in (fault_of(kind, b"", []) or "")


@pytest.mark.parametrize("out", [None, []])
def test_deep_data_are_a_fault(out: list[Any] | None) -> None:
    schema = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
    assert "deep" in (fault_of(schema, b"\x02" * 100_000, out) or "")


def test_recursion_is_seen_through_every_container() -> None:
    def record(kind: Any) -> Any:
        return parse_avro({"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]})

    assert is_recursive(record(["null", "R"]))
    assert is_recursive(record({"type": "array", "items": {"type": "map", "values": "R"}}))
    twice = {"type": "record", "name": "T", "fields": [{"name": "a", "type": "int"}]}
    assert not is_recursive(parse_avro(["null", twice, {"type": "array", "items": "T"}]))
