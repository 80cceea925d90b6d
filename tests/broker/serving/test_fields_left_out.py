"""Fields of our own stream that have no effect where they stand are refused by name."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from pydanube_core.generated import danube_schema_pb2 as schema_pb
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.names import TopicName

from tests.broker.delivery.conftest import Opener
from tests.support.grpc_services import METHODS

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


async def refused(on: grpc.aio.Channel, path: str, request: Any) -> tuple[str, str]:
    """Return code and details of a refused unary call."""
    call = on.unary_unary(path, request_serializer=METHODS[path].request.SerializeToString)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(request)
    return caught.value.code().name, caught.value.details() or ""


async def opened_as(on: grpc.aio.Channel, **fields: Any) -> tuple[str, str]:
    """Open a consumer or reader; return code and details of how its stream ended, `OPENED` if it did not."""
    path = "/danube.stream.Stream/Consume"
    call = on.stream_stream(path, response_deserializer=METHODS[path].response.FromString)()
    await call.write(pb.ConsumeRequest(open=pb.OpenConsumer(topic="t", **fields)).SerializeToString())
    try:
        answer = await call.read()
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    if answer is not grpc.aio.EOF and answer.HasField("opened"):
        call.cancel()
        return "OPENED", "resumed" if answer.opened.resumed else ""
    return (await call.code()).name, await call.details()


async def test_a_field_without_effect_is_refused_by_name(opened: Opener) -> None:
    async with opened() as broker:
        await broker.registry.create(TopicName.parse("t"), partitions=0, dispatch_strategy="reliable")
        async with grpc.aio.insecure_channel(broker.broker_url.removeprefix("http://")) as on:
            for field, value in {
                "partitions": 3,
                "unused_ttl_s": 60,
                "schema_subject": "orders",
                "schema_version": 1,
                "dispatch_strategy": "reliable",
            }.items():
                request = pb.ResolveRequest(topic="t", **{field: value})
                status, text = await refused(on, "/danube.stream.Stream/Resolve", request)
                assert (status, text.partition(":")[0]) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
                assert f"{field} counts only with create" in text
            for field, value in {
                "type": "shared",
                "key_filters": ["a*"],
                "ack_timeout_ms": 1000,
                "max_extend_ms": 1000,
                "reports_taken": True,
            }.items():
                status, text = await opened_as(on, **{field: value})
                assert status == "INVALID_ARGUMENT", field
                assert field in text
            status, text = await opened_as(on, subscription="s", stop="head")
            assert (status, "stop" in text) == ("INVALID_ARGUMENT", True)
            assert (await opened_as(on, start="earliest", stop="head", start_given=True))[0] == "OPENED"
            assert (await opened_as(on, subscription="s", type="shared"))[0] == "OPENED"
            # A reader of an older SDK, whose topic has moved, gives up what it has received unless it is resumed
            assert await opened_as(on, start="offset:0", resume_session=7) == ("OPENED", "resumed")
            assert await opened_as(on, start="offset:0") == ("OPENED", "")


async def test_a_check_by_an_unknown_mode_is_refused(opened: Opener) -> None:
    async with opened() as broker, grpc.aio.insecure_channel(broker.broker_url.removeprefix("http://")) as on:
        request = schema_pb.CheckCompatibilityRequest(
            subject="orders",
            schema_type="avro",
            new_schema_definition=b'"string"',
            compatibility_mode="backwards",
        )
        status, text = await refused(on, "/danube_schema.SchemaRegistry/CheckCompatibility", request)
        assert (status, "backwards" in text) == ("INVALID_ARGUMENT", True)
