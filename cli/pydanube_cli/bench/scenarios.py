"""The scenarios: which workers run in which order, and the figures of one run.

    e2e      producers and consumers together, from the first send to the last message received
    publish  producers alone
    consume  consumers of a topic that is full
    latency  one producer, one message at a time, each awaited
    await    coroutines of one process that each await one send (`--producers` counts them)
    backlog  a reader that is far behind, beside it lone sends, then 8 producers that await each send
    unary    the official clients' path: `producers` that each have one call in flight, `consumers` beside them
    topics   very many topics, a subscription each: memory, and time to ready after a stop and after a SIGKILL
    replay   consumers of messages that only objects hold, against a broker that was started again
    tier     a broker starts with its store, which was away while the topic was filled, and writes the objects
    stored   a topic that is acknowledged once the object store has it, beside one of the broker's disk

An exclusive consumer has a subscription of its own and gets every message, so with several consumers each is
checked alone and the slowest one counts. Consumers of another type share one subscription and are checked
together.

A run that measures a type of subscription, keys or late acks comes after one of the plain batch path, and the
result has their ratio: on a machine that is busy with other things too, only neighbours can be compared.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydanube_admin.remote import call_sync
from pydanube_core.errors import DeadlineExceeded

from pydanube_cli.bench.catalogue import WRITERS, Plan
from pydanube_cli.bench.fleet import Crew, RunningBroker, ServerCost
from pydanube_cli.bench.payloads import Part, make_payloads, make_tally, merge, percentiles_ms
from pydanube_cli.bench.raw import parquet_read_per_s, parquet_write_mb_per_s
from pydanube_cli.bench.result import sum_verified
from pydanube_cli.bench.sampling import stages
from pydanube_cli.bench.stored import stored

WARM_UP_SENDS: Final = 200
# Processes. The client is busier than the broker, and a single one would limit the rate
UNARY_WORKERS: Final = 4
ALONE_MESSAGES: Final = 8_000  # of the 8 producers before the reader starts
FLUSHED_SOON: Final = {"DANUBE_TIER__FLUSH_AGE": "500ms"}
# Small segments are deleted as soon as they are tiered, so that nearly everything is in objects only.
SMALL_TAIL: Final = {**FLUSHED_SOON, "DANUBE_JOURNAL__SEGMENT_BYTES": "16MiB"}
# Port 1 refuses. Beyond half a gigabyte, segments are flushed under any settings of the tier, so it must be
# away.
STORE_AWAY: Final = {"DANUBE_TIER__URL": "s3://away", "DANUBE_TIER__ENDPOINT": "http://127.0.0.1:1"}
TIER_QUIET_S: Final = 60.0
PARQUET_BYTES: Final = 64 << 20  # of payloads that pyarrow writes beside

Run = dict[str, Any]


def _spec(plan: Plan, broker: RunningBroker, topic: str, role: str, **more: Any) -> dict[str, Any]:
    return {
        "role": role,
        "broker": broker.url,
        "topic": topic,
        "size": plan.size,
        "index": 0,
        "messages": plan.messages,
        "warm_up": WARM_UP_SENDS,
        "compression": plan.compression,
        "timeout_s": plan.timeout_s,
        "keys": plan.keys,
        "ack_delay_s": 0.0,
        "sampled": plan.profiled and role in ("produce_each", "consume_each"),
        **more,
    }


def _producers(plan: Plan, broker: RunningBroker, topic: str) -> list[dict[str, Any]]:
    role = "produce_each" if plan.each else "produce_many"
    return [
        _spec(plan, broker, topic, role, index=index, messages=share)
        for index, share in enumerate(plan.shares)
    ]


@contextmanager
def _consumers(plan: Plan, broker: RunningBroker, topic: str) -> Iterator[Crew]:
    """Start consumers, and yield them when they are ready."""
    common = {"sub_type": plan.sub_type, "ack_delay_s": plan.ack_delay_s, "sent": plan.shares}
    with tempfile.TemporaryDirectory(prefix="danube-bench-") as folder:
        if plan.shared_subscription:
            tally = Path(folder, "tally")
            make_tally(tally, plan.consumers)
            specs = [
                _spec(
                    plan, broker, topic, "consume_share", index=index, subscription="bench", tally=str(tally)
                )
                for index in range(plan.consumers)
            ]
        else:
            role = "consume_each" if plan.each else "consume_batches"
            specs = [
                _spec(plan, broker, topic, role, index=index, subscription=f"bench-{index}")
                for index in range(plan.consumers)
            ]
        with Crew([spec | common for spec in specs]) as crew:
            yield crew


def e2e(plan: Plan, broker: RunningBroker, topic: str) -> Run:
    """Publish and consume at the same time."""
    _create(plan, broker, topic)
    with (
        _consumers(plan, broker, topic) as consumers,
        Crew(_producers(plan, broker, topic)) as producers,
        ServerCost(broker.pid) as cost,
    ):
        consumers.go()
        producers.go()
        made, got = producers.results(), consumers.results()
    return {
        **_rates(plan.messages, plan.size, _seconds(made, got)),
        **_worst(got),
        **_checked(plan, got),
        "durability": made[0]["durability"],
        "publish_messages_per_s": _publish_rate(made),
        "clients": {
            "producers_cpu_us_per_message": _cpu_us(made, plan.messages),
            "consumers_cpu_us_per_message": _cpu_us(got, plan.messages),
        },
        **(
            {"samples": {"producer": made[0]["samples"], "consumer": got[0]["samples"]}}
            if plan.profiled
            else {}
        ),
        **_server(cost, plan.messages),
    }


def publish(plan: Plan, broker: RunningBroker, topic: str) -> Run:
    """Publish without consumers. `latency` measures how long a message waits for its receipt."""
    _create(plan, broker, topic)
    made, cost = _worked(_producers(plan, broker, topic), broker)
    return {
        **_rates(plan.messages, plan.size, _seconds(made)),
        **_no_latency("publish measures throughput. See bench latency"),
        "verified": sum_verified(_read_back(plan, broker, topic)),
        "durability": made[0]["durability"],
        **_server(cost, plan.messages),
    }


def consume(plan: Plan, broker: RunningBroker, topic: str) -> Run:
    """Fill the topic, then consume it."""
    made = _fill(plan, broker, topic)
    with _consumers(plan, broker, topic) as consumers, ServerCost(broker.pid) as cost:
        consumers.go()
        got = consumers.results()
    return {
        **_rates(plan.messages, plan.size, _seconds(got)),
        **_no_latency("the messages were there before"),
        **_checked(plan, got),
        "durability": made[0]["durability"],
        "clients": {"consumers_cpu_us_per_message": _cpu_us(got, plan.messages)},
        **_server(cost, plan.messages * (1 if plan.shared_subscription else plan.consumers)),
    }


def latency(plan: Plan, broker: RunningBroker, topic: str) -> Run:
    """Send single messages, each awaited before the next."""
    [made], cost = _worked([_spec(plan, broker, topic, "send_lone")], broker)
    return {
        **_rates(plan.messages, plan.size, _seconds([made])),
        **made["latency"],
        "verified": sum_verified(_read_back(plan, broker, topic, sent=[plan.messages])),
        "durability": made["durability"],
        **_server(cost, plan.messages),
    }


def await_(plan: Plan, broker: RunningBroker, topic: str) -> Run:
    """Send from many coroutines that each await their send."""
    spec = _spec(plan, broker, topic, "send_await", coroutines=plan.producers, producers=1)
    [made], cost = _worked([spec], broker)
    return {
        **_rates(made["acknowledged"], plan.size, _seconds([made])),
        **made["latency"],
        "verified": sum_verified(_read_back(plan, broker, topic, sent=[plan.messages])),
        "durability": made["durability"],
        **_server(cost, made["acknowledged"]),
    }


def unary(plan: Plan, broker: RunningBroker, topic: str) -> Run:
    """Send as official clients do, from a few producers in each process, and receive as they do."""
    _create(plan, broker, topic)
    shares = list(enumerate(plan.shares))
    workers = min(UNARY_WORKERS, plan.producers)
    receiving = [
        _spec(plan, broker, topic, "consume_unary", index=at, subscription=f"bench-{at}", sent=plan.shares)
        for at in range(plan.consumers)
    ]
    sending = [
        _spec(plan, broker, topic, "send_unary", index=WRITERS + at, producers=shares[at::workers])
        for at in range(workers)
    ]
    with Crew(receiving) as consumers, Crew(sending) as producers, ServerCost(broker.pid) as cost:
        consumers.go()
        producers.go()
        made, got = producers.results(), consumers.results()
    return {
        **_rates(plan.messages, plan.size, _seconds(made)),
        **percentiles_ms([ms for result in made for ms in result["taken_ms"]]),
        "verified": sum_verified([*_read_back(plan, broker, topic), *got]),
        "durability": made[0]["durability"],
        "delivered_messages_per_s": round(plan.messages / _seconds(got), 1) if got else None,
        **_server(cost, plan.messages),
    }


def backlog(plan: Plan, broker: RunningBroker, topic: str) -> Run:
    """Read a large backlog, first beside single sends, then beside `producers` that await each send.

    The first run fills the topic and the others read it again. `messages_per_s` is the reader beside the lone
    sends, and percentiles are those of the lone sends beside it. For a type of subscription, keys or late
    acks, `consumers` drain the backlog instead, and nothing is published beside.
    """
    if plan.about_a_subscription:
        return consume(plan, broker, topic)
    full = f"{topic.rpartition('-')[0]}-full"
    if topic.endswith("-0"):
        _fill(plan, broker, full)
    writers = {"coroutines": plan.producers, "producers": plan.producers}
    _create(plan, broker, topic)
    [alone], _ = _worked(
        [_spec(plan, broker, topic, "send_await", **writers | {"messages": ALONE_MESSAGES})], broker
    )
    with ServerCost(broker.pid) as cost:
        lone, got = _beside_reader(plan, broker, full, _spec(plan, broker, topic, "send_lone", messages=None))
    beside, second = _beside_reader(
        plan, broker, full, _spec(plan, broker, topic, "send_await", **writers | {"messages": None})
    )
    seconds = (got["ended"] - got["first"]) / 1e9
    rate_alone, rate_beside = _publish_rate([alone]), _publish_rate([beside])
    return {
        **_rates(plan.messages, plan.size, seconds),
        **lone["latency"],
        "verified": sum_verified([got, second]),
        "durability": lone["durability"],
        "beside": {
            "lone_send": {"sends": lone["acknowledged"], **lone["latency"]},
            "producers": {
                "count": plan.producers,
                "alone_messages_per_s": rate_alone,
                "beside_messages_per_s": rate_beside,
                "share": round(rate_beside / rate_alone, 4),
            },
        },
        **_server(cost, plan.messages + lone["acknowledged"]),
    }


def topics(plan: Plan, broker: RunningBroker, topic: str) -> Run:
    """Fill many topics, acknowledge half of each, stop and start the broker, kill and start it, drain the rest."""
    assert broker.owned is not None, (
        "checked by the command: a broker that the bench did not start is not restarted"
    )
    base, more = divmod(plan.messages, plan.topics)
    sent = [base + (number < more) for number in range(plan.topics)]
    rss: dict[str, int] = {}
    ready_s: dict[str, float] = {}
    costs: list[ServerCost] = []

    def at_work(running: RunningBroker, role: str) -> dict[str, Any]:
        spec = _spec(plan, running, topic, role, topics=plan.topics, sent=sent)
        [result], cost = _worked([spec], running)
        costs.append(cost)
        rss["filled" if role == "fill_topics" else "drained"] = cost.rss_bytes()
        return result

    def restart(name: str, *, kill: bool) -> RunningBroker:
        assert broker.owned is not None
        broker.owned.stop(kill=kill)
        begun = time.monotonic()
        running = broker.owned.start()
        ready_s[name] = round(time.monotonic() - begun, 3)
        rss[name] = ServerCost(running.pid).rss_bytes()
        return running

    made = at_work(broker.owned.running, "fill_topics")
    restart("after_stop", kill=False)
    rest = at_work(restart("after_kill", kill=True), "drain_topics")
    verified = merge([Part(**result["part"]) for result in (made, rest)], sent)
    cpu = [cost.cpu_s for cost in costs]
    return {
        **_rates(plan.messages, plan.size, _seconds([made])),
        **_no_latency("topics measures memory and starts"),
        "verified": asdict(verified),
        "durability": made["durability"],
        "topics": {"count": plan.topics, "rss_bytes": rss, "ready_s": ready_s},
        "server": {
            "cpu_us_per_message": None
            if None in cpu
            else round(sum(filter(None, cpu)) * 1e6 / plan.messages, 3),
            "rss_peak_bytes": max((cost.rss_peak_bytes or 0 for cost in costs), default=0) or None,
        },
    }


def replay(plan: Plan, broker: RunningBroker, topic: str) -> Run:
    """Fill a topic, tier it, start the broker again, and consume it from the objects."""
    assert broker.owned is not None, (
        "checked by the command: a broker that the bench did not start is not restarted"
    )
    filled = broker.owned.restart(SMALL_TAIL)
    made = _fill(plan, filled, topic)
    _wait_tiered(plan, filled)
    cold = broker.owned.restart(SMALL_TAIL)
    with _consumers(plan, cold, topic) as consumers, ServerCost(cold.pid) as cost:
        consumers.go()
        got = consumers.results()
    rates = _rates(plan.messages, plan.size, _seconds(got))
    paths = [Path(item["path"]) for item in _objects(plan, cold, topic)]
    read_per_s = parquet_read_per_s(paths) if all(path.is_file() for path in paths) else None
    return {
        **rates,
        **_no_latency("the messages were there before"),
        **_checked(plan, got),
        "durability": made[0]["durability"],
        "tier": {
            "objects": len(paths),
            "cold_reads": _tier_status(plan, cold)["cold_reads"],
            "pyarrow_messages_per_s": read_per_s,
            "share_of_pyarrow": None
            if read_per_s is None
            else round(rates["messages_per_s"] / read_per_s, 4),
        },
        **_server(cost, plan.messages * plan.consumers),
    }


def tier(plan: Plan, broker: RunningBroker, topic: str) -> Run:
    """Fill a topic while the object store is away, start the broker with its store, and wait for the objects."""
    assert broker.owned is not None, (
        "checked by the command: a broker that the bench did not start is not restarted"
    )
    made = _fill(plan, broker.owned.restart(STORE_AWAY), topic)
    tiering = broker.owned.restart(FLUSHED_SOON)
    begun = time.monotonic()
    with ServerCost(tiering.pid) as cost:
        status = _wait_tiered(plan, tiering)
    rates = _rates(plan.messages, plan.size, time.monotonic() - begun)
    count = max(1, PARQUET_BYTES // plan.size)
    rows = make_payloads(producer=0, first=0, count=count, size=plan.size, now_ns=time.time_ns())
    written = parquet_write_mb_per_s(tiering.data_dir, rows)
    return {
        **rates,
        **_no_latency("tier measures throughput"),
        "verified": sum_verified(_read_back(plan, tiering, topic)),
        "durability": made[0]["durability"],
        "tier": {
            "objects": len(_objects(plan, tiering, topic)),
            "bytes_in_per_byte_out": round(status["bytes_in"] / status["bytes_out"], 2),
            "pyarrow_megabytes_per_s": written,
            "share_of_pyarrow": round(rates["megabytes_per_s"] / written, 4),
        },
        **_server(cost, plan.messages),
    }


def run(plan: Plan, broker: RunningBroker, topic: str) -> Run:
    """Run the plan once, if it is `about_a_subscription` after a run of the plain batch path."""
    scenario = SCENARIOS[plan.scenario]
    if plan.profiled:
        return _profile(plan, broker, topic)
    if not plan.about_a_subscription:
        return scenario(plan, broker, topic)
    plain = {"e2e": e2e, "consume": consume, "backlog": consume}[plan.scenario]
    before = plain(plan.reference, broker, f"{topic}-exclusive")
    measured = scenario(plan, broker, topic)
    names = ("messages_per_s", "seconds", "verified", "server", "clients")
    return {
        **measured,
        "reference": {name: before[name] for name in names},
        "share_of_reference": round(measured["messages_per_s"] / before["messages_per_s"], 4),
    }


def _profile(plan: Plan, broker: RunningBroker, topic: str) -> Run:
    """Run the plan once, and add the stages of the broker and of the clients that sampled themselves."""
    assert broker.owned is not None, (
        "checked by the command: a broker that the bench did not start does not sample"
    )
    samples: dict[str, Any] = {}
    with broker.owned.sampling(samples):
        measured = SCENARIOS[plan.scenario](plan, broker, topic)
    found = {"broker": samples, **measured.pop("samples", {})}
    return {**measured, "profile": {name: stages(each, plan.messages) for name, each in found.items()}}


SCENARIOS: Final[dict[str, Callable[[Plan, RunningBroker, str], Run]]] = {
    "e2e": e2e,
    "publish": publish,
    "consume": consume,
    "latency": latency,
    "await": await_,
    "unary": unary,
    "backlog": backlog,
    "topics": topics,
    "replay": replay,
    "stored": partial(stored, e2e=e2e, latency=latency),
    "tier": tier,
}


def _beside_reader(
    plan: Plan, broker: RunningBroker, topic: str, beside: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run `beside` while a plain reader reads all of `topic`. Return (its result, the reader's)."""
    reader = _spec(
        plan, broker, topic, "consume_batches", subscription="", sent=plan.shares, stop_at_head=True
    )
    with Crew([reader]) as readers, Crew([beside]) as others:
        readers.go()
        others.go()
        [got] = readers.results()
        for worker in others.workers:
            worker.stop()
        [made] = others.results()
    return made, got


