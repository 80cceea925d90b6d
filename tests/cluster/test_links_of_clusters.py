"""A cluster of three brokers on one etcd and a cluster of one on another, mirrored in either direction, while something fails.

The source's producers go on through all of it. In the end a reader of each side finds the same messages at the same offsets
with the same append times, and the history says that they are what the producers were told.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol

import anyio
import pytest
from anyio import to_thread
from pydanube import ClusterError, connect
from pydanube_admin.remote import OpsClient

from tests.cluster.real_cluster import BROKERS, RealCluster, real_cluster
from tests.support.broker_process import BrokerProcess
from tests.support.etcd import EtcdMembers
from tests.support.history import History
from tests.support.load import PATIENCE, Load, read_topic
from tests.support.progress import Progress
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.anyio, pytest.mark.timeout(1200)]

ORDERS: Final = "/default/orders"
PARTS: Final = "/default/parts"
ALONE: Final = 4  # network of the broker that is a cluster by itself
COPIED_S: Final = 300.0
AWAY_S: Final = 60.0


class Fault(StrEnum):
    KILL_THREE = "a broker of the three is killed"
    KILL_ONE = "the broker of the other cluster is killed"
    MOVE = "a partition of the three moves"
    CUT = "the clusters do not reach each other for a minute"
    CUT_ONE_WAY = "what the one cluster sends to a broker of the other is lost"


class Side(Protocol):
    """One of the two clusters."""

    @property
    def urls(self) -> str: ...

    @property
    def admin(self) -> str: ...

    async def call(self, operation: str, arguments: dict[str, Any] | None = None) -> Any: ...


class One:
    """A broker that is a cluster by itself, on an etcd of its own."""

    def __init__(self, folder: Path, cluster: RealCluster, etcd: EtcdMembers) -> None:
        self.broker = BrokerProcess(
            folder,
            arguments=["--metadata", etcd.url("/other")],
            environment={
                "DANUBE_JOURNAL__SEGMENT_BYTES": "1MiB",
                "DANUBE_DATA__MIN_FREE_BYTES": "1MiB",
                "DANUBE_TIER__FLUSH_AGE": "5s",
                "DANUBE_TIER__URL": str(folder / "objects"),
                "DANUBE_SERVER__HOST": cluster.networks.address(ALONE),
                "DANUBE_SERVER__INSECURE_BIND": "true",
            },
            face="broker",
            within=cluster.networks.command(ALONE),
        )

    @property
    def urls(self) -> str:
        return "danube://" + self.broker.url.partition("://")[2]

    @property
    def admin(self) -> str:
        return self.broker.admin

    async def call(self, operation: str, arguments: dict[str, Any] | None = None) -> Any:
        with anyio.fail_after(30):
            async with OpsClient(self.broker.admin) as ops:
                return await ops.call(operation, arguments or {})


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[RealCluster, One]]:
    with ExitStack() as stack:
        cluster = stack.enter_context(real_cluster(tmp_path / "three", more=1))
        etcd = stack.enter_context(EtcdMembers(tmp_path / "etcd", 1, host=cluster.networks.here))
        one = One(tmp_path / "one", cluster, etcd)
        stack.callback(one.broker.close)
        yield cluster, one


async def planned(side: Side, operation: str, arguments: dict[str, Any]) -> Any:
    """Carry out an operation that wants a plan."""
    async with OpsClient(side.admin, timeout_s=60) as ops:
        with pytest.raises(ClusterError) as planned:
            await ops.call(operation, arguments)
        assert planned.value.code == "PLAN_REQUIRED", planned.value
        return await ops.call(operation, arguments, plan_token=planned.value.details["plan"]["plan_token"])


async def ends(side: Side) -> dict[str, int] | None:
    """Return log → its next offset; None while some log has no owner."""
    found: dict[str, int] = {}
    for topic in (ORDERS, PARTS):
        try:
            described = await side.call("topics.describe", {"topic": topic})
        except ClusterError:
            return None
        for each in described["parts"] or [described]:
            if each["next_offset"] is None:
                return None
            found[each["topic"]] = each["next_offset"]
    return found


async def until_copied(source: Side, here: Side) -> dict[str, int]:
    at: dict[str, int] | None = None

    async def equal() -> bool:
        nonlocal at
        at = await ends(source)
        return at is not None and at == await ends(here)

    try:
        await until(equal, COPIED_S)
    except TimeoutError:
        raise AssertionError(
            (at, await ends(here), await here.call("links.describe", {"link": "eu"}))
        ) from None
    assert at is not None
    return at


async def move(cluster: RealCluster, rng: random.Random) -> None:
    topic = rng.choice((ORDERS, f"{PARTS}-part-{rng.randrange(3)}"))
    await until(lambda: cluster.begin_move(topic))


async def strike(cluster: RealCluster, one: One, fault: Fault, rng: random.Random) -> None:
    n = rng.choice(BROKERS)
    match fault:
        case Fault.KILL_THREE | Fault.KILL_ONE:
            hit = cluster.brokers[n] if fault is Fault.KILL_THREE else one.broker
            await to_thread.run_sync(hit.kill)
            await to_thread.run_sync(hit.start)
        case Fault.MOVE:
            await move(cluster, rng)
        case Fault.CUT:
            for each in BROKERS:
                cluster.networks.cut(each, ALONE)
                cluster.networks.cut(ALONE, each)
            await anyio.sleep(AWAY_S)
            cluster.networks.heal()
        case Fault.CUT_ONE_WAY:
            pair = rng.sample((n, ALONE), 2)
            cluster.networks.cut(*pair)
            await anyio.sleep(13.0)
            cluster.networks.heal()


@pytest.mark.parametrize("direction", ["three_to_one", "one_to_three"])
async def test_a_mirror_is_the_same_whatever_fails_on_either_side(
    both: tuple[RealCluster, One], direction: str
) -> None:
    seed = os.environ.get("CLUSTER_SEED") or str(random.SystemRandom().randrange(1 << 32))
    print(f"CLUSTER_SEED={seed}")
    rng = random.Random(f"{seed}/{direction}")
    cluster, one = both
    source, here = (cluster, one) if direction == "three_to_one" else (one, cluster)
    await cluster.start()
    await to_thread.run_sync(one.broker.start)
    await source.call("topics.create", {"topic": ORDERS})
    await source.call("topics.create", {"topic": PARTS, "partitions": 3})
    await here.call("links.create", {"link": "eu", "source": source.urls, "topics": "/default/*"})
    history, progress = History(seed), Progress()
    load = Load(source.urls, history, progress.one, pause_s=0.02)
    async with anyio.create_task_group() as producing:
        producing.start_soon(lambda: load.lone("lone", ORDERS, seed, style="full"))
        producing.start_soon(lambda: load.bursts("bursts", ORDERS, seed))
        producing.start_soon(lambda: load.batches("parted", PARTS, seed, style="keyed", partitions=3))
        await progress.more(20)
        await until_mirrored(here)
        faults = [*Fault, Fault.MOVE, Fault.KILL_THREE, Fault.KILL_ONE]
        rng.shuffle(faults)
        for fault in faults:
            print(fault)
            await progress.more(rng.choice((10, 40)))
            if rng.random() < 0.5:
                await move(cluster, rng)  # so that the fault meets a move
                await anyio.sleep(rng.random() * 0.6)
            await strike(cluster, one, fault, rng)
        load.stop()
    await until_copied(source, here)
    link = await here.call("links.describe", {"link": "eu"})
    assert [each["gap"] for each in link["mirrors"]] == [None] * 4, link
    await check_same(source, here, history)
    await until(lambda: said(here, state="copying", lag_messages=0))
    await move(cluster, rng)  # the fail-over meets it, at the mirror or at the source
    done = await planned(here, "links.fail_over", {"link": "eu"})
    assert {each["topic"] for each in done["topics"]} == {ORDERS, PARTS}
    assert done["missing_messages"] == 0
    async with connect(here.urls, retry=PATIENCE) as client, client.producer(PARTS, partitions=3) as producer:
        for n in range(9):
            await producer.send(b"%d" % n)
    print(f"{history.acknowledged} messages acknowledged")


async def until_mirrored(here: Side) -> None:
    async def four() -> bool:
        return len((await here.call("links.describe", {"link": "eu"}))["mirrors"]) == 4

    await until(four)


async def said(here: Side, **wanted: Any) -> bool:
    link = await here.call("links.describe", {"link": "eu"})
    return all(link[name] == value for name, value in wanted.items())


async def check_same(source: Side, here: Side, history: History) -> None:
    """Read both sides, compare them, and hold them against what the producers were told."""
    async with (
        connect(here.urls, retry=PATIENCE) as mirror,
        connect(source.urls, retry=PATIENCE) as original,
    ):
        for topic in (ORDERS, PARTS):
            rows = await read_topic(mirror, topic)
            history.check_log(topic, rows)
            assert rows == await read_topic(original, topic)
    history.check_no_failures()
