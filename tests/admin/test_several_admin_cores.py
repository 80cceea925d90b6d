"""Two admin cores over one store: no record of the audit, no plan and no change of the one is lost to the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import anyio
import pytest
from pydanube_admin.core import AdminCore
from pydanube_admin.engine.change_records import INTERRUPTED, Changes
from pydanube_core.errors import ClusterError

from tests.admin.real_broker import Administered, administered
from tests.support.filled_cluster import add_topic

pytestmark = pytest.mark.anyio


class Door:
    """The port as one of two brokers offers it: the store is shared, the life is its own."""

    def __init__(self, port: Any, life: str, over: set[str]) -> None:
        self._port = port
        self.life = life
        self.over = over

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def is_over(self, life: str) -> bool:
        return life in self.over


class Two:
    """`ann` and `bob` are admin cores of two brokers."""

    def __init__(self, cluster: Administered) -> None:
        self.cluster = cluster
        self.over: set[str] = set()
        self.doors = [Door(cluster.broker.port, life, self.over) for life in ("1/1", "2/1")]
        self.cores = [self.core(door) for door in self.doors]
        self.ann, self.bob = (Administered(cluster.broker, core) for core in self.cores)

    def core(self, door: Any) -> AdminCore:
        return AdminCore(door)

    async def aclose(self) -> None:
        for core in self.cores:
            await core.aclose()


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    async with administered() as cluster:
        await add_topic(cluster, "/default/orders", messages=5)
        both = Two(cluster)
        try:
            yield both
        finally:
            await both.aclose()


class Held:
    """A method of a door that waits before it does its work, which may be another one that takes no time."""

    def __init__(self, door: Door, name: str, *, does: Callable[..., Awaitable[Any]] | None = None) -> None:
        self._does = does or getattr(door, name)
        self.begun, self.go = anyio.Event(), anyio.Event()
        setattr(door, name, self)

    async def __call__(self, *args: Any, **named: Any) -> Any:
        self.begun.set()
        await self.go.wait()
        return await self._does(*args, **named)


async def test_records_of_both_stand_in_one_chain(two: Two) -> None:
    async def calls(core: Administered, name: str) -> None:
        for number in range(15):
            await core("topics.create", topic=f"{name}-{number}")
            await core("topics.describe", topic=f"{name}-{number}")

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(calls, two.ann, "a")
            tasks.start_soon(calls, two.bob, "b")
        checked = await two.ann("audit.verify")
    assert (checked["intact"], checked["forged"], checked["chain_only"]) == (True, 0, 0)
    page = await two.bob("audit.query", operation="topics.create", limit=1000)
    outcomes = Counter(item["arguments"]["topic"] for item in page["items"] if item["phase"] == "outcome")
    assert outcomes == Counter([f"{name}-{number}" for name in "ab" for number in range(15)])


async def test_token_used_at_both_at_once_works_once(two: Two) -> None:
    call = {"topic": "orders", "payload": "once"}
    plan = await two.ann("messages.publish", **call, plan_only=True)
    results: list[dict[str, Any] | ClusterError] = []

    async def apply(core: AdminCore) -> None:
        arguments = {**call, "plan_token": plan["plan_token"]}
        found = await core.call("messages.publish", arguments, principal="ann", face="cli")
        results.append(found if isinstance(found, ClusterError) else found.model_dump())

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for core in two.cores:
                tasks.start_soon(apply, core)
    refused = [found.code for found in results if isinstance(found, ClusterError)]
    assert refused == ["PLAN_USED"]
    assert (await two.cluster.payloads("/default/orders")).count(b"once") == 1


async def test_change_of_a_topic_waits_for_the_others_and_its_undo_knows_of_it(two: Two) -> None:
    await two.ann("topics.create", topic="bills")
    held = Held(two.doors[0], "set_topic_policies")
    found: dict[str, Any] = {}

    async def by_ann() -> None:
        await two.ann("topics.set_policies", topic="orders", policies={"max_publish_rate": 100})

    async def by_bob() -> None:
        given = {"max_publish_rate": 200}
        found.update(await two.bob("topics.set_policies", topic="/default/orders", policies=given))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(by_ann)
            await held.begun.wait()
            tasks.start_soon(by_bob)
            await two.bob(
                "topics.set_policies", topic="bills", policies={"max_publish_rate": 1}
            )  # another topic
            assert not found
            held.go.set()
    await two.ann("changes.undo", call_id=found["call_id"])
    now = await two.bob("topics.get_policies", topic="orders")
    assert now["policies"] == {"max_publish_rate": 100}


async def test_core_that_begins_leaves_alone_what_the_other_is_at(two: Two) -> None:
    await two.ann("topics.list")
    change = Held(two.doors[0], "set_topic_policies")
    work = Held(two.doors[0], "flush_objects", does=flushed)

    async def by_ann(name: str, **arguments: Any) -> None:
        await two.ann(name, **arguments)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            given: Mapping[str, int] = {"max_publish_rate": 100}
            await two.ann("objects.flush", topic="orders", detach=True)
            await work.begun.wait()
            tasks.start_soon(lambda: by_ann("topics.set_policies", topic="orders", policies=given))
            await change.begun.wait()
            await two.cores[1].begin()
            running = await two.bob("tasks.list")
            assert [task["state"] for task in running["items"]] == ["running"]
            error = await two.bob.refused("tasks.cancel", task_id=running["items"][0]["task_id"])
            assert (error.code, error.details["broker_id"]) == ("CONFLICT", "1")
            change.go.set()
            work.go.set()
    with anyio.fail_after(30):
        while (await two.bob("tasks.list"))["items"][0]["state"] == "running":  # noqa: ASYNC110
            await anyio.sleep(0.01)
    page = await two.bob("audit.query", limit=1000)
    assert "interrupted" not in {item["decision"] for item in page["items"]}


async def test_a_start_marks_changes_of_lives_that_are_over_as_interrupted_and_no_others(two: Two) -> None:
    changes = Changes(two.cluster.broker.port)
    await two.ann("topics.list")
    held = Held(two.doors[0], "set_topic_policies")

    async def by_ann() -> None:
        await two.ann("topics.set_policies", topic="orders", policies={"max_publish_rate": 100})

    async def begin(life: str) -> None:
        core = two.core(Door(two.cluster.broker.port, life, two.over))
        two.cores.append(core)
        await core.begin()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(by_ann)
            await held.begun.wait()
            (under_way,) = await changes.cut_off()
            await begin("2/2")
            assert await changes.cut_off() == [under_way], "its broker lives, and will say what became of it"
            two.over.add("1/1")
            await begin("2/3")
            assert await changes.cut_off() == []
            found = await changes.get(under_way.call_id)
            assert found is not None
            assert found[0].state == INTERRUPTED
            tasks.cancel_scope.cancel()
    held.go.set()


async def test_what_a_broker_was_at_when_its_life_ended_is_free(two: Two) -> None:
    await two.bob("topics.list")
    held = Held(two.doors[0], "set_topic_policies")

    async def by_ann() -> None:
        await two.ann("topics.set_policies", topic="orders", policies={"max_publish_rate": 100})

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(by_ann)
            await held.begun.wait()
            two.over.add("1/1")
            await two.bob("topics.set_policies", topic="orders", policies={"max_publish_rate": 200})
            third = two.core(Door(two.cluster.broker.port, "1/2", two.over))
            two.cores.append(third)
            await third.begin()
            tasks.cancel_scope.cancel()
    assert sorted(await outcomes(two)) == ["allowed", "interrupted"]
    held.go.set()  # it lived after all: what it says comes behind
    with anyio.fail_after(30):
        while len(await outcomes(two)) < 3:  # noqa: ASYNC110
            await anyio.sleep(0.01)


async def flushed(topic: str) -> int:
    return 5


async def outcomes(two: Two) -> list[str]:
    """What became of the changes of policies."""
    page = await two.bob("audit.query", operation="topics.set_policies", limit=1000)
    return [item["decision"] for item in page["items"] if item["phase"] == "outcome"]
