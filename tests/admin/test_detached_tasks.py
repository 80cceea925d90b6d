"""Calls that nobody waits for: answered with a task, kept with their result, taken up or said cut off after a crash."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from pydanube_admin.core import AdminCore
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import ClusterError, InvalidArgument

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

    def __init__(self, cluster: SlowCluster) -> None:
        cluster.lives += 1
        self._port = cluster.port
        self.life = f"7/{cluster.lives}"
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

    def __init__(self, cluster: SlowCluster) -> None:
        self.cluster = cluster
        self.port: Any = BornAgain(cluster)
        self.core = AdminCore(self.port)

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
async def living(cluster: SlowCluster) -> AsyncIterator[Life]:
    life = Life(cluster)
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
