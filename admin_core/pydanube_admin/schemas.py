"""Operations on schemas and on topics' schemas, over the broker's port."""

from __future__ import annotations

import base64
from typing import Any

from pydanube_core.errors import NotImplementedYet
from pydanube_core.schema_facts import SchemaFacts, SchemasPort, SubjectFacts, WithSchemas
from pydanube_core.units import format_time

from pydanube_admin.context import Context
from pydanube_admin.models import Page, Preview, Request
from pydanube_admin.paging import cut, glob
from pydanube_admin.previews import blast_radius, changes
from pydanube_admin.schema_models import (
    CheckSchemaRequest,
    CompatibilityRequest,
    CompatibilityResult,
    ConfigureTopicSchemaRequest,
    DeletedVersion,
    DeleteVersionRequest,
    Difference,
    GetSchemaByIdRequest,
    GetSchemaRequest,
    ListSubjectsRequest,
    RegisterSchemaRequest,
    Registration,
    SchemaResult,
    SetCompatibilityRequest,
    SetValidationPolicyRequest,
    SubjectItem,
    TopicSchemaRequest,
    TopicSchemaResult,
    Verdict,
    VersionItem,
    VersionsRequest,
)
from pydanube_admin.topics import find_topic

__all__ = [
    "check_schema",
    "configure_topic_schema",
    "delete_version",
    "get_compatibility",
    "get_schema",
    "get_schema_by_id",
    "get_topic_schema",
    "list_subjects",
    "list_versions",
    "preview_configure",
    "preview_delete_version",
    "preview_register",
    "preview_set_compatibility",
    "preview_set_policy",
    "register_schema",
    "set_compatibility",
    "set_validation_policy",
]


def _port(context: Context) -> SchemasPort:
    if not isinstance(context.port, WithSchemas):
        raise NotImplementedYet("this cluster has no schema registry")
    return context.port.schemas


# Reading


async def list_subjects(context: Context, request: ListSubjectsRequest) -> Page[SubjectItem]:
    matches = glob(request.filter)
    found = [facts for facts in await _port(context).subjects() if matches(facts.subject)]
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
    subject = await _port(context).subject_name(int(request.schema_id))
    return await _schema(context, subject, request.version)


