"""The registry's enums and their spelling on the wire (docs/research/data-plane.md#112-string-vocabularies).

Input may be in any case and use the aliases of the reference broker. Output is always the value of the member.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeVar

from pydanube_core.errors import InvalidArgument
from pydanube_core.schema_facts import TYPE_ALIASES


class SchemaType(StrEnum):
    BYTES = "bytes"
    STRING = "string"
    NUMBER = "number"
    AVRO = "avro"
    JSON_SCHEMA = "json_schema"
    PROTOBUF = "protobuf"


class CompatibilityMode(StrEnum):
    """The required direction of reading. Backward: the new schema reads data written with the old one."""

    NONE = "none"
    BACKWARD = "backward"
    FORWARD = "forward"
    FULL = "full"


class JsonProfile(StrEnum):
    """The rules for comparing JSON Schemas: the reference broker's, or a comparison of possible instances."""

    DEFAULT = "default"
    STRICT = "strict"


class ValidationPolicy(StrEnum):
    """The handling of a message that does not conform: accept, log or refuse."""

    NONE = "none"
    WARN = "warn"
    ENFORCE = "enforce"


_ALIASES: Final = {name: SchemaType(kind) for name, kind in TYPE_ALIASES.items()}

T = TypeVar("T", bound=StrEnum)


def parse_type(text: str) -> SchemaType:
    """Return the schema type of that name. Raises `InvalidArgument`, with the allowed names."""
    alias = _ALIASES.get(text.lower())
    return alias if alias is not None else _member(SchemaType, text, "schema_type")


def parse_mode(text: str) -> CompatibilityMode:
    return _member(CompatibilityMode, text, "compatibility_mode")


def parse_profile(text: str) -> JsonProfile:
    return _member(JsonProfile, text, "json_profile")


def parse_policy(text: str) -> ValidationPolicy:
    return _member(ValidationPolicy, text, "validation_policy")


def _member(kind: type[T], text: str, field: str) -> T:
    try:
        return kind(text.lower())
    except ValueError:
        allowed = [member.value for member in kind]
        raise InvalidArgument(
            f"{field} {text[:60]!r} does not exist: use one of {', '.join(allowed)}",
            field=field,
            value=text[:60],
            allowed=allowed,
        ) from None
