"""A field with one meaning stands once in a request: of two values one part of the broker would go by the first."""

from __future__ import annotations

import grpc
import grpc.aio as aio
import pytest
from pydanube_broker.broker import Broker
from pydanube_core.generated import danube_pb2 as pb

from tests.broker.delivery.conftest import broker, opened

__all__ = ["broker", "opened"]

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("field", ["danube-principal", "x-danube-topic", "x-danube-internal-broker"])
async def test_a_field_that_stands_twice_is_refused(broker: Broker, field: str) -> None:
    async with aio.insecure_channel(broker.broker_url.removeprefix("http://")) as channel:
        health = channel.unary_unary(
            "/danube.HealthCheck/HealthCheck",
            request_serializer=pb.HealthCheckRequest.SerializeToString,
            response_deserializer=pb.HealthCheckResponse.FromString,
        )
        request = pb.HealthCheckRequest(client=0, id=7)
        await health(request, metadata=((field, "one"),), timeout=30)
        with pytest.raises(aio.AioRpcError) as refused:
            await health(request, metadata=((field, "one"), (field, "one")), timeout=30)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details() == f"{field} stands there twice"


async def test_a_field_of_the_callers_own_may_stand_twice(broker: Broker) -> None:
    async with aio.insecure_channel(broker.broker_url.removeprefix("http://")) as channel:
        health = channel.unary_unary(
            "/danube.HealthCheck/HealthCheck",
            request_serializer=pb.HealthCheckRequest.SerializeToString,
            response_deserializer=pb.HealthCheckResponse.FromString,
        )
        await health(pb.HealthCheckRequest(client=0, id=7), metadata=(("baggage", "a"), ("baggage", "b")))