async def _schema(context: Context, subject: str, version: int | None) -> SchemaResult:
    port = _port(context)
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
    found = [facts for facts in await _port(context).versions(request.subject) if matches(str(facts.version))]
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
    facts = await _port(context).check(
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
    facts = await _port(context).subject(request.subject)
    return CompatibilityResult(
        subject=facts.subject,
        compatibility_mode=facts.compatibility_mode,
        transitive=facts.transitive,
        json_profile=facts.json_profile,
    )


async def get_topic_schema(context: Context, request: TopicSchemaRequest) -> TopicSchemaResult:
    topic = await find_topic(context, request.topic)
    return await _topic_schema(context, topic.own.topic)


async def _topic_schema(context: Context, topic: str) -> TopicSchemaResult:
    found = await _port(context).topic_schema(topic)
    return TopicSchemaResult(
        topic=topic,
        schema_subject=None if found is None else found["subject"],
        schema_id=None if found is None else found["schema_id"],
        validation_policy="none" if found is None else found["validation_policy"],
        enable_payload_validation=False if found is None else found["enable_payload_validation"],
    )


# Changing


async def register_schema(context: Context, request: RegisterSchemaRequest) -> Registration:
    facts = await _port(context).register(
        request.subject,
        schema_type=request.schema_type,
        definition=request.schema_definition.encode(),
        description=request.description,
        created_by=request.created_by,
        tags=[tag.strip() for tag in request.tags.split(",") if tag.strip()],
    )
    return Registration(
        subject=facts.subject,
        schema_id=str(facts.schema_id),
        version=facts.version,
        is_new_version=facts.is_new_version,
        fingerprint=facts.fingerprint,
    )


async def set_compatibility(context: Context, request: SetCompatibilityRequest) -> CompatibilityResult:
    await _port(context).set_compatibility(
        request.subject,
        mode=request.mode,
        transitive=request.transitive,
        json_profile=request.json_profile,
    )
    return await get_compatibility(context, CompatibilityRequest(subject=request.subject))


async def delete_version(context: Context, request: DeleteVersionRequest) -> DeletedVersion:
    port = _port(context)
    subject = await port.subject(request.subject)
    await port.delete_version(request.subject, request.version)
    return DeletedVersion(
        subject=subject.subject,
        schema_id=str(subject.schema_id),
        version=request.version,
        topics=list(subject.topics),
    )


async def configure_topic_schema(context: Context, request: ConfigureTopicSchemaRequest) -> TopicSchemaResult:
    topic = (await find_topic(context, request.topic)).own.topic
    await _port(context).configure_topic(
        topic,
        subject=request.schema_subject,
        validation_policy=request.validation_policy,
        enable_payload_validation=request.enable_payload_validation,
    )
    return await _topic_schema(context, topic)


async def set_validation_policy(context: Context, request: SetValidationPolicyRequest) -> TopicSchemaResult:
    topic = (await find_topic(context, request.topic)).own.topic
    await _port(context).set_topic_policy(
        topic,
        validation_policy=request.validation_policy,
        enable_payload_validation=request.enable_payload_validation,
    )
    return await _topic_schema(context, topic)


# What a change would do


async def preview_register(context: Context, request: RegisterSchemaRequest) -> Preview:
    """The next version, if the subject is new or the schema fits; the differences are what `schemas.check` says."""
    subjects = {facts.subject: facts for facts in await _port(context).subjects()}
    known = subjects.get(request.subject)
    latest = None if known is None or known.latest is None else known.latest.version
    after: dict[str, Any] = {"schema_type": request.schema_type}
    if known is not None:
        check = CheckSchemaRequest(
            subject=request.subject,
            schema_type=request.schema_type,
            schema_definition=request.schema_definition,
        )
        after["is_compatible"] = (await check_schema(context, check)).is_compatible
    diff = [
        {
            "path": f"schemas/{request.subject}",
            "before": None if latest is None else {"latest_version": latest},
            "after": after,
        }
    ]
    return _preview("schemas.register", request, diff, topics=0 if known is None else len(known.topics))


async def preview_set_compatibility(context: Context, request: SetCompatibilityRequest) -> Preview:
    before = await get_compatibility(context, CompatibilityRequest(subject=request.subject))
    given: dict[str, Any] = {"compatibility_mode": request.mode, "transitive": request.transitive}
    if request.json_profile is not None:
        given["json_profile"] = request.json_profile
    diff = changes(f"schemas/{request.subject}", before.model_dump(), given)
    return _preview("schemas.set_compatibility", request, diff)


async def preview_delete_version(context: Context, request: DeleteVersionRequest) -> Preview:
    port = _port(context)
    facts, subject = await port.schema(request.subject, request.version), await port.subject(request.subject)
    before = {
        "schema_type": facts.schema_type,
        "fingerprint": facts.fingerprint,
        "topics": list(subject.topics),
    }
    path = f"schemas/{request.subject}/versions/{request.version}"
    diff = [{"path": path, "before": before, "after": None}]
    return _preview("schemas.delete_version", request, diff)  # topics stay: the diff names those bound to it


async def preview_configure(context: Context, request: ConfigureTopicSchemaRequest) -> Preview:
    topic = (await find_topic(context, request.topic)).own.topic
    await _port(context).subject(request.schema_subject)  # there has to be one
    before = await _topic_schema(context, topic)
    given = request.model_dump(exclude={"topic"})
    return _preview(
        "topics.configure_schema",
        request,
        changes(f"topics{topic}/schema", before.model_dump(), given),
        topics=1,
    )


async def preview_set_policy(context: Context, request: SetValidationPolicyRequest) -> Preview:
    topic = (await find_topic(context, request.topic)).own.topic
    before = await _topic_schema(context, topic)
    given = request.model_dump(exclude={"topic"})
    return _preview(
        "topics.set_validation_policy",
        request,
        changes(f"topics{topic}/schema", before.model_dump(), given),
        topics=1,
    )


def _preview(operation: str, request: Request, diff: list[dict[str, Any]], *, topics: int = 0) -> Preview:
    effects = {"schemas.register": "create", "schemas.delete_version": "destroy"}
    return Preview(
        operation=operation,
        arguments=request.model_dump(mode="json", exclude_unset=True),
        effect=effects.get(operation, "change"),
        reversible=operation not in effects,
        diff=diff,
        blast_radius=blast_radius(topics=topics),
    )