def _fill(plan: Plan, broker: RunningBroker, topic: str) -> list[dict[str, Any]]:
    specs = [
        _spec(plan, broker, topic, "produce_many", index=index, messages=share)
        for index, share in enumerate(plan.shares)
    ]
    _create(plan, broker, topic)
    return _worked(specs, broker)[0]


def _read_back(
    plan: Plan, broker: RunningBroker, topic: str, *, sent: list[int] | None = None
) -> list[dict[str, Any]]:
    """Read the stored messages, outside of the measured time."""
    spec = _spec(
        plan, broker, topic, "consume_batches", subscription="", sent=sent or plan.shares, stop_at_head=True
    )
    return _worked([spec], broker)[0]


def _tier_status(plan: Plan, broker: RunningBroker) -> dict[str, Any]:
    found: dict[str, Any] = call_sync(broker.admin_url, "brokers.status", {}, timeout_s=plan.timeout_s)[
        "tier"
    ]
    return found


def _wait_tiered(plan: Plan, broker: RunningBroker) -> dict[str, Any]:
    """Wait until all that the plan sends is in the object store, and return the broker's `tier` status.

    Raises `DeadlineExceeded`: nothing more was written for `TIER_QUIET_S`.
    """
    before, moved_s = -1, time.monotonic()
    while True:
        status = _tier_status(plan, broker)
        if status["bytes_in"] >= plan.messages * plan.size and not status["backlog_bytes"]:
            return status
        if status["bytes_in"] != before:
            before, moved_s = status["bytes_in"], time.monotonic()
        elif time.monotonic() - moved_s > TIER_QUIET_S:
            raise DeadlineExceeded(
                f"the object store got nothing for {TIER_QUIET_S:g} s, and {status['backlog_bytes']} bytes wait"
            )
        time.sleep(0.02)


