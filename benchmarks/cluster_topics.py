"""Topics of three brokers beside those of a broker alone: creation, lists, start and drain.

    python benchmarks/cluster_topics.py                  # 1 000 topics
    python benchmarks/cluster_topics.py --topics 200 --rounds 3 --assert

Both are real processes, the cluster on one member of etcd with a folder as its object store. Each round makes a share of the
topics at each of the two in turns, and lists all pages, so that both meet the same load of the machine. Then both stop and start
again, and one broker of the cluster is drained. The ratios are of medians. Goals: creation at least half as fast as alone, lists
within three times and a start within twice the time of a broker alone with as many topics.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pydanube_admin.remote import OpsClient

from benchmarks.measuring import parser_of
from tests.support.broker_process import BrokerProcess
from tests.support.etcd import EtcdMembers

BROKERS: Final = 3
AT_ONCE: Final = 16
PAGE: Final = 1_000
DEADLINE_S: Final = 600.0
#: name → whether the cluster's value is divided by the other's (a time), and the goal
GOALS: Final = {"created_per_s": (False, 0.5), "list_s": (True, 3.0), "start_s": (True, 2.0)}


class Measured:
    """One broker, or several, with what was measured of them."""

    def __init__(self, brokers: list[BrokerProcess]) -> None:
        self.brokers = brokers
        self.found: dict[str, list[float]] = {name: [] for name in GOALS}

    async def create(self, names: list[str]) -> None:
        """Make topics, `AT_ONCE` at a time, over the brokers in turns."""
        left = iter(enumerate(names))
        begun_s = time.monotonic()
        clients = [OpsClient(broker.admin, timeout_s=60) for broker in self.brokers]

        async def work() -> None:
            for at, name in left:
                await clients[at % len(clients)].call("topics.create", {"topic": name})

        try:
            await asyncio.gather(*(work() for _ in range(AT_ONCE)))
            self.found["created_per_s"].append(len(names) / (time.monotonic() - begun_s))
        finally:
            for client in clients:
                await client.aclose()

    async def list_all(self) -> int:
        """List all pages at the first broker. Return the number of topics."""
        begun_s, count = time.monotonic(), 0
        page: dict[str, Any] = {}
        async with OpsClient(self.brokers[0].admin, timeout_s=60) as client:
            while True:
                found = await client.call("topics.list", {"limit": PAGE, **page})
                count += len(found["items"])
                if found["next_page"] is None:
                    break
                page = {"page": found["next_page"]}
        self.found["list_s"].append(time.monotonic() - begun_s)
        return count

    async def restart(self, topics: int) -> None:
        """Stop all, start all, and wait until every topic is served."""
        for broker in self.brokers:
            broker.terminate()
        for broker in self.brokers:
            await asyncio.to_thread(broker.wait, DEADLINE_S)
        begun_s = time.monotonic()
        for broker in self.brokers:
            broker.begin()
        for broker in self.brokers:
            await asyncio.to_thread(broker.wait_ready, DEADLINE_S)
        await self.until(lambda served: sum(served.values()) >= topics)
        self.found["start_s"].append(time.monotonic() - begun_s)

    async def until(self, reached: Callable[[dict[str, int]], bool]) -> None:
        """Wait until the topics that each active broker serves, by its id, are as wanted."""
        async with OpsClient(self.brokers[0].admin, timeout_s=60) as client, asyncio.timeout(DEADLINE_S):
            while True:
                items = (await client.call("brokers.list"))["items"]
                if reached({each["broker_id"]: each["topics"] for each in items if each["state"] != "gone"}):
                    return
                await asyncio.sleep(0.1)

    async def drain(self) -> tuple[int, float]:
        """Drain the last broker. Return its topics, and the seconds until it has none."""
        broker_id, topics = str(self.brokers[-1].info["broker_id"]), 0
        async with OpsClient(self.brokers[0].admin, timeout_s=60) as client:
            items = (await client.call("brokers.list"))["items"]
            topics = next(each["topics"] for each in items if each["broker_id"] == broker_id)
        begun_s = time.monotonic()
        async with OpsClient(self.brokers[0].admin, timeout_s=60) as client:
            await client.call("brokers.unload", {"broker_id": broker_id})
        await self.until(lambda served: not served[broker_id])
        return topics, time.monotonic() - begun_s


@contextmanager
def running(folder: Path) -> Iterator[tuple[Measured, Measured]]:
    """Start a broker alone, and a cluster."""
    with ExitStack() as stack:
        etcd = stack.enter_context(EtcdMembers(folder / "etcd", 1))
        alone = BrokerProcess(folder / "alone", face="broker")
        cluster = [
            BrokerProcess(
                folder / f"broker-{n}",
                face="broker",
                arguments=["--metadata", etcd.url("/cluster")],
                environment={"DANUBE_TIER__URL": (folder / "objects").as_uri()},
            )
            for n in range(BROKERS)
        ]
        (folder / "objects").mkdir()
        for broker in (alone, *cluster):
            stack.enter_context(broker)
        yield Measured([alone]), Measured(cluster)


async def measure(topics: int, rounds: int, folder: Path) -> bool:
    """Measure, print, and return whether all goals are reached."""
    with running(folder) as (alone, cluster):
        share = topics // rounds
        for turn in range(rounds):
            for each in (alone, cluster) if turn % 2 else (cluster, alone):
                await each.create([f"topic-{turn}-{n:05d}" for n in range(share)])
                assert await each.list_all() == share * (turn + 1)
        for each in (alone, cluster):
            await each.restart(share * rounds)
        moved, drain_s = await cluster.drain()
    reached = True
    print(f"{share * rounds} topics, load {os.getloadavg()[0]:.1f}")
    for name, (is_time, goal) in GOALS.items():
        one, three = (statistics.median(each.found[name]) for each in (alone, cluster))
        ratio = three / one
        reached &= ratio <= goal if is_time else ratio >= goal
        print(
            f"{name:14} alone {one:8.2f}   cluster {three:8.2f}   ratio {ratio:5.2f}   goal {'≤' if is_time else '≥'} {goal}"
        )
    print(f"drain of {moved} topics {drain_s:.1f} s, {moved / drain_s:.1f} a second")
    return reached


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--assert", dest="asserted", action="store_true", help="exit 1 if a goal is missed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cluster-topics-") as folder:
        reached = asyncio.run(measure(options.topics, options.rounds, Path(folder)))
    return 0 if reached or not options.asserted else 1


if __name__ == "__main__":
    raise SystemExit(main())
