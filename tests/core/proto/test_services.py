"""The table of RPCs: nothing missing, nothing invented, kinds as grpcio names them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import grpc
import pydanube_core
import pytest
from pydanube_core import services
from pydanube_core.services import Method, MethodKind

from tests.core.proto.wire_contract import read_tables
from tests.support.grpc_services import METHODS, SERVICES

PROTOS = sorted((Path(pydanube_core.__file__).parent / "proto").glob("*.proto"))


def test_paths_classes_and_streams_are_as_the_wire_notes_say() -> None:
    told = {
        f"/{package}.{rpc}": (f"{package}.{request}", f"{package}.{response}", client_streams, server_streams)
        for package, facts in read_tables().items()
        for rpc, (request, response, client_streams, server_streams) in facts.rpcs.items()
    }
    ours = {
        path: (
            method.request.DESCRIPTOR.full_name,
            method.response.DESCRIPTOR.full_name,
            method.kind in (MethodKind.CLIENT_STREAM, MethodKind.BIDIRECTIONAL),
            method.kind in (MethodKind.SERVER_STREAM, MethodKind.BIDIRECTIONAL),
        )
        for path, method in METHODS.items()
        if not path.startswith(("/danube.stream.", "/danube.ops."))
    }
    assert ours == told


def test_every_service_of_every_proto_file_is_in_the_table() -> None:
    assert len(PROTOS) >= 5
    defined = {
        descriptor.full_name: [method.name for method in descriptor.methods]
        for proto in PROTOS
        for descriptor in import_module(
            f"pydanube_core.generated.{proto.stem}_pb2"
        ).DESCRIPTOR.services_by_name.values()
    }
    assert {name: list(service.methods) for name, service in SERVICES.items()} == defined
    exported = {
        value.full_name
        for name, value in vars(services).items()
        if isinstance(value, services.Service) and not name.startswith("_")
    }
    assert exported == defined.keys()


def test_our_own_services_have_the_kinds_of_their_protos() -> None:
    assert {path: method.kind for path, method in METHODS.items() if path.startswith("/danube.stream.")} == {
        "/danube.stream.Stream/Resolve": MethodKind.UNARY,
        "/danube.stream.Stream/Match": MethodKind.UNARY,
        "/danube.stream.Stream/Publish": MethodKind.BIDIRECTIONAL,
        "/danube.stream.Stream/Consume": MethodKind.BIDIRECTIONAL,
        "/danube.stream.Stream/Copy": MethodKind.BIDIRECTIONAL,
        "/danube.stream.Stream/Mirror": MethodKind.BIDIRECTIONAL,
        "/danube.stream.Stream/Mirrored": MethodKind.UNARY,
    }
    assert METHODS["/danube.ops.Ops/Call"].kind is MethodKind.UNARY


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_classes_are_those_of_the_generated_module(method: Method) -> None:
    for message_class in (method.request, method.response):
        module = import_module(message_class.__module__)
        assert module.__name__.startswith("pydanube_core.generated.")
        assert getattr(module, message_class.__name__) is message_class


@pytest.mark.parametrize("kind", MethodKind)
def test_kind_is_the_name_of_the_generic_handler(kind: MethodKind) -> None:
    assert callable(getattr(grpc, f"{kind}_rpc_method_handler"))
    assert callable(getattr(grpc.Channel, kind))


def test_unknown_method_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="Flush"):
        services.PRODUCER_SERVICE["Flush"]
