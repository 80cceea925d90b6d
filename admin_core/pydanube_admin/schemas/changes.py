"""Changing schemas, and what a change would do."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pydanube_core.refusals import changed_since, reused

from pydanube_admin.context import Context
from pydanube_admin.forecast import Forecast, Undo, blast_radius, changes, entry
from pydanube_admin.schemas.models import (
    ChangedCompatibility,
    ChangedTopicSchema,
    CheckSchemaRequest,
    CompatibilityRequest,
    ConfigureTopicSchemaRequest,
    DeletedVersion,
    DeleteVersionRequest,
    RegisterSchemaRequest,
    Registration,
    SetCompatibilityRequest,
    SetValidationPolicyRequest,
)
from pydanube_admin.schemas.reading import check_schema, get_compatibility, topic_schema_of
from pydanube_admin.topics.reading import find_topic


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


async def set_compatibility(context: Context, request: SetCompatibilityRequest) -> ChangedCompatibility:
    await context.port.schemas.set_compatibility(
        request.subject,
        mode=request.mode,
        transitive=request.transitive,
        json_profile=request.json_profile,
    )
    found = await get_compatibility(context, CompatibilityRequest(subject=request.subject))
    return ChangedCompatibility(**found.model_dump())


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


async def configure_topic_schema(
    context: Context, request: ConfigureTopicSchemaRequest
) -> ChangedTopicSchema:
    topic = (await find_topic(context, request.topic)).own.topic
    await context.port.schemas.configure_topic(
        topic,
        subject=request.schema_subject,
        validation_policy=request.validation_policy,
        enable_payload_validation=request.enable_payload_validation,
    )
    return ChangedTopicSchema(**(await topic_schema_of(context, topic)).model_dump())


async def set_validation_policy(context: Context, request: SetValidationPolicyRequest) -> ChangedTopicSchema:
    topic = (await find_topic(context, request.topic)).own.topic
    await context.port.schemas.set_topic_policy(
        topic,
        validation_policy=request.validation_policy,
        enable_payload_validation=request.enable_payload_validation,
    )
    return ChangedTopicSchema(**(await topic_schema_of(context, topic)).model_dump())


async def forecast_register(context: Context, request: RegisterSchemaRequest) -> Forecast:
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
    before = None if latest is None else {"latest_version": latest}
    return Forecast(
        diff=[entry(f"schemas/{request.subject}", before, after)],
        blast_radius=blast_radius(topics=0 if known is None else len(known.topics)),
    )


async def forecast_set_compatibility(context: Context, request: SetCompatibilityRequest) -> Forecast:
    before = await get_compatibility(context, CompatibilityRequest(subject=request.subject))
    given: dict[str, Any] = {"compatibility_mode": request.mode, "transitive": request.transitive}
    if request.json_profile is not None:
        given["json_profile"] = request.json_profile
    image = before.model_dump()
    return Forecast(
        diff=changes(f"schemas/{request.subject}", image, given),
        blast_radius=blast_radius(),
        image=image,
        basis=image,
    )


async def undo_set_compatibility(
    context: Context,
    request: SetCompatibilityRequest,
    image: Mapping[str, Any],
    result: Mapping[str, Any] | None,
) -> Undo:
    now = (await get_compatibility(context, CompatibilityRequest(subject=request.subject))).model_dump()
    if result is not None and now != {name: result[name] for name in now}:
        raise changed_since(f"the compatibility mode of {request.subject!r}")
    return Undo(
        act=partial(
            context.port.schemas.set_compatibility,
            request.subject,
            mode=image["compatibility_mode"],
            transitive=image["transitive"],
            json_profile=image["json_profile"],
        )
    )


async def forecast_delete_version(context: Context, request: DeleteVersionRequest) -> Forecast:
    port = context.port.schemas
    facts, subject = await port.schema(request.subject, request.version), await port.subject(request.subject)
    before = {
        "schema_type": facts.schema_type,
        "fingerprint": facts.fingerprint,
        "topics": list(subject.topics),
    }
    return Forecast(  # topics stay: the diff names those bound to it
        diff=[entry(f"schemas/{request.subject}/versions/{request.version}", before, None)],
        blast_radius=blast_radius(),
        image=await port.version_image(request.subject, request.version),
    )


async def undo_delete_version(
    context: Context,
    request: DeleteVersionRequest,
    image: Mapping[str, Any],
    result: Mapping[str, Any] | None,
) -> Undo:
    return Undo(act=partial(context.port.schemas.restore_version, image))


async def forecast_configure(context: Context, request: ConfigureTopicSchemaRequest) -> Forecast:
    await context.port.schemas.subject(request.schema_subject)  # there has to be one
    return await _topic_forecast(context, request.topic, request.model_dump(exclude={"topic"}))


async def forecast_set_policy(context: Context, request: SetValidationPolicyRequest) -> Forecast:
    return await _topic_forecast(context, request.topic, request.model_dump(exclude={"topic"}))


async def _topic_forecast(context: Context, topic: str, given: Mapping[str, Any]) -> Forecast:
    own = (await find_topic(context, topic)).own
    before = (await topic_schema_of(context, own.topic)).model_dump()
    return Forecast(
        diff=changes(f"topics{own.topic}/schema", before, given),
        blast_radius=blast_radius(topics=1),
        image={"topic_id": str(own.topic_id), "schema": await context.port.schemas.topic_schema(own.topic)},
        basis=[str(own.topic_id), before],
    )


async def undo_topic_schema(
    context: Context,
    request: ConfigureTopicSchemaRequest | SetValidationPolicyRequest,
    image: Mapping[str, Any],
    result: Mapping[str, Any] | None,
) -> Undo:
    own = (await find_topic(context, request.topic)).own
    if str(own.topic_id) != image["topic_id"]:
        raise reused("topic", own.topic)
    now = (await topic_schema_of(context, own.topic)).model_dump(mode="json")
    if result is not None and now != {name: result[name] for name in now}:
        raise changed_since(f"the schema of {own.topic}")
    return Undo(act=partial(context.port.schemas.restore_topic, own.topic, image["schema"]))
