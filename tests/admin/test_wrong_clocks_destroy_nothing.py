"""A broker whose clock runs 25 hours ahead, with one witness that is right: what was promised for a day stays."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator

import pytest
from pydanube_admin.engine.change_records import PREFIX
from pydanube_broker.topics.topic import CLOCK, now_ms
from pydanube_broker.wall_clock import WallClock, WitnessKind
from pydanube_core.names import TopicName

from tests.admin.real_broker import Administered, administered

pytestmark = pytest.mark.anyio

AHEAD_MS = 25 * 3_600_000


@pytest.fixture
async def cluster(anyio_backend: str) -> AsyncIterator[Administered]:
    async with administered() as cluster:
        yield cluster


def put_clock_ahead() -> None:
    """Put the clock ahead; not as a step, which would not be followed at once. No witness is left."""
    WallClock.__init__(CLOCK, wall_ms=lambda: time.time_ns() // 1_000_000 + AHEAD_MS)


@pytest.fixture
def ahead() -> Iterator[None]:
    put_clock_ahead()
    yield
    WallClock.__init__(CLOCK)


def right_witness() -> None:
    CLOCK.witness("the object store", time.time_ns() // 1_000_000, kind=WitnessKind.STORE)


async def deleted(cluster: Administered) -> str:
    """Create a topic and delete it by a plan; return the call that can be undone for a day."""
    await cluster("topics.create", topic="orders")
    plan = await cluster("topics.delete", topic="orders", plan_only=True)
    return str((await cluster("topics.delete", topic="orders", plan_token=plan["plan_token"]))["call_id"])


async def test_a_deleted_topic_is_restored_although_the_clock_of_the_leader_ran_ahead(
    cluster: Administered, request: pytest.FixtureRequest
) -> None:
    """A leader 25 hours ahead ended every undo of the cluster."""
    call_id = await deleted(cluster)
    request.getfixturevalue("ahead")
    right_witness()
    await cluster.broker.forget_deleted()
    await cluster("changes.undo", call_id=call_id)
    assert cluster.broker.registry.find(TopicName.parse("orders")) is not None


async def test_without_a_witness_the_same_clock_is_believed(
    cluster: Administered, request: pytest.FixtureRequest
) -> None:
    call_id = await deleted(cluster)
    request.getfixturevalue("ahead")
    await cluster.broker.forget_deleted()
    assert (await cluster.refused("changes.undo", call_id=call_id)).code != ""


async def test_records_of_changes_stay_until_their_time_is_over_by_all_clocks(
    cluster: Administered, request: pytest.FixtureRequest
) -> None:
    await deleted(cluster)
    port, changes = cluster.broker.port, cluster.core.executor.changes
    request.getfixturevalue("ahead")
    right_witness()
    before = await port.list_state(PREFIX)
    assert before
    await changes.sweep(now_ms())
    assert [item.key for item in await port.list_state(PREFIX)] == [item.key for item in before]
    put_clock_ahead()
    await changes.sweep(now_ms() + AHEAD_MS)  # long after the sweep before
    assert not await port.list_state(PREFIX)


async def test_clocks_that_are_apart_are_a_finding(
    cluster: Administered, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("ahead")
    assert "CLOCKS_APART" not in {reason.code for reason in cluster.broker.port.degraded()}
    right_witness()
    assert "CLOCKS_APART" in {reason.code for reason in cluster.broker.port.degraded()}
