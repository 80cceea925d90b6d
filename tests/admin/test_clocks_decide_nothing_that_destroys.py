"""A clock that is 25 hours wrong, from the start or from one moment on, destroys nothing whose time is not over."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final

import anyio
import pytest
from pydanube import connect
from pydanube_admin.engine.change_records import PREFIX as CHANGES
from pydanube_admin.engine.plan_records import PREFIX as PLANS
from pydanube_admin.engine.task_records import DONE, TaskRecord
from pydanube_admin.engine.task_records import PREFIX as TASKS
from pydanube_broker.topics.topic import CLOCK, now_ms
from pydanube_broker.wall_clock import HOLD_MS, WallClock, WitnessKind
from pydanube_core.names import TopicName
from pydanube_core.security.records import REVOCATIONS

from tests.admin.real_broker import Administered, without_a_cold_tier

pytestmark = pytest.mark.anyio

OFF_MS: Final = 25 * 3_600_000
HOUR_S: Final = 3600


class Machine:
    """A machine whose wall clock is set, and whose counter is always right."""

    def __init__(self) -> None:
        self.off_ms = 0
        self.passed_ms = 0  # by which the counter and the wall clock are put on

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.passed_ms + self.off_ms

    def counter_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self.passed_ms

    def restart(self, off_ms: int) -> None:
        """Start with a clock that is wrong and has no witness."""
        self.off_ms = off_ms
        WallClock.__init__(CLOCK, wall_ms=self.wall_ms, counter_ms=self.counter_ms)


def before_a_start(machine: Machine, off_ms: int) -> None:
    before_ms = CLOCK.offset_ms
    machine.restart(off_ms)
    CLOCK.started(machine.wall_ms() - off_ms, before_ms=before_ms)


def before_a_start_after_a_boot(machine: Machine, off_ms: int) -> None:
    machine.restart(off_ms)
    CLOCK.started(machine.wall_ms() - off_ms, before_ms=None)


def before_a_start_with_a_store(machine: Machine, off_ms: int) -> None:
    machine.restart(off_ms)
    CLOCK.witness("the object store", machine.wall_ms() - off_ms, kind=WitnessKind.STORE)


def during_a_run(machine: Machine, off_ms: int) -> None:
    machine.off_ms = off_ms
    CLOCK.now_ms()
    machine.passed_ms += HOLD_MS
    assert abs(CLOCK.now_ms() - machine.wall_ms()) < 1000, "it is followed by now"


def during_a_run_with_another_broker(machine: Machine, off_ms: int) -> None:
    CLOCK.witness("the clock of broker 2", machine.wall_ms(), kind=WitnessKind.BROKER)
    during_a_run(machine, off_ms)


JUMPS: Final = (
    before_a_start, before_a_start_after_a_boot, before_a_start_with_a_store,
    during_a_run, during_a_run_with_another_broker,
)  # fmt: skip

# Each place that destroys by age: prepares something, and returns a check that it outlives one round of that place.
Check = Callable[[], Awaitable[None]]


async def retention_of_a_topic(cluster: Administered) -> Check:
    await cluster("topics.create", topic="t")
    await cluster.apply("topics.set_policies", topic="t", policies={"retention_age_s": 24 * HOUR_S})
    await cluster.publish("t", b"1", b"2")
    await cluster.seal()

    async def check() -> None:
        await cluster.retain()
        assert await cluster.payloads("t") == [b"1", b"2"]

    return check


async def time_to_live_of_a_message(cluster: Administered) -> Check:
    await cluster("topics.create", topic="t")
    await cluster("subscriptions.create", topic="t", subscription="s")
    async with connect(cluster.broker.broker_url) as client, client.producer("t") as producer:
        await producer.send(b"1", ttl_ms=24 * HOUR_S * 1000)

    async def check() -> None:
        async with connect(cluster.broker.broker_url) as client, client.consumer("t", "s") as consumer:
            assert [each.payload for each in await consumer.receive(max_messages=1, max_wait_s=20)] == [b"1"]

    return check


async def deleted_topic(cluster: Administered) -> Check:
    await cluster("topics.create", topic="t")
    call_id = (await cluster.apply("topics.delete", topic="t"))["call_id"]

    async def check() -> None:
        await cluster.broker.forget_deleted()
        await cluster("changes.undo", call_id=call_id)
        assert cluster.broker.registry.find(TopicName.parse("t")) is not None

    return check


async def record_of_a_change(cluster: Administered) -> Check:
    await cluster("topics.create", topic="t")
    await cluster.apply("topics.delete", topic="t")
    before = await cluster.broker.port.list_state(CHANGES)
    assert before

    async def check() -> None:
        await cluster.core.executor.changes.sweep(now_ms())
        after = await cluster.broker.port.list_state(CHANGES)
        assert [each.value for each in after] == [each.value for each in before]

    return check


async def plan(cluster: Administered) -> Check:
    await cluster("topics.create", topic="t")
    await cluster("topics.delete", topic="t", plan_only=True)
    before = {each.key for each in await cluster.broker.port.list_state(PLANS)}
    assert before

    async def check() -> None:
        await cluster.core.executor.plans.sweep(now_ms())
        assert before <= {each.key for each in await cluster.broker.port.list_state(PLANS)}

    return check


async def task(cluster: Administered) -> Check:
    record = TaskRecord(
        task_id="task-1", call_id="call-1", operation="topics.replay", arguments={}, principal="ann",
        started_ms=now_ms(), state=DONE,
    )  # fmt: skip
    await cluster.broker.port.write_state({TASKS + record.task_id: record.to_bytes()})

    async def check() -> None:
        await cluster.core.executor.tasks.sweep(now_ms())
        assert await cluster.broker.port.read_state(TASKS + record.task_id) is not None

    return check


async def revocation(cluster: Administered) -> Check:
    async def revoked(value: str) -> set[str]:
        await cluster("revocations.create", kind="jti", value=value, expires="24h")
        return {each.key for each in await cluster.broker.port.list_state(REVOCATIONS)}

    before = await revoked("leaked")

    async def check() -> None:
        assert before <= await revoked("another")

    return check


PLACES: Final = (
    retention_of_a_topic, time_to_live_of_a_message, deleted_topic, record_of_a_change, plan, task, revocation,
)  # fmt: skip


@pytest.fixture
async def cluster(anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Administered]:
    async with without_a_cold_tier(monkeypatch) as cluster:
        yield cluster


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    machine.restart(0)
    yield machine
    WallClock.__init__(CLOCK)


@pytest.mark.parametrize("off_ms", [OFF_MS, -OFF_MS], ids=["ahead", "behind"])
@pytest.mark.parametrize("jump", JUMPS, ids=lambda each: each.__name__)
async def test_nothing_is_destroyed_early(
    machine: Machine, cluster: Administered, jump: Callable[[Machine, int], None], off_ms: int
) -> None:
    failed: dict[str, Any] = {}
    for place in PLACES:
        if place is time_to_live_of_a_message and jump is before_a_start_after_a_boot and off_ms > 0:
            continue  # goes by witnesses alone: after a long stop, expired messages stay expired
        machine.restart(0)
        with anyio.fail_after(60):
            check = await place(cluster)
            jump(machine, off_ms)
            try:
                await check()
            except AssertionError as error:
                failed[place.__name__] = error
        machine.restart(0)
        if cluster.broker.registry.find(TopicName.parse("t")) is not None:
            await cluster.apply("topics.delete", topic="t")
    assert not failed, failed
