"""Encode values as payloads by a schema. A value that does not fit is refused before anything is sent.

JSON Schema needs jsonschema-rs and Avro fastavro (the extra `schema`). Protobuf takes messages of the application's own
classes. Text is text. Compiled once per schema.
"""

from __future__ import annotations

import io
import json
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from pydanube_core.errors import InvalidArgument, MissingExtra, PayloadInvalid
from pydanube_core.extras import install_command

from pydanube.payloads.avro import fault_of
from pydanube.payloads.shapes import pointer, to_data, to_json_data
from pydanube.schemas import Schema, value_of

_FAULTS: Final = (ValueError, TypeError, KeyError, OverflowError, ArithmeticError, AttributeError)


def payload_of(value: Any, serialise: Callable[[Any], bytes] | None) -> bytes | bytearray | memoryview:
    """Return the payload for a producer's value. Without a schema only bytes are accepted.

    Raises:
        PayloadInvalid: the value does not fit.
        InvalidArgument: it is not bytes, and there is no schema.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return value
    if serialise is not None:
        return serialise(value)
    raise InvalidArgument(
        f"a payload is bytes, got {type(value).__name__}. Encode text with .encode(), or give the producer a schema=",
        field="payload",
        value=type(value).__name__,
    )


def serialiser(schema: Schema) -> Callable[[Any], bytes]:
    """Return a function from values to payloads of this schema.

    It raises:
        PayloadInvalid: the value does not fit at `details["path"]`, a JSON pointer.
        MissingExtra: a library of the format is not installed. Raised at the first value.
    """
    made: list[Callable[[Any], bytes]] = []

    def serialise(value: Any) -> bytes:
        if not made:
            made.append(_FORMATS.get(schema.schema_type, _raw)(schema))
        try:
            return made[0](value)
        except RecursionError:
            _refuse(schema, "/", "it is nested too deeply", value)

    return serialise


def payload_check(schema: Schema) -> Callable[[bytes], object]:
    """Return a function that checks payloads against this schema. It accepts everything for bytes and Protobuf.

    It raises:
        PayloadInvalid: the bytes are no such value, or it does not fit.
        MissingExtra: a library of the format is not installed.
    """
    if schema.schema_type not in ("string", "json_schema", "avro"):
        return len
    serialise = serialiser(schema) if schema.schema_type == "json_schema" else lambda value: b""
    return lambda payload: serialise(value_of(schema, payload, None))


def _refuse(schema: Schema, path: str, why: str, value: Any) -> NoReturn:
    raise PayloadInvalid(
        f"the value does not fit {schema.subject} version {schema.ref.schema_version} at {path}: {why}",
        field="payload",
        value=reprlib.repr(value)[:200],
        path=path,
        subject=schema.subject,
        version=schema.ref.schema_version,
    ) from None


def _raw(schema: Schema) -> Callable[[Any], bytes]:
    def refuse(value: Any) -> bytes:
        raise InvalidArgument(
            f"{schema.subject} is of type {schema.schema_type}, which does not describe values: give bytes, "
            f"got {type(value).__name__}",
            field="payload",
            value=type(value).__name__,
        )

    return refuse


def _text(schema: Schema) -> Callable[[Any], bytes]:
    def encode(value: Any) -> bytes:
        if not isinstance(value, str):
            _refuse(schema, "/", f"it is text, got {type(value).__name__}", value)
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            _refuse(schema, "/", f"it is no valid text: {error}", value)

    return encode


def _no_network(uri: str) -> NoReturn:
    raise ValueError(f"references stay within the schema, got {uri}")


def _json(schema: Schema) -> Callable[[Any], bytes]:
    try:
        import jsonschema_rs
    except ImportError as error:
        raise _missing("JSON Schema", "jsonschema-rs") from error
    validator: Any = jsonschema_rs.validator_for(
        json.loads(schema.definition),
        retriever=_no_network,
        pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=2_000),
    )

    def encode(value: Any) -> bytes:
        try:
            data = to_json_data(value)
            text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
            if validator.is_valid(data):
                return text
            fault = next(iter(validator.iter_errors(data)), None)
        except _FAULTS as error:
            _refuse(schema, "/", f"JSON has no such value: {str(error)[:200]}", value)
        path = pointer(*([] if fault is None else fault.instance_path))
        _refuse(schema, path, "it is not valid" if fault is None else fault.message[:200], value)

    return encode


def _avro(schema: Schema) -> Callable[[Any], bytes]:
    from pydanube_core.schema_formats.avro.model import is_recursive
    from pydanube_core.schema_formats.avro.parse import parse_avro

    try:
        import fastavro
        from fastavro import _validation_py, _write_py
        from fastavro.validation import validate
    except ImportError as error:
        raise _missing("Avro", "fastavro") from error
    raw = json.loads(schema.definition)
    named: dict[str, Any] = {}
    parsed = fastavro.parse_schema(raw, named_schemas=named)
    # as for reading: deep data of a recursive schema would end the process inside of C
    recursive = is_recursive(parse_avro(raw))
    write: Any = _write_py.schemaless_writer if recursive else fastavro.schemaless_writer
    check: Any = _validation_py.validate if recursive else validate

    def encode(value: Any) -> bytes:
        data = to_data(value)
        try:
            if check(data, parsed, raise_errors=False):
                target = io.BytesIO()
                write(target, parsed, data, strict_allow_default=True)
                return target.getvalue()
            why = ""
        except _FAULTS as error:
            why = str(error)[:200]
        path, what = fault_of(data, parsed, named, lambda part, of: bool(check(part, of, raise_errors=False)))
        _refuse(schema, pointer(*path), what or why or "it is not valid", value)

    return encode


def _protobuf(schema: Schema) -> Callable[[Any], bytes]:
    from google.protobuf.message import EncodeError, Message

    definition = schema.definition.decode("utf-8", "replace")

    def encode(value: Any) -> bytes:
        if not isinstance(value, Message):
            raise InvalidArgument(
                f"{schema.subject} is a Protobuf schema: give a message of the class that was generated from it, "
                f"got {type(value).__name__}",
                field="payload",
                value=type(value).__name__,
            )
        name = value.DESCRIPTOR.name
        if f"message {name}" not in " ".join(definition.split()):
            _refuse(schema, "/", f"the schema has no message {name}", value)
        missing = value.FindInitializationErrors()  # type: ignore[attr-defined]  # its stubs leave it out
        if missing:
            _refuse(schema, pointer(*missing[0].split(".")), "a required field is missing", value)
        try:
            return value.SerializeToString()
        except (EncodeError, ValueError) as error:
            _refuse(schema, "/", str(error)[:200], value)

    return encode


def _missing(what: str, module: str) -> MissingExtra:
    return MissingExtra(f"{what} needs {module}: {install_command('schema')}", extra="schema", module=module)


_FORMATS: Final[Mapping[str, Callable[[Schema], Callable[[Any], bytes]]]] = {
    "string": _text,
    "json_schema": _json,
    "avro": _avro,
    "protobuf": _protobuf,
}
