"""Reading schemas, and topics' schemas."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field
from pydanube_core.schema_facts import CompatibilityFacts, SchemaFacts, SubjectFacts
from pydanube_core.units import format_time

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.models import Effect, Page, Request, Result, SortedListRequest, TopicRequest
from pydanube_admin.engine.operation import operation
from pydanube_admin.engine.paging import Listing, glob, page_of
from pydanube_admin.engine.permission import Sight
from pydanube_admin.operations.topics import find_topic

_STRING: Final = '{"type": "string"}'


SubjectArgument = Annotated[str, Field(min_length=1, max_length=256, description="Its name")]


Version = Annotated[int, Field(ge=1, le=2**32 - 1)]


TypeArgument = Annotated[
    Literal["bytes", "string", "number", "avro", "json_schema", "protobuf"],
    Field(description="Format of the schema"),
]


Definition = Annotated[str, Field(max_length=200_000, description="The schema, as text")]


Mode = Literal["none", "backward", "forward", "full"]


Profile = Literal["default", "strict"]


ProfileArgument = Annotated[
    Profile | None,
    Field(description="For JSON Schema. default: as Danube. Without: the subject's own"),
]


class SubjectItem(Result):
    identity: ClassVar = ("subject",)

    subject: str
    schema_id: str
    schema_type: str | None  # None: every version was deleted
    latest_version: int | None
    compatibility_mode: str
    transitive: bool
    topics: list[str]  # bound to the subject


class GetSchemaRequest(Request):
    subject: SubjectArgument
    version: Annotated[Version | None, Field(description="Without: the latest")] = None


class GetSchemaByIdRequest(Request):
    schema_id: Annotated[str, Field(pattern="^[0-9]{1,20}$", description="As messages carry it, decimal")]
    version: Annotated[Version | None, Field(description="Without: the latest")] = None


class SchemaResult(Result):
    """One version of a subject. `untrusted`: schema_definition or schema_definition_base64, description, tags …"""

    subject: str
    schema_id: str
    version: int
    schema_type: str
    fingerprint: str
    compatibility_mode: str
    created_at: str
    untrusted: dict[str, Any]


class VersionsRequest(SortedListRequest):
    subject: SubjectArgument


class VersionItem(Result):
    identity: ClassVar = ("version",)

    version: int
    schema_id: str
    schema_type: str
    fingerprint: str
    created_at: str
    untrusted: dict[str, Any]  # description, created_by, tags


class CheckSchemaRequest(Request):
    subject: SubjectArgument
    schema_type: TypeArgument
    schema_definition: Definition
    compatibility_mode: Annotated[Mode | None, Field(description="In place of the subject's own")] = None
    transitive: Annotated[bool | None, Field(description="In place of the subject's own")] = None
    json_profile: ProfileArgument = None


class Difference(Result):
    """`before` and `after` are the values of the old and the new schema at `path`, or null without one."""

    path: str
    rule: str
    before: Any
    after: Any


class ProfileVerdict(Result):
    """A comparison by one profile. Another profile may judge otherwise."""

    json_profile: str
    decides: bool
    is_compatible: bool
    differences: list[Difference]
    # A message that shows it, which one version takes and the other refuses: {written_by, refused_by, untrusted: {message,
    # at, because}}. None: it is compatible, or none was found
    example: dict[str, Any] | None
    why: str  # the requirement of the profile


class Verdict(Result):
    """Whether the schema could be registered, and everything against it."""

    is_compatible: bool
    differences: list[Difference]
    compatibility_mode: str
    transitive: bool
    compared_with: list[int]  # versions, newest first
    by_profile: list[ProfileVerdict]  # of a JSON Schema that was compared: both, the one that decides first


class CompatibilityRequest(Request):
    subject: SubjectArgument


class CompatibilityResult(Result):
    subject: str
    compatibility_mode: str
    transitive: bool
    json_profile: str


class TopicSchemaResult(Result):
    topic: str
    schema_subject: str | None  # None: the topic has no schema
    schema_id: str | None
    validation_policy: str
    enable_payload_validation: bool


@operation(
    "schemas.list",
    effect=Effect.READ,
    title="List schema subjects",
    summary="List schema subjects: format, latest version, compatibility mode, topics bound to them.",
    default_profile=True,
    examples=(Example({}, "every subject"),),
)
async def list_subjects(context: Context, request: SortedListRequest) -> Page[SubjectItem]:
    matches = glob(request.filter)

    async def items(names: Sequence[str]) -> list[SubjectItem]:
        return [_item(facts) for facts in seen(context, await context.port.schemas.subjects(names))]

    listing = Listing(
        context, SubjectItem, items, lambda name: (name,), key=lambda name: (name,), request=request
    )
    return await listing.page(name for name in await context.port.schemas.subject_names() if matches(name))


def seen(context: Context, subjects: Iterable[SubjectFacts]) -> list[SubjectFacts]:
    """Return the subjects with only those of their topics that the caller may see."""
    sight = Sight(context.port, "topics:read")
    return [replace(facts, topics=tuple(filter(sight.topic, facts.topics))) for facts in subjects]


def _item(facts: SubjectFacts) -> SubjectItem:
    latest = facts.latest
    return SubjectItem.of(
        facts,
        schema_id=str(facts.schema_id),
        schema_type=None if latest is None else latest.schema_type,
        latest_version=None if latest is None else latest.version,
    )


@operation(
    "schemas.get",
    effect=Effect.READ,
    title="Get a schema",
    summary="Show one version of a subject with its text, by default the latest.",
    default_profile=True,
    examples=(Example({"subject": "orders-value"}, "the latest"),),
)
async def get_schema(context: Context, request: GetSchemaRequest) -> SchemaResult:
    return await _schema(context, request.subject, request.version)


@operation(
    "schemas.get_by_id",
    effect=Effect.READ,
    title="Get a schema by its id",
    summary="Show the schema of the id and version that a message carries.",
    examples=(Example({"schema_id": "7", "version": 1}, "of a message"),),
)
async def get_schema_by_id(context: Context, request: GetSchemaByIdRequest) -> SchemaResult:
    subject = await context.port.schemas.subject_name(int(request.schema_id))
    return await _schema(context, subject, request.version)


async def _schema(context: Context, subject: str, version: int | None) -> SchemaResult:
    port = context.port.schemas
    facts = await port.schema(subject, version)
    return SchemaResult.of(
        facts,
        schema_id=str(facts.schema_id),
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


@operation(
    "schemas.versions",
    effect=Effect.READ,
    tool="list_schema_versions",
    title="List the versions of a subject",
    summary="List the versions of a subject, oldest first.",
    examples=(Example({"subject": "orders-value"}, "all of them"),),
)
async def list_versions(context: Context, request: VersionsRequest) -> Page[VersionItem]:
    matches = glob(request.filter)
    found = [
        facts for facts in await context.port.schemas.versions(request.subject) if matches(str(facts.version))
    ]
    return await page_of(
        context,
        VersionItem,
        found,
        lambda facts: VersionItem.of(
            facts,
            schema_id=str(facts.schema_id),
            created_at=format_time(facts.created_at_ms),
            untrusted=_labels(facts),
        ),
        key=lambda facts: (facts.version,),
        request=request,
    )


@operation(
    "schemas.check",
    effect=Effect.READ,
    tool="check_schema_compatibility",
    title="Check a schema",
    summary="Check whether a schema could be registered under a subject, and list every difference that forbids it, of JSON "
    "Schema by both profiles.",
    required_flags=("schema_type", "schema_definition"),
    text_argument="schema_definition",
    condition="is_compatible",
    examples=(
        Example(
            {"subject": "orders-value", "schema_type": "json_schema", "schema_definition": _STRING},
            "nothing is stored",
        ),
    ),
)
async def check_schema(context: Context, request: CheckSchemaRequest) -> Verdict:
    facts = await _compared(context, request, request.json_profile)
    profiles: list[ProfileVerdict] = []
    if request.schema_type == "json_schema" and facts.compared_with:
        deciding = request.json_profile or (await context.port.schemas.subject(request.subject)).json_profile
        profiles.append(_by_profile(deciding, facts, decides=True))
        other: Profile = "default" if deciding == "strict" else "strict"
        profiles.append(_by_profile(other, await _compared(context, request, other), decides=False))
    return Verdict.of(facts, by_profile=profiles)


def _by_profile(profile: str, facts: CompatibilityFacts, *, decides: bool) -> ProfileVerdict:
    return ProfileVerdict.of(
        facts,
        json_profile=profile,
        decides=decides,
        example=None if facts.example is None else _refused(facts.example),
        why=_WHY[profile],
    )


def _refused(example: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: example[name] for name in ("message", "at", "because")}
    return {"written_by": example["written_by"], "refused_by": example["refused_by"], "untrusted": told}


_WHY: Final = {
    "default": "as the original compares: of fields that go, change their type or become required. A new field that is required passes",
    "strict": "whether every message that is written by one version can be read by the other",
}


async def _compared(
    context: Context, request: CheckSchemaRequest, profile: Profile | None
) -> CompatibilityFacts:
    return await context.port.schemas.check(
        request.subject,
        schema_type=request.schema_type,
        definition=request.schema_definition.encode(),
        mode=request.compatibility_mode,
        transitive=request.transitive,
        json_profile=profile,
    )


@operation(
    "schemas.get_compatibility",
    effect=Effect.READ,
    tool="get_schema_compatibility_mode",
    title="Compatibility mode of a subject",
    summary="Show the compatibility that new versions of a subject need.",
    examples=(Example({"subject": "orders-value"}, "mode, transitive, profile"),),
)
async def get_compatibility(context: Context, request: CompatibilityRequest) -> CompatibilityResult:
    facts = await context.port.schemas.subject(request.subject)
    return CompatibilityResult.of(facts)


@operation(
    "topics.get_schema_config",
    effect=Effect.READ,
    tool="get_topic_schema_config",
    title="A topic's schema",
    summary="Show a topic's schema subject and how it is enforced.",
    examples=(Example({"topic": "orders"}, "subject, policy, payload validation"),),
)
async def get_topic_schema(context: Context, request: TopicRequest) -> TopicSchemaResult:
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
