"""Requests and results of the operations on schemas. What others wrote (text, description, tags) is under `untrusted`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pydanube_admin.models import Change, ListRequest, Request, Result, TopicArgument

SubjectArgument = Annotated[str, Field(min_length=1, max_length=256, description="Name of the subject")]


Version = Annotated[int, Field(ge=1, le=2**32 - 1)]


TypeArgument = Annotated[
    Literal["bytes", "string", "number", "avro", "json_schema", "protobuf"],
    Field(description="Format of the schema"),
]


Definition = Annotated[str, Field(max_length=200_000, description="The schema, as text")]


Mode = Literal["none", "backward", "forward", "full"]


Profile = Literal["default", "strict"]


Policy = Literal["none", "warn", "enforce"]


Transitive = Annotated[bool, Field(description="Compare with every version, not only the latest")]


ProfileArgument = Annotated[
    Profile | None,
    Field(description="JSON Schema: default compares as Danube does, strict by what instances can be"),
]


PolicyArgument = Annotated[Policy, Field(description="What happens to messages that do not fit")]


PayloadArgument = Annotated[bool, Field(description="Also hold every payload against its schema")]


class ListSubjectsRequest(ListRequest):
    pass


class SubjectItem(Result):
    subject: str
    schema_id: str
    schema_type: str | None  # None: every version was deleted
    latest_version: int | None
    compatibility_mode: str
    transitive: bool
    topics: list[str]  # bound to the subject


class GetSchemaRequest(Request):
    subject: SubjectArgument
    version: Annotated[Version | None, Field(description="Without it, the latest")] = None


class GetSchemaByIdRequest(Request):
    schema_id: Annotated[str, Field(pattern="^[0-9]{1,20}$", description="As messages carry it, decimal")]
    version: Annotated[Version | None, Field(description="Without it, the latest")] = None


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


class VersionsRequest(ListRequest):
    subject: SubjectArgument


class VersionItem(Result):
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
    compatibility_mode: Annotated[Mode | None, Field(description="In place of the subject's")] = None
    transitive: Annotated[bool | None, Field(description="In place of the subject's")] = None
    json_profile: ProfileArgument = None


class Difference(Result):
    """`before` and `after` are what the old and the new schema hold at `path`; null for nothing."""

    path: str
    rule: str
    before: Any
    after: Any


class Verdict(Result):
    """Whether the schema could be registered, and everything that speaks against it."""

    is_compatible: bool
    differences: list[Difference]
    compatibility_mode: str
    transitive: bool
    compared_with: list[int]  # versions, newest first


class CompatibilityRequest(Request):
    subject: SubjectArgument


class CompatibilityResult(Result):
    subject: str
    compatibility_mode: str
    transitive: bool
    json_profile: str


class RegisterSchemaRequest(Request):
    subject: SubjectArgument
    schema_type: TypeArgument
    schema_definition: Definition
    description: Annotated[str, Field(max_length=4096, description="What has changed, for people")] = ""
    created_by: Annotated[str, Field(max_length=256, description="Who registers it")] = ""
    tags: Annotated[str, Field(max_length=4096, description="Words apart by commas")] = ""


class Registration(Change):
    subject: str
    schema_id: str
    version: int
    is_new_version: bool  # false: the same schema was there already
    fingerprint: str


class SetCompatibilityRequest(Request):
    subject: SubjectArgument
    mode: Annotated[Mode, Field(description="What new versions must be able to do")]
    transitive: Transitive = False
    json_profile: ProfileArgument = None


class DeleteVersionRequest(Request):
    subject: SubjectArgument
    version: Annotated[Version, Field(description="The version to delete")]


class DeletedVersion(Change):
    subject: str
    schema_id: str
    version: int
    topics: list[str]  # bound to the subject; their messages of this version cannot be decoded any more


class ConfigureTopicSchemaRequest(Request):
    topic: TopicArgument
    schema_subject: SubjectArgument
    validation_policy: PolicyArgument = "warn"
    enable_payload_validation: PayloadArgument = False


class SetValidationPolicyRequest(Request):
    topic: TopicArgument
    validation_policy: PolicyArgument
    enable_payload_validation: PayloadArgument = False


class TopicSchemaRequest(Request):
    topic: TopicArgument


class TopicSchemaResult(Result):
    topic: str
    schema_subject: str | None  # None: the topic has no schema
    schema_id: str | None
    validation_policy: str
    enable_payload_validation: bool


class ChangedCompatibility(CompatibilityResult, Change):
    pass


class ChangedTopicSchema(TopicSchemaResult, Change):
    pass
