"""`danube bench link`: two lone brokers, and a link by which one mirrors topics of the other.

Its top speed is compared with an SDK consumer and producer that copy the same messages in one process. Two readers, one at
each side, measure lag at half of the top speed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, Final

from pydanube import Client, connect
from pydanube_admin.remote import OpsClient
from pydanube_core.errors import ClusterError

from pydanube_cli.bench.catalogue import Plan
from pydanube_cli.bench.fleet import RunningBroker, ServerCost, broker_of_our_own
from pydanube_cli.bench.own_cluster import PATIENCE, until
from pydanube_cli.bench.payloads import Checker, make_payloads, percentiles_ms
from pydanube_cli.render import prose

QUIET_S: Final = 20.0
LOADED_S: Final = 10.0
TICK_S: Final = 0.005  # between two sends at half of the top speed
FAILED_OVER: Final = 100  # topics
FAIL_OVER_S: Final = 2.0  # the bound for them
QUIET_SHARE: Final = 0.01  # of a core: the bound for 1 000 quiet mirrors
AT_ONCE: Final = 5_000  # messages of a `send_many`

Found = dict[str, Any]


async def link(plan: Plan, runs: int, home: Path | None) -> Found:
    """Measure top speed and lag `runs` times, then quiet mirrors and a fail-over once."""
    with broker_of_our_own(home) as source, broker_of_our_own(home) as here:
        found = [await _loaded(plan, number, runs, source, here) for number in range(runs)]
        quiet = await _quiet(plan.topics, source, here)
        fail_over_s = await _failed_over(source, here)
    link_rate, sdk_rate = (median(each[name] for each in found) for name in ("link", "sdk"))
    ms = [each for one in found for each in one["ms"]]
    messages = sorted(each for one in found for each in one["messages"])
    return {
        "median": {
            "top": {"messages_per_s": round(link_rate), "sdk_messages_per_s": round(sdk_rate)},
            "lag": percentiles_ms(ms),
            "lag_messages": {
                name: messages[int(share * (len(messages) - 1))]
                for name, share in (("p50", 0.5), ("p99", 0.99))
            },
            "quiet": {"mirrors": plan.topics, **quiet},
            "fail_over": {"topics": FAILED_OVER, "seconds": round(fail_over_s, 2)},
        },
        "raw": {},
        "ratio": {
            "top_to_sdk": round(median(each["link"] / each["sdk"] for each in found), 3),
            "quiet_to_bound": round(quiet["share_of_a_core"] / (QUIET_SHARE * max(1, plan.topics / 1000)), 3),
            "fail_over_to_bound": round(fail_over_s / FAIL_OVER_S, 3),
        },
        "verified": {
            name: sum(each["verified"][name] for each in found)
            for name in ("sent", "received", "missing", "duplicates", "out_of_order")
        },
    }


async def _call(broker: RunningBroker, operation: str, **arguments: Any) -> Found:
    """Call an operation, with the token of its plan if it requires one."""
    async with OpsClient(broker.admin_url, timeout_s=120) as ops:
        try:
            return await ops.call(operation, arguments)
        except ClusterError as error:
            if error.code != "PLAN_REQUIRED":
                raise
            return await ops.call(operation, arguments, plan_token=error.details["plan"]["plan_token"])


async def _linked(source: RunningBroker, here: RunningBroker, name: str, topics: str) -> None:
    address = source.url.replace("http://", "danube://")
    await _call(here, "links.create", link=name, source=address, topics=topics)


async def _end(broker: RunningBroker, topic: str) -> int:
    try:
        return int((await _call(broker, "topics.describe", topic=topic))["next_offset"])
    except ClusterError:
        return 0


async def _until_end(broker: RunningBroker, topic: str, end: int) -> float:
    """Wait until a topic reaches an offset. Return messages per second since the first were seen."""
    seen: list[tuple[float, int]] = []

    async def reached() -> bool:
        at = await _end(broker, topic)
        if not at:
            seen.clear()
        seen.append((time.perf_counter(), at))
        return at >= end

    await until(reached, f"{topic} has {end} messages")
    (first_s, first), (last_s, last) = seen[0], seen[-1]
    return (last - first) / max(1e-3, last_s - first_s)


async def _loaded(plan: Plan, number: int, runs: int, source: RunningBroker, here: RunningBroker) -> Found:
    topic, copy = f"/fast/run-{number}", f"/fast/copy-{number}"
    with contextlib.suppress(ClusterError):
        await _call(source, "namespaces.create", namespace="fast")
        await _call(here, "namespaces.create", namespace="fast")
    async with connect(source.url, retry=PATIENCE) as there, connect(here.url, retry=PATIENCE) as client:
        async with there.producer(topic) as producer:
            for start in range(0, plan.messages, AT_ONCE):
                await producer.send_many(_payloads(start, min(AT_ONCE, plan.messages - start), plan.size))
        sdk = await _copied_by_sdk(there, client, topic, copy, plan.messages)
        await _linked(source, here, f"run-{number}", topic)
        top = await _until_end(here, topic, plan.messages)
        prose(f"run {number + 1} of {runs}: link {top:,.0f} messages/s, SDK {sdk:,.0f}")
        ms, messages, sent = await _lagging(there, client, topic, plan.messages, plan.size, top / 2)
        await _until_end(here, topic, sent)
        verified = await _read_back(client, topic, sent, plan.size)
    await _call(here, "links.delete", link=f"run-{number}")
    return {"link": top, "sdk": sdk, "ms": ms, "messages": messages, "verified": verified}


def _payloads(start: int, count: int, size: int) -> list[bytes]:
    return make_payloads(producer=0, first=start, count=count, size=size, now_ns=time.time_ns())


async def _copied_by_sdk(there: Client, here: Client, topic: str, copy: str, count: int) -> float:
    """Copy a topic with a consumer and a producer. Return messages per second."""
    begun_s, done = time.perf_counter(), 0
    async with (
        there.consumer(topic, "copy", start="earliest") as consumer,
        here.producer(copy) as producer,
        asyncio.TaskGroup() as tasks,
    ):
        room = asyncio.Semaphore(8)
        async for batch in consumer.batches():

            async def store(batch: Any = batch) -> None:
                try:
                    await producer.send_many(list(batch.payloads))
                    await batch.ack()
                finally:
                    room.release()

            await room.acquire()
            tasks.create_task(store())
            done += len(batch)
            if done >= count:
                break
    return count / (time.perf_counter() - begun_s)


async def _lagging(
    there: Client, here: Client, topic: str, first: int, size: int, rate: float
) -> tuple[list[float], list[int], int]:
    """Write at a rate. Return milliseconds and messages by which the mirror's reader was behind, and the last end."""
    arrivals: dict[str, list[tuple[int, float]]] = {"there": [], "here": []}
    sent = first

    async def watch(client: Client, side: str) -> None:
        async with client.reader(topic, start=f"offset:{first}") as reader:
            async for batch in reader.batches():
                arrivals[side].append((batch.offsets[-1] + 1, time.perf_counter()))

    async def arrived() -> bool:
        return all(each and each[-1][0] >= sent for each in arrivals.values())

    async with asyncio.TaskGroup() as tasks:
        watching = [tasks.create_task(watch(there, "there")), tasks.create_task(watch(here, "here"))]
        async with there.producer(topic) as producer:
            begun_s = time.perf_counter()
            while (now_s := time.perf_counter()) < begun_s + LOADED_S:
                due = first + int((now_s - begun_s) * rate)
                if due > sent:
                    await producer.send_many(_payloads(sent, due - sent, size))
                    sent = due
                await asyncio.sleep(TICK_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60):
                await until(arrived, "the readers have all")
        for each in watching:
            each.cancel()
    ms, messages = _behind(arrivals["there"], arrivals["here"])
    return ms, messages, sent


