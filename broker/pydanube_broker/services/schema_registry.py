"""`danube_schema.SchemaRegistry`, on the client port and on the admin port.

The messages are those of docs/research/data-plane.md#11-package-danube_schema.

The reference broker answers some mistakes of callers with INTERNAL. This service uses the proper code. No client
evaluates these codes. Definitions are returned as they were registered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message
from pydanube_core.errors import InvalidArgument, SchemaNotFound
from pydanube_core.generated import danube_schema_pb2 as pb
from pydanube_core.grpc_wire import is_sdk_agent
from pydanube_core.names import TopicName
from pydanube_core.security.identity import current_identity
from pydanube_core.security.permissions import CLUSTER, LOOK_UP, Resource
from pydanube_core.services import SCHEMA_REGISTRY

from pydanube_broker.rpc.caller import call_metadata
from pydanube_broker.rpc.hot import ColdHandler
from pydanube_broker.schema.records import VersionRecord
from pydanube_broker.schema.topic_schemas import TopicSchemas
from pydanube_broker.schema.vocabulary import (
    JsonProfile,
    ValidationPolicy,
    parse_mode,
    parse_policy,
    parse_type,
)
from pydanube_broker.security.locks import Locks

M = TypeVar("M", bound=Message)

TOPIC_FIELD: Final = "topic_name"

#: method → permission, on the request's topic, or on the cluster, because subjects have no namespace
NEEDS: Final = {
    "RegisterSchema": "schemas:create",
    "DeleteSchemaVersion": "schemas:delete",
    "SetCompatibilityMode": "schemas:change",
    "ConfigureTopicSchema": "schemas:change",
    "UpdateTopicValidationPolicy": "schemas:change",
    "GetTopicSchemaConfig": LOOK_UP,
}


class SchemaRegistryService:
    """Handlers of the schema registry's calls, which are rare."""

    def __init__(self, schemas: TopicSchemas, locks: Locks | None = None) -> None:
        self._schemas = schemas
        self._locks = locks
        self._registry = schemas.registry

    @property
    def cold(self) -> Mapping[str, ColdHandler]:
        """Return path → handler for every method of the service."""
        found = {
            "RegisterSchema": _handler(pb.RegisterSchemaRequest, self.register_schema),
            "GetSchema": _handler(pb.GetSchemaRequest, self.get_schema),
            "GetLatestSchema": _handler(pb.GetLatestSchemaRequest, self.get_latest_schema),
            "ListVersions": _handler(pb.ListVersionsRequest, self.list_versions),
            "CheckCompatibility": _handler(pb.CheckCompatibilityRequest, self.check_compatibility),
            "DeleteSchemaVersion": _handler(pb.DeleteSchemaVersionRequest, self.delete_schema_version),
            "SetCompatibilityMode": _handler(pb.SetCompatibilityModeRequest, self.set_compatibility_mode),
            "ConfigureTopicSchema": _handler(pb.ConfigureTopicSchemaRequest, self.configure_topic_schema),
            "UpdateTopicValidationPolicy": _handler(
                pb.UpdateTopicValidationPolicyRequest, self.update_topic_validation_policy
            ),
            "GetTopicSchemaConfig": _handler(pb.GetTopicSchemaConfigRequest, self.get_topic_schema_config),
            "ListSubjects": _handler(pb.ListSubjectsRequest, self.list_subjects),
        }
        assert set(found) == set(SCHEMA_REGISTRY.methods), "a method is not served, or none of the service"
        return {SCHEMA_REGISTRY[name].path: self._locked(name, handler) for name, handler in found.items()}

    def _locked(self, method: str, handler: ColdHandler) -> ColdHandler:
        """Wrap a handler in the permission checks: reading subjects needs an identity, everything else a permission."""
        locks, permission = self._locks, NEEDS.get(method)
        if locks is None or permission is None:
            return handler
        kind = SCHEMA_REGISTRY[method].request
        of_topic = TOPIC_FIELD in kind.DESCRIPTOR.fields_by_name

        async def locked(data: bytes) -> bytes:
            resource = (
                Resource.of(TopicName.parse(getattr(_parsed(kind, data), TOPIC_FIELD)))
                if of_topic
                else CLUSTER
            )
            locks.check(current_identity.get(), permission, resource)
            return await handler(data)

        return locked

    # -- subjects and versions -----------------------------------------------------------------------------------

    async def register_schema(self, request: pb.RegisterSchemaRequest) -> pb.RegisterSchemaResponse:
        made = await self._registry.register(
            request.subject,
            parse_type(request.schema_type),
            request.schema_definition,
            description=request.description,
            created_by=request.created_by,
            tags=tuple(request.tags),
            profile=_profile_of(dict(call_metadata())),
        )
        return pb.RegisterSchemaResponse(
            schema_id=made.schema_id,
            version=made.version,
            is_new_version=made.is_new_version,
            fingerprint=made.fingerprint,
        )

    async def get_schema(self, request: pb.GetSchemaRequest) -> pb.GetSchemaResponse:
        version = request.version if request.HasField("version") else None
        return self._shown(self._registry.index.version(request.schema_id, version))

    async def get_latest_schema(self, request: pb.GetLatestSchemaRequest) -> pb.GetSchemaResponse:
        return self._shown(self._registry.latest(request.subject))

    def _shown(self, record: VersionRecord) -> pb.GetSchemaResponse:
        spec = record.spec
        subject = self._registry.index.subject(spec.subject)
        return pb.GetSchemaResponse(
            schema_id=record.schema_id,
            version=spec.version,
            subject=spec.subject,
            schema_type=spec.schema_type.value,
            schema_definition=record.definition,
            description=spec.description,
            created_at=spec.created_at_ms // 1000,
            created_by=spec.created_by,
            tags=spec.tags,
            fingerprint=spec.fingerprint,
            compatibility_mode=subject.spec.compatibility_mode.value,
        )

    async def list_versions(self, request: pb.ListVersionsRequest) -> pb.ListVersionsResponse:
        subject = self._registry.index.subject(request.subject)
        return pb.ListVersionsResponse(
            versions=[
                pb.SchemaVersionInfo(
                    version=record.version,
                    created_at=record.spec.created_at_ms // 1000,
                    created_by=record.spec.created_by,
                    description=record.spec.description,
                    fingerprint=record.spec.fingerprint,
                    schema_id=record.schema_id,
                )
                for record in self._registry.index.versions(subject.schema_id)
            ]
        )

    async def list_subjects(self, request: pb.ListSubjectsRequest) -> pb.ListSubjectsResponse:
        summaries = []
        for subject in self._registry.index.subjects():
            latest = self._registry.index.find_latest(subject.schema_id)
            if latest is None:
                continue  # all versions are deleted, so it has no type, and Java fails without one
            summaries.append(
                pb.SubjectSummary(
                    subject=subject.subject,
                    schema_type=latest.spec.schema_type.value,
                    latest_version=latest.version,
                    compatibility_mode=subject.spec.compatibility_mode.value,
                    schema_id=subject.schema_id,
                    tags=latest.spec.tags,
                )
            )
        return pb.ListSubjectsResponse(subjects=summaries)

    async def check_compatibility(
        self, request: pb.CheckCompatibilityRequest
    ) -> pb.CheckCompatibilityResponse:
        """Compare a schema. Raises `InvalidArgument` for an unknown mode (the reference broker uses the subject's)."""
        mode = parse_mode(request.compatibility_mode) if request.compatibility_mode else None
        verdict = await self._registry.check(
            request.subject, parse_type(request.schema_type), request.new_schema_definition, mode=mode
        )
        return pb.CheckCompatibilityResponse(
            is_compatible=verdict.is_compatible,
            errors=[difference.sentence() for difference in verdict.differences],
        )

    async def set_compatibility_mode(
        self, request: pb.SetCompatibilityModeRequest
    ) -> pb.SetCompatibilityModeResponse:
        mode = parse_mode(request.compatibility_mode)
        await self._registry.set_compatibility(request.subject, mode)
        return pb.SetCompatibilityModeResponse(
            success=True, message=f"compatibility mode of {request.subject!r} is {mode.value}"
        )

    async def delete_schema_version(
        self, request: pb.DeleteSchemaVersionRequest
    ) -> pb.DeleteSchemaVersionResponse:
        """Delete a version. A missing one counts as deleted, as in the reference broker, with a note in the message."""
        try:
            await self._registry.delete_version(request.subject, request.version)
            message = f"version {request.version} of {request.subject!r} was deleted"
        except SchemaNotFound as error:
            message = f"nothing was deleted: {error.message}"
        return pb.DeleteSchemaVersionResponse(success=True, message=message)

    # -- topics --------------------------------------------------------------------------------------------------

    async def configure_topic_schema(
        self, request: pb.ConfigureTopicSchemaRequest
    ) -> pb.ConfigureTopicSchemaResponse:
        binding = await self._schemas.configure(
            TopicName.parse(request.topic_name),
            request.schema_subject,
            parse_policy(request.validation_policy),
            enable_payload_validation=request.enable_payload_validation,
        )
        return pb.ConfigureTopicSchemaResponse(
            success=True,
            message=f"{request.topic_name} has subject {binding.subject!r}, policy {binding.validation_policy.value}",
        )

    async def update_topic_validation_policy(
        self, request: pb.UpdateTopicValidationPolicyRequest
    ) -> pb.UpdateTopicValidationPolicyResponse:
        binding = await self._schemas.set_policy(
            TopicName.parse(request.topic_name),
            parse_policy(request.validation_policy),
            enable_payload_validation=request.enable_payload_validation,
        )
        return pb.UpdateTopicValidationPolicyResponse(
            success=True, message=f"{request.topic_name} has policy {binding.validation_policy.value}"
        )

    async def get_topic_schema_config(
        self, request: pb.GetTopicSchemaConfigRequest
    ) -> pb.GetTopicSchemaConfigResponse:
        binding = self._schemas.config(TopicName.parse(request.topic_name))
        if binding is None:
            return pb.GetTopicSchemaConfigResponse(validation_policy=ValidationPolicy.NONE.value)
        return pb.GetTopicSchemaConfigResponse(
            schema_subject=binding.subject,
            validation_policy=binding.validation_policy.value,
            enable_payload_validation=binding.enable_payload_validation,
            schema_id=binding.schema_id,
        )


def _profile_of(metadata: Mapping[str, str | bytes]) -> JsonProfile:
    """Return the profile of a new subject: the default profile if an official client registers it."""
    return JsonProfile.STRICT if is_sdk_agent(metadata.get("user-agent")) else JsonProfile.DEFAULT


def _handler(kind: type[M], method: Callable[[M], Awaitable[Message]]) -> ColdHandler:
    """Wrap a method as a handler of bytes. Its errors pass through."""

    async def handle(data: bytes) -> bytes:
        return (await method(_parsed(kind, data))).SerializeToString()

    return handle


def _parsed(kind: type[M], data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidArgument(f"the request is no {kind.__name__}", field="request") from error
