"""Changing schemas, and what a change would do."""

from __future__ import annotations

from typing import Any

from pydanube_admin.context import Context
from pydanube_admin.models import Preview, Request
from pydanube_admin.previews import blast_radius, changes
from pydanube_admin.schemas.models import (
    CheckSchemaRequest,
    CompatibilityRequest,
    CompatibilityResult,
    ConfigureTopicSchemaRequest,
    DeletedVersion,
    DeleteVersionRequest,
    RegisterSchemaRequest,
    Registration,
    SetCompatibilityRequest,
    SetValidationPolicyRequest,
    TopicSchemaResult,
)
from pydanube_admin.schemas.reading import check_schema, get_compatibility, topic_schema_of
from pydanube_admin.topics.reading import find_topic

__all__ = [
    "configure_topic_schema",
    "delete_version",
    "preview_configure",
    "preview_delete_version",
    "preview_register",
    "preview_set_compatibility",
    "preview_set_policy",
    "register_schema",
    "set_compatibility",
    "set_validation_policy",
]


async def register_schema(context: Context, request: RegisterSchemaRequest) -> Registration:
    facts = await context.port.schemas.register(
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
    await context.port.schemas.set_compatibility(
        request.subject,
        mode=request.mode,
        transitive=request.transitive,
        json_profile=request.json_profile,
    )
    return await get_compatibility(context, CompatibilityRequest(subject=request.subject))


async def delete_version(context: Context, request: DeleteVersionRequest) -> DeletedVersion:
    port = context.port.schemas
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
    await context.port.schemas.configure_topic(
        topic,
        subject=request.schema_subject,
        validation_policy=request.validation_policy,
        enable_payload_validation=request.enable_payload_validation,
    )
    return await topic_schema_of(context, topic)


async def set_validation_policy(context: Context, request: SetValidationPolicyRequest) -> TopicSchemaResult:
    topic = (await find_topic(context, request.topic)).own.topic
    await context.port.schemas.set_topic_policy(
        topic,
        validation_policy=request.validation_policy,
        enable_payload_validation=request.enable_payload_validation,
    )
    return await topic_schema_of(context, topic)


async def preview_register(context: Context, request: RegisterSchemaRequest) -> Preview:
    """The next version, if the subject is new or the schema fits; the differences are what `schemas.check` says."""
    subjects = {facts.subject: facts for facts in await context.port.schemas.subjects()}
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
    port = context.port.schemas
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
    await context.port.schemas.subject(request.schema_subject)  # there has to be one
    before = await topic_schema_of(context, topic)
    given = request.model_dump(exclude={"topic"})
    return _preview(
        "topics.configure_schema",
        request,
        changes(f"topics{topic}/schema", before.model_dump(), given),
        topics=1,
    )


async def preview_set_policy(context: Context, request: SetValidationPolicyRequest) -> Preview:
    topic = (await find_topic(context, request.topic)).own.topic
    before = await topic_schema_of(context, topic)
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