def _objects(plan: Plan, broker: RunningBroker, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    arguments: dict[str, Any] = {"topic": topic, "limit": 1000}
    while True:
        page = call_sync(broker.admin_url, "objects.list", arguments, timeout_s=plan.timeout_s)
        found += page["items"]
        if page["next_page"] is None:
            return found
        arguments["page"] = page["next_page"]


def _create(plan: Plan, broker: RunningBroker, topic: str) -> None:
    """Create the topic by opening a producer on it: consumers do not create topics."""
    _worked([_spec(plan, broker, topic, "produce_many", messages=0)], broker)


def _worked(specs: list[dict[str, Any]], broker: RunningBroker) -> tuple[list[dict[str, Any]], ServerCost]:
    """Run workers of these roles in parallel. Return their results, and their cost for the broker."""
    with Crew(specs) as crew, ServerCost(broker.pid) as cost:
        crew.go()
        return crew.results(), cost


def _seconds(begun: list[dict[str, Any]], ended: list[dict[str, Any]] | None = None) -> float:
    """Return the seconds from the first start of some workers to the last end, of others if given."""
    last: int = max(each["ended"] for each in (begun if ended is None else ended))
    first: int = min(each["begun"] for each in begun)
    return (last - first) / 1e9


def _rates(messages: int, size: int, seconds: float) -> Run:
    return {
        "messages": messages,
        "seconds": round(seconds, 4),
        "messages_per_s": round(messages / seconds, 1),
        "megabytes_per_s": round(messages * size / seconds / 1e6, 3),
    }


def _checked(plan: Plan, got: list[dict[str, Any]]) -> Run:
    """Check the messages, and count those of each consumer of a shared subscription."""
    if not plan.shared_subscription:
        return {"verified": sum_verified(got)}
    verified = merge([Part(**result["part"]) for result in got], plan.shares)
    return {
        "verified": asdict(verified),
        "by_consumer": [result["received"] for result in got],
    }


def _worst(results: list[dict[str, Any]]) -> Run:
    """Return the percentiles of the slowest consumer that received anything."""
    results = [result for result in results if result["received"]] or results[:1]
    first: Run = results[0]["latency"]
    if any(value is None for value in first.values()):
        return _no_latency("the payload has no room for the time: --size 16 or more")
    return {name: max(result["latency"][name] for result in results) for name in first}


def _no_latency(reason: str) -> Run:
    return {"p50_ms": None, "p99_ms": None, "p999_ms": None, "max_ms": None, "p50_ms_reason": reason}


def _publish_rate(made: list[dict[str, Any]]) -> float:
    return round(sum(int(each["acknowledged"]) for each in made) / _seconds(made), 1)


def _cpu_us(results: list[dict[str, Any]], messages: int) -> float:
    """Return the processor time of all workers since their begin, without their final checks."""
    return round(sum(float(result["cpu_s"]) for result in results) * 1e6 / max(1, messages), 3)


def _server(cost: ServerCost, messages: int) -> Run:
    cpu_us = None if cost.cpu_s is None else round(cost.cpu_s * 1e6 / max(1, messages), 3)
    return {"server": {"cpu_us_per_message": cpu_us, "rss_peak_bytes": cost.rss_peak_bytes}}
