"""Every key of the schema registry in the metadata store.

| key | value | lifetime |
|---|---|---|
| `/schemas/subjects/<subject>` | `SubjectSpec`. Every change of the subject guards it and writes it last | forever |
| `/schemas/versions/<subject>/<version>` | `VersionSpec` | until deleted |
| `/schemas/definitions/<subject>/<version>` | the registered bytes, unchanged | with the version |
| `/schemas/descriptors/<subject>/<version>` | only for Protobuf: the compiled descriptors | with the version |

A subject is any text, so it is percent-encoded and adds no slashes to the key. Versions have 20 digits, so that key
order is numeric order.
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


def subject_of_key(key: str) -> str:
    """Return the subject in the key of a subject."""
    return unquote(key.removeprefix(_SUBJECTS))


def identity_of_key(key: str) -> tuple[str, int]:
    """Return the subject and version at the end of a key."""
    _, subject, version = key.rsplit("/", 2)
    return unquote(subject), int(version)
