"""Avro payloads as columns: against fastavro, over made-up schemas and versions."""

from __future__ import annotations

import datetime
import io
import itertools
import json
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydanube_storage.topics.decoding.avro import AvroFormat
from pydanube_storage.topics.decoding.fault import FAULTS, Fault


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def read(writer: Any, payload: bytes, reader: Any = None) -> Any:
    """What Arrow holds of it, as Python has it."""
    wants = AvroFormat(json.dumps(writer if reader is None else reader).encode())
    value = wants.reading(json.dumps(writer).encode())(payload)
    return pa.array([value], wants.type).to_pylist()[0]


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": n, "type": t, **(rest[0] if rest else {})} for n, t, *rest in fields],
    }


# (schema, values): unions with several members are compared by their one member that is not null
LEAVES = st.sampled_from(
    [
        ("boolean", st.booleans()),
        ("int", st.integers(-(2**31), 2**31 - 1)),
        ("long", st.integers(-(2**63), 2**63 - 1)),
        ("float", st.floats(width=32, allow_nan=False)),
        ("double", st.floats(allow_nan=False)),
        ("string", st.text(max_size=9)),
        ("bytes", st.binary(max_size=9)),
        ({"type": "int", "logicalType": "date"}, st.dates()),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            st.datetimes(timezones=st.just(datetime.UTC)),
        ),
        (
            {"type": "long", "logicalType": "local-timestamp-micros"},
            st.datetimes(),
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
            st.decimals(-(10**8), 10**8, places=3),
        ),
        ({"type": "string", "logicalType": "uuid"}, st.uuids()),
    ]
)


@st.composite
def schemas(draw: Any, depth: int = 3) -> tuple[Any, Any]:
    """A schema and what draws values of it. Named types have one name: see `apart`."""
    kind = draw(st.sampled_from(["leaf"] * 3 + ["record", "array", "map", "optional", "enum"] * (depth > 0)))
    match kind:
        case "leaf":
            return draw(LEAVES)
        case "enum":
            symbols = ["A", "B", "C"]
            return {"type": "enum", "name": "E", "symbols": symbols}, st.sampled_from(symbols)
        case "record":
            inner = [draw(schemas(depth - 1)) for _ in range(draw(st.integers(1, 3)))]
            schema = record(*((f"f{n}", each) for n, (each, _) in enumerate(inner)), name="N")
            return schema, st.fixed_dictionaries({f"f{n}": values for n, (_, values) in enumerate(inner)})
        case "optional":
            inner_schema, values = draw(schemas(depth - 1))
            if isinstance(inner_schema, list):
                return inner_schema, values
            return ["null", inner_schema], st.none() | values
        case _:
            inner_schema, values = draw(schemas(depth - 1))
            if kind == "array":
                return {"type": "array", "items": inner_schema}, st.lists(values, max_size=3)
            return (
                {"type": "map", "values": inner_schema},
                st.dictionaries(st.text(max_size=3), values, max_size=3),
            )


def apart(schema: Any, counter: Any) -> Any:
    """The schema with a name of its own for each named type."""
    if isinstance(schema, list):
        return [apart(each, counter) for each in schema]
    if not isinstance(schema, dict):
        return schema
    own = {"name": f"{schema['name']}{next(counter)}"} if schema["type"] in ("record", "enum") else {}
    parts = {name: apart(schema[name], counter) for name in ("items", "values") if name in schema}
    if "fields" in schema:
        parts["fields"] = [{**each, "type": apart(each["type"], counter)} for each in schema["fields"]]
    return {**schema, **own, **parts}


def plain(value: Any) -> Any:
    match value:
        case dict():
            return {name: plain(each) for name, each in value.items()}
        case list():
            if value and all(isinstance(each, tuple) for each in value):
                return {key: plain(each) for key, each in value}  # a map of Arrow
            return [plain(each) for each in value] or None
        case UUID():
            return str(value)
        case _:
            return value


def same(found: Any, sent: Any) -> bool:
    return normal(plain(found)) == normal(plain(sent))


def normal(value: Any) -> Any:
    """An empty map and an empty list are alike in Python's form of Arrow."""
    if isinstance(value, dict):
        return {name: normal(each) for name, each in value.items()} or None
    return [normal(each) for each in value] if isinstance(value, list) else value


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_what_fastavro_writes_is_what_the_column_holds(data: st.DataObject) -> None:
    drawn, values = data.draw(schemas())
    schema = apart(drawn, itertools.count())
    value = data.draw(values)
    assert same(read(schema, encoded(schema, value)), value)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 4))
