"""`danube.Discovery` and `danube.StorageService` on the wire: wire/data-plane.md 4.1, 6."""

from __future__ import annotations

import grpc
import pytest
from pydanube_broker.services.official.discovery import dialled_url
from pydanube_core.generated import danube_pb2 as pb

from tests.broker.official.conftest import Brokers
from tests.broker.official.raw_client import RawClient, code_of

pytestmark = pytest.mark.anyio
Code = grpc.StatusCode


async def test_lookup_gives_an_address_that_every_client_can_dial(client: RawClient) -> None:
    assert await code_of(client.lookup("/default/t")) is Code.NOT_FOUND
    await client.create_producer("/default/t")
    found = await client.lookup("/default/t")
    assert found.response_type == pb.TopicLookupResponse.LookupType.Connect
    assert found.connect_url == found.broker_url
    assert found.connect_url.startswith("http://127.0.0.1:")
    assert not found.connect_url.endswith("/")
    assert not found.proxy


@pytest.mark.parametrize("given", ["broker-1:6650", "http://broker-1:6650", "http://broker-1:6650/"])
async def test_advertised_address_has_a_scheme_and_no_slash_behind(brokers: Brokers, given: str) -> None:
    broker = await brokers.restart(server__advertised_url=given)
    async with RawClient(f"http://127.0.0.1:{brokers.port}") as client:
        await client.create_producer("/default/t")
        assert (await client.lookup("/default/t")).connect_url == "http://broker-1:6650"
    assert dialled_url(broker.broker_url) == "http://broker-1:6650"


async def test_partitions_of_an_unknown_topic_are_an_empty_list(client: RawClient) -> None:
    assert await client.partitions("/default/t") == []


async def test_no_object_is_listed_while_there_is_no_tier(client: RawClient) -> None:
    await client.create_producer("/default/t")
    request = pb.ListSegmentDescriptorsRequest(topic="/default/t")
    response = await client.call("StorageService/ListSegmentDescriptors", request)
    assert not response.segments
    request.topic = "/default/u"
    assert await code_of(client.call("StorageService/ListSegmentDescriptors", request)) is Code.NOT_FOUND
