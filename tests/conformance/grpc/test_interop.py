"""gRPC's interoperability cases against our own server, with a generated servicer on it: from grpc-go's client and, for
those it does not have, from grpcio's (`tests/broker/rpc/test_own_server_calls.py` has gzip, deadlines and cancellation
against the broker's own shapes of handlers)."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from pydanube_broker.rpc.hot import Route
from pydanube_broker.rpc.own_server import OwnServer

from tests.conformance.grpc.go_tools import go_tool
from tests.support.servicers import Servicers

pytestmark = [pytest.mark.anyio, pytest.mark.long, pytest.mark.timeout(900)]

GO_CASES = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "custom_metadata",
    "status_code_and_message",
    "special_status_message",
    "unimplemented_method",
    "unimplemented_service",
]


@pytest.fixture(scope="session")
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """protoc's messages and servicers of interop.proto."""
    from grpc_tools import protoc

    folder = tmp_path_factory.mktemp("generated")
    source = Path(__file__).with_name("interop.proto")
    words = ["protoc", f"-I{source.parent}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    assert protoc.main([*words, str(source)]) == 0
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("interop_pb2"), importlib.import_module("interop_pb2_grpc")
    finally:
        sys.path.remove(str(folder))


def service_class(pb: Any, pb_grpc: Any) -> type:
    class TestService(pb_grpc.TestServiceServicer):  # type: ignore[misc]
        """The test service of gRPC's interoperability suite."""

        async def _begin(self, context: Any) -> None:
            metadata = dict(context.invocation_metadata())
            if (value := metadata.get("x-grpc-test-echo-initial")) is not None:
                await context.send_initial_metadata((("x-grpc-test-echo-initial", value),))
            if (value := metadata.get("x-grpc-test-echo-trailing-bin")) is not None:
                context.set_trailing_metadata((("x-grpc-test-echo-trailing-bin", value),))

        async def _status(self, request: Any, context: Any) -> None:
            if request.HasField("response_status"):
                await context.abort(request.response_status.code, request.response_status.message)

        async def EmptyCall(self, request: Any, context: Any) -> Any:
            return pb.Empty()

        async def UnaryCall(self, request: Any, context: Any) -> Any:
            if request.response_compressed.value:
                context.set_compression(grpc.Compression.Gzip)
            await self._begin(context)
            await self._status(request, context)
            return pb.SimpleResponse(payload=pb.Payload(body=bytes(request.response_size)))

        async def StreamingOutputCall(self, request: Any, context: Any) -> AsyncIterator[Any]:
            for parameters in request.response_parameters:
                if parameters.compressed.value:
                    context.set_compression(grpc.Compression.Gzip)
                await asyncio.sleep(parameters.interval_us / 1e6)
                yield pb.StreamingOutputCallResponse(payload=pb.Payload(body=bytes(parameters.size)))

        async def StreamingInputCall(self, requests: Any, context: Any) -> Any:
            total = 0
            async for request in requests:
                total += len(request.payload.body)
            return pb.StreamingInputCallResponse(aggregated_payload_size=total)

        async def FullDuplexCall(self, requests: Any, context: Any) -> AsyncIterator[Any]:
            await self._begin(context)
            async for request in requests:
                await self._status(request, context)
                for parameters in request.response_parameters:
                    await asyncio.sleep(parameters.interval_us / 1e6)
                    yield pb.StreamingOutputCallResponse(payload=pb.Payload(body=bytes(parameters.size)))

    return TestService


@pytest.fixture(scope="session")
async def address(generated: tuple[Any, Any], anyio_backend: Any) -> AsyncIterator[str]:
    pb, pb_grpc = generated
    servicers = Servicers()
    pb_grpc.add_TestServiceServicer_to_server(service_class(pb, pb_grpc)(), servicers)
    server = OwnServer(host="127.0.0.1", port=0, flag="port", route=Route(streams=servicers.streams))
    await server.start()
    yield f"127.0.0.1:{server.port}"
    await server.stop(0)


@pytest.fixture(scope="session")
async def channel(address: str, anyio_backend: Any) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(address) as opened:
        yield opened


@pytest.mark.parametrize("case", GO_CASES)
async def test_grpc_go(case: str, address: str) -> None:
    client = await asyncio.to_thread(
        go_tool, "interop-client", "google.golang.org/grpc/interop/client", "latest"
    )
    host, _, port = address.rpartition(":")
    ran = await asyncio.create_subprocess_exec(
        str(client),
        f"--server_host={host}",
        f"--server_port={port}",
        f"--test_case={case}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(120):
        output, _ = await ran.communicate()
    assert ran.returncode == 0, output.decode()


async def test_grpcio_server_compressed_unary(channel: Any, generated: tuple[Any, Any]) -> None:
    pb, pb_grpc = generated
    stub = pb_grpc.TestServiceStub(channel)
    for packed in (True, False):
        request = pb.SimpleRequest(response_size=314159, response_compressed=pb.BoolValue(value=packed))
        response = await stub.UnaryCall(request)
        assert len(response.payload.body) == 314159


async def test_grpcio_server_compressed_streaming(channel: Any, generated: tuple[Any, Any]) -> None:
    pb, pb_grpc = generated
    sizes = [(31415, True), (92653, False)]
    request = pb.StreamingOutputCallRequest(
        response_parameters=[
            pb.ResponseParameters(size=size, compressed=pb.BoolValue(value=packed)) for size, packed in sizes
        ]
    )
    call = pb_grpc.TestServiceStub(channel).StreamingOutputCall(request)
    assert [len(response.payload.body) async for response in call] == [size for size, _ in sizes]


async def test_grpcio_client_compressed_streaming(channel: Any, generated: tuple[Any, Any]) -> None:
    pb, pb_grpc = generated

    async def requests() -> AsyncIterator[Any]:
        for size in (27182, 45904):
            yield pb.StreamingInputCallRequest(payload=pb.Payload(body=bytes(size)))

    call = pb_grpc.TestServiceStub(channel).StreamingInputCall(requests(), compression=grpc.Compression.Gzip)
    assert (await call).aggregated_payload_size == 27182 + 45904


async def test_grpcio_custom_metadata_and_status(channel: Any, generated: tuple[Any, Any]) -> None:
    pb, pb_grpc = generated
    text = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"
    request = pb.SimpleRequest(response_status=pb.EchoStatus(code=2, message=text))
    metadata = (("x-grpc-test-echo-initial", "first"), ("x-grpc-test-echo-trailing-bin", b"\xab\xab\xab"))
    call = pb_grpc.TestServiceStub(channel).UnaryCall(request, metadata=metadata)
    assert ("x-grpc-test-echo-initial", "first") in tuple(await call.initial_metadata())
    assert await call.code() is grpc.StatusCode.UNKNOWN
    assert await call.details() == text
    assert ("x-grpc-test-echo-trailing-bin", b"\xab\xab\xab") in tuple(await call.trailing_metadata())
