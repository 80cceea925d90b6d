"""Calls that nobody waits for: answered with a task, kept with their result, taken up or said cut off after a crash."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from pydanube_admin.core import AdminCore
from pydanube_admin.engine.audit.audit_records import Entry
from pydanube_admin.engine.context import Context, system_now_ms
from pydanube_admin.engine.models import Change
from pydanube_admin.engine.stored_records import CALL, new_id
from pydanube_admin.engine.task_records import INTERRUPTED, PREFIX, TaskRecord, broker_of, task_id_of
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import ClusterError, DiskFull, InvalidArgument
from pydanube_core.facts import MoveFacts

from tests.admin.real_broker import Administered, administered
from tests.support.filled_cluster import add_topic, emptied

pytestmark = pytest.mark.anyio

VERIFIED = {"checked": 3, "damaged": [], "missing": [], "gaps": [], "duplicates": []}


class SlowCluster:
    """A broker whose long work waits for `go`; `begun` counts how often it began."""

    def __init__(self, cluster: Administered, patch: pytest.MonkeyPatch) -> None:
        self.cluster = cluster
        self.port: ClusterPort = cluster.broker.port
        for work in ("verify_objects", "flush_objects", "replay_topic", "orphans", "collect_objects"):
            patch.setattr(self.port, work, getattr(self, work))
        self.begun: list[str] = []
        self.go = anyio.Event()
        self.damaged: list[dict[str, Any]] = []
        self.lives = 0

    async def verify_objects(self, topic: str, *, start: int, end: int | None) -> Mapping[str, Any]:
        self.begun.append("verify")
        await self.go.wait()
        if topic == "/default/broken":
            raise InvalidArgument("it cannot be verified", field="topic", value=topic)
        return {**VERIFIED, "damaged": self.damaged}

    async def flush_objects(self, topic: str) -> int:
        self.begun.append("flush")
        await self.go.wait()
        return 7

    async def replay_topic(
        self, topic: str, *, ranges: Mapping[str, tuple[int, int]], to: str
    ) -> Sequence[Mapping[str, Any]]:
        self.begun.append("replay")
        await self.go.wait()
        return ()

    async def orphans(self, topic: str) -> Sequence[Mapping[str, Any]]:
        return [{"path": "a.parquet", "bytes": 5}]

    async def collect_objects(self, topic: str) -> Sequence[Mapping[str, Any]]:
        self.begun.append("collect")
        await self.go.wait()
        return await self.orphans(topic)


class BornAgain:
    """The port of a broker whose earlier lives are over; once it is `dead` too, what is written there is lost."""

    def __init__(self, cluster: SlowCluster, broker_id: str) -> None:
        cluster.lives += 1
        self._port = cluster.port
        self.life = f"{broker_id}/{cluster.lives}"
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def is_over(self, life: str) -> bool:
        return life != self.life

    async def write_state(self, *changes: Any, **more: Any) -> int:
        return 0 if self.dead else await self._port.write_state(*changes, **more)

    async def append_audit(self, payloads: Sequence[bytes], *, at: int) -> None:
        if not self.dead:
            await self._port.append_audit(payloads, at=at)


class Life:
    """One life of a broker's admin core."""

    def __init__(
        self, cluster: SlowCluster, now_ms: Callable[[], int] = system_now_ms, broker_id: str = "7"
    ) -> None:
        self.cluster = cluster
        self.port: Any = BornAgain(cluster, broker_id)
        self.core = AdminCore(self.port, now_ms=now_ms)

    async def __call__(self, name: str, **arguments: Any) -> dict[str, Any]:
        found = await self.core.call(name, arguments, principal="ann", face="mcp")
        if isinstance(found, ClusterError):
            raise found
        body: dict[str, Any] = found.model_dump(mode="json", by_alias=True)
        return body

    async def ended(self, task_id: str) -> dict[str, Any]:
        with anyio.fail_after(30):
            while (task := await self("tasks.get", task_id=task_id))["state"] == "running":  # noqa: ASYNC110
                await anyio.sleep(0.01)
        return task

    def kill(self) -> None:
        """As SIGKILL: what it was about to write is not written any more."""
        for task in list(self.core.executor.tasks._detached):
            task.cancel()
        self.port.dead = True


@pytest.fixture(scope="module")
async def lasting(anyio_backend: str) -> AsyncIterator[Administered]:
    """What outlives the lives of the admin core: the broker's store, topics and audit."""
    async with administered() as cluster:
        yield cluster


