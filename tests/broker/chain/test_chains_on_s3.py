"""Chains in an S3 server: one that replaces objects is refused, one that keeps to conditions stores topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydanube import connect
from pydanube_broker.chain.probe import check_create_only
from pydanube_broker.tier.chain_calls import ChainCalls
from pydanube_broker.tier.child import TierChild
from pydanube_core.errors import StoreUnsuitable
from pydanube_core.names import TopicName

from tests.broker.delivery.conftest import Opener, opened
from tests.support.s3_door import conditional
from tests.support.s3_server import S3Server, running_s3_server

__all__ = ["opened"]
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(150)]


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    pytest.importorskip("s3fs")
    with running_s3_server(tmp_path_factory.mktemp("s3"), public=True) as server:
        yield server


@pytest.fixture(scope="module")
def door(s3_server: S3Server) -> Iterator[S3Server]:
    with conditional(s3_server) as server:
        yield server


def settings_of(server: S3Server, prefix: str) -> dict[str, object]:
    return {
        "tier__url": f"s3://bucket/{prefix}",
        "tier__endpoint": server.endpoint,
        "tier__region": "us-east-1",
        "tier__path_style": True,
    }


async def test_an_object_is_created_once_and_the_probe_leaves_nothing(door: S3Server) -> None:
    child = TierChild(door.options("probed"), work="chain")
    store = ChainCalls(child.call)
    try:
        await check_create_only(store, "c", "the door")
        assert await store.create("a/b", b"first")
        assert not await store.create("a/b", b"second")
        assert await store.read("a/b") == b"first"
        assert await store.read("a/b", 2) == b"fi"
        assert await store.read("a/c") is None
        assert await store.names("a") == ["a/b"]
        assert await store.names("c") == []
        await store.delete("a/b")
        assert await store.names("a") == []
    finally:
        await child.close()


async def test_a_topic_is_stored_there_and_found_after_a_start(opened: Opener, door: S3Server) -> None:
    sent = [b"%d" % number for number in range(100)]
    async with opened(**settings_of(door, "stored")) as broker:
        await broker.registry.create(
            TopicName.parse("t"), partitions=0, dispatch_strategy="reliable", durability="stored"
        )
        async with connect(broker.broker_url) as client, client.producer("t") as producer:
            assert (await producer.send_many(sent)).durability == "stored"
    async with (
        opened(**settings_of(door, "stored")) as broker,
        connect(broker.broker_url) as client,
        client.reader("t", start="earliest") as reader,
    ):
        assert [(await anext(reader)).payload for _ in sent] == sent


async def test_a_server_that_replaces_objects_is_refused(opened: Opener, s3_server: S3Server) -> None:
    async with opened(**settings_of(s3_server, "unsuitable")) as broker:
        with pytest.raises(StoreUnsuitable):
            await broker.registry.create(
                TopicName.parse("t"), partitions=0, dispatch_strategy="reliable", durability="stored"
            )
        assert broker.registry.find(TopicName.parse("t")) is None
    with pytest.raises(StoreUnsuitable, match=r"journal\.copy"):
        async with opened(**settings_of(s3_server, "unsuitable"), journal__copy=True):
            pass
