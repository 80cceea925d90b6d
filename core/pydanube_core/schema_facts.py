"""Facts of a broker's schema registry for the admin core, and the port by which it reads them (as `facts`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

#: names of a schema type in official clients and tools → its name
TYPE_ALIASES: Final[Mapping[str, str]] = {
    "json": "json_schema", "proto": "protobuf",
    "int": "number", "int64": "number", "float": "number", "double": "number",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFacts:
    """One version of a subject. `definition` has the registered bytes."""

    subject: str
    schema_id: int
    version: int
    schema_type: str
    fingerprint: str
    definition: bytes
    description: str
    created_by: str
    created_at_ms: int
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectFacts:
    """A subject. `latest` is None if every version was deleted. `topics` are bound to the subject."""

    subject: str
    schema_id: int
    compatibility_mode: str
    transitive: bool
    json_profile: str
    latest: SchemaFacts | None
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationFacts:
    subject: str
    schema_id: int
    version: int
    is_new_version: bool
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatibilityFacts:
    """The result of a compatibility check.

    `differences`: {path, rule, before, after}, empty if compatible. `compared_with`: versions, newest first. `example`: a
    message that shows it, {written_by, refused_by, message, at, because}.
    """

    is_compatible: bool
    differences: tuple[Mapping[str, Any], ...]
    compatibility_mode: str
    transitive: bool
    compared_with: tuple[int, ...]
    example: Mapping[str, Any] | None = None


class SchemasPort(Protocol):
    """The schema registry. Raises `InvalidArgument` for unknown words, `SchemaNotFound` for subjects, ids, versions."""

    async def subject_names(self) -> Sequence[str]: ...

    async def subjects(self, names: Sequence[str]) -> Sequence[SubjectFacts]:
        """Return the facts of subjects, without those that do not exist."""
        ...

    async def subject(self, subject: str) -> SubjectFacts: ...

    async def subject_name(self, schema_id: int) -> str: ...

    async def schema(self, subject: str, version: int | None) -> SchemaFacts:
        """Return one version, None for the latest."""

    async def versions(self, subject: str) -> Sequence[SchemaFacts]: ...

    async def register(
        self,
        subject: str,
        *,
        schema_type: str,
        definition: bytes,
        description: str,
        created_by: str,
        tags: Sequence[str],
        json_profile: str,
    ) -> RegistrationFacts:
        """Register a schema. `json_profile`: for a new subject. Raises `SchemaInvalid`, `SchemaIncompatible`."""

    async def check(
        self,
        subject: str,
        *,
        schema_type: str,
        definition: bytes,
        mode: str | None,
        transitive: bool | None,
        json_profile: str | None,
    ) -> CompatibilityFacts: ...

    async def set_compatibility(
        self, subject: str, *, mode: str, transitive: bool, json_profile: str | None
    ) -> None: ...

    async def delete_version(self, subject: str, version: int) -> None: ...

    async def version_image(self, subject: str, version: int) -> Mapping[str, Any]:
        """Return everything about a version, as JSON values, for `restore_version`."""

    async def restore_version(self, image: Mapping[str, Any]) -> None:
        """Restore a deleted version. Idempotent."""

    async def restore_topic(self, topic: str, settings: Mapping[str, Any] | None) -> None:
        """Set a topic's schema to an earlier result of `topic_schema`, or none."""

    async def topic_schema(self, topic: str) -> Mapping[str, Any] | None:
        """Return {subject, schema_id (text), validation_policy, enable_payload_validation}. Raises `TopicNotFound`."""

    async def configure_topic(
        self, topic: str, *, subject: str, validation_policy: str, enable_payload_validation: bool
    ) -> None: ...

    async def set_topic_policy(
        self, topic: str, *, validation_policy: str, enable_payload_validation: bool
    ) -> None:
        """Change how a topic's schema is enforced. Raises `SchemaMismatch` for a topic without a subject."""