@pytest.fixture
async def cluster(lasting: Administered, monkeypatch: pytest.MonkeyPatch) -> SlowCluster:
    await emptied(lasting)
    port = lasting.broker.port
    for item in await port.list_state("tasks/"):
        await port.write_state({item.key: None})
    await add_topic(lasting, "/default/orders", messages=5)
    return SlowCluster(lasting, monkeypatch)


@asynccontextmanager
async def living(cluster: SlowCluster, now_ms: Callable[[], int] = system_now_ms) -> AsyncIterator[Life]:
    life = Life(cluster, now_ms)
    try:
        yield life
    finally:
        cluster.go.set()
        await life.core.aclose()


async def outcomes(cluster: SlowCluster, call_id: str) -> list[tuple[str, str]]:
    _, stored = await cluster.port.read_audit(start=0, max_messages=1000)
    records = [json.loads(payload) for _, payload in stored]
    return [(each["phase"], each["decision"]) for each in records if each["call_id"] == call_id]


async def test_a_detached_call_is_answered_with_its_task_and_its_result_is_kept(cluster: SlowCluster) -> None:
    async with living(cluster) as life:
        task = await life("objects.verify", topic="orders", detach=True)
        assert (task["state"], task["operation"], task["detached"]) == ("running", "objects.verify", True)
        assert (await life("tasks.get", task_id=task["task_id"]))["result"] is None
        cluster.go.set()
        done = await life.ended(task["task_id"])
        assert (done["state"], done["result"]) == ("done", VERIFIED)
        await life.core.audit.settled()
        assert (await outcomes(cluster, task["of_call"])) == [("outcome", "allowed")]


async def test_a_result_beyond_the_bound_is_said_not_kept(cluster: SlowCluster) -> None:
    cluster.damaged = [{"path": "x" * 1000} for _ in range(300)]
    async with living(cluster) as life:
        cluster.go.set()
        task = await life("objects.verify", topic="orders", detach=True)
        done = await life.ended(task["task_id"])
        assert (done["state"], done["result"]) == ("done", None)
        assert "bytes" in done["result_reason"]


async def test_an_error_is_kept_as_the_call_would_have_had_it(cluster: SlowCluster) -> None:
    await add_topic(cluster.cluster, "/default/broken")
    async with living(cluster) as life:
        cluster.go.set()
        task = await life("objects.verify", topic="broken", detach=True)
        done = await life.ended(task["task_id"])
        assert (done["state"], done["code"]) == ("failed", "INVALID_ARGUMENT")
        assert done["error"]["details"]["field"] == "topic"
        missing = await life("objects.verify", topic="nope", detach=True)
        assert (await life.ended(missing["task_id"]))["code"] == "TOPIC_NOT_FOUND"


async def test_what_destroys_wants_its_plan_first_detached_or_not(cluster: SlowCluster) -> None:
    async with living(cluster) as life:
        with pytest.raises(ClusterError) as refused:
            await life("objects.collect", topic="orders", detach=True)
        assert refused.value.code == "PLAN_REQUIRED"
        assert cluster.begun == []
        token = refused.value.details["plan"]["plan_token"]
        task = await life("plans.apply", plan_token=token, detach=True)
        assert task["operation"] == "objects.collect"
        cluster.go.set()
        done = await life.ended(task["task_id"])
        assert (done["via"], done["result"]["deleted"]) == ("plans.apply", ["a.parquet"])
        assert done["plan_id"] == token.partition(".")[0]
        assert (done["result"]["call_id"], done["result"]["plan_id"]) == (task["of_call"], done["plan_id"])


async def test_a_read_through_another_operation_is_a_task_too(cluster: SlowCluster) -> None:
    async with living(cluster) as life:
        inner = {"operation": "objects.verify", "arguments": {"topic": "orders"}}
        task = await life("operations.read", **inner, detach=True)
        assert task["operation"] == "objects.verify"
        cluster.go.set()
        assert (await life.ended(task["task_id"]))["via"] == "operations.read"
        short = {"operation": "topics.describe", "arguments": {"topic": "orders"}}
        assert (await life("operations.read", **short, detach=True))["operation"] == "topics.describe"


async def test_cancelled_by_its_id(cluster: SlowCluster) -> None:
    async with living(cluster) as life:
        task = await life("objects.flush", topic="orders", detach=True)
        await life("tasks.cancel", task_id=task["task_id"])
        assert (await life.ended(task["task_id"]))["state"] == "cancelled"


async def test_there_is_a_bound(cluster: SlowCluster) -> None:
    async with living(cluster) as life:
        for _ in range(16):
            await life("objects.verify", topic="orders", detach=True)
        with pytest.raises(ClusterError) as refused:
            await life("objects.verify", topic="orders", detach=True)
        assert refused.value.code == "LIMIT_REACHED"


