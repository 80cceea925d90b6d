"""Change schemas, and forecast such changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

import anyio
from pydantic import Field
from pydanube_core.errors import ClusterError
from pydanube_core.facts import MessageFacts, TopicFacts
from pydanube_core.refusals import changed_since
from pydanube_core.units import counted

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Done, Forecast, Undo, blast_radius, changes, entry
from pydanube_admin.engine.models import Change, Effect, Request, TopicArgument
from pydanube_admin.engine.operation import operation
from pydanube_admin.operations.schemas import (
    CheckSchemaRequest,
    CompatibilityRequest,
    CompatibilityResult,
    Definition,
    Mode,
    Profile,
    ProfileArgument,
    SubjectArgument,
    TopicSchemaResult,
    TypeArgument,
    Version,
    check_schema,
    get_compatibility,
    seen,
    topic_schema_of,
)
from pydanube_admin.operations.topics import Topic, find_topic

_STRING: Final = '{"type": "string"}'
# Messages of a log that a plan compares with the schema: the first number of them that `NEWEST_BYTES` have room for
NEWEST: Final = (100, 10, 1)
NEWEST_BYTES: Final = 1 << 20
MOST_LOGS: Final = 10  # of a topic
COMPARE_S: Final = 5.0  # of all logs: a plan does not wait for an object store that does not answer


Policy = Literal["none", "warn", "enforce"]


Transitive = Annotated[bool, Field(description="Compare with every version, not only the latest")]


PolicyArgument = Annotated[Policy, Field(description="For messages that do not fit")]


PayloadArgument = Annotated[bool, Field(description="Also check each payload")]


class RegisterSchemaRequest(Request):
    subject: SubjectArgument
    schema_type: TypeArgument
    schema_definition: Definition
    description: Annotated[str, Field(max_length=4096, description="The change, described for people")] = ""
    created_by: Annotated[str, Field(max_length=256, description="Person or program")] = ""
    tags: Annotated[str, Field(max_length=4096, description="Words with commas between")] = ""
    json_profile: Annotated[Profile, Field(description="For a new subject's JSON Schemas")] = "strict"


class Registration(Change):
    subject: str
    schema_id: str
    version: int
    is_new_version: bool  # false: the same schema was there already
    fingerprint: str


class SetCompatibilityRequest(Request):
    subject: SubjectArgument
    mode: Annotated[
        Mode, Field(description="backward: they read older messages. forward: older programs read theirs")
    ]
    transitive: Transitive = False
    json_profile: ProfileArgument = None


class DeleteVersionRequest(Request):
    subject: SubjectArgument
    version: Annotated[Version, Field(description="Number of the version")]


class DeletedVersion(Change):
    subject: str
    schema_id: str
    version: int
    topics: list[str]  # bound to the subject. Their messages of this version cannot be decoded any more


class ConfigureTopicSchemaRequest(Request):
    topic: TopicArgument
    schema_subject: SubjectArgument
    validation_policy: PolicyArgument = "warn"
    enable_payload_validation: PayloadArgument = False


class SetValidationPolicyRequest(Request):
    topic: TopicArgument
    validation_policy: PolicyArgument
    enable_payload_validation: Annotated[
        bool | None, Field(description="Also check each payload. Unset: as before")
    ] = None


class ChangedCompatibility(CompatibilityResult, Change):
    pass


class ChangedTopicSchema(TopicSchemaResult, Change):
    pass


async def forecast_register(context: Context, request: RegisterSchemaRequest) -> Forecast:
    """Forecast a registration: the next version, if it is compatible. The differences are those of `schemas.check`."""
    known = next(iter(await context.port.schemas.subjects([request.subject])), None)
    latest = None if known is None or known.latest is None else known.latest.version
    after: dict[str, Any] = {"schema_type": request.schema_type}
    if known is not None:
        check = CheckSchemaRequest(
            subject=request.subject,
            schema_type=request.schema_type,
            schema_definition=request.schema_definition,
        )
        after["is_compatible"] = (await check_schema(context, check)).is_compatible
    elif request.schema_type == "json_schema":
        after["json_profile"] = request.json_profile
    before = None if latest is None else {"latest_version": latest}
    return Forecast(
        diff=[entry(f"schemas/{request.subject}", before, after)],
        blast_radius=blast_radius(topics=0 if known is None else len(seen(context, [known])[0].topics)),
    )


@operation(
    "schemas.register",
    effect=Effect.CREATE,
    title="Register a schema",
    permission="schemas:create",
    summary="Register a schema under a subject. The same again gives its version. One that breaks its mode is refused "
    "with every difference.",
    forecast=forecast_register,
    required_flags=("schema_type", "schema_definition"),
    text_argument="schema_definition",
    examples=(
        Example(
            {"subject": "orders-value", "schema_type": "json_schema", "schema_definition": _STRING},
            "the first version of a new subject",
        ),
    ),
)
async def register_schema(context: Context, request: RegisterSchemaRequest) -> Registration:
    facts = await context.port.schemas.register(
        request.subject,
        schema_type=request.schema_type,
        definition=request.schema_definition.encode(),
        description=request.description,
        created_by=request.created_by,
        tags=[tag.strip() for tag in request.tags.split(",") if tag.strip()],
        json_profile=request.json_profile,
    )
    return Registration.of(facts, schema_id=str(facts.schema_id))


async def forecast_set_compatibility(context: Context, request: SetCompatibilityRequest) -> Forecast:
    before = await get_compatibility(context, CompatibilityRequest(subject=request.subject))
    given: dict[str, Any] = {"compatibility_mode": request.mode, "transitive": request.transitive}
    if request.json_profile is not None:
        given["json_profile"] = request.json_profile
    image = before.model_dump()
    return Forecast(diff=changes(f"schemas/{request.subject}", image, given), image=image, basis=image)


async def undo_set_compatibility(context: Context, request: SetCompatibilityRequest, done: Done) -> Undo:
    now = (await get_compatibility(context, CompatibilityRequest(subject=request.subject))).model_dump()
    if done.result is not None and now != {name: done.result[name] for name in now}:
        raise changed_since(f"the compatibility mode of {request.subject!r}")
    return Undo(
        act=partial(
            context.port.schemas.set_compatibility,
            request.subject,
            mode=done.image["compatibility_mode"],
            transitive=done.image["transitive"],
            json_profile=done.image["json_profile"],
        )
    )


@operation(
    "schemas.set_compatibility",
    effect=Effect.CHANGE,
    tool="set_schema_compatibility_mode",
    title="Set the compatibility mode of a subject",
    permission="schemas:change",
    summary="Set the compatibility of new versions of a subject. transitive compares with every version.",
    forecast=forecast_set_compatibility,
    undo=undo_set_compatibility,
    required_flags=("mode",),
    examples=(
        Example({"subject": "orders-value", "mode": "full"}, "both ways"),
        Example({"subject": "orders-value", "mode": "backward", "transitive": True}, "against all versions"),
    ),
)
async def set_compatibility(context: Context, request: SetCompatibilityRequest) -> ChangedCompatibility:
    await context.port.schemas.set_compatibility(
        request.subject, mode=request.mode, transitive=request.transitive, json_profile=request.json_profile
    )
    found = await get_compatibility(context, CompatibilityRequest(subject=request.subject))
    return ChangedCompatibility(**found.model_dump())


async def forecast_delete_version(context: Context, request: DeleteVersionRequest) -> Forecast:
    port = context.port.schemas
    facts, subject = await port.schema(request.subject, request.version), await port.subject(request.subject)
    before = {
        "schema_type": facts.schema_type,
        "fingerprint": facts.fingerprint,
        "topics": list(seen(context, [subject])[0].topics),
    }
    return Forecast(  # topics stay: the diff names those bound to it
        diff=[entry(f"schemas/{request.subject}/versions/{request.version}", before, None)],
        image=await port.version_image(request.subject, request.version),
    )


async def undo_delete_version(context: Context, request: DeleteVersionRequest, done: Done) -> Undo:
    return Undo(act=partial(context.port.schemas.restore_version, done.image))


@operation(
    "schemas.delete_version",
    effect=Effect.DESTROY,
    tool="delete_schema_version",
    title="Delete a version of a schema",
    permission="schemas:delete",
    summary="Delete one version of a subject. Messages that carry it can no longer be decoded.",
    forecast=forecast_delete_version,
    undo=undo_delete_version,
    examples=(
        Example({"subject": "orders-value", "version": 2}, "shows the loss, then needs a confirmation"),
    ),
)
async def delete_version(context: Context, request: DeleteVersionRequest) -> DeletedVersion:
    port = context.port.schemas
    subject = await port.subject(request.subject)
    await port.delete_version(request.subject, request.version)
    return DeletedVersion(
        subject=subject.subject,
        schema_id=str(subject.schema_id),
        version=request.version,
        topics=list(seen(context, [subject])[0].topics),
    )


async def forecast_configure(context: Context, request: ConfigureTopicSchemaRequest) -> Forecast:
    await context.port.schemas.subject(request.schema_subject)  # there has to be one
    return await _topic_forecast(context, request.topic, request.model_dump(exclude={"topic"}))


async def forecast_set_policy(context: Context, request: SetValidationPolicyRequest) -> Forecast:
    given = request.model_dump(exclude={"topic"}, exclude_none=True)
    return await _topic_forecast(context, request.topic, given)


async def _topic_forecast(context: Context, topic: str, given: Mapping[str, Any]) -> Forecast:
    found = await find_topic(context, topic)
    own, before = found.own, (await topic_schema_of(context, found.own.topic)).model_dump()
    return Forecast(
        diff=changes(f"topics{own.topic}/schema", before, given),
        blast_radius=blast_radius(topics=1),
        image={"topic_id": str(own.topic_id), "schema": await context.port.schemas.topic_schema(own.topic)},
        basis=[str(own.topic_id), before],
        later=await _refused_then(context, found, {**before, **given}),
    )


async def _refused_then(context: Context, topic: Topic, after: Mapping[str, Any]) -> str | None:
    """Say how many messages like the newest ones the policy would refuse. None: it checks nothing."""
    if after["validation_policy"] == "none" or after["schema_subject"] is None:
        return None
    versions = await context.port.schemas.versions(after["schema_subject"])
    registered = {(each.schema_id, each.version) for each in versions}
    logs = () if topic.own.dispatch_strategy == "non_reliable" else topic.logs[:MOST_LOGS]
    unread = dict.fromkeys((log.topic for log in logs), f"no answer within {COMPARE_S:g} s")
    newest: list[MessageFacts] = []
    with anyio.move_on_after(COMPARE_S):
        for log in logs:
            try:
                newest += await _newest(context, log)
                del unread[log.topic]
            except ClusterError as error:
                unread[log.topic] = error.message
    told = ""
    if newest:
        others = sum((each.schema_id, each.schema_version) not in registered for each in newest)
        part = (
            f" in the first {MOST_LOGS} of {len(topic.logs)} partitions"
            if len(topic.logs) > MOST_LOGS
            else ""
        )
        told = f"{others} of the newest {counted(len(newest), 'message')}{part} name no version of "
        told += f"{after['schema_subject']}. "
    elif not unread:
        told = "The topic has no messages to compare. "
    if unread:
        (first, why), more = next(iter(unread.items())), len(unread) - 1
        told += f"{first}{f' and {more} more' if more else ''} could not be compared: {why}. "
    if after["validation_policy"] == "enforce":
        told += f"A publish that names no version of {after['schema_subject']} is refused from now on"
    else:
        told += "warn refuses none: they are logged and counted"
    return told + (
        ". Payload validation is on. This plan did not check payloads"
        if after["enable_payload_validation"]
        else ""
    )


async def _newest(context: Context, log: TopicFacts) -> Sequence[MessageFacts]:
    """Return the newest messages of a log, ascending. Raises any `ClusterError` of reading them."""
    for most in NEWEST if log.start_offset < log.next_offset else ():
        start = max(log.start_offset, log.next_offset - most)
        found = await context.port.read_messages(
            log.topic, start=start, end=log.next_offset, max_messages=most, max_bytes=NEWEST_BYTES
        )
        if found and found[-1].offset == log.next_offset - 1:
            return found
    return ()


async def undo_topic_schema(
    context: Context, request: ConfigureTopicSchemaRequest | SetValidationPolicyRequest, done: Done
) -> Undo:
    own = (await find_topic(context, request.topic)).own
    done.check_topic(own.topic, own.topic_id)
    now = (await topic_schema_of(context, own.topic)).model_dump(mode="json")
    if done.result is not None and now != {name: done.result[name] for name in now}:
        raise changed_since(f"the schema of {own.topic}")
    return Undo(act=partial(context.port.schemas.restore_topic, own.topic, done.image["schema"]))


@operation(
    "topics.set_validation_policy",
    effect=Effect.CHANGE,
    tool="set_topic_validation_policy",
    title="Set a topic's validation policy",
    permission="schemas:change",
    summary="Change how a topic's schema is enforced.",
    forecast=forecast_set_policy,
    undo=undo_topic_schema,
    required_flags=("validation_policy",),
    examples=(
        Example({"topic": "orders", "validation_policy": "warn"}, "let everything through, and log it"),
    ),
)
async def set_validation_policy(context: Context, request: SetValidationPolicyRequest) -> ChangedTopicSchema:
    topic = (await find_topic(context, request.topic)).own.topic
    payloads = request.enable_payload_validation
    if payloads is None:
        payloads = (await topic_schema_of(context, topic)).enable_payload_validation
    await context.port.schemas.set_topic_policy(
        topic, validation_policy=request.validation_policy, enable_payload_validation=payloads
    )
    return ChangedTopicSchema(**(await topic_schema_of(context, topic)).model_dump())


@operation(
    "topics.configure_schema",
    effect=Effect.CHANGE,
    title="Configure a topic's schema",
    permission="schemas:change",
    summary="Bind a topic to a schema subject and set what happens to messages that do not fit.",
    forecast=forecast_configure,
    undo=undo_topic_schema,
    examples=(
        Example(
            {"topic": "orders", "schema_subject": "orders-value", "validation_policy": "enforce"},
            "only messages of this subject",
        ),
    ),
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
