"""`danube.Discovery` and `danube.StorageService` on the wire: docs/research/data-plane.md#6-connection-and-lookup."""

from __future__ import annotations

import grpc
import pytest
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
    await brokers.restart(server__advertised_url=given)
    async with RawClient(f"http://127.0.0.1:{brokers.port}") as client:
        await client.create_producer("/default/t")
        assert (await client.lookup("/default/t")).connect_url == "http://broker-1:6650"


async def test_listening_everywhere_names_an_address_that_can_be_dialled(brokers: Brokers) -> None:
    """Every client dials what the look-up says, and nobody can dial 0.0.0.0."""
    broker = await brokers.restart(server__host="0.0.0.0", server__insecure_bind=True)
    async with RawClient(f"http://127.0.0.1:{brokers.port}") as client:
        await client.create_producer("/default/t")
        url = (await client.lookup("/default/t")).connect_url
    assert "0.0.0.0" not in url
    assert broker.admin_url.rpartition(":")[0] == url.rpartition(":")[0]
    async with RawClient(url) as there:
        assert (await there.lookup("/default/t")).connect_url == url


async def test_a_partition_is_looked_up_and_listed_by_its_own_name(client: RawClient) -> None:
    names = [f"/default/t-part-{number}" for number in range(3)]
    for name in names:
        await client.create_producer(name)
    assert await client.partitions("/default/t") == names
    assert await client.partitions(names[1]) == [names[1]]
    assert (await client.lookup(names[1])).response_type == pb.TopicLookupResponse.LookupType.Connect
    assert await code_of(client.lookup("/default/t")) is Code.NOT_FOUND, "the base name is no topic"


async def test_credentials_and_routing_headers_are_accepted_and_change_nothing(client: RawClient) -> None:
    """Any caller may send them; none makes a super-user or is looked at (docs/research/behaviours.md#row-26)."""
    metadata = (
        ("authorization", "Bearer x.y.z"),
        ("x-danube-broker-url", "http://127.0.0.1:6650/"),
        ("x-danube-internal-broker", "broker/1"),
    )
    request = pb.ProducerRequest(
        request_id=1,
        producer_name="p",
        topic_name="/default/t",
        dispatch_strategy=pb.DispatchStrategy.Reliable,
    )
    made = await client.call("ProducerService/CreateProducer", request, metadata=metadata)
    message = client.message("/default/t", made.producer_id, b"x")
    stream = await client.consume("/default/t")
    await client.call("ProducerService/SendMessage", message, metadata=metadata)
    assert await stream.take(1) == [b"x"]


async def test_java_with_an_api_key_gets_a_token(client: RawClient) -> None:
    """It asks at `build()`, and fails without an answer."""
    response = await client.call("AuthService/Authenticate", pb.AuthRequest(api_key="key"))
    assert response.token
    assert await code_of(client.call("AuthService/Authenticate", pb.AuthRequest())) is Code.INVALID_ARGUMENT


async def test_partitions_of_an_unknown_topic_are_an_empty_list(client: RawClient) -> None:
    assert await client.partitions("/default/t") == []


async def test_no_object_is_listed_while_there_is_no_tier(client: RawClient) -> None:
    await client.create_producer("/default/t")
    request = pb.ListSegmentDescriptorsRequest(topic="/default/t")
    response = await client.call("StorageService/ListSegmentDescriptors", request)
    assert not response.segments
    request.topic = "/default/u"
    assert await code_of(client.call("StorageService/ListSegmentDescriptors", request)) is Code.NOT_FOUND
