"""A dead letter that is asked for again, after whose crash ever, is not copied again."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.delivery.dead_letter_publisher import LocalTarget, Originals
from pydanube_broker.outcome import outcome_of
from pydanube_broker.subscription.cursor import CursorDelta
from pydanube_broker.subscription.ranges import Range
from pydanube_broker.topics.log_state import LogState, decode_head, encode_state
from pydanube_broker.topics.rebuilt_state import rebuilt_state
from pydanube_core.batch import encode_batch
from pydanube_core.names import TopicName

from tests.support.messages import take

pytestmark = pytest.mark.anyio
SUBSCRIPTION = 77


async def copy(broker: Broker, *ranges: Range, generation: int = 0, of: int = SUBSCRIPTION) -> None:
    """Ask for copies of messages whose payloads are their offsets."""
    (topic,) = await broker.registry.create(
        TopicName.parse("graves"), partitions=0, dispatch_strategy="reliable"
    )
    payloads = [b"%d" % offset for start, end in ranges for offset in range(start, end)]
    originals = Originals(of, generation, list(ranges))
    await outcome_of(lambda told: LocalTarget(topic).take(encode_batch(payloads), originals, told))


async def stored(broker: Broker) -> list[int]:
    topic = broker.registry.find(TopicName.parse("graves"))
    assert topic is not None
    async with connect(broker.broker_url) as client, client.reader("graves") as reader:
        return [int(message.payload) for message in await take(reader, topic.commit)]


async def test_what_was_copied_is_known_after_a_stop_and_after_a_crash(opened: Any, tmp_path: Path) -> None:
    async with opened() as broker:
        await copy(broker, (0, 3), (5, 6))
        await copy(broker, (0, 3), (5, 6))
        # As a crash leaves it, but for the file that the journal is about to go on with
        shutil.copytree(
            tmp_path / "data", tmp_path / "crashed", ignore=shutil.ignore_patterns("*.new", "*.sock")
        )
    for data in ("data", "crashed"):
        async with opened(data__dir=str(tmp_path / data)) as broker:
            await copy(broker, (0, 3), (5, 6))
            await copy(broker, (1, 5))
            await copy(broker, (4, 7))
            assert await stored(broker) == [0, 1, 2, 5, 3, 4, 6]


async def test_another_subscription_and_one_that_went_back_have_copies_of_their_own(opened: Any) -> None:
    async with opened() as broker:
        await copy(broker, (3, 5))
        await copy(broker, (3, 5), of=SUBSCRIPTION + 1)
        await copy(broker, (4, 6), generation=1)
        await copy(broker, (4, 6), generation=1)
        assert await stored(broker) == [3, 4, 3, 4, 4, 5]


def noted(state: LogState, *ranges: Range, of: int = SUBSCRIPTION) -> None:
    state.note_copied(of, CursorDelta(generation=2, floor=0, acknowledged=ranges))


def copies(state: LogState) -> Sequence[Range]:
    return state.copies(SUBSCRIPTION, 2)


def test_a_topic_that_moves_takes_along_what_it_has_copies_of() -> None:
    state = LogState(7, opened=True)
    noted(state, (0, 2), (9, 12))
    moved = decode_head(memoryview(encode_state(state)))[7]
    assert copies(moved) == [(0, 2), (9, 12)]
    assert moved.cursors == {}, "it is no subscription of this topic"


def test_what_is_remembered_is_bounded() -> None:
    state = LogState(7)
    for at in range(3000):
        noted(state, (2 * at, 2 * at + 1))
    assert len(copies(state)) <= 1025
    assert copies(state)[-1] == (5998, 5999), "the newest are kept"
    for origin in range(300):
        noted(state, (0, 1), of=1000 + origin)
    assert copies(state) == []
    assert state.copies(1299, 2) == [(0, 1)]


def test_after_a_removal_copies_that_may_be_lost_are_made_again() -> None:
    state = LogState(7, opened=True)
    noted(state, (0, 2))
    assert copies(rebuilt_state(state, begin=0, end=10, starts={})) == []
