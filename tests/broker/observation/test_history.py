"""The window of a topic as a series, over the port: what was published, and who is how far behind."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import pytest
from pydanube import Client
from pydanube_broker.broker import Broker
from pydanube_broker.observation.history import moments, sum_of
from pydanube_broker.observation.sampler import Sampler
from pydanube_broker.observation.tracks import Rounds
from pydanube_core.errors import TopicNotFound
from pydanube_core.names import TopicName
from pydanube_core.positions import Position

pytestmark = pytest.mark.anyio

EARLIEST = Position.parse("earliest", now_ms=0)


async def test_history_of_partitions_is_summed_and_the_furthest_behind_come_first(
    broker: Broker, client: Client
) -> None:
    logs = await broker.registry.create(TopicName.parse("parted"), partitions=2, dispatch_strategy="reliable")
    for log in logs:
        for name in ("ahead", "behind", "third"):
            start = EARLIEST if name == "behind" else Position.parse("latest", now_ms=0)
            await broker.registry.subscribe(log, name, type="shared", start=start, start_given=True)
    await broker.observation.look_once()
    async with client.producer("parted") as producer:
        await producer.send_many([b"x"] * 10)
    await broker.port.seek_subscription("/default/parted", "ahead", "latest")
    await broker.observation.look_once()

    found = await broker.port.topic_history("/default/parted", None, most=2)

    assert all(before <= after for before, after in pairwise(found.times_ms))
    assert found.published[-1] == 10
    assert list(found.cursors) == ["behind", "third"]
    assert found.more_cursors == 1
    assert found.cursors["behind"].lag_messages[-1] == 10
    one = await broker.port.topic_history("/default/parted", "ahead", most=2)
    assert list(one.cursors) == ["ahead"]
    assert one.cursors["ahead"].lag_messages[-1] == 0
    assert (await broker.port.topic_history("/default/parted", "nobody", most=2)).cursors == {}
    with pytest.raises(TopicNotFound):
        await broker.port.topic_history("/default/gone", None, most=2)


async def test_a_topic_that_was_never_looked_at_has_one_moment(broker: Broker) -> None:
    await broker.registry.create(TopicName.parse("fresh"), partitions=0, dispatch_strategy="reliable")
    found = await broker.port.topic_history("/default/fresh", None, most=5)
    assert found.published[-1] == 0
    assert all(value is None for value in found.published[:-1])
    assert found.cursors == {}


def test_a_chart_before_the_first_round_has_no_points_before_now() -> None:
    """It failed with a ValueError."""
    rounds = Rounds(interval_s=5, window_s=300)
    sampler = SimpleNamespace(rounds=rounds, charted=SimpleNamespace(logs={}), started_ms=1_000_000)
    assert moments([], cast("Sampler", sampler), 1_000_100, None) == ([], [], 0)
    times, _, exact_ms = moments([], cast("Sampler", sampler), 1_000_100, 900)
    assert (times, exact_ms) == ([995_100], 1_000_100)


def test_points_of_a_long_chart_have_the_times_of_their_states() -> None:
    """They lay between two rounds, with the state of the round before. So the last rate, until now, was up to twice too high."""
    rounds = Rounds(interval_s=5, window_s=300)
    for number in range(16):
        rounds.note(number, 1_000_000 + 5_000 * number)
    charted = SimpleNamespace(logs={})
    sampler = cast("Sampler", SimpleNamespace(rounds=rounds, charted=charted, started_ms=1_000_000))
    now = 1_000_000 + 79_900
    times, ends, exact_ms = moments([], sampler, now, 900)
    assert exact_ms == 1_000_000
    assert set(times) <= {*rounds.times}
    assert all(time <= end < time + 5_000 for time, end in zip(times, ends, strict=True))
    assert times == sorted(times)
    assert now - times[-1] >= 2_500, "the last rate is over half an interval or more"


def test_a_sum_is_known_only_where_every_part_is() -> None:
    assert sum_of([[1, None, 3], [10, 20, 30]]) == [11, None, 33]
