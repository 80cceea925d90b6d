"""The admin core's port to the registry and the topics' schemas (`pydanube_core.schema_facts.SchemasPort`)."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from pydanube_core.names import TopicName
from pydanube_core.schema_facts import CompatibilityFacts, RegistrationFacts, SchemaFacts, SubjectFacts

from pydanube_broker.schema.compatibility import Refused
from pydanube_broker.schema.records import SubjectRecord, VersionRecord, VersionSpec
from pydanube_broker.schema.topic_schemas import TopicSchemas
from pydanube_broker.schema.vocabulary import parse_mode, parse_policy, parse_profile, parse_type


class SchemaAdministration:
    def __init__(self, schemas: TopicSchemas) -> None:
        self._schemas = schemas
        self._registry = schemas.registry

    async def subject_names(self) -> Sequence[str]:
        return self._registry.index.subject_names()

    async def subjects(self, names: Sequence[str]) -> Sequence[SubjectFacts]:
        bound = self._schemas.topics_by_subject()
        found = map(self._registry.index.find_subject, names)
        return [self._subject(record, bound) for record in found if record is not None]

    async def subject(self, subject: str) -> SubjectFacts:
        return self._subject(self._registry.index.subject(subject), self._schemas.topics_by_subject())

    async def subject_name(self, schema_id: int) -> str:
        return self._registry.index.subject_by_id(schema_id).subject

    async def schema(self, subject: str, version: int | None) -> SchemaFacts:
        index = self._registry.index
        return _version(index.version(index.subject(subject).schema_id, version))

    async def versions(self, subject: str) -> Sequence[SchemaFacts]:
        index = self._registry.index
        return [_version(record) for record in index.versions(index.subject(subject).schema_id)]

    def _subject(self, record: SubjectRecord, bound: Mapping[str, Sequence[str]]) -> SubjectFacts:
        latest = self._registry.index.find_latest(record.schema_id)
        return SubjectFacts(
            subject=record.subject,
            schema_id=record.schema_id,
            compatibility_mode=record.spec.compatibility_mode.value,
            transitive=record.spec.transitive,
            json_profile=record.spec.json_profile.value,
            latest=None if latest is None else _version(latest),
            topics=tuple(bound.get(record.subject, ())),
        )

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
        return await self._registry.register(
            subject,
            parse_type(schema_type),
            definition,
            description=description,
            created_by=created_by,
            tags=tags,
            profile=parse_profile(json_profile),
        )

    async def check(
        self,
        subject: str,
        *,
        schema_type: str,
        definition: bytes,
        mode: str | None,
        transitive: bool | None,
        json_profile: str | None,
    ) -> CompatibilityFacts:
        verdict = await self._registry.check(
            subject,
            parse_type(schema_type),
            definition,
            mode=None if mode is None else parse_mode(mode),
            transitive=transitive,
            profile=None if json_profile is None else parse_profile(json_profile),
        )
        return CompatibilityFacts(
            is_compatible=verdict.is_compatible,
            differences=tuple(difference.to_dict() for difference in verdict.differences),
            compatibility_mode=verdict.mode.value,
            transitive=verdict.transitive,
            compared_with=verdict.compared_with,
            example=None if verdict.example is None else _shown(verdict.example),
        )

    async def set_compatibility(
        self, subject: str, *, mode: str, transitive: bool, json_profile: str | None
    ) -> None:
        await self._registry.set_compatibility(
            subject,
            parse_mode(mode),
            transitive=transitive,
            profile=None if json_profile is None else parse_profile(json_profile),
        )

    async def delete_version(self, subject: str, version: int) -> None:
        await self._registry.delete_version(subject, version)

    async def version_image(self, subject: str, version: int) -> Mapping[str, Any]:
        index = self._registry.index
        record = index.version(index.subject(subject).schema_id, version)
        descriptors = record.descriptors
        return {
            "spec": record.spec.to_json().decode(),
            "definition": base64.b64encode(record.definition).decode(),
            "descriptors": None if descriptors is None else base64.b64encode(descriptors).decode(),
        }

    async def restore_version(self, image: Mapping[str, Any]) -> None:
        descriptors = image["descriptors"]
        await self._registry.restore_version(
            VersionSpec.from_json(image["spec"].encode(), key="undo"),
            base64.b64decode(image["definition"]),
            None if descriptors is None else base64.b64decode(descriptors),
        )

    async def restore_topic(self, topic: str, settings: Mapping[str, Any] | None) -> None:
        await self._schemas.restore(TopicName.parse(topic), settings)

    async def topic_schema(self, topic: str) -> Mapping[str, Any] | None:
        binding = self._schemas.config(TopicName.parse(topic))
        return None if binding is None else binding.to_settings()

    async def configure_topic(
        self, topic: str, *, subject: str, validation_policy: str, enable_payload_validation: bool
    ) -> None:
        await self._schemas.configure(
            TopicName.parse(topic),
            subject,
            parse_policy(validation_policy),
            enable_payload_validation=enable_payload_validation,
        )

    async def set_topic_policy(
        self, topic: str, *, validation_policy: str, enable_payload_validation: bool
    ) -> None:
        await self._schemas.set_policy(
            TopicName.parse(topic),
            parse_policy(validation_policy),
            enable_payload_validation=enable_payload_validation,
        )


def _version(record: VersionRecord) -> SchemaFacts:
    spec = record.spec
    return SchemaFacts(
        subject=spec.subject,
        schema_id=record.schema_id,
        version=spec.version,
        schema_type=spec.schema_type.value,
        fingerprint=spec.fingerprint,
        definition=record.definition,
        description=spec.description,
        created_by=spec.created_by,
        created_at_ms=spec.created_at_ms,
        tags=spec.tags,
    )


def _shown(refused: Refused) -> Mapping[str, Any]:
    old, new = f"version {refused.version}", "the new version"
    return {
        "written_by": old if refused.by_new else new,
        "refused_by": new if refused.by_new else old,
        "message": refused.sample.message,
        "at": refused.sample.at,
        "because": refused.sample.why,
    }
