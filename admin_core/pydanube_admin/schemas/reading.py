"""Reading schemas, and topics' schemas."""

from __future__ import annotations

import base64
from typing import Any

from pydanube_core.schema_facts import SchemaFacts, SubjectFacts
from pydanube_core.units import format_time

from pydanube_admin.context import Context
from pydanube_admin.models import Page
from pydanube_admin.paging import cut, glob
from pydanube_admin.schemas.models import (
    CheckSchemaRequest,
    CompatibilityRequest,
    CompatibilityResult,
    Difference,
    GetSchemaByIdRequest,
    GetSchemaRequest,
    ListSubjectsRequest,
    SchemaResult,
    SubjectItem,
    TopicSchemaRequest,
    TopicSchemaResult,
    Verdict,
    VersionItem,
    VersionsRequest,
)
from pydanube_admin.topics.reading import find_topic


async def list_subjects(context: Context, request: ListSubjectsRequest) -> Page[SubjectItem]:
    matches = glob(request.filter)
    found = [facts for facts in await context.port.schemas.subjects() if matches(facts.subject)]
    page = cut(found, key=lambda facts: (facts.subject,), operation="schemas.list", request=request)
    return Page[SubjectItem](
        items=[_item(facts) for facts in page.items],
        next_page=page.next_page,
        total=page.total,
        as_of=format_time(context.now_ms()),
    )


def _item(facts: SubjectFacts) -> SubjectItem:
    latest = facts.latest
    return SubjectItem(
        subject=facts.subject,
        schema_id=str(facts.schema_id),
        schema_type=None if latest is None else latest.schema_type,
        latest_version=None if latest is None else latest.version,
        compatibility_mode=facts.compatibility_mode,
        transitive=facts.transitive,
        topics=list(facts.topics),
    )


async def get_schema(context: Context, request: GetSchemaRequest) -> SchemaResult:
    return await _schema(context, request.subject, request.version)


async def get_schema_by_id(context: Context, request: GetSchemaByIdRequest) -> SchemaResult:
    subject = await context.port.schemas.subject_name(int(request.schema_id))
    return await _schema(context, subject, request.version)


async def _schema(context: Context, subject: str, version: int | None) -> SchemaResult:
    port = context.port.schemas
    facts = await port.schema(subject, version)
    return SchemaResult(
        subject=facts.subject,
        schema_id=str(facts.schema_id),
        version=facts.version,
        schema_type=facts.schema_type,
        fingerprint=facts.fingerprint,
        compatibility_mode=(await port.subject(subject)).compatibility_mode,
        created_at=format_time(facts.created_at_ms),
        untrusted=_text(facts.definition) | _labels(facts),
    )


def _text(definition: bytes) -> dict[str, str]:
    try:
        return {"schema_definition": definition.decode()}
    except UnicodeDecodeError:  # of bytes, string and number anything may have been registered
        return {"schema_definition_base64": base64.b64encode(definition).decode()}


def _labels(facts: SchemaFacts) -> dict[str, Any]:
    return {"description": facts.description, "created_by": facts.created_by, "tags": list(facts.tags)}


async def list_versions(context: Context, request: VersionsRequest) -> Page[VersionItem]:
    matches = glob(request.filter)
    found = [
        facts for facts in await context.port.schemas.versions(request.subject) if matches(str(facts.version))
    ]
    page = cut(found, key=lambda facts: (facts.version,), operation="schemas.versions", request=request)
    return Page[VersionItem](
        items=[
            VersionItem(
                version=facts.version,
                schema_id=str(facts.schema_id),
                schema_type=facts.schema_type,
                fingerprint=facts.fingerprint,
                created_at=format_time(facts.created_at_ms),
                untrusted=_labels(facts),
            )
            for facts in page.items
        ],
        next_page=page.next_page,
        total=page.total,
        as_of=format_time(context.now_ms()),
    )


async def check_schema(context: Context, request: CheckSchemaRequest) -> Verdict:
    facts = await context.port.schemas.check(
        request.subject,
        schema_type=request.schema_type,
        definition=request.schema_definition.encode(),
        mode=request.compatibility_mode,
        transitive=request.transitive,
        json_profile=request.json_profile,
    )
    return Verdict(
        is_compatible=facts.is_compatible,
        differences=[Difference(**difference) for difference in facts.differences],
        compatibility_mode=facts.compatibility_mode,
        transitive=facts.transitive,
        compared_with=list(facts.compared_with),
    )


async def get_compatibility(context: Context, request: CompatibilityRequest) -> CompatibilityResult:
    facts = await context.port.schemas.subject(request.subject)
    return CompatibilityResult(
        subject=facts.subject,
        compatibility_mode=facts.compatibility_mode,
        transitive=facts.transitive,
        json_profile=facts.json_profile,
    )


async def get_topic_schema(context: Context, request: TopicSchemaRequest) -> TopicSchemaResult:
    topic = await find_topic(context, request.topic)
    return await topic_schema_of(context, topic.own.topic)


async def topic_schema_of(context: Context, topic: str) -> TopicSchemaResult:
    found = await context.port.schemas.topic_schema(topic)
    return TopicSchemaResult(
        topic=topic,
        schema_subject=None if found is None else found["subject"],
        schema_id=None if found is None else found["schema_id"],
        validation_policy="none" if found is None else found["validation_policy"],
        enable_payload_validation=False if found is None else found["enable_payload_validation"],
    )
