"""Changes by the SchemaRegistry service, on both ports: made through the core, to be planned and audited.

The broker itself serves the reading methods.
"""

from __future__ import annotations

from typing import Any

from pydanube_core.errors import InvalidArgument, SchemaNotFound
from pydanube_core.generated import danube_schema_pb2 as pb
from pydanube_core.schema_facts import TYPE_ALIASES

from pydanube_admin.compat.asking import AskingService


class SchemaChanges(AskingService):
    """The methods that change something. Modes and policies are accepted in any case."""

    async def register_schema(self, request: pb.RegisterSchemaRequest) -> pb.RegisterSchemaResponse:
        try:
            definition = request.schema_definition.decode()
        except UnicodeDecodeError:
            raise InvalidArgument(
                "schema_definition: must be text in UTF-8", field="schema_definition", value=None
            ) from None
        kind = request.schema_type.lower()
        made = await self._ask(
            "schemas.register",
            {
                "subject": request.subject,
                "schema_type": TYPE_ALIASES.get(kind, kind),
                "schema_definition": definition,
                "description": request.description,
                "created_by": request.created_by,
                "tags": ",".join(request.tags),
                # Schemas of the original's tool and clients are compared as in the original
                "json_profile": "strict" if self._ask.by_sdk else "default",
            },
        )
        return pb.RegisterSchemaResponse(
            schema_id=int(made["schema_id"]),
            version=made["version"],
            is_new_version=made["is_new_version"],
            fingerprint=made["fingerprint"],
        )

    async def delete_schema_version(
        self, request: pb.DeleteSchemaVersionRequest
    ) -> pb.DeleteSchemaVersionResponse:
        """Delete a version. A missing one counts as deleted, as in the original, and the message states that."""
        try:
            await self._ask(
                "schemas.delete_version", {"subject": request.subject, "version": request.version}
            )
            message = f"version {request.version} of {request.subject!r} was deleted"
        except SchemaNotFound as error:
            message = f"nothing was deleted: {error.message}"
        return pb.DeleteSchemaVersionResponse(success=True, message=message)

    async def set_compatibility_mode(
        self, request: pb.SetCompatibilityModeRequest
    ) -> pb.SetCompatibilityModeResponse:
        arguments = {"subject": request.subject, "mode": request.compatibility_mode.lower()}
        now = await self._ask("schemas.get_compatibility", {"subject": request.subject})
        # Settings that the tool cannot express stay as they are.
        kept = {"transitive": now["transitive"], "json_profile": now["json_profile"]}
        found = await self._ask("schemas.set_compatibility", {**arguments, **kept})
        return pb.SetCompatibilityModeResponse(
            success=True,
            message=f"compatibility mode of {request.subject!r} is {found['compatibility_mode']}",
        )

    async def configure_topic_schema(
        self, request: pb.ConfigureTopicSchemaRequest
    ) -> pb.ConfigureTopicSchemaResponse:
        found = await self._ask(
            "topics.configure_schema",
            {
                "topic": request.topic_name,
                "schema_subject": request.schema_subject,
                **_policy(request.validation_policy, request.enable_payload_validation),
            },
        )
        return pb.ConfigureTopicSchemaResponse(
            success=True,
            message=f"{found['topic']} has subject {found['schema_subject']!r}, policy {found['validation_policy']}",
        )

    async def update_topic_validation_policy(
        self, request: pb.UpdateTopicValidationPolicyRequest
    ) -> pb.UpdateTopicValidationPolicyResponse:
        found = await self._ask(
            "topics.set_validation_policy",
            {
                "topic": request.topic_name,
                **_policy(request.validation_policy, request.enable_payload_validation),
            },
        )
        return pb.UpdateTopicValidationPolicyResponse(
            success=True, message=f"{found['topic']} has policy {found['validation_policy']}"
        )


def _policy(policy: str, payloads: bool) -> dict[str, Any]:
    return {"validation_policy": policy.lower(), "enable_payload_validation": payloads}
