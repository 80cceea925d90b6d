"""Decode Protobuf: payloads are the first message of the file, as in the registry.

Fields are matched by number, so the reader's version reads payloads of any version. The writer's version only validates
them. Fields of a oneof are columns of which at most one is not null. Absent fields with presence (messages, `optional`,
oneof, proto2) are null, other fields have their default. Recursive messages and those without a fixed shape (Struct,
Value, Any …) are JSON text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from pydanube_core.schema_formats.protobuf.descriptors import parse_descriptors
from pydanube_core.schema_formats.protobuf.messages import read_message
from pydanube_core.schema_formats.protobuf.protoc import compile_proto

from pydanube_storage.topics.decoding.fault import Fault, micros_in_range, text

_PLAIN: Final = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),  # Spark has no unsigned integers
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
}
_GOOGLE: Final = "google.protobuf."
_AS_TEXT: Final = {f"{_GOOGLE}{name}" for name in ("Struct", "Value", "ListValue", "Any", "FieldMask")}
_WRAPPERS: Final = {
    f"{_GOOGLE}{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}

Convert = Callable[[Any], Any]


class ProtobufFormat:
    """The reader's version. `compile_with` compiles a definition to descriptors."""

    def __init__(self, definition: bytes, compile_with: Callable[[bytes], bytes] = compile_proto) -> None:
        self._compile = compile_with
        self._definition = definition
        self._class = parse_descriptors(compile_with(definition)).message_class()
        self.type, self._convert = _message(self._class.DESCRIPTOR, frozenset())

    def reading(self, writer: bytes) -> Callable[[bytes], Any]:
        own, convert = self._class, self._convert
        if writer == self._definition:
            return lambda payload: convert(read_message(own, payload))
        written = parse_descriptors(self._compile(writer)).message_class()
        _check_name(written.DESCRIPTOR, own.DESCRIPTOR)

        def read(payload: bytes) -> Any:
            read_message(written, payload)
            return convert(read_message(own, payload))

        return read


def _check_name(written: Any, wants: Any) -> None:
    """Raise `Fault` if the file's first message has another name, because its payloads are of another type."""
    if written.name != wants.name:
        raise Fault(f"it is a {written.name}, the latest version of the subject is of {wants.name}")


def _message(descriptor: Any, above: frozenset[str]) -> tuple[Any, Convert]:
    name = descriptor.full_name
    if name in above or name in _AS_TEXT:
        return pa.string(), _as_json
    if name == f"{_GOOGLE}Timestamp":
        return pa.timestamp("us", tz="UTC"), _timestamp
    if name == f"{_GOOGLE}Duration":
        return pa.duration("us"), _duration
    if name in _WRAPPERS:
        kind, convert = _single(descriptor.fields_by_name["value"], above)
        return kind, lambda message: convert(message.value)
    inside = above | {name}
    steps = [_step(field, inside) for field in descriptor.fields]

    def read(message: Any) -> Any:
        return {field: get(message) for field, _, get in steps}

    return pa.struct([(field, kind) for field, kind, _ in steps]), read


def _step(field: Any, above: frozenset[str]) -> tuple[str, Any, Convert]:
    """Return (name, type, getter) of a field."""
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        fields = field.message_type.fields_by_name
        key_kind, key = _single(fields["key"], above)
        kind, value = _single(fields["value"], above)
        return (
            name,
            pa.map_(key_kind, kind),
            lambda message: [(key(k), value(v)) for k, v in getattr(message, name).items()],
        )
    kind, convert = _single(field, above)
    if field.is_repeated:
        return name, pa.list_(kind), lambda message: [convert(each) for each in getattr(message, name)]
    if field.has_presence:
        return (
            name,
            kind,
            lambda message: convert(getattr(message, name)) if message.HasField(name) else None,
        )
    return name, kind, lambda message: convert(getattr(message, name))


def _single(field: Any, above: frozenset[str]) -> tuple[Any, Convert]:
    """Return the type of a field's single value, and its conversion to the column's type."""
    if field.message_type is not None:
        return _message(field.message_type, above)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return pa.binary(), bytes
    kind = _PLAIN[field.cpp_type]
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return kind, Decimal
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        names: Mapping[int, Any] = field.enum_type.values_by_number
        return kind, lambda number: names[number].name if number in names else str(number)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return kind, text
    return kind, _itself


def _itself(value: Any) -> Any:
    return value


def _timestamp(message: Any) -> int:
    return micros_in_range(message.seconds * 1_000_000 + message.nanos // 1000)


def _duration(message: Any) -> int:
    nanos = message.seconds * 1_000_000_000 + message.nanos
    micros: int = nanos // 1000 if nanos >= 0 else -(-nanos // 1000)
    if not -(2**63) <= micros < 2**63:
        raise Fault(f"a duration of {message.seconds} s is too long for a column")
    return micros


def _as_json(message: Any) -> str:
    try:
        return text(json_format.MessageToJson(message, indent=None, preserving_proto_field_name=True))
    except (json_format.Error, DecodeError, TypeError, KeyError) as error:  # DecodeError: of an Any's content
        raise Fault(f"{message.DESCRIPTOR.name} cannot be JSON: {error}") from None
