"""Protobuf payloads as columns."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_core.schema_formats.protobuf.protoc import compile_proto
from pydanube_storage.topics.decoding.fault import FAULTS, Fault
from pydanube_storage.topics.decoding.protobuf import ProtobufFormat

VERSION_1 = b"""
syntax = "proto3";
package shop;
message Order {
  int64 id = 1;
  string name = 2;
  State state = 3;
  oneof paid { string card = 4; Cash cash = 5; }
  map<string, Line> lines = 6;
  repeated sint32 numbers = 7;
  uint64 large = 8;
  optional int32 maybe = 9;
  bytes data = 10;
  double price = 11;
}
enum State { NEW = 0; OLD = 1; }
message Cash { uint32 amount = 1; }
message Line { string sku = 1; }
"""
VERSION_2 = b"""
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message Order {
  int64 id = 1;
  string title = 2;
  State state = 3;
  oneof paid { string card = 4; Cash cash = 5; }
  google.protobuf.Timestamp at = 20;
  google.protobuf.Duration took = 21;
  google.protobuf.StringValue note = 22;
  google.protobuf.Struct free = 23;
  repeated Order parts = 24;
}
enum State { NEW = 0; }
message Cash { uint32 amount = 1; }
"""
OTHER = b'syntax = "proto3"; message Order { string id = 1; }'
_DESCRIPTORS: dict[bytes, bytes] = {}


def descriptors(definition: bytes) -> bytes:
    """The compiler takes its time: once a schema."""
    if definition not in _DESCRIPTORS:
        _DESCRIPTORS[definition] = compile_proto(definition)
    return _DESCRIPTORS[definition]


def message_of(definition: bytes) -> Any:
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors(definition)).file
    for file in files:
        pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"{files[-1].package}.Order".lstrip("."))
    )


def read(writer: bytes, payload: bytes, reader: bytes | None = None) -> Any:
    wants = ProtobufFormat(reader or writer, descriptors)
    return pa.array([wants.reading(writer)(payload)], wants.type).to_pylist()[0]


def test_every_kind_of_field() -> None:
    message = message_of(VERSION_1)(
        id=7,
        name="n",
        state=1,
        cash={"amount": 2**32 - 1},
        numbers=[-1, 2],
        large=2**64 - 1,
        data=b"\xff",
        price=1.5,
    )
    message.lines["a"].sku = "x"
    assert read(VERSION_1, message.SerializeToString()) == {
        **{"id": 7, "name": "n", "state": "OLD", "card": None, "cash": {"amount": 2**32 - 1}},
        **{"lines": [("a", {"sku": "x"})], "numbers": [-1, 2], "large": Decimal(2**64 - 1), "maybe": None},
        **{"data": b"\xff", "price": 1.5},
    }


def test_googles_own_types_and_messages_within_themselves() -> None:
    message = message_of(VERSION_2)(id=1, title="t")
    message.at.FromMilliseconds(1_700_000_000_123)
    message.took.FromMilliseconds(-1500)
    message.note.value = ""
    message.free["k"] = [1, None]
    message.parts.add(id=2).parts.add(id=3)
    found = read(VERSION_2, message.SerializeToString())
    assert found["at"] == datetime.datetime.fromtimestamp(1_700_000_000.123, datetime.UTC)
    assert found["took"] == datetime.timedelta(seconds=-1.5)
    assert found["note"] == ""
    assert json.loads(found["free"]) == {"k": [1.0, None]}
    assert [json.loads(part) for part in found["parts"]] == [{"id": "2", "parts": [{"id": "3"}]}]
    assert found["state"] == "NEW"  # no presence: its default


def test_an_any_with_content_that_its_type_does_not_read_is_a_fault() -> None:
    """It ended the whole job: protobuf's own error is no `ValueError`."""
    definition = b"""syntax = "proto3";
import "google/protobuf/any.proto";
message Order { google.protobuf.Any extra = 1; }
"""
    order = message_of(definition)()
    order.extra.type_url = "type.googleapis.com/google.protobuf.FileDescriptorProto"
    order.extra.value = b"\xff\xff\xff"
    with pytest.raises(Fault, match="Any cannot be JSON: "):
        read(definition, order.SerializeToString())


def test_an_older_version_is_read_by_the_numbers_of_the_latest() -> None:
    message = message_of(VERSION_1)(id=7, name="n", state=1, card="c")
    found = read(VERSION_1, message.SerializeToString(), VERSION_2)
    assert (found["id"], found["title"], found["state"], found["card"]) == (7, "n", "1", "c")
    assert found["at"] is None


def test_a_field_of_another_wire_type_is_a_fault_and_not_lost() -> None:
    payload = message_of(OTHER)(id="seven").SerializeToString()
    with pytest.raises(Fault, match="id: field 1 has another wire type"):
        read(VERSION_1, payload)


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "id": st.integers(-(2**63), 2**63 - 1),
    "name": st.text(st.characters(codec="utf-8"), max_size=5),
    "state": st.integers(0, 5),
    "numbers": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
    "large": st.integers(0, 2**64 - 1),
    "maybe": st.integers(-5, 5),
    "data": st.binary(max_size=5),
    "price": st.floats(allow_nan=False),
}


@settings(max_examples=80, deadline=None)
@given(st.fixed_dictionaries({}, optional=FIELDS))
def test_what_was_sent_is_what_the_column_holds(fields: dict[str, Any]) -> None:
    found = read(VERSION_1, message_of(VERSION_1)(**fields).SerializeToString())
    empty = {
        "id": 0,
        "name": "",
        "state": 0,
        "numbers": [],
        "large": 0,
        "maybe": None,
        "data": b"",
        "price": 0.0,
    }
    sent = {**empty, **fields}
    sent["state"] = {0: "NEW", 1: "OLD"}.get(sent["state"], str(sent["state"]))
    assert {name: found[name] for name in sent} == sent


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40))
def test_bytes_of_anybody_are_a_value_or_a_fault(payload: bytes) -> None:
    for version in (VERSION_1, VERSION_2):
        try:
            read(VERSION_1, payload, version)
        except FAULTS:
            continue
