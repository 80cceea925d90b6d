"""Decode Protobuf: payloads are the first message of the file, as in the registry.

Fields are matched by number, so the reader's version reads payloads of any version. The writer's version only validates
them. Fields of a oneof are columns of which at most one is not null. Absent fields with presence (messages, `optional`,
oneof, proto2) are null, other fields have their default. Recursive messages and those without a fixed shape (Struct,
Value, Any …) are JSON text.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.unknown_fields import UnknownFieldSet
from pydanube_core.errors import Internal, MissingExtra

from pydanube_storage.topics.decoding.fault import Fault, micros_in_range, text

_COMPILE_S: Final = 60.0
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


def compiled(definition: bytes) -> bytes:
    """Return the file's descriptors: a FileDescriptorSet with its imports.

    Raises `MissingExtra` without a compiler, and `Internal` if the registered definition does not compile.
    """
    spec = importlib.util.find_spec("grpc_tools")
    if spec is None or spec.origin is None:
        raise MissingExtra(
            "Protobuf payloads need the compiler: pip install 'pydanube[spark,schema]'", extra="schema"
        )
    included = Path(spec.origin).parent / "_proto"
    with tempfile.TemporaryDirectory(prefix="danube-protoc-") as folder:
        (Path(folder) / "schema.proto").write_bytes(definition)
        command = [
            *(sys.executable, "-I", "-m", "grpc_tools.protoc", "-I.", f"-I{included}"),
            *("--include_imports", "--descriptor_set_out=out.bin", "schema.proto"),
        ]
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMPILE_S,
            check=False,
        )
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise Internal(f"the registered Protobuf schema does not compile: {(said or ['?'])[0][:300]}")
        return (Path(folder) / "out.bin").read_bytes()


class ProtobufFormat:
    """The reader's version. `compile_with` compiles a definition to descriptors."""

    def __init__(self, definition: bytes, compile_with: Callable[[bytes], bytes] = compiled) -> None:
        self._compile = compile_with
        self._definition = definition
        self._class = _message_class(compile_with(definition))
        self.type, self._convert = _message(self._class.DESCRIPTOR, frozenset())

    def reading(self, writer: bytes) -> Callable[[bytes], Any]:
        own, convert = self._class, self._convert
        if writer == self._definition:
            return lambda payload: convert(_whole(own, payload))
        written = _message_class(self._compile(writer))
        _check_name(written.DESCRIPTOR, own.DESCRIPTOR)

        def read(payload: bytes) -> Any:
            _check_known(_whole(written, payload), "")
            return convert(_whole(own, payload))

        return read


def _message_class(descriptors: bytes) -> Any:
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
    for file in files:
        pool.Add(file)
    last = files[-1]
    name = last.message_type[0].name
    full = f"{last.package}.{name}" if last.package else name
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(full))


def _check_name(written: Any, wants: Any) -> None:
    """Raise `Fault` if the file's first message has another name, because its payloads are of another type."""
    if written.name != wants.name:
        raise Fault(f"it is a {written.name}, the latest version of the subject is of {wants.name}")


def _whole(message_class: Any, payload: bytes) -> Any:
    message = message_class()
    message.ParseFromString(payload)
    if not message.IsInitialized():
        raise Fault(f"required fields are missing: {', '.join(message.FindInitializationErrors()[:5])}")
    return message


def _check_known(message: Any, path: str) -> None:
    """Raise `Fault` for a declared field with another wire type, which protobuf would skip as unknown."""
    unknown: Any = UnknownFieldSet(message)
    if len(unknown):
        names = {field.number: field.name for field in message.DESCRIPTOR.fields}
        for each in unknown:
            if each.field_number in names:
                raise Fault(
                    f"{path}{names[each.field_number]}: field {each.field_number} has another wire type "
                    f"({each.wire_type})"
                )


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
        _check_known(message, "")
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
    except (json_format.Error, TypeError, KeyError) as error:
        raise Fault(f"{message.DESCRIPTOR.name} cannot be JSON: {error}") from None
