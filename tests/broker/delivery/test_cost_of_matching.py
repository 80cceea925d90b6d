"""Bounds of the cost of one `Match`: patterns × topics × partitions, bounded by processor time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from pydanube_broker.broker import Broker
from pydanube_broker.services.resolve import match
from pydanube_core.errors import InvalidArgument
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.names import TopicName

from tests.broker.delivery.conftest import Opener
from tests.support.processor import at_most

TOPICS = 300


async def asked(broker: Broker, patterns: list[str]) -> pb.MatchResponse:
    return pb.MatchResponse.FromString(
        await match(broker.access, pb.MatchRequest(patterns=patterns).SerializeToString())
    )


@asynccontextmanager
async def crowded(opened: Opener) -> AsyncIterator[Broker]:
    async with opened() as broker:
        for number in range(TOPICS):
            name = TopicName("default", f"{number}-{'a' * 120}")
            await broker.registry.create(name, partitions=0, dispatch_strategy="non_reliable")
        yield broker


async def test_a_thousand_long_patterns_are_refused_before_one_is_compiled(broker: Broker) -> None:
    patterns = [f"{'a*' * 124}{number}" for number in range(1000)]
    with at_most(0.1), pytest.raises(InvalidArgument, match="at most 10 are taken") as refused:
        await asked(broker, patterns)
    assert (refused.value.details["field"], refused.value.details["value"]) == ("patterns", 1000)


async def test_as_many_patterns_and_names_as_are_taken_cost_little_beside_all_topics(opened: Opener) -> None:
    globs = [f"*{'a*' * 120}{number}" for number in range(10)]
    names = [f"{number}-{'a' * 120}" for number in range(990)]
    async with crowded(opened) as broker:
        with at_most(0.5):
            found = await asked(broker, [*globs, *names])
        assert len(found.topics) == TOPICS
        with at_most(0.5):
            found = await asked(broker, globs)
        assert not found.topics


async def test_a_topic_comes_with_the_number_of_its_partitions(broker: Broker) -> None:
    for number in range(3):
        await broker.registry.create(
            TopicName("default", f"parted-{number}"), partitions=30, dispatch_strategy="non_reliable"
        )
    plain = TopicName("default", "plain")
    await broker.registry.create(plain, partitions=0, dispatch_strategy="non_reliable")
    found = await asked(broker, ["p*"])
    assert dict(zip(found.topics, found.partitions, strict=True)) == {
        "/default/parted-0": 30,
        "/default/parted-1": 30,
        "/default/parted-2": 30,
        "/default/plain": 0,
    }
