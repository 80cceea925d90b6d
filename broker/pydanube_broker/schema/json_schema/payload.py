"""Checks payloads against a JSON Schema with jsonschema-rs."""

from __future__ import annotations

import jsonschema_rs
from pydanube_core.errors import PayloadInvalid

from pydanube_broker.schema.json_schema.document import pointer
from pydanube_broker.schema.json_text import loads_strict


class JsonPayload:
    def __init__(self, validator: jsonschema_rs.Validator) -> None:
        self._validator = validator

    def check(self, payload: bytes) -> None:
        """Check a payload. Raises `PayloadInvalid`: `details["path"]` is a JSON pointer into the payload."""
        try:
            instance = loads_strict(payload)
        except ValueError as error:
            raise PayloadInvalid(
                f"the payload is not JSON: {str(error)[:160]}", field="payload", value=None, path="/"
            ) from None
        try:
            if self._validator.is_valid(instance):
                return
            fault = next(iter(self._validator.iter_errors(instance)), None)
        except (
            ValueError,
            RecursionError,
            OverflowError,
        ) as error:  # nesting or a number beyond the library's
            raise PayloadInvalid(
                f"the payload cannot be checked against its schema: {str(error)[:160]}",
                field="payload",
                value=None,
                path="/",
            ) from None
        path = "/" if fault is None else pointer("", *fault.instance_path) or "/"
        why = "it is not valid" if fault is None else fault.message[:200]
        raise PayloadInvalid(
            f"the payload does not conform to its JSON Schema at {path}: {why}",
            field="payload",
            value=None,
            path=path,
            rule="" if fault is None else pointer("", *fault.schema_path),
        )
