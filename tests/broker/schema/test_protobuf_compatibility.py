"""Protobuf: named cases, each by a rule of protobuf.dev ("Updating A Message Type" unless it says otherwise).

All texts are compiled by one run of protoc; `compile_proto` itself is tested below.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from pydanube_broker.schema.formats import differences_between, parse_schema, payload_check
from pydanube_broker.schema.vocabulary import CompatibilityMode, SchemaType
from pydanube_core.errors import PayloadInvalid, SchemaInvalid
from pydanube_core.schema_formats.protobuf.protoc import compile_proto

PROTOS = Path(str(importlib.util.find_spec("grpc_tools").origin)).parent / "_proto"  # type: ignore[union-attr]
PROTO3 = 'syntax = "proto3";\n'
PROTO2 = 'syntax = "proto2";\n'


def m(body: str, *, rest: str = "", syntax: str = PROTO3) -> str:
    return f"{syntax}message Order {{ {body} }}\n{rest}"


def ext(rest: str) -> str:
    return m("optional int32 a = 1; extensions 100 to 199;", rest=rest, syntax=PROTO2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`backward`: the new schema reads what the old one wrote; `forward`: the other way round."""

    name: str
    clause: str
    old: str
    new: str
    backward: tuple[tuple[str, str], ...] = ()
    forward: tuple[tuple[str, str], ...] = ()


def both(*found: tuple[str, str]) -> dict[str, tuple[tuple[str, str], ...]]:
    return {"backward": found, "forward": found}