@pytest.mark.parametrize("arguments", [{"detach": "yes"}, {"detach": True, "plan_only": True}])
async def test_what_detach_is_not(cluster: SlowCluster, arguments: dict[str, Any]) -> None:
    async with living(cluster) as life:
        with pytest.raises(ClusterError) as refused:
            await life("objects.flush", topic="orders", **arguments)
        assert (refused.value.code, refused.value.details["field"]) == ("INVALID_ARGUMENT", "detach")
        with pytest.raises(ClusterError, match="no argument 'detach'"):
            await life("topics.describe", topic="orders", detach=True)


@pytest.mark.parametrize("operation", ["objects.verify", "objects.flush"])
async def test_killed_and_finished_by_the_next_life_under_the_same_id(
    cluster: SlowCluster, operation: str
) -> None:
    first = Life(cluster)
    task = await first(operation, topic="orders", detach=True)
    first.kill()
    async with living(cluster) as second:
        await second.core.begin()
        again = await second("tasks.get", task_id=task["task_id"])
        assert (again["state"], again["begun_again"]) == ("running", 1)
        cluster.go.set()
        done = await second.ended(task["task_id"])
        assert (done["state"], done["of_call"]) == ("done", task["of_call"])
        assert len(cluster.begun) == 2
        await second.core.audit.settled()
        assert (await outcomes(cluster, task["of_call"]))[-1] == ("outcome", "allowed")


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [("topics.replay", {"from": "earliest", "to": "again"}), ("objects.collect", {})],
)
async def test_killed_and_said_to_be_cut_off_where_it_would_not_come_to_the_same_end(
    cluster: SlowCluster, operation: str, arguments: dict[str, Any]
) -> None:
    first = Life(cluster)
    plan = await first(operation, topic="orders", **arguments, plan_only=True)
    task = await first("plans.apply", plan_token=plan["plan_token"], detach=True)
    first.kill()
    async with living(cluster) as second:
        await second.core.begin()
        cut = await second("tasks.get", task_id=task["task_id"])
        assert (cut["state"], cut["error"]["details"]["interrupted"]) == ("interrupted", True)
        assert len(cluster.begun) == 1
        assert (await outcomes(cluster, task["of_call"]))[-1] == ("outcome", "interrupted")


async def test_stopped_in_order_it_is_taken_up_as_well(cluster: SlowCluster) -> None:
    first = Life(cluster)
    task = await first("objects.flush", topic="orders", detach=True)
    await first.core.aclose()
    async with living(cluster) as second:
        await second.core.begin()
        cluster.go.set()
        assert (await second.ended(task["task_id"]))["state"] == "done"
        await second.core.audit.settled()
        assert (await outcomes(cluster, task["of_call"])) == [("call", "allowed"), ("outcome", "allowed")]


async def test_one_that_ends_the_broker_does_not_do_so_for_ever(cluster: SlowCluster) -> None:
    life = Life(cluster)
    task = await life("objects.verify", topic="orders", detach=True)
    for _ in range(4):
        life.kill()
        life = Life(cluster)
        await life.core.begin()
    assert (await life("tasks.get", task_id=task["task_id"]))["state"] == "interrupted"
    assert len(cluster.begun) == 4
    await life.core.aclose()


