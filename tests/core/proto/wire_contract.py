"""The transcribed wire tables as facts, the same facts read from descriptors, and an encoder made from the
protobuf encoding specification alone (https://protobuf.dev/programming-guides/encoding), without the library.

Values are plain: dict field name → value for a message, list for repeated, dict for a map. Only what is set
counts; a field without presence that holds its zero is left out, as proto3 does.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

TABLES: Final = Path(__file__).with_name("wire_tables.txt")

_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH: Final = 2
_VARINT_TYPES: Final = frozenset({"uint32", "uint64", "int32", "int64", "sint64", "bool", "enum"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldFact:
    number: int
    name: str
    type: str  # scalar name, message or enum name without package, or "map<string,string>"
    label: str = ""  # "", "optional", "repeated" or "oneof <group>"

    def __str__(self) -> str:
        return f"{self.number} {self.name} {self.type} {self.label}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageFacts:
    messages: Mapping[str, tuple[FieldFact, ...]]
    enums: Mapping[str, Mapping[str, int]]
    rpcs: Mapping[str, tuple[str, str, bool, bool]]  # request, response, client streams, server streams


# ---- reading the tables


def read_tables() -> dict[str, PackageFacts]:
    packages: dict[str, PackageFacts] = {}
    messages: dict[str, tuple[FieldFact, ...]] = {}
    enums: dict[str, dict[str, int]] = {}
    rpcs: dict[str, tuple[str, str, bool, bool]] = {}
    for line in TABLES.read_text(encoding="utf-8").splitlines():
        match line.split(maxsplit=1):
            case [] | ["#", *_]:
                continue
            case ["package", name]:
                messages, enums, rpcs = {}, {}, {}
                packages[name] = PackageFacts(messages=messages, enums=enums, rpcs=rpcs)
            case ["message", rest]:
                name, _, fields = rest.partition(":")
                messages[name] = tuple(_field(text) for text in fields.split(";") if text.strip())
            case ["enum", rest]:
                name, _, values = rest.partition(":")
                enums[name] = {word: int(number) for word, number in re.findall(r"(\w+)=(\d+)", values)}
            case ["rpc", rest]:
                parts = re.fullmatch(r"(\S+): (stream )?(\w+) -> (stream )?(\w+)", rest)
                assert parts is not None, line
                rpcs[parts[1]] = (parts[3], parts[5], bool(parts[2]), bool(parts[4]))
            case ["#"]:
                continue
            case _:
                raise AssertionError(f"not a line of the tables: {line}")
    return packages


def _field(text: str) -> FieldFact:
    number, name, type_name, *label = text.split()
    return FieldFact(number=int(number), name=name, type=type_name, label=" ".join(label))


# ---- the same facts from descriptors


def facts_of(file: FileDescriptor) -> PackageFacts:
    """Describe what our generated module (or the official client's) really defines."""
    proto = FileDescriptorProto()
    file.CopyToProto(proto)  # the one form of a descriptor that has been the same in every version
    prefix = f".{proto.package}."
    enums = {name: {value.name: value.number for value in enum.value} for name, enum in _enums(proto)}
    return PackageFacts(
        messages={name: tuple(_fields(message, prefix)) for name, message in _messages(proto)},
        enums=enums,
        rpcs={
            f"{service.name}/{method.name}": (
                method.input_type.removeprefix(prefix),
                method.output_type.removeprefix(prefix),
                method.client_streaming,
                method.server_streaming,
            )
            for service in proto.service
            for method in service.method
        },
    )


def _messages(proto: FileDescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
    for message in proto.message_type:
        assert not [nested for nested in message.nested_type if not nested.options.map_entry]
        yield message.name, message


def _enums(proto: FileDescriptorProto) -> Iterator[tuple[str, EnumDescriptorProto]]:
    for enum in proto.enum_type:
        yield enum.name, enum
    for message in proto.message_type:
        for enum in message.enum_type:
            yield f"{message.name}.{enum.name}", enum


def _fields(message: DescriptorProto, prefix: str) -> Iterator[FieldFact]:
    maps = {f"{prefix}{message.name}.{nested.name}": nested for nested in message.nested_type}
    for field in sorted(message.field, key=lambda field: field.number):
        kind = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
        type_name, label = field.type_name.removeprefix(prefix) or kind, ""
        if entry := maps.get(field.type_name):
            assert [part.type for part in entry.field] == [FieldDescriptorProto.TYPE_STRING] * 2
            type_name = "map<string,string>"
        elif field.label == FieldDescriptorProto.LABEL_REPEATED:
            label = "repeated"
        elif field.proto3_optional:
            label = "optional"
        elif field.HasField("oneof_index"):
            label = f"oneof {message.oneof_decl[field.oneof_index].name}"
        yield FieldFact(number=field.number, name=field.name, type=type_name, label=label)


# ---- encoding by hand


def varint(value: int) -> bytes:
    """Encode 0 ≤ value < 2**64, seven bits a byte, the lowest first."""
    assert 0 <= value < 1 << 64
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(groups) + bytes([value])


def tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def _delimited(number: int, content: bytes) -> bytes:
    return tag(number, _LENGTH) + varint(len(content)) + content


def _varint_content(type_name: str, value: int) -> bytes:
    if type_name == "sint64":
        return varint(value << 1 if value >= 0 else (-value << 1) - 1)
    return varint(value % (1 << 64))  # negative int32 and int64 are written as 64-bit two's complement


def encode(package: PackageFacts, message: str, values: Mapping[str, Any]) -> bytes:
    """Encode `values` as `message`, fields in the order of their numbers."""
    fields = {field.name: field for field in package.messages[message]}
    assert values.keys() <= fields.keys()
    present = sorted((fields[name] for name in values), key=lambda field: field.number)
    return b"".join(_encode_field(package, field, values[field.name]) for field in present)


def _encode_field(package: PackageFacts, field: FieldFact, value: Any) -> bytes:
    if field.type == "map<string,string>":
        return b"".join(
            _delimited(field.number, _delimited(1, key.encode()) + _delimited(2, text.encode()))
            for key, text in value.items()
        )
    kind = "enum" if field.type in package.enums else field.type
    if field.label == "repeated":
        if kind in _VARINT_TYPES:  # proto3 packs numbers
            return _delimited(field.number, b"".join(_varint_content(kind, one) for one in value))
        return b"".join(_encode_one(package, field.number, kind, one) for one in value)
    return _encode_one(package, field.number, kind, value)


def _encode_one(package: PackageFacts, number: int, kind: str, value: Any) -> bytes:
    if kind in _VARINT_TYPES:
        return tag(number, _VARINT) + _varint_content(kind, value)
    match kind:
        case "double":
            return tag(number, _FIXED64) + struct.pack("<d", value)
        case "fixed64":
            return tag(number, _FIXED64) + struct.pack("<Q", value)
        case "string":
            return _delimited(number, value.encode())
        case "bytes":
            return _delimited(number, value)
        case _:
            return _delimited(number, encode(package, kind, value))


# ---- sample values and comparison

_SAMPLES: Final[Mapping[str, Callable[[FieldFact], Any]]] = {
    "uint64": lambda field: (1 << 64) - field.number,  # ten bytes of varint, the top bit in use
    "fixed64": lambda field: (1 << 64) - field.number,
    "uint32": lambda field: (1 << 32) - field.number,
    "int64": lambda field: -field.number,
    "int32": lambda field: -field.number,
    "sint64": lambda field: -(1 << 40) - field.number,
    "bool": lambda field: True,
    "double": lambda field: field.number + 0.125,
    "string": lambda field: f"{field.name} – ü",
    "bytes": lambda field: b"\x00\xff" + field.name.encode() * 20,  # longer than 127: a two-byte length
    "map<string,string>": lambda field: {"key ü": "value"},
}


def sample(package: PackageFacts, field: FieldFact, *, around: frozenset[str] = frozenset()) -> Any:
    """Return a value for `field` that differs from its default and from those of its neighbours."""
    if field.type in package.enums:
        one: Any = max(package.enums[field.type].values())
    elif field.type in _SAMPLES:
        one = _SAMPLES[field.type](field)
    else:
        one = samples(package, field.type, around=around)
    return [one, one] if field.label == "repeated" else one


def samples(package: PackageFacts, message: str, *, around: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return values for every field of `message`; of the fields of a oneof only the last.

    A message may hold one of its own kind: inside itself (`around` names the messages outside) it leaves that out.
    """
    around |= {message}
    chosen = {
        field.label if field.label.startswith("oneof") else field.name: field
        for field in package.messages[message]
        if field.type not in around
    }
    return {field.name: sample(package, field, around=around) for field in chosen.values()}


def plain(message: Any) -> dict[str, Any]:
    """Read what is set in a protobuf message, back into the form that `encode` takes."""
    result: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            result[field.name] = dict(value)
        elif field.message_type is None:
            result[field.name] = value if isinstance(value, str | bytes | int | float) else list(value)
        elif hasattr(value, "ListFields"):
            result[field.name] = plain(value)
        else:
            result[field.name] = [plain(one) for one in value]
    return result


def check_message(package: PackageFacts, name: str, message_class: Any) -> int:
    """Exchange every field of one message with its hand-made encoding, both ways; return the bytes compared.

    Raises:
        AssertionError: with message and field.
    """
    compared = 0
    cases = [(field.name, {field.name: sample(package, field)}) for field in package.messages[name]]
    for label, values in [*cases, ("all fields", samples(package, name)), ("no field", {})]:
        wire = encode(package, name, values)
        parsed = message_class.FromString(wire)
        assert plain(parsed) == values, f"{name}, {label}: read {plain(parsed)} from {wire.hex()}"
        written = message_class(**values).SerializeToString()
        assert written == wire, f"{name}, {label}: wrote {written.hex()}, by hand {wire.hex()}"
        compared += len(wire)
    return compared
