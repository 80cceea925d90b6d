"""The operations on schemas, as the registry declares them."""

from __future__ import annotations

from typing import Final

from pydanube_admin import schema_models as models
from pydanube_admin.models import Page
from pydanube_admin.operation import Effect, Example, Operation

__all__ = ["SCHEMA_OPERATIONS"]

_STRING: Final = '{"type": "string"}'

SCHEMA_OPERATIONS: Final = (
    Operation(
        name="schemas.list",
        tool="list_subjects",
        title="List schema subjects",
        effect=Effect.READ,
        permission="schemas:read",
        reversible=None,
        summary="List schema subjects with format, latest version, compatibility mode and the topics bound to them.",
        request=models.ListSubjectsRequest,
        result=Page[models.SubjectItem],
        examples=(Example(arguments={}, note="every subject"),),
        default_profile=True,
    ),
    Operation(
        name="schemas.get",
        tool="get_schema",
        title="Get a schema",
        effect=Effect.READ,
        permission="schemas:read",
        reversible=None,
        summary="Show one version of a subject with its text; without a version, the latest.",
        request=models.GetSchemaRequest,
        result=models.SchemaResult,
        examples=(Example(arguments={"subject": "orders-value"}, note="the latest"),),
        default_profile=True,
    ),
    Operation(
        name="schemas.get_by_id",
        tool="get_schema_by_id",
        title="Get a schema by its id",
        effect=Effect.READ,
        permission="schemas:read",
        reversible=None,
        summary="Show the schema of the id and version that a message carries.",
        request=models.GetSchemaByIdRequest,
        result=models.SchemaResult,
        examples=(Example(arguments={"schema_id": "7", "version": 1}, note="of a message"),),
        default_profile=False,
    ),
    Operation(
        name="schemas.versions",
        tool="list_schema_versions",
        title="List the versions of a subject",
        effect=Effect.READ,
        permission="schemas:read",
        reversible=None,
        summary="List the versions of a subject, oldest first.",
        request=models.VersionsRequest,
        result=Page[models.VersionItem],
        examples=(Example(arguments={"subject": "orders-value"}, note="all of them"),),
        default_profile=False,
    ),
    Operation(
        name="schemas.check",
        tool="check_schema_compatibility",
        title="Check a schema",
        effect=Effect.READ,
        permission="schemas:read",
        reversible=None,
        summary="Say whether a schema could be registered under a subject, and list every difference that forbids it.",
        request=models.CheckSchemaRequest,
        result=models.Verdict,
        examples=(
            Example(
                arguments={
                    "subject": "orders-value",
                    "schema_type": "json_schema",
                    "schema_definition": _STRING,
                },
                note="nothing is stored",
            ),
        ),
        default_profile=False,
        required_flags=("schema_type", "schema_definition"),
        text_argument="schema_definition",
        condition="is_compatible",
    ),
    Operation(
        name="schemas.get_compatibility",
        tool="get_schema_compatibility_mode",
        title="Compatibility mode of a subject",
        effect=Effect.READ,
        permission="schemas:read",
        reversible=None,
        summary="Show what new versions of a subject are held against.",
        request=models.CompatibilityRequest,
        result=models.CompatibilityResult,
        examples=(Example(arguments={"subject": "orders-value"}, note="mode, transitive, profile"),),
        default_profile=False,
    ),
    Operation(
        name="schemas.register",
        tool="register_schema",
        title="Register a schema",
        effect=Effect.CREATE,
        permission="schemas:create",
        reversible=False,
        summary="Register a schema under a subject. The same schema again gives its version; one that breaks the "
        "subject's compatibility mode is refused with every difference.",
        request=models.RegisterSchemaRequest,
        result=models.Registration,
        examples=(
            Example(
                arguments={
                    "subject": "orders-value",
                    "schema_type": "json_schema",
                    "schema_definition": _STRING,
                },
                note="the first version of a new subject",
            ),
        ),
        default_profile=False,
        required_flags=("schema_type", "schema_definition"),
        text_argument="schema_definition",
    ),
    Operation(
        name="schemas.set_compatibility",
        tool="set_schema_compatibility_mode",
        title="Set the compatibility mode of a subject",
        effect=Effect.CHANGE,
        permission="schemas:change",
        reversible=True,
        summary="Set what new versions of a subject must be able to do; transitive holds them against every version.",
        request=models.SetCompatibilityRequest,
        result=models.CompatibilityResult,
        examples=(
            Example(arguments={"subject": "orders-value", "mode": "full"}, note="both ways"),
            Example(
                arguments={"subject": "orders-value", "mode": "backward", "transitive": True},
                note="against all versions",
            ),
        ),
        default_profile=False,
        required_flags=("mode",),
    ),
    Operation(
        name="schemas.delete_version",
        tool="delete_schema_version",
        title="Delete a version of a schema",
        effect=Effect.DESTROY,
        permission="schemas:delete",
        reversible=False,
        summary="Delete one version of a subject; messages that carry it can no longer be decoded. For now only "
        "people can, on the command line.",
        request=models.DeleteVersionRequest,
        result=models.DeletedVersion,
        examples=(
            Example(
                arguments={"subject": "orders-value", "version": 2}, note="shows what would go, then asks"
            ),
        ),
        default_profile=False,
        command_line_only=True,
    ),
    Operation(
        name="topics.configure_schema",
        tool="configure_topic_schema",
        title="Configure a topic's schema",
        effect=Effect.CHANGE,
        permission="topics:change",
        reversible=True,
        summary="Bind a topic to a schema subject and say what happens to messages that do not fit.",
        request=models.ConfigureTopicSchemaRequest,
        result=models.TopicSchemaResult,
        examples=(
            Example(
                arguments={
                    "topic": "orders",
                    "schema_subject": "orders-value",
                    "validation_policy": "enforce",
                },
                note="only messages of this subject",
            ),
        ),
        default_profile=False,
    ),
    Operation(
        name="topics.set_validation_policy",
        tool="set_topic_validation_policy",
        title="Set a topic's validation policy",
        effect=Effect.CHANGE,
        permission="topics:change",
        reversible=True,
        summary="Change how a topic's schema is enforced.",
        request=models.SetValidationPolicyRequest,
        result=models.TopicSchemaResult,
        examples=(
            Example(
                arguments={"topic": "orders", "validation_policy": "warn"},
                note="let everything through, and say so in the log",
            ),
        ),
        default_profile=False,
        required_flags=("validation_policy",),
    ),
    Operation(
        name="topics.get_schema_config",
        tool="get_topic_schema_config",
        title="A topic's schema",
        effect=Effect.READ,
        permission="topics:read",
        reversible=None,
        summary="Show a topic's schema subject and how it is enforced.",
        request=models.TopicSchemaRequest,
        result=models.TopicSchemaResult,
        examples=(Example(arguments={"topic": "orders"}, note="subject, policy, payload validation"),),
        default_profile=False,
    ),
)