INTS = "int32, uint32, int64, uint64, and bool are all compatible"
CASES = [
    Case(name="unchanged", clause="nothing to refuse", old=m("string a = 1;"), new=m("string a = 1;")),
    Case(name="field added", clause="if you add new fields, any messages by old code can still be parsed",
         old=m("string a = 1;"), new=m("string a = 1; int32 b = 2;")),
    Case(name="field removed and reserved", clause="fields can be removed, as long as the number is not used again",
         old=m("string a = 1; int32 b = 2;"), new=m('string a = 1; reserved 2; reserved "b";')),
    Case(name="field removed, nothing reserved", clause='"Reserved Fields": reserve its number, or it is used again',
         old=m("string a = 1; int32 b = 2;"), new=m("string a = 1;"),
         **both(("Order.b", "field_removed_not_reserved"))),
    Case(name="field renamed", clause='"Encoding": names are not on the wire', old=m("string a = 1;"), new=m("string b = 1;")),
    Case(name="field renumbered", clause="don't change the field numbers for any existing fields",
         old=m("string a = 1; int32 b = 2;"), new=m("reserved 1; int32 b = 2; string a = 3;"),
         **both(("Order.a", "field_renumbered"))),
    Case(name="numbers swapped", clause="don't change the field numbers for any existing fields",
         old=m("string a = 1; string b = 2;"), new=m("string b = 1; string a = 2;"),
         **both(("Order.a", "field_renumbered"), ("Order.b", "field_renumbered"))),
    Case(name="int32 to uint64", clause=INTS, old=m("int32 a = 1;"), new=m("uint64 a = 1;")),
    Case(name="int64 to bool", clause=INTS, old=m("int64 a = 1;"), new=m("bool a = 1;")),
    Case(name="int32 to sint32", clause="sint32 and sint64 are not compatible with the other integer types",
         old=m("int32 a = 1;"), new=m("sint32 a = 1;"), **both(("Order.a", "type_changed"))),
    Case(name="sint32 to sint64", clause="sint32 and sint64 are compatible with each other",
         old=m("sint32 a = 1;"), new=m("sint64 a = 1;")),
    Case(name="fixed32 to sfixed32", clause="fixed32 is compatible with sfixed32", old=m("fixed32 a = 1;"), new=m("sfixed32 a = 1;")),
    Case(name="fixed32 to fixed64", clause='"Encoding": other wire types', old=m("fixed32 a = 1;"), new=m("fixed64 a = 1;"),
         **both(("Order.a", "wire_type_changed"))),
    Case(name="fixed32 to float", clause="fixed32 is compatible with sfixed32, and nothing else",
         old=m("fixed32 a = 1;"), new=m("float a = 1;"), **both(("Order.a", "type_changed"))),
    Case(name="int32 to string", clause='"Encoding": other wire types', old=m("int32 a = 1;"), new=m("string a = 1;"),
         **both(("Order.a", "wire_type_changed"))),
    Case(name="float to double", clause='"Encoding": other wire types', old=m("float a = 1;"), new=m("double a = 1;"),
         **both(("Order.a", "wire_type_changed"))),
    Case(name="string to bytes", clause="string and bytes are compatible as long as the bytes are valid UTF-8",
         old=m("string a = 1;"), new=m("bytes a = 1;"), forward=(("Order.a", "type_changed"),)),
    Case(name="message to bytes", clause="embedded messages are compatible with bytes that hold an encoded one",
         old=m("In a = 1;", rest="message In { int32 x = 1; }"), new=m("bytes a = 1;"),
         forward=(("Order.a", "type_changed"),)),
    Case(name="enum to int32", clause="enum is compatible with int32, uint32, int64, and uint64",
         old=m("E a = 1;", rest="enum E { ZERO = 0; }"), new=m("int32 a = 1;")),
    Case(name="enum value added", clause='"Enum Behavior": unknown values are kept in open enums',
         old=m("E a = 1;", rest="enum E { ZERO = 0; }"), new=m("E a = 1;", rest="enum E { ZERO = 0; ONE = 1; }")),
    Case(name="value added to a closed enum", clause='"Enum Behavior": closed enums set unknown values aside',
         old=m("optional E a = 1;", rest="enum E { ZERO = 0; }", syntax=PROTO2),
         new=m("optional E a = 1;", rest="enum E { ZERO = 0; ONE = 1; }", syntax=PROTO2),
         forward=(("Order.a.ONE", "enum_value_unknown"),)),
    Case(name="enum value renumbered", clause='"Enum Value Options": numbers identify values',
         old=m("E a = 1;", rest="enum E { ZERO = 0; ONE = 1; }"), new=m("E a = 1;", rest="enum E { ZERO = 0; ONE = 2; }"),
         **both(("Order.a.ONE", "enum_value_renumbered"), ("Order.a.ONE", "enum_value_removed_not_reserved"))),
    Case(name="nested message", clause="the same rules inside an embedded message",
         old=m("In a = 1;", rest="message In { int32 x = 1; }"), new=m("In a = 1;", rest="message In { string x = 1; }"),
         **both(("Order.a.x", "wire_type_changed"))),
    Case(name="nested message renamed", clause='"Encoding": names are not on the wire',
         old=m("In a = 1;", rest="message In { int32 x = 1; }"), new=m("Out a = 1;", rest="message Out { int32 x = 1; }")),
    Case(name="recursive message", clause="the same rules inside an embedded message",
         old=m("Order next = 1; int32 v = 2;"), new=m("Order next = 1; string v = 2;"),
         **both(("Order.v", "wire_type_changed"))),
    Case(name="singular string to repeated", clause="for string, bytes, and message fields, singular is compatible with repeated",
         old=m("string a = 1;"), new=m("repeated string a = 1;")),
    Case(name="repeated int32 to singular", clause="not generally safe for numeric types: they may be packed",
         old=m("repeated int32 a = 1;"), new=m("int32 a = 1;"), backward=(("Order.a", "repeated_became_singular"),)),
    Case(name="packed changed", clause='"Encoding": parsers must accept packed and unpacked alike',
         old=m("repeated int32 a = 1;"), new=m("repeated int32 a = 1 [packed = false];")),
    Case(name="implicit to explicit presence", clause='"Field Presence": on the wire they are one',
         old=m("int32 a = 1;"), new=m("optional int32 a = 1;")),
    Case(name="required field added", clause='proto2 "Required is Forever": readers refuse what lacks it',
         old=m("optional int32 a = 1;", syntax=PROTO2), new=m("optional int32 a = 1; required int32 b = 2;", syntax=PROTO2),
         backward=(("Order.b", "required_field_not_written"),)),
    Case(name="optional to required", clause='proto2 "Required is Forever"', old=m("optional int32 a = 1;", syntax=PROTO2),
         new=m("required int32 a = 1;", syntax=PROTO2), backward=(("Order.a", "field_became_required"),)),
    Case(name="one field into a new oneof", clause="changing a single field into a member of a new oneof is safe",
         old=m("int32 a = 1; int32 b = 2;"), new=m("oneof x { int32 a = 1; } int32 b = 2;")),
    Case(name="two fields into a new oneof", clause="moving multiple fields: only if no code sets more than one at a time",
         old=m("int32 a = 1; int32 b = 2;"), new=m("oneof x { int32 a = 1; int32 b = 2; }"),
         backward=(("Order.x", "fields_moved_into_oneof"),)),
    Case(name="a field into an existing oneof", clause="moving any fields into an existing oneof is not safe",
         old=m("oneof x { int32 a = 1; } int32 b = 2;"), new=m("oneof x { int32 a = 1; int32 b = 2; }"),
         backward=(("Order.x", "fields_moved_into_oneof"),)),
    Case(name="a new field in a oneof", clause='"Oneof": new members may be added',
         old=m("oneof x { int32 a = 1; }"), new=m("oneof x { int32 a = 1; string b = 2; }")),
    Case(name="map to repeated entries", clause='"Maps", backward compatibility: a map is a repeated entry message',
         old=m("map<string, int32> a = 1;"),
         new=m("repeated Entry a = 1;", rest="message Entry { string key = 1; int32 value = 2; }"),
         forward=(("Order.a", "became_map"),)),
    Case(name="type of map values", clause='"Maps": the rules of fields hold for key and value',
         old=m("map<string, int32> a = 1;"), new=m("map<string, string> a = 1;"),
         **both(("Order.a.value", "wire_type_changed"))),
    Case(name="reserved number used", clause='"Reserved Fields": the compiler complains, and so do we across versions',
         old=m("reserved 2; int32 a = 1;"), new=m("int32 a = 1; string b = 2;"),
         **both(("Order.b", "reserved_number_used"))),
    Case(name="reserved name used", clause='"Reserved Fields": names, too',
         old=m('reserved "b"; int32 a = 1;'), new=m("int32 a = 1; string b = 2;"),
         **both(("Order.b", "reserved_name_used"))),
    Case(name="reservation dropped", clause='"Reserved Fields": it protects as long as it stands',
         old=m("reserved 2 to 5; int32 a = 1;"), new=m("int32 a = 1; reserved 2, 3;"),
         **both(("Order", "reservation_removed"))),
    Case(name="reservations written in other pieces", clause='"Reserved Fields"',
         old=m("reserved 2 to 5; int32 a = 1;"), new=m("int32 a = 1; reserved 2, 3 to 9;")),
    Case(name="a message that payloads do not reach", clause="a payload is the first message of the file",
         old=m("int32 a = 1;", rest="message Else { int32 x = 1; }"), new=m("int32 a = 1;", rest="message Else { string x = 1; }")),
    Case(name="proto2 to proto3", clause='"Encoding": the wire format is one', old=m("optional int32 a = 1;", syntax=PROTO2),
         new=m("optional int32 a = 1;")),
    Case(name="well-known type", clause="imports of google/protobuf",
         old=PROTO3 + 'import "google/protobuf/timestamp.proto";\nmessage Order { google.protobuf.Timestamp at = 1; }',
         new=PROTO3 + "message Order { At at = 1; } message At { int64 seconds = 1; int32 nanos = 2; }"),
    Case(name="type of an extension", clause='"Extensions": an extension is a field of the message it extends',
         old=ext("extend Order { optional int32 x = 100; }"), new=ext("extend Order { optional string x = 100; }"),
         **both(("Order.[x]", "wire_type_changed"))),
    Case(name="extension becomes a field", clause='"Extensions": the wire format is that of a field',
         old=ext("extend Order { optional int32 x = 100; }"), new=m("optional int32 a = 1; optional int32 x = 100;", syntax=PROTO2)),
    Case(name="extension removed", clause='"Reserved Fields"',
         old=ext("extend Order { optional int32 x = 100; }"), new=ext(""),
         **both(("Order.[x]", "field_removed_not_reserved"))),
    Case(name="nested extension of a message below", clause='"Extensions": declared in another message',
         old=ext("message N { extend Order { optional N x = 100; } optional int32 y = 1; }"),
         new=ext("message N { extend Order { optional N x = 100; } optional string y = 1; }"),
         **both(("Order.[N.x].y", "wire_type_changed"))),
    Case(name="proto2 string to proto3", clause='"Scalar Value Types": proto3 parsers refuse strings that are not UTF-8',
         old=m("optional string a = 1; map<string, int32> b = 2;", syntax=PROTO2), new=m("string a = 1; map<string, int32> b = 2;"),
         backward=(("Order.a", "utf8_enforced"), ("Order.b.key", "utf8_enforced"))),
    Case(name="default changed", clause="default values are never sent",
         old=m("optional int32 a = 1 [default = 5];", syntax=PROTO2), new=m("optional int32 a = 1 [default = 6];", syntax=PROTO2),
         **both(("Order.a", "default_changed"))),
    Case(name="default dropped", clause="default values are never sent",
         old=m("optional bytes a = 1 [default = 'x'];", syntax=PROTO2), new=m("optional bytes a = 1;", syntax=PROTO2),
         **both(("Order.a", "default_changed"))),
    Case(name="first enum value changed", clause="the default of an enum is its first value",
         old=m("optional E a = 1;", rest="enum E { ZERO = 0; ONE = 1; }", syntax=PROTO2),
         new=m("optional E a = 1;", rest="enum E { ONE = 1; ZERO = 0; }", syntax=PROTO2),
         **both(("Order.a", "default_changed"))),
    Case(name="default of a required field", clause="a required field is always sent",
         old=m("required int32 a = 1 [default = 5];", syntax=PROTO2), new=m("required int32 a = 1;", syntax=PROTO2)),
    Case(name="default in other types", clause="0 is false, text its bytes",
         old=m("optional int32 a = 1 [default = 1]; optional string b = 2 [default = 'x'];", syntax=PROTO2),
         new=m("optional bool a = 1 [default = true]; optional bytes b = 2 [default = 'x'];", syntax=PROTO2),
         forward=(("Order.b", "type_changed"),)),
    Case(name="open enum becomes closed", clause='"Enum Behavior": unknown values are set aside',
         old=m("optional E a = 1;", rest="enum E { ZERO = 0; }"),
         new=m("optional E a = 1;", rest="enum E { ZERO = 0; }", syntax=PROTO2),
         backward=(("Order.a", "enum_became_closed"),)),
    Case(name="map key narrowed", clause="keys that are cut may become the same",
         old=m("map<int64, string> a = 1;"), new=m("map<int32, string> a = 1;"),
         backward=(("Order.a.key", "map_key_narrowed"),)),
    Case(name="map key becomes bool", clause="keys that are cut may become the same",
         old=m("map<uint32, string> a = 1;"), new=m("map<bool, string> a = 1;"),
         backward=(("Order.a.key", "map_key_narrowed"),)),
    Case(name="enum number reserved and used", clause='"Reserved Values"',
         old=m("E a = 1;", rest="enum E { ZERO = 0; reserved 1 to 3; }"), new=m("E a = 1;", rest="enum E { ZERO = 0; TWO = 2; }"),
         **both(("Order.a.TWO", "reserved_number_used"))),
    Case(name="enum name reserved and used", clause='"Reserved Values"',
         old=m("E a = 1;", rest='enum E { ZERO = 0; reserved "ONE"; }'), new=m("E a = 1;", rest="enum E { ZERO = 0; ONE = 2; }"),
         **both(("Order.a.ONE", "reserved_name_used"))),
    Case(name="enum reservation dropped", clause='"Reserved Values"',
         old=m("E a = 1;", rest="enum E { ZERO = 0; reserved 1 to max; }"), new=m("E a = 1;", rest="enum E { ZERO = 0; reserved 1; }"),
         **both(("Order.a", "reservation_removed"))),
    Case(name="enum value removed and reserved", clause='"Reserved Values"',
         old=m("E a = 1;", rest="enum E { ZERO = 0; ONE = 1; }"), new=m("E a = 1;", rest='enum E { ZERO = 0; reserved 1; reserved "ONE"; }')),
    Case(name="enum value removed, nothing reserved", clause='"Reserved Values"',
         old=m("E a = 1;", rest="enum E { ZERO = 0; ONE = 1; }"), new=m("E a = 1;", rest="enum E { ZERO = 0; }"),
         **both(("Order.a.ONE", "enum_value_removed_not_reserved"))),
]  # fmt: skip


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every text of the cases, by one run of the compiler: each in a package of its own."""
    folder = tmp_path_factory.mktemp("protos")
    texts = list({text for case in CASES for text in (case.old, case.new)})
    for index, text in enumerate(texts):
        head, _, body = text.partition("\n")
        (folder / f"case{index}.proto").write_text(f"{head}\npackage case{index};\n{body}")
    files = [f"case{index}.proto" for index in range(len(texts))]
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I.",
        f"-I{PROTOS}",
        "--include_imports",
        "-oall.bin",
    ]
    subprocess.run([*command, *files], cwd=folder, check=True, capture_output=True, timeout=60)
    found = {file.name: file for file in FileDescriptorSet.FromString((folder / "all.bin").read_bytes()).file}
    parsed = {}
    for text, name in zip(texts, files, strict=True):
        needed = [found[imported] for imported in found[name].dependency]
        descriptors = FileDescriptorSet(file=[*needed, found[name]]).SerializeToString()
        parsed[text] = parse_schema(SchemaType.PROTOBUF, text.encode(), descriptors=descriptors)
    return parsed


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_one_reads_of_the_other(case: Case, compiled: dict[str, Any]) -> None:
    old, new = compiled[case.old], compiled[case.new]
    for mode, expected in (("backward", case.backward), ("forward", case.forward)):
        found = differences_between(old, new, CompatibilityMode(mode))
        assert sorted((each.path, each.rule) for each in found) == sorted(expected), f"{mode}: {case.clause}"
    assert differences_between(old, old, CompatibilityMode.FULL) == ()
    assert differences_between(old, new, CompatibilityMode.NONE) == ()


def test_at_least_twenty_cases_half_of_them_incompatible() -> None:
    assert len(CASES) >= 20
    assert sum(bool(case.backward or case.forward) for case in CASES) * 2 >= len(CASES)


def test_a_difference_shows_fields_as_they_are_written(compiled: dict[str, Any]) -> None:
    case = next(case for case in CASES if case.name == "int32 to string")
    (found,) = differences_between(compiled[case.old], compiled[case.new], CompatibilityMode.BACKWARD)
    assert (found.before, found.after) == ("int32 a = 1", "string a = 1")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (PROTO3 + "message A { string a = 1 }", "line 2, column"),
        (PROTO3 + "message A { Nothing a = 1; }", "line 2, column"),
        (PROTO3 + "message A { int32 a = 1; int32 b = 1; }", "line 2, column"),
        (PROTO3 + 'import "other.proto";\nmessage A {}', ""),
        (PROTO3 + 'import "/etc/passwd";\nmessage A {}', ""),
        ("this is no proto", "line 1, column"),
        (PROTO3 + "enum E { Z = 0; }", "/"),
        ("", "/"),
    ],
)
def test_a_faulty_schema_is_refused_with_its_place(text: str, place: str) -> None:
    with pytest.raises(SchemaInvalid) as caught:
        parse_schema(SchemaType.PROTOBUF, text.encode(), descriptors=compile_proto(text.encode()))
    assert place in caught.value.details["path"]
    assert caught.value.details["field"] == "schema_definition"


PAYLOADS = PROTO2 + (
    "message Order { required int32 id = 1; optional string note = 2; repeated Line lines = 3; }\n"
    "message Line { optional int32 price = 1; map<string, Line> more = 2; }"
)


@pytest.fixture(scope="module")
def check() -> Any:
    descriptors = compile_proto(PAYLOADS.encode())
    return payload_check(parse_schema(SchemaType.PROTOBUF, PAYLOADS.encode(), descriptors=descriptors))


@pytest.mark.parametrize(
    "payload",
    [
        b"\x08\x07",
        b"\x08\x07\x12\x02hi\x1a\x02\x08\x05",
        b"\x08\x07\xa2\x06\x01x",  # field 100: of a later version
    ],
)
def test_payloads_that_conform(check: Any, payload: bytes) -> None:
    check(payload)


@pytest.mark.parametrize(
    ("payload", "place"),
    [
        (b"", "id"),
        (b"\x08", "/"),
        (b"\x12\x02hi", "id"),
        (b'{"id": 7}', "/"),
        (b"\x08\x07\x1a\x03\x0a\x01x", "/lines/price"),  # field 1 of a line, as text
        (b"\x08\x07\x1a\x0a\x12\x08\x0a\x01k\x12\x03\x0a\x01x", "/lines/more/price"),
        (b"\x08\x07\x10\x01", "/note"),
        (b"\x08\x07" + b"\x1a\xff\xff\xff\xff\x0f", "/"),
    ],
)
def test_payloads_that_do_not(check: Any, payload: bytes, place: str) -> None:
    with pytest.raises(PayloadInvalid) as caught:
        check(payload)
    assert caught.value.details["path"] == place
