"""Every key of the schema registry in the metadata store.

| key | value | lives |
|---|---|---|
| `/schemas/subjects/<subject>` | `SubjectSpec`; every change of the subject guards it and writes it last | for ever |
| `/schemas/versions/<subject>/<version>` | `VersionSpec` | until deleted |
| `/schemas/definitions/<subject>/<version>` | the registered bytes, as they came | with the version |
| `/schemas/descriptors/<subject>/<version>` | of a Protobuf schema, what the compiler made of it | with the version |

A subject is any text, so it is percent-encoded: its slashes are none of the key's. Versions have 20 digits, so that
key order is number order.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from pydanube_storage.metadata import KeyRange

_VERSIONS: Final = "/schemas/versions/"
_DEFINITIONS: Final = "/schemas/definitions/"
_DESCRIPTORS: Final = "/schemas/descriptors/"
_SUBJECTS: Final = "/schemas/subjects/"

SUBJECTS: Final = KeyRange.prefix(_SUBJECTS)
VERSIONS: Final = KeyRange.prefix(_VERSIONS)
DEFINITIONS: Final = KeyRange.prefix(_DEFINITIONS)
DESCRIPTORS: Final = KeyRange.prefix(_DESCRIPTORS)


def _spelled(subject: str) -> str:
    return quote(subject, safe="")


def subject_key(subject: str) -> str:
    return _SUBJECTS + _spelled(subject)


def version_key(subject: str, version: int) -> str:
    return f"{_VERSIONS}{_spelled(subject)}/{version:020d}"


def definition_key(subject: str, version: int) -> str:
    return f"{_DEFINITIONS}{_spelled(subject)}/{version:020d}"


def descriptors_key(subject: str, version: int) -> str:
    return f"{_DESCRIPTORS}{_spelled(subject)}/{version:020d}"


def versions_range(subject: str) -> KeyRange:
    return KeyRange.prefix(f"{_VERSIONS}{_spelled(subject)}/")


def subject_of_key(key: str) -> str:
    """The subject in a key of a subject."""
    return unquote(key.removeprefix(_SUBJECTS))


def identity_of_key(key: str) -> tuple[str, int]:
    """Subject and version that end a key."""
    _, subject, version = key.rsplit("/", 2)
    return unquote(subject), int(version)
