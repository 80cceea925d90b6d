"""The registry's records of subjects and versions.

A `…Spec` is the JSON in the store. A `…Record` adds the facts from reading it, such as the revision that guards the
next change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydanube_core.errors import InvalidArgument
from pydanube_storage.metadata import Delete, KeyValue, Put, Revision

from pydanube_broker.records.json_record import JsonRecord
from pydanube_broker.schema import keys
from pydanube_broker.schema.vocabulary import CompatibilityMode, JsonProfile, SchemaType

MAX_SUBJECT_CHARS: Final = 256
MAX_DESCRIPTION_CHARS: Final = 4096
MAX_CREATED_BY_CHARS: Final = 256
MAX_TAGS: Final = 64
MAX_TAG_CHARS: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectSpec(JsonRecord):
    """A subject's record.

    `last_version` is the highest number ever assigned. Numbers of deleted versions are not reused. `identity` is the
    schema id, from a leased block (`cluster.id_blocks`). If it is None, the key's create revision is the id.
    """

    subject: str
    compatibility_mode: CompatibilityMode
    transitive: bool
    json_profile: JsonProfile
    last_version: int
    created_at_ms: int
    created_by: str
    updated_at_ms: int
    identity: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpec(JsonRecord):
    subject: str
    version: int
    schema_type: SchemaType
    fingerprint: str
    description: str
    created_by: str
    created_at_ms: int
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectRecord:
    """A subject as read from the store."""

    schema_id: int
    revision: Revision
    spec: SubjectSpec

    @classmethod
    def of(cls, item: KeyValue) -> SubjectRecord:
        spec = SubjectSpec.from_json(item.value, key=item.key)
        return cls(schema_id=spec.identity or item.create_revision, revision=item.mod_revision, spec=spec)

    @property
    def subject(self) -> str:
        return self.spec.subject


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """A version with its text. Only Protobuf schemas have `descriptors`."""

    schema_id: int
    spec: VersionSpec
    definition: bytes
    descriptors: bytes | None

    @property
    def version(self) -> int:
        return self.spec.version

    @property
    def identity(self) -> tuple[int, int]:
        """Return (schema id, version), as in messages."""
        return self.schema_id, self.spec.version


def stored(spec: VersionSpec, definition: bytes, descriptors: bytes | None) -> list[Put]:
    """Return the writes that store a version."""
    found = (
        [] if descriptors is None else [Put(keys.descriptors_key(spec.subject, spec.version), descriptors)]
    )
    return [
        *found,
        Put(keys.definition_key(spec.subject, spec.version), definition),
        Put(keys.version_key(spec.subject, spec.version), spec.to_json()),
    ]


def removed(spec: VersionSpec) -> list[Delete]:
    """Return the writes that delete a version."""
    of_version = (keys.version_key, keys.definition_key, keys.descriptors_key)
    return [Delete(key(spec.subject, spec.version)) for key in of_version]


def check_subject(subject: str) -> str:
    """Check a subject's name. Raises `InvalidArgument`."""
    if not subject.strip() or len(subject) > MAX_SUBJECT_CHARS or not subject.isprintable():
        raise InvalidArgument(
            f"subject {subject[:60]!r}: a subject is 1 to {MAX_SUBJECT_CHARS} printable characters",
            field="subject",
            value=subject[:60].encode("utf-8", "replace").decode(),
            limit=MAX_SUBJECT_CHARS,
        )
    return subject


def check_texts(description: str, created_by: str, tags: tuple[str, ...]) -> None:
    """Check the lengths of texts. Raises `InvalidArgument` for the first that is too long."""
    for name, value, limit in (
        ("description", description, MAX_DESCRIPTION_CHARS),
        ("created_by", created_by, MAX_CREATED_BY_CHARS),
        *(("tags", tag, MAX_TAG_CHARS) for tag in tags),
    ):
        if len(value) > limit:
            raise InvalidArgument(
                f"{name} has {len(value)} characters, at most {limit} are taken",
                field=name,
                value=len(value),
                limit=limit,
            )
    if len(tags) > MAX_TAGS:
        raise InvalidArgument(
            f"{len(tags)} tags, at most {MAX_TAGS} are taken", field="tags", value=len(tags), limit=MAX_TAGS
        )