def test_bytes_of_anybody_are_a_value_or_a_fault(payload: bytes, number: int) -> None:
    schema = [
        record(("a", "string"), ("b", ["null", {"type": "array", "items": "null"}]), ("c", "double")),
        {"type": "array", "items": {"type": "map", "values": "null"}},
        ["null", "long", {"type": "enum", "name": "E", "symbols": ["X"]}],
        record(("next", ["null", "R"]), ("v", "int")),
        {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2},
    ][number]
    try:
        read(schema, payload)
    except FAULTS:
        return


def test_items_that_take_no_bytes_are_bounded() -> None:
    billion = bytes([0x80, 0xA8, 0xD6, 0xB9, 0x07, 0x00])
    with pytest.raises(Fault, match="items that take no bytes"):
        read({"type": "array", "items": "null"}, billion)


VERSION_1 = record(
    ("id", "int"),
    ("name", "string"),
    ("gone", {"type": "array", "items": "string"}),
    ("state", {"type": "enum", "name": "S", "symbols": ["NEW", "OLD"]}),
)
VERSION_2 = record(
    ("id", "long"),
    ("title", ["null", "string"], {"aliases": ["name"], "default": None}),
    ("state", {"type": "enum", "name": "S", "symbols": ["NEW", "OTHER"], "default": "OTHER"}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}, {"default": "d"}),
    ("tags", {"type": "map", "values": "int"}, {"default": {"a": 1}}),
)


def test_an_older_version_is_read_as_the_latest() -> None:
    payload = encoded(VERSION_1, {"id": 7, "name": "n", "gone": ["x", "y"], "state": "OLD"})
    assert read(VERSION_1, payload, VERSION_2) == {
        "id": 7,
        "title": "n",
        "state": "OTHER",
        "price": Decimal("1.00"),
        "tags": [("a", 1)],
    }


@settings(max_examples=60, deadline=None)
@given(
    st.integers(-(2**31), 2**31 - 1),
    st.text(max_size=5),
    st.lists(st.text(max_size=3), max_size=3),
    st.sampled_from(["NEW", "OLD"]),
)
def test_resolution_is_that_of_fastavro(id_: int, name: str, gone: list[str], state: str) -> None:
    payload = encoded(VERSION_1, {"id": id_, "name": name, "gone": gone, "state": state})
    theirs: Any = fastavro.schemaless_reader(io.BytesIO(payload), VERSION_1, VERSION_2)
    ours = read(VERSION_1, payload, VERSION_2)
    assert ours == {
        **theirs,
        "tags": list(theirs["tags"].items()),
        "price": Decimal("1.00"),  # fastavro gives a default of bytes as the text it has in JSON
    }


def test_a_version_without_the_field_and_its_default_is_a_fault_that_names_it() -> None:
    with pytest.raises(Fault, match="field extra"):
        read(VERSION_1, b"", record(("id", "int"), ("extra", "string")))


def test_a_branch_that_the_reader_lacks_is_a_fault_of_its_data_only() -> None:
    writer, reader = ["int", "string"], "long"
    assert read(writer, encoded(writer, 5), reader) == 5
    with pytest.raises(Fault, match="string cannot be read as long"):
        read(writer, encoded(writer, "x"), reader)


def test_unions_of_several_types_are_a_struct_of_members() -> None:
    schema = ["null", "string", "bytes", record(("n", "int"), name="A"), record(("n", "int"), name="B")]
    assert read(schema, encoded(schema, ("B", {"n": 3}))) == {
        "member0": None,
        "member1": None,
        "member2": None,
        "member3": {"n": 3},
    }
    assert read(schema, encoded(schema, None)) is None
    assert read(["int", "long"], encoded(["int", "long"], 2**40)) == 2**40


def test_a_type_within_itself_is_json_text() -> None:
    tree = record(("v", "int"), ("kids", {"type": "array", "items": "R"}))
    value = {"v": 1, "kids": [{"v": 2, "kids": [{"v": 3, "kids": []}]}]}
    found = read(tree, encoded(tree, value))
    assert found["v"] == 1
    assert [json.loads(kid) for kid in found["kids"]] == value["kids"]


def test_times_out_of_range_and_long_decimals() -> None:
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    with pytest.raises(Fault, match="years 1 and 9999"):
        read(millis, encoded("long", 2**62))
    long_one = {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 2}
    assert read(long_one, encoded("bytes", (10**50 + 1).to_bytes(24, "big"))) == f"1{'0' * 48}.01"
    micros = {"type": "long", "logicalType": "timestamp-micros"}
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=datetime.UTC)
    assert read(millis, encoded(millis, moment), micros) == moment  # by the writer's unit


def test_a_type_of_too_many_parts_is_a_fault() -> None:
    kind: Any = "int"
    for level in range(40):  # each record holds the one before twice: 2^40 columns
        again = "int" if level == 0 else f"R{level - 1}"
        kind = record(("a", kind), ("b", again), name=f"R{level}")
    with pytest.raises(Fault, match="10000 parts"):
        AvroFormat(json.dumps(kind).encode())
