"""Checks payloads against the first message of a Protobuf schema."""

from __future__ import annotations

from pydanube_core.errors import PayloadInvalid
from pydanube_core.schema_formats.protobuf.descriptors import ProtoFile
from pydanube_core.schema_formats.protobuf.messages import MessageFault, read_message


class ProtoPayload:
    def __init__(self, file: ProtoFile) -> None:
        self._file = file
        self._class = file.message_class()

    def check(self, payload: bytes) -> None:
        """Check that a payload parses as the message, with all required fields. Raises `PayloadInvalid`."""
        try:
            read_message(self._class, payload)
        except MessageFault as fault:
            raise PayloadInvalid(
                f"the payload is no message of the Protobuf schema, at {fault}",
                field="payload",
                value=None,
                path=fault.path,
            ) from None
