"""Exclusive producers, over every transport."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from pydanube import Message
from pydanube.routing import Router, Routing
from pydanube_core.errors import InvalidArgument, ProducerFenced

pytestmark = pytest.mark.anyio


async def test_an_exclusive_producer_keeps_every_other_away_while_it_is_there(cluster: Any) -> None:
    topic = cluster.topic()
    with anyio.fail_after(30):
        async with cluster.connect() as client:
            async with client.producer(topic, name="only", access_mode="exclusive") as only:
                await only.send(b"1")
                for mode in ("shared", "exclusive"):
                    with pytest.raises(ProducerFenced) as caught:
                        await client.producer(topic, name="other", access_mode=mode).__aenter__()
                    assert caught.value.details["holder"] == "only"
                await only.send(b"2")
            async with client.producer(topic, name="other") as other:
                assert (await other.send(b"3")).offset == 2


async def test_exclusive_access_is_not_given_beside_others(cluster: Any) -> None:
    topic = cluster.topic()
    with anyio.fail_after(30):
        async with cluster.connect() as client, client.producer(topic, name="first") as first:
            with pytest.raises(ProducerFenced):
                await client.producer(topic, name="only", access_mode="exclusive").__aenter__()
            await first.send(b"x")


async def test_the_same_name_takes_over_and_fences_what_it_was(cluster: Any) -> None:
    topic = cluster.topic()
    with anyio.fail_after(30):
        async with (
            cluster.connect() as client,
            cluster.connect() as elsewhere,
            elsewhere.producer(topic, name="only", access_mode="exclusive") as former,
        ):
            await former.send(b"1")
            async with client.producer(topic, name="only", access_mode="exclusive") as now:
                assert (await now.send(b"2")).offset == 1

                async def send_for_ever() -> None:  # until its stream's end has come through
                    while True:
                        await former.send(b"lost")

                with pytest.raises(ProducerFenced):
                    await send_for_ever()
                assert (await now.send(b"3")).offset == 2


async def test_a_mode_that_is_none_is_refused(cluster: Any) -> None:
    async with cluster.connect() as client:
        with pytest.raises(InvalidArgument):
            client.producer(cluster.topic(), access_mode="alone")


async def test_a_named_producer_comes_again_as_itself_beside_others(cluster: Any) -> None:
    topic = cluster.topic()
    with anyio.fail_after(60):
        async with cluster.connect() as client, client.producer(topic, name="other") as other:
            async with client.producer(topic, name="task", access_mode="named") as first:
                assert first.stored_before == (0,)
                await first.send_many([b"1", b"2", b"3"])
                await other.send(b"other")
                async with client.producer(topic, name="task", access_mode="named") as second:
                    assert second.stored_before == (3,)
                    with pytest.raises(ProducerFenced):
                        await first.send(b"late")
                    assert (await second.send(b"4")).offset == 4
            async with client.producer(topic, name="task", access_mode="named") as third:
                assert third.stored_before == (4,)


@pytest.mark.parametrize("partitions", [None, 3])
async def test_an_outbox_goes_on_where_a_crash_stopped_it(cluster: Any, partitions: int | None) -> None:
    """Each partition may have got a different share before the crash: what is left out is counted by partition."""
    rows = [Message.new(b"%d" % number, key=f"k{number % 11}") for number in range(60)]
    topic = cluster.topic()
    named: Any = {"name": "outbox", "access_mode": "named"}
    async with cluster.connect() as client:
        async with client.producer(topic, partitions=partitions, **named) as producer:
            assert [*producer.unstored(rows)] == rows
            # As a crash leaves it: a part of each partition's messages, the first ones.
            router, limits = Router(Routing.KEY, partitions or 1), [5, 0, 12]
            for row in rows:
                at = router.pick(row.key, None)
                if limits[at]:
                    limits[at] -= 1
                    await producer.send(row.payload, key=row.key)
        async with client.producer(topic, **named) as producer:
            await producer.send_many(producer.unstored(rows))
        async with client.producer(topic, **named) as producer:
            assert [*producer.unstored(rows)] == []
            if partitions:
                with pytest.raises(InvalidArgument, match="give each one a key"):
                    [*producer.unstored([Message.new(b"x")])]
        async with client.reader(topic, stop="head") as reader:
            found = [message async for message in reader]
    assert sorted(int(message.payload) for message in found) == list(range(60))
    for key in {row.key for row in rows}:
        own = [int(message.payload) for message in found if message.key == key]
        assert own == sorted(own)
