"""Every gRPC method of every package: path, message classes, direction of streams.

Servers and clients frame messages themselves (`grpc_wire`, `http2`), so there are no generated stubs. These facts come
from the descriptors, so a path cannot disagree with its .proto. The table lists services by hand. A service that its
.proto does not have fails the import.

    method = STREAM["Publish"]
    channel.stream_stream(method.path, request_serializer=method.request.SerializeToString,
                          response_deserializer=method.response.FromString)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from google.protobuf.descriptor import FileDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from pydanube_core.generated import (
    danube_admin_pb2,
    danube_ops_pb2,
    danube_pb2,
    danube_schema_pb2,
    danube_stream_pb2,
)


class MethodKind(StrEnum):
    """Which sides of a call are streams. The values are the names of grpcio's generic calls and handlers."""

    UNARY = "unary_unary"
    SERVER_STREAM = "unary_stream"
    CLIENT_STREAM = "stream_unary"
    BIDIRECTIONAL = "stream_stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method of a gRPC service."""

    path: str  # "/danube.Discovery/TopicLookup", the :path of the HTTP/2 request
    service: str  # "danube.Discovery"
    name: str  # "TopicLookup"
    kind: MethodKind
    request: type[Message]
    response: type[Message]

    def __post_init__(self) -> None:
        assert self.path == f"/{self.service}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One service. `service["Name"]` is its method of that name. Iteration yields all in the .proto's order."""

    full_name: str
    methods: Mapping[str, Method]

    def __getitem__(self, method: str) -> Method:
        """Return the method of that name. Raises `KeyError` if there is none."""
        return self.methods[method]

    def __iter__(self) -> Iterator[Method]:
        return iter(self.methods.values())


def _method(descriptor: MethodDescriptor) -> Method:
    match (bool(descriptor.client_streaming), bool(descriptor.server_streaming)):
        case (False, False):
            kind = MethodKind.UNARY
        case (False, True):
            kind = MethodKind.SERVER_STREAM
        case (True, False):
            kind = MethodKind.CLIENT_STREAM
        case _:
            kind = MethodKind.BIDIRECTIONAL
    service = descriptor.containing_service.full_name
    return Method(
        path=f"/{service}/{descriptor.name}",
        service=service,
        name=descriptor.name,
        kind=kind,
        request=GetMessageClass(descriptor.input_type),
        response=GetMessageClass(descriptor.output_type),
    )


def _service(file: FileDescriptor, name: str) -> Service:
    descriptor: ServiceDescriptor = file.services_by_name[name]
    return Service(
        full_name=descriptor.full_name,
        methods=MappingProxyType({method.name: _method(method) for method in descriptor.methods}),
    )


# The client plane of the official clients, port 6650.
PRODUCER_SERVICE: Final = _service(danube_pb2.DESCRIPTOR, "ProducerService")
CONSUMER_SERVICE: Final = _service(danube_pb2.DESCRIPTOR, "ConsumerService")
DISCOVERY: Final = _service(danube_pb2.DESCRIPTOR, "Discovery")
HEALTH_CHECK: Final = _service(danube_pb2.DESCRIPTOR, "HealthCheck")
STORAGE_SERVICE: Final = _service(danube_pb2.DESCRIPTOR, "StorageService")
AUTH_SERVICE: Final = _service(danube_pb2.DESCRIPTOR, "AuthService")
SCHEMA_REGISTRY: Final = _service(danube_schema_pb2.DESCRIPTOR, "SchemaRegistry")

# The admin plane of the official tool, port 50051. The registry is served there too.
BROKER_ADMIN: Final = _service(danube_admin_pb2.DESCRIPTOR, "BrokerAdmin")
CLUSTER_ADMIN: Final = _service(danube_admin_pb2.DESCRIPTOR, "ClusterAdmin")
NAMESPACE_ADMIN: Final = _service(danube_admin_pb2.DESCRIPTOR, "NamespaceAdmin")
TOPIC_ADMIN: Final = _service(danube_admin_pb2.DESCRIPTOR, "TopicAdmin")
SECURITY_ADMIN: Final = _service(danube_admin_pb2.DESCRIPTOR, "SecurityAdmin")

# Our own.
STREAM: Final = _service(danube_stream_pb2.DESCRIPTOR, "Stream")
OPS: Final = _service(danube_ops_pb2.DESCRIPTOR, "Ops")