class Clock:
    """A clock that can be set forward."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return system_now_ms() + self.ahead_ms


async def test_the_audit_has_a_call_that_a_task_follows_at_the_time_of_its_end(
    cluster: SlowCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = broker_of(cluster.port.life)  # the one broker there is: a target has to answer

    async def to_another(topic: str, target: str | None = None) -> dict[str, str]:
        return {topic: own}

    looks = 0

    async def moves() -> list[MoveFacts]:
        nonlocal looks
        looks += 1
        if looks == 1:  # before it begins
            return []
        await cluster.go.wait()
        raise DiskFull("there is no room")

    for name, stands_in in (("destinations", to_another), ("move_topic", to_another), ("moves", moves)):
        monkeypatch.setattr(cluster.port, name, stands_in)
    clock = Clock()
    async with living(cluster, clock) as life:
        moved = await life("topics.unload", topic="orders")
        clock.ahead_ms = 1_800_000
        cluster.go.set()
        assert (await life.ended(moved["task_id"]))["state"] == "failed"
        for operation, more in (("audit.query", {"effect": "change"}), ("changes.list", {"by": "ann"})):
            found = (await life(operation, since="10m", **more))["items"]
            assert [each["call_id"] for each in found] == [moved["call_id"]], operation


async def test_the_audit_has_a_long_call_at_the_time_of_its_end(cluster: SlowCluster) -> None:
    clock = Clock()
    async with living(cluster, clock) as life:
        tasks = [await life(f"objects.{name}", topic="orders", detach=True) for name in ("flush", "verify")]
        clock.ahead_ms = 1_800_000
        cluster.go.set()
        for task in tasks:
            await life.ended(task["task_id"])
        await life.core.audit.settled()
        found = (await life("audit.query", since="10m", filter="objects.*"))["items"]
        assert {each["call_id"] for each in found} == {task["of_call"] for task in tasks}


async def test_a_task_that_is_cancelled_before_its_call_is_answered_ends(cluster: SlowCluster) -> None:
    async with living(cluster) as life:
        tasks, audit = life.core.executor.tasks, life.core.audit
        context = Context(
            port=life.port,
            now_ms=system_now_ms,
            face="cli",
            principal="ann",
            call_id=new_id(CALL, system_now_ms()),
            operation="topics.move",
            executor=life.core.executor,
            audit=audit,
        )
        over = anyio.Event()

        async def work() -> Change:
            over.set()
            return Change()

        task_id = await tasks.follow(context, {}, work())
        await over.wait()
        assert tasks.cancel(task_id)
        await anyio.sleep(0.01)
        assert tasks.leaves_outcome(Entry.of(context, "topics.move", {}))
        assert tasks.cancel(task_id), "again, while its end is recorded"
        assert (await life.ended(task_id))["state"] == "done"
        assert await outcomes(cluster, context.call_id) == [("outcome", "allowed")]


def left_running(life: str, **more: Any) -> TaskRecord:
    call_id = new_id(CALL, system_now_ms())
    return TaskRecord(
        task_id=task_id_of(call_id), call_id=call_id, operation="topics.move", arguments={"topic": "orders"},
        principal="ann", started_ms=system_now_ms(), face="cli", detached=True, life=life, **more,
    )  # fmt: skip


async def test_many_tasks_left_running_cost_one_look_at_the_audit(
    cluster: SlowCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, reads = cluster.port.read_audit, 0

    async def counted(*, start: int, max_messages: int) -> Any:
        nonlocal reads
        reads += 1
        return await read(start=start, max_messages=max_messages)

    async with living(cluster) as life:
        left = [left_running("7/0") for _ in range(20)]
        for each in left:
            await cluster.port.write_state({PREFIX + each.task_id: each.to_bytes()})
        monkeypatch.setattr(cluster.port, "read_audit", counted)
        await life.core.begin()
        assert reads < 10
        for each in left:
            assert (await life("tasks.get", task_id=each.task_id))["state"] == "interrupted"
            assert await outcomes(cluster, each.call_id) == [("outcome", "interrupted")]


async def test_the_outcome_of_an_interrupted_task_is_left_to_the_audit_of_its_broker(
    cluster: SlowCluster,
) -> None:
    theirs, own = left_running("8/1"), left_running("7/0", state=INTERRUPTED)
    async with living(cluster) as life:
        for each in (theirs, own):  # another broker was first to record the interruption of our own
            await cluster.port.write_state({PREFIX + each.task_id: each.to_bytes()})
        call = Entry(
            call_id=own.call_id, principal="ann", face="cli", operation=own.operation, arguments={}, time_ms=1
        )
        await life.core.audit.write(call.call())
        await life.core.begin()
        assert (await life("tasks.get", task_id=theirs.task_id))["state"] == "interrupted"
        assert await outcomes(cluster, theirs.call_id) == []
        assert await outcomes(cluster, own.call_id) == [("call", "allowed"), ("outcome", "interrupted")]


async def test_brokers_that_start_together_take_a_task_up_once(
    cluster: SlowCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Life(cluster)
    task = await first("objects.flush", topic="orders", detach=True)
    first.kill()
    lives = [Life(cluster, broker_id=broker_id) for broker_id in ("7", "8")]
    both, looking = anyio.Event(), 0

    async def is_over(self: BornAgain, life: str) -> bool:
        nonlocal looking
        looking += 1
        if looking == len(lives):
            both.set()
        await both.wait()  # both have read the task by now
        return life not in [each.port.life for each in lives]

    monkeypatch.setattr(BornAgain, "is_over", is_over)
    async with anyio.create_task_group() as group:
        for each in lives:
            group.start_soon(each.core.begin)
    cluster.go.set()
    for each in lives:
        assert (await each.ended(task["task_id"]))["state"] == "done"
        await each.core.aclose()
    assert cluster.begun == ["flush", "flush"]
    assert await outcomes(cluster, task["of_call"]) == [("call", "allowed"), ("outcome", "allowed")]