def _behind(
    there: Sequence[tuple[int, float]], here: Sequence[tuple[int, float]]
) -> tuple[list[float], list[int]]:
    """Return by how much the mirror was behind at each arrival: milliseconds after the source's reader, and messages."""
    ends, times = [end for end, _ in there], [at for _, at in there]
    ms: list[float] = []
    messages: list[int] = []
    for end, at_s in here:
        place = min(bisect_left(ends, end), len(ends) - 1)
        ms.append(max(0.0, (at_s - times[place]) * 1000))
        newest = bisect_left(times, at_s) - 1
        messages.append(max(0, ends[max(0, newest)] - end))
    return ms, messages


async def _read_back(client: Client, topic: str, sent: int, size: int) -> Found:
    checker = Checker(size=size)
    async with client.reader(topic, stop="head") as reader:
        async for batch in reader.batches():
            checker.add(batch.payloads, time.time_ns())
    return asdict(checker.verify([sent]))


async def _topics(broker: RunningBroker, namespace: str, count: int) -> None:
    await _call(broker, "namespaces.create", namespace=namespace)
    async with OpsClient(broker.admin_url, timeout_s=120) as ops:
        for number in range(count):
            await ops.call("topics.create", {"topic": f"/{namespace}/t-{number}"})


async def _until_mirrored(here: RunningBroker, name: str, count: int) -> None:
    async def mirrored() -> bool:
        found = await _call(here, "links.describe", link=name)
        return bool(found["topics"] == count and found["lag_messages"] == 0)

    await until(mirrored, f"{count} mirrors")


async def _quiet(count: int, source: RunningBroker, here: RunningBroker) -> Found:
    """Return the share of a core that quiet mirrors take at each side."""
    prose(f"making {count} quiet topics and their mirrors")
    before = await _busy(source), await _busy(here)
    await _topics(source, "quiet", count)
    await _linked(source, here, "quiet", "/quiet/*")
    await _until_mirrored(here, "quiet", count)
    await asyncio.sleep(5.0)  # until heads and telemetry of the new topics are written
    own = await _busy(source) - before[0]
    share = await _busy(here) - before[1]
    return {"share_of_a_core": round(max(0.0, share), 4), "share_at_the_source": round(max(0.0, own), 4)}


async def _busy(broker: RunningBroker) -> float:
    begun_s = time.perf_counter()
    with ServerCost(broker.pid) as cost:
        await asyncio.sleep(QUIET_S)
    assert cost.cpu_s is not None, "a broker of our own has a process"
    return cost.cpu_s / (time.perf_counter() - begun_s)


async def _failed_over(source: RunningBroker, here: RunningBroker) -> float:
    """Return the seconds of a fail-over, from its call to its result."""
    await _topics(source, "hundred", FAILED_OVER)
    await _linked(source, here, "hundred", "/hundred/*")
    await _until_mirrored(here, "hundred", FAILED_OVER)
    begun_s = time.perf_counter()
    done = await _call(here, "links.fail_over", link="hundred")
    assert len(done["topics"]) == FAILED_OVER, done
    return time.perf_counter() - begun_s
