"""Read payloads as messages of a Protobuf schema.

The runtime's parser checks wire format, UTF-8 of strings (proto3) and nesting (its own limit of 100). This module also
refuses a missing required field, and a declared field with another wire type, which the runtime would move to the
unknown fields and so lose. A field number outside the schema is valid: that is how Protobuf schemas evolve.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from pydanube_core.schema_formats.fault import Fault


class MessageFault(Fault):
    """A payload is no message of its schema. `path` is the field, such as `/order/id`, or `/`."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


def read_message(message_class: Any, payload: bytes) -> Any:
    """Parse a payload, and drop the fields that the schema does not declare.

    Raises `MessageFault`.
    """
    message = message_class()
    try:
        message.ParseFromString(payload)
    except (DecodeError, RecursionError) as error:
        raise MessageFault("/", f"it cannot be parsed: {str(error)[:160]}") from None
    if not message.IsInitialized():
        missing = ", ".join(message.FindInitializationErrors()[:5])
        raise MessageFault(missing, f"required fields are missing: {missing}")
    whole = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != whole:
        _check_unknown(message_class.FromString(payload), "")
    return message


def _check_unknown(message: Any, path: str) -> None:
    numbers = {field.number: field.name for field in message.DESCRIPTOR.fields}
    unknown_fields: Any = UnknownFieldSet(message)  # iterable, but not in its stubs
    for unknown in unknown_fields:
        if unknown.field_number in numbers:
            at = f"{path}/{numbers[unknown.field_number]}"
            raise MessageFault(
                at, f"field {unknown.field_number} has another wire type ({unknown.wire_type})"
            )
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        at = f"{path}/{field.name}"
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for entry in value.values():
                    _check_unknown(entry, at)
        elif field.is_repeated:
            for item in value:
                _check_unknown(item, at)
        else:
            _check_unknown(value, at)
