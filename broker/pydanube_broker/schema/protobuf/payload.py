"""Checks payloads against the first message of a Protobuf schema.

The runtime's parser checks wire format, UTF-8 of strings (proto3) and nesting (its own limit of 100). This module also
refuses a missing required field, and a declared field with another wire type, which the runtime would move to the
unknown fields and so lose. A field number outside the schema is valid: that is how Protobuf schemas evolve.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from pydanube_core.errors import PayloadInvalid

from pydanube_broker.schema.protobuf.model import ProtoFile


class ProtoPayload:
    def __init__(self, file: ProtoFile) -> None:
        self._file = file
        self._class = file.message_class()

    def check(self, payload: bytes) -> None:
        """Check that a payload parses as the message, with all required fields. Raises `PayloadInvalid`."""
        message = self._class()
        try:
            message.ParseFromString(payload)
        except (DecodeError, RecursionError) as error:
            raise _invalid("/", f"it cannot be parsed: {str(error)[:160]}") from None
        if not message.IsInitialized():
            missing = ", ".join(message.FindInitializationErrors()[:5])
            raise _invalid(missing, f"required fields are missing: {missing}")
        whole = message.ByteSize()
        message.DiscardUnknownFields()
        if message.ByteSize() != whole:
            _check_unknown(self._class.FromString(payload), "")


def _check_unknown(message: Any, path: str) -> None:
    numbers = {field.number: field.name for field in message.DESCRIPTOR.fields}
    unknown_fields: Any = UnknownFieldSet(message)  # iterable, but not in its stubs
    for unknown in unknown_fields:
        if unknown.field_number in numbers:
            at = f"{path}/{numbers[unknown.field_number]}"
            raise _invalid(at, f"field {unknown.field_number} has another wire type ({unknown.wire_type})")
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


def _invalid(path: str, why: str) -> PayloadInvalid:
    return PayloadInvalid(
        f"the payload is no message of the Protobuf schema, at {path}: {why}",
        field="payload",
        value=None,
        path=path,
    )
