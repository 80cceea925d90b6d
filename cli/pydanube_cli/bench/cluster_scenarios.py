"""The scenarios of several brokers: costs of moves and failures, compared with the unavoidable ones.

    move      moves a topic under load, moves one with 64 MB that the object store does not have and that is written at
              5 MB/s, and drains a broker with many quiet topics
    failover  kills a broker and starts it again, kills a leader, and loses a broker whose topics are taken over
    link      two lone brokers: top speed and lag of a link, quiet mirrors, a fail-over (`link_scenario`)
    cluster   new topics, a topic on one of three beside a lone broker, calls that another broker carries, many idle topics

A ratio that ends in `_to_bound` is the figure divided by its upper bound: 1 and below is within. The bounds
are those of docs/research/measurements.md#several-brokers.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

from pydanube import connect
from pydanube_admin.remote import OpsClient
from pydanube_core.errors import ClusterError

from pydanube_cli.bench import scenarios
from pydanube_cli.bench.catalogue import Plan
from pydanube_cli.bench.fleet import RunningBroker, ServerCost, broker_of_our_own
from pydanube_cli.bench.link_scenario import link
from pydanube_cli.bench.own_cluster import BROKERS, PATIENCE, OwnCluster, own_cluster, until
from pydanube_cli.bench.payloads import percentiles_ms
from pydanube_cli.bench.result import COUNTS, sum_verified
from pydanube_cli.bench.role import for_every
from pydanube_cli.bench.take_over_scenario import taken_over
from pydanube_cli.render import prose

LOADED: Final = 8  # concurrent senders to one topic
PAUSE_S: Final = 0.01  # of each of them between two sends
KILLED_TOPICS: Final = 30
MADE: Final = 100  # new topics whose creation is measured
IDLE_S: Final = 20.0
PARTITIONS: Final = 100
OFTEN: Final = replace(PATIENCE, max_delay_s=0.1)  # when the broker's return is measured
LEASE_S: Final = 10.0
FEW_TOPICS: Final = 100  # of a lost broker: they are taken over within 1 s, more within 3 s
HEAVY_MESSAGE_BYTES: Final = 64 << 10
HEAVY_BYTES: Final = 64 << 20  # of the heavy topic before its first move
HEAVY_RATE: Final = 5_000_000 / HEAVY_MESSAGE_BYTES  # messages per second
HEAVY_MOVES: Final = 10  # at most
#: the object store gets nothing of the heavy topic
UNTIERED: Final = {"DANUBE_TIER__FLUSH_BYTES": "1GiB", "DANUBE_TIER__FLUSH_AGE": "1h"}

Found = dict[str, Any]


async def move(plan: Plan, runs: int, home: Path | None) -> Found:
    """Move a loaded topic `runs` times, then a heavy one. Then drain a broker with `plan.topics` quiet ones."""
    async with own_cluster(home, environment=UNTIERED) as cluster:
        pauses, needed, verified = await _moved_round(cluster, runs)
        heavy, took_s, heavy_needed, heavy_verified = await _heavy_moved(cluster, min(runs, HEAVY_MOVES))
        drain_s = await _drained(cluster, plan.topics)
    bound_ms = median(needed) + 100
    figures, heavy_figures = percentiles_ms(pauses), percentiles_ms(heavy)
    return {
        "median": {
            "pause": figures,
            "heavy_pause": heavy_figures,
            "heavy_move_s": _spread(took_s),
            "drain": {"topics": plan.topics, "seconds": round(drain_s, 2)},
        },
        "raw": {"three_transactions_two_syncs": percentiles_ms(needed)},
        "ratio": {
            "pause_p99_to_bound": _share(figures["p99_ms"], bound_ms),
            "heavy_pause_p99_to_bound": _share(heavy_figures["p99_ms"], median(heavy_needed) + 100),
            "drain_s_to_bound": _share(drain_s, 20 * max(1, plan.topics / 1000)),
        },
        "verified": {count: verified[count] + heavy_verified[count] for count in verified},
    }


async def _heavy_moved(
    cluster: OwnCluster, moves: int
) -> tuple[list[float], list[float], list[float], Found]:
    """Move a heavy topic, and check its messages.

    Return the milliseconds of each pause, the seconds of each move, the unavoidable milliseconds of a pause,
    and the check's counts.
    """
    pauses: list[float] = []
    took_s: list[float] = []
    needed: list[float] = []
    receipts: list[float] = []
    payload, enough = bytes(HEAVY_MESSAGE_BYTES), asyncio.Event()
    await cluster.call("topics.create", {"topic": "heavy"})
    owner = await cluster.owner("heavy")
    async with connect(cluster.broker(1).url, retry=PATIENCE) as client, client.producer("heavy") as producer:
        filled = HEAVY_BYTES // HEAVY_MESSAGE_BYTES
        await producer.send_many([payload] * filled)

        async def send() -> None:
            due_s = time.perf_counter()
            while not enough.is_set():
                await producer.send(payload)
                receipts.append(time.perf_counter())
                due_s = max(due_s + 1 / HEAVY_RATE, receipts[-1] - 0.2)
                await asyncio.sleep(max(0.0, due_s - receipts[-1]))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            await until(partial(_longer, receipts, 20), "the load is at work")
            for number in range(moves):
                transactions = [await cluster.transaction_ms() for _ in range(3)]
                needed.append(sum(transactions) + sum([await cluster.sync_ms() for _ in range(2)]))
                prose(f"move {number + 1} of {moves} of a heavy topic")
                before, begun_s = len(receipts), time.perf_counter()
                owner = await _unloaded(cluster, "heavy", owner)
                took_s.append(time.perf_counter() - begun_s)
                await until(partial(_longer, receipts, len(receipts) + 20), "the load goes on")
                within = receipts[max(0, before - 20) :]
                pauses.append(max(b - a for a, b in pairwise(within)) * 1000)
            enough.set()
    return pauses, took_s, needed, await _read_back(cluster, "heavy", filled + len(receipts))


async def _moved_round(cluster: OwnCluster, moves: int) -> tuple[list[float], list[float], Found]:
    """Return the milliseconds of each pause, the unavoidable ones of a move, and the counts of messages."""
    pauses: list[float] = []
    needed: list[float] = []
    await cluster.call("topics.create", {"topic": "moving"})
    owner = await cluster.owner("moving")
    async with _loaded(cluster, "moving") as receipts:
        await until(partial(_longer, receipts, 100), "the load is at work")
        for number in range(moves):
            transactions = [await cluster.transaction_ms() for _ in range(3)]
            needed.append(sum(transactions) + sum([await cluster.sync_ms() for _ in range(2)]))
            prose(f"move {number + 1} of {moves}")
            owner, begun = await _unloaded(cluster, "moving", owner), len(receipts)
            await until(partial(_longer, receipts, begun + 100), "the load goes on")
            within = receipts[max(0, begun - 100) :]
            pauses.append(max(b - a for a, b in pairwise(within)) * 1000)
    return pauses, needed, await _read_back(cluster, "moving", len(receipts))


async def _unloaded(cluster: OwnCluster, topic: str, owner: int) -> int:
    """Move a topic to another broker. Return that broker when the topic is there."""

    async def begun() -> bool:
        try:
            await cluster.call("topics.unload", {"topic": topic})
        except ClusterError:
            return False  # it is just being opened
        return True

    async def elsewhere() -> bool:
        with contextlib.suppress(ClusterError):
            found.append(await cluster.owner(topic))
        return bool(found) and found[-1] != owner

    found: list[int] = []
    await until(begun, "the move is begun")
    await until(elsewhere, f"{topic} has moved")
    return found[-1]


@asynccontextmanager
async def _loaded(cluster: OwnCluster, topic: str) -> AsyncIterator[list[float]]:
    """Send to a topic all the time. Yield the growing list of receipt times."""
    receipts: list[float] = []
    enough = asyncio.Event()
    async with connect(cluster.broker(1).url, retry=PATIENCE) as client, client.producer(topic) as producer:

        async def send() -> None:
            while not enough.is_set():
                await producer.send(bytes(128))
                receipts.append(time.perf_counter())
                await asyncio.sleep(PAUSE_S)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(LOADED):
                tasks.create_task(send())
            try:
                yield receipts
            finally:
                enough.set()


async def _read_back(cluster: OwnCluster, topic: str, sent: int) -> Found:
    """Read the topic back, and compare its messages with the acknowledged ones: each once."""
    received = 0
    async with connect(cluster.broker(1).url) as client, client.reader(topic, stop="head") as reader:
        async for _ in reader:
            received += 1
    more = max(0, received - sent)
    return {
        "sent": sent,
        "received": received,
        "missing": max(0, sent - received),
        "duplicates": more,
        "out_of_order": 0,
    }


async def _drained(cluster: OwnCluster, topics: int) -> float:
    """Return the seconds until a broker with so many quiet topics has none."""
    first = cluster.local.facts(1)["broker_id"]
    others = [cluster.local.facts(n)["broker_id"] for n in range(2, BROKERS + 1)]
    for each in others:
        await cluster.call("brokers.unload", {"broker_id": each})
    for each in others:
        await until(partial(_state, cluster, each, "drained"), "the others have no topics")
    prose(f"making {topics} topics at one broker")
    async with connect(cluster.broker(1).url, retry=PATIENCE) as client:

        async def one(n: int) -> None:
            async with client.producer(f"quiet-{n}") as producer:
                await producer.send(bytes(128))

        await for_every(range(topics), one)
    for each in others:
        await cluster.call("brokers.activate", {"broker_id": each})
        await until(partial(_state, cluster, each, "active"), "the others take topics")
    prose("draining it")
    begun = time.perf_counter()
    await cluster.call("brokers.unload", {"broker_id": first})
    await until(partial(_state, cluster, first, "drained"), "the broker is drained")
    return time.perf_counter() - begun


async def _state(cluster: OwnCluster, broker_id: str, state: str) -> bool:
    listed = await cluster.call("brokers.list", {})
    return any(each["broker_id"] == broker_id and each["state"] == state for each in listed["items"])


async def failover(plan: Plan, runs: int, home: Path | None) -> Found:
    """Kill a broker and start it again, kill the leader, and lose a broker of `plan.topics`, each `runs` times."""
    late: list[float] = []
    ready: list[float] = []
    led: list[float] = []
    async with own_cluster(home) as cluster:
        names = [f"kept-{n}" for n in range(KILLED_TOPICS)]
        for name in names:
            await cluster.call("topics.create", {"topic": name})
        for number in range(runs):
            leader = await cluster.leader()
            victim = next(n for n in range(1, BROKERS + 1) if n != leader)
            prose(f"run {number + 1} of {runs}: broker {victim} is killed and started")
            other = next(n for n in range(1, BROKERS + 1) if n != victim)
            of_it = [name for name in names if await cluster.owner(name, at=other) == victim]
            ready_s, served_s = await _killed(cluster, victim, of_it)
            ready.append(ready_s)
            late.append(served_s - ready_s)
            leader = await cluster.leader()
            assert leader is not None, "some broker leads while all run"
            prose(f"run {number + 1} of {runs}: broker {leader}, which leads, is killed")
            await cluster.local.kill_broker(leader)
            led.append(await until(partial(_another, cluster, leader), "another leads"))
            await cluster.local.start_broker(leader)
    taken, slowest, counts = await taken_over(plan.topics, runs, home)
    return {
        "median": {
            "restart_s": round(median(ready), 3),
            "topics_after_restart_s": _spread(late),
            "leader_s": _spread(led),
            "taken_over": {
                "topics": plan.topics,
                "each_topic_s": _spread(taken),
                "all_topics_s": _spread(slowest),
                "not_copied": sum(each["not_copied"] for each in counts),  # when their brokers were killed
                "not_copied_s": max(each["not_copied_s"] for each in counts),
            },
        },
        "raw": {"lease_s": LEASE_S},
        "ratio": {
            "topics_after_restart_to_bound": _share(max(late), 1.0),
            "leader_to_bound": _share(max(led), LEASE_S + 1),
            "taken_over_to_bound": _share(max(slowest), 1.0 if plan.topics <= FEW_TOPICS else 3.0),
        },
        "verified": {name: sum(each[name] for each in counts) for name in COUNTS},
    }


async def _killed(cluster: OwnCluster, n: int, topics: Sequence[str]) -> tuple[float, float]:
    """Kill a broker and start it. Return the seconds until it is ready, and until its last topic serves."""
    other = next(m for m in range(1, BROKERS + 1) if m != n)
    async with (
        connect(cluster.broker(other).url, retry=OFTEN) as client,
        contextlib.AsyncExitStack() as stack,
    ):
        producers = [await stack.enter_async_context(client.producer(name)) for name in topics]
        for producer in producers:
            await producer.send(bytes(128))
        await cluster.local.kill_broker(n)
        sends = [asyncio.create_task(producer.send(bytes(128))) for producer in producers]
        begun = time.perf_counter()
        await cluster.local.start_broker(n)
        ready_s = time.perf_counter() - begun
        await asyncio.gather(*sends)
        return ready_s, time.perf_counter() - begun


async def _another(cluster: OwnCluster, leader: int) -> bool:
    return await cluster.leader() not in (None, leader)


async def cluster(plan: Plan, runs: int, home: Path | None) -> Found:
    """Measure creation, one broker of three beside a lone one, relayed calls and idle brokers."""
    async with own_cluster(home, one_address=True) as several:
        made, transactions = await _created(several)
        with broker_of_our_own(home, "up") as lone:
            prose("a topic on one of three, beside a lone broker")
            topics = await several.topics_of((1, 2), 3 * runs)
            first = several.broker(1)
            ours: list[Found] = []
            alone: list[Found] = []
            for number in range(runs):
                alone.append(await _run(scenarios.e2e, plan, lone, f"alone-{number}"))
                ours.append(await _run(scenarios.e2e, plan, first, topics[1].pop()))
            relayed = await _relayed(plan, runs, first, (topics[1], topics[2]))
            idle = await _idle(several, lone, plan.topics)
    creation, transaction = percentiles_ms(made), percentiles_ms(transactions)
    cost = [median(run["server"]["cpu_us_per_message"] for run in each) for each in (alone, ours)]
    assert transaction["p99_ms"] is not None
    return {
        "median": {
            "creation": creation,
            "lone_cpu_us_per_message": round(cost[0], 3),
            "one_of_three_cpu_us_per_message": round(cost[1], 3),
            "relayed": relayed,
            "idle": idle,
        },
        "raw": {"transaction": transaction},
        "ratio": {
            "creation_p99_to_bound": _share(creation["p99_ms"], 4 * transaction["p99_ms"] + 50),
            "one_of_three_to_lone": round(cost[0] / cost[1], 3),
            "relayed_batched": relayed["batched"]["ratio"],
            "relayed_single": relayed["single"]["ratio"],
            "idle_to_bound": _share(idle["cpu_share"], idle["lone_cpu_share"] + 0.01),
            "idle_writes_to_bound": _share(idle["etcd_writes_per_s_a_broker"], 1.0),
        },
        "verified": sum_verified([*alone, *ours]),
    }


async def _created(cluster: OwnCluster) -> tuple[list[float], list[float]]:
    """Return the milliseconds for creating a topic, and for a transaction of etcd beside each."""
    made: list[float] = []
    transactions: list[float] = []
    async with contextlib.AsyncExitStack() as stack:
        urls = [cluster.broker(n).admin_url for n in range(1, BROKERS + 1)]
        clients = [await stack.enter_async_context(OpsClient(url)) for url in urls]
        for n in range(MADE + BROKERS):
            transactions.append(await cluster.transaction_ms())
            begun = time.perf_counter()
            await clients[n % BROKERS].call("topics.create", {"topic": f"made-{n}"})
            made.append((time.perf_counter() - begun) * 1000)
    del made[:BROKERS], transactions[:BROKERS]  # the first call of each connects
    return made, transactions


async def _run(
    scenario: Callable[[Plan, RunningBroker, str], Found], plan: Plan, broker: RunningBroker, topic: str
) -> Found:
    return await asyncio.to_thread(scenario, plan, broker, topic)


async def _relayed(plan: Plan, runs: int, first: RunningBroker, topics: tuple[list[str], list[str]]) -> Found:
    """Return messages per second through one broker, alternating between its own topics and another's."""
    single = replace(plan, scenario="unary", messages=max(1000, plan.messages // 100), producers=64)
    found: Found = {}
    for kind, scenario, each in (("batched", scenarios.publish, plan), ("single", scenarios.unary, single)):
        rates: tuple[list[float], list[float]] = ([], [])
        for _ in range(runs):
            for names, into in zip(topics, rates, strict=True):
                into.append((await _run(scenario, each, first, names.pop()))["messages_per_s"])
        direct, relayed = map(median, rates)
        found[kind] = {"direct": direct, "relayed": relayed, "ratio": round(relayed / direct, 3)}
        prose(f"relayed {kind}: {relayed / direct:.2f}")
    return found


async def _idle(cluster: OwnCluster, lone: RunningBroker, topics: int) -> Found:
    """Return the share of a core that idle brokers take: each of three, and a lone one with a third of the topics."""
    prose(f"making {topics} unused topics")

    async def there(n: int) -> None:
        await cluster.call("topics.create", {"topic": f"idle-{n}", "partitions": PARTITIONS})

    await for_every(range(topics // PARTITIONS), there)
    async with connect(lone.url) as client:  # as many as each of three has

        async def alone(n: int) -> None:
            async with client.producer(f"idle-{n}"):
                pass

        await for_every(range(topics // BROKERS), alone)
    await asyncio.sleep(IDLE_S)  # the new topics are written down and followed
    before = await cluster.revision()
    running = [*(cluster.broker(n) for n in range(1, BROKERS + 1)), lone]
    costs = [ServerCost(each.pid) for each in running]
    with contextlib.ExitStack() as stack:
        for cost in costs:
            stack.enter_context(cost)
        await asyncio.sleep(IDLE_S)
    shares = [round((cost.cpu_s or 0.0) / IDLE_S, 4) for cost in costs]
    writes = await cluster.revision() - before
    return {
        "topics": topics,
        "cpu_share": max(shares[:-1]),
        "lone_cpu_share": shares[-1],
        "etcd_writes_per_s_a_broker": round(writes / IDLE_S / BROKERS, 3),
    }


async def _longer(receipts: Sequence[float], than: int) -> bool:
    return len(receipts) > than


def _share(value: float | None, bound: float) -> float | None:
    return None if value is None else round(value / bound, 3)


def _spread(seconds: Sequence[float]) -> Found:
    return {"median": round(median(seconds), 3), "max": round(max(seconds), 3)}


CLUSTER_SCENARIOS: Final[dict[str, Callable[[Plan, int, Path | None], Coroutine[Any, Any, Found]]]] = {
    "move": move,
    "failover": failover,
    "cluster": cluster,
    "link": link,
}
