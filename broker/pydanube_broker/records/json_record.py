"""Records in the metadata store: frozen dataclasses as JSON with a version.

While brokers are replaced one by one, two builds read and write the same records. So a field that is not known is passed over,
and gone once this broker writes the record; a new field has a default, with which the record is right if less good, and is
`UNLESS_DEFAULT` for as long as the build before refuses what it does not know. Where that cannot be, the version goes up: older brokers refuse the record
whole.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Final, Self

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydanube_core.errors import ClusterError, FormatTooNew
from pydanube_storage.metadata import CorruptMetadata

RECORD_VERSION: Final = 1
UNLESS_DEFAULT: Final = Field(
    exclude_if=lambda value: value in (None, 0, "")
)  # what has no more to say is not written
_HEAD: Final = b'{"version":%d,' % RECORD_VERSION


class JsonRecord:
    """Mix-in of a frozen, slotted, keyword-only dataclass whose fields are JSON values or other such records."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="ignore", strict=True)

    def to_json(self) -> bytes:
        """UTF-8, one line, fields in order of declaration, the version first."""
        return _HEAD + _adapter(type(self)).dump_json(self)[1:]

    @classmethod
    def from_json(cls, data: bytes, *, key: str) -> Self:
        """Parse what `to_json` wrote.

        Raises:
            FormatTooNew: written by a newer version.
            CorruptMetadata: anything else that is not such a record; `details` names the key and the field.
        """
        body = b"{" + data[len(_HEAD) :] if data.startswith(_HEAD) else _without_version(data, key=key)
        try:
            record: Self = _adapter(cls).validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise _corrupt(key, f"field {field!r} is wrong: {first['msg']}", field=field) from error
        except ClusterError as error:  # __post_init__ refused a value
            raise _corrupt(key, error.message, field=error.details.get("field")) from error
        return record


def _without_version(data: bytes, *, key: str) -> bytes:
    """The record's other fields, of JSON that was not written by this very version."""
    try:
        body = json.loads(data)
    except ValueError as error:
        raise _corrupt(key, "it is not JSON", field=None) from error
    if not isinstance(body, dict) or type(body.get("version")) is not int:
        raise _corrupt(key, "it has no version", field="version")
    version = body.pop("version")
    if version > RECORD_VERSION:
        raise FormatTooNew(
            f"metadata key {key} has record version {version}, this broker knows {RECORD_VERSION}: upgrade it",
            key=key,
            value=version,
            limit=RECORD_VERSION,
        )
    return json.dumps(body).encode()


_ADAPTERS: Final[dict[type[Any], TypeAdapter[Any]]] = {}  # building one costs a millisecond


def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    adapter = _ADAPTERS.get(cls)
    if adapter is None:
        adapter = _ADAPTERS[cls] = TypeAdapter(cls)
    return adapter


def _corrupt(key: str, why: str, *, field: str | None) -> CorruptMetadata:
    return CorruptMetadata(f"metadata key {key} cannot be read: {why}", key=key, field=field)
