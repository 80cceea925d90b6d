"""Records in the metadata store: frozen dataclasses as JSON with a version.

During a rolling upgrade two builds read and write the same records. So `from_json` ignores unknown fields, and they are
lost when this broker writes the record. A new field needs a default with which the record is correct, though less
precise. It is `UNLESS_DEFAULT` as long as the previous build refuses unknown fields. A change that cannot have such a
default raises the version, and older brokers refuse the whole record.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Final, Self

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydanube_core.errors import ClusterError, FormatTooNew
from pydanube_storage.metadata import CorruptMetadata

RECORD_VERSION: Final = 2  # the highest that this build reads
# For a field that is not written if it is None, 0 or ""
UNLESS_DEFAULT: Final = Field(exclude_if=lambda value: value in (None, 0, ""))
_HEADS: Final = {version: b'{"version":%d,' % version for version in range(1, RECORD_VERSION + 1)}
_HEAD_BYTES: Final = len(_HEADS[RECORD_VERSION])
assert all(len(head) == _HEAD_BYTES for head in _HEADS.values())


class JsonRecord:
    """Mix-in for a frozen, slotted, keyword-only dataclass. Its fields are JSON values or such records."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="ignore", strict=True)

    @property
    def record_version(self) -> int:
        """The version that the record is written with. Builds with a lower one set it aside, and leave it as it is."""
        return 1

    def to_json(self) -> bytes:
        """Return the record as one line of JSON in UTF-8: the version, then the fields in order of declaration."""
        return _HEADS[self.record_version] + _adapter(type(self)).dump_json(self)[1:]

    @classmethod
    def from_json(cls, data: bytes, *, key: str) -> Self:
        """Parse a record.

        Raises:
            FormatTooNew: a newer version wrote it.
            CorruptMetadata: the data are not such a record. `details` has the key and the field.
        """
        is_ours = data[:_HEAD_BYTES] in _HEADS.values()
        body = b"{" + data[_HEAD_BYTES:] if is_ours else _without_version(data, key=key)
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
    """Return the JSON without `version`, for a record that does not begin as this build writes it."""
    try:
        body = json.loads(data)
    except ValueError as error:
        raise _corrupt(key, "it is not JSON", field=None) from error
    if not isinstance(body, dict) or type(body.get("version")) is not int:
        raise _corrupt(key, "it has no version", field="version")
    version = body.pop("version")
    if version > RECORD_VERSION:
        raise FormatTooNew(
            f"metadata key {key} has record version {version}, this broker reads {RECORD_VERSION}: upgrade it",
            key=key,
            value=version,
            limit=RECORD_VERSION,
        )
    return json.dumps(body).encode()


_ADAPTERS: Final[dict[type[Any], TypeAdapter[Any]]] = {}  # cached, because building one takes a millisecond


def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    adapter = _ADAPTERS.get(cls)
    if adapter is None:
        adapter = _ADAPTERS[cls] = TypeAdapter(cls)
    return adapter


def _corrupt(key: str, why: str, *, field: str | None) -> CorruptMetadata:
    return CorruptMetadata(f"metadata key {key} cannot be read: {why}", key=key, field=field)
