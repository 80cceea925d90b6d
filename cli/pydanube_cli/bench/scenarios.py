"""The scenarios: which workers, in which order, and the figures of one run.

    e2e      producers and consumers at once; from the first send to the last message received
    publish  producers alone
    consume  consumers of a topic that is full
    latency  one producer, one message at a time, each awaited
    await    coroutines of one process that each await one send (`--producers` counts them)
    backlog  a reader that is far behind; beside it lone sends, then 8 producers that await each send

A consumer has a subscription of its own and gets every message, so with several consumers each is checked alone and
the slowest one counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pydanube_cli.bench.catalogue import Plan
from pydanube_cli.bench.fleet import Crew, RunningBroker, ServerCost

__all__ = ["SCENARIOS"]

WARM_UP_SENDS: Final = 200
ALONE_MESSAGES: Final = 8_000  # of the 8 producers before the reader starts

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
        **more,
    }


def _producers(plan: Plan, broker: RunningBroker, topic: str) -> list[dict[str, Any]]:
    role = "produce_each" if plan.each else "produce_many"
    return [
        _spec(plan, broker, topic, role, index=index, messages=share)
        for index, share in enumerate(plan.shares)
    ]


def _consumers(plan: Plan, broker: RunningBroker, topic: str) -> list[dict[str, Any]]:
    role = "consume_each" if plan.each else "consume_batches"
    return [
        _spec(plan, broker, topic, role, index=index, subscription=f"bench-{index}", sent=plan.shares)
        for index in range(plan.consumers)
    ]


def e2e(plan: Plan, broker: RunningBroker, topic: str) -> Run:
    """Everything at once."""
    _create(plan, broker, topic)
    with (
        Crew(_consumers(plan, broker, topic)) as consumers,
        Crew(_producers(plan, broker, topic)) as producers,
        ServerCost(broker.pid) as cost,
    ):
        consumers.go()
        producers.go()
        made, got = producers.results(), consumers.results()
    seconds = (max(r["ended"] for r in got) - min(r["begun"] for r in made)) / 1e9
    return {
        **_rates(plan.messages, plan.size, seconds),
        **_worst(got),
        "verified": _verified(got),
        "durability": made[0]["durability"],
        "publish_messages_per_s": _publish_rate(made),
        **_server(cost, plan.messages),
    }


def publish(plan: Plan, broker: RunningBroker, topic: str) -> Run:
    """Producers alone. How long a message waits for its ack is what `latency` measures."""
    _create(plan, broker, topic)
    with Crew(_producers(plan, broker, topic)) as producers, ServerCost(broker.pid) as cost:
        producers.go()
        made = producers.results()
    seconds = (max(r["ended"] for r in made) - min(r["begun"] for r in made)) / 1e9
    return {
        **_rates(plan.messages, plan.size, seconds),
        **_no_latency("publish measures throughput; see bench latency"),
        "verified": _verified(_read_back(plan, broker, topic)),
        "durability": made[0]["durability"],
        **_server(cost, plan.messages),
    }


def consume(plan: Plan, broker: RunningBroker, topic: str) -> Run:
    """Fill the topic, then take it."""
    made = _fill(plan, broker, topic)
    with Crew(_consumers(plan, broker, topic)) as consumers, ServerCost(broker.pid) as cost:
        consumers.go()
        got = consumers.results()
    seconds = (max(r["ended"] for r in got) - min(r["begun"] for r in got)) / 1e9
    return {
        **_rates(plan.messages, plan.size, seconds),
        **_no_latency("the messages were there before"),
        "verified": _verified(got),
        "durability": made[0]["durability"],
        **_server(cost, plan.messages * plan.consumers),
    }


def latency(plan: Plan, broker: RunningBroker, topic: str) -> Run:
    """A lone send, awaited, then the next."""
    with Crew([_spec(plan, broker, topic, "send_lone")]) as sender, ServerCost(broker.pid) as cost:
        sender.go()
        [made] = sender.results()
    seconds = (made["ended"] - made["begun"]) / 1e9
    return {
        **_rates(plan.messages, plan.size, seconds),
        **made["latency"],
        "verified": _verified(_read_back(plan, broker, topic, sent=[plan.messages])),
        "durability": made["durability"],
        **_server(cost, plan.messages),
    }


def await_(plan: Plan, broker: RunningBroker, topic: str) -> Run:
    """Coroutines that each await one send."""
    spec = _spec(plan, broker, topic, "send_await", coroutines=plan.producers, producers=1)
    with Crew([spec]) as sender, ServerCost(broker.pid) as cost:
        sender.go()
        [made] = sender.results()
    seconds = (made["ended"] - made["begun"]) / 1e9
    return {
        **_rates(made["acknowledged"], plan.size, seconds),
        **made["latency"],
        "verified": _verified(_read_back(plan, broker, topic, sent=[plan.messages])),
        "durability": made["durability"],
        **_server(cost, made["acknowledged"]),
    }


def backlog(plan: Plan, broker: RunningBroker, topic: str) -> Run:
    """A reader far behind, first beside lone sends, then beside `producers` that await each send.

    The topic is filled by the first run and read again by the others. `messages_per_s` is the reader beside the lone
    sends; percentiles are those of the lone sends beside it.
    """
    full = f"{topic.rpartition('-')[0]}-full"
    if topic.endswith("-0"):
        _fill(plan, broker, full)
    writers = {"coroutines": plan.producers, "producers": plan.producers}
    _create(plan, broker, topic)
    with Crew([_spec(plan, broker, topic, "send_await", **writers | {"messages": ALONE_MESSAGES})]) as crew:
        crew.go()
        [alone] = crew.results()
    with ServerCost(broker.pid) as cost:
        lone, got = _beside_reader(plan, broker, full, _spec(plan, broker, topic, "send_lone", messages=None))
    beside, second = _beside_reader(
        plan, broker, full, _spec(plan, broker, topic, "send_await", **writers | {"messages": None})
    )
    seconds = (got["ended"] - got["first"]) / 1e9
    rate_alone, rate_beside = _one_rate(alone), _one_rate(beside)
    return {
        **_rates(plan.messages, plan.size, seconds),
        **lone["latency"],
        "verified": _verified([got, second]),
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


SCENARIOS: Final[dict[str, Callable[[Plan, RunningBroker, str], Run]]] = {
    "e2e": e2e,
    "publish": publish,
    "consume": consume,
    "latency": latency,
    "await": await_,
    "backlog": backlog,
}


def _beside_reader(
    plan: Plan, broker: RunningBroker, topic: str, beside: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run `beside` for as long as a plain reader takes to read all of `topic`; (its result, the reader's)."""
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
    with Crew(specs) as producers:
        producers.go()
        return producers.results()


def _read_back(
    plan: Plan, broker: RunningBroker, topic: str, *, sent: list[int] | None = None
) -> list[dict[str, Any]]:
    """Read what was stored, outside the measured time."""
    spec = _spec(
        plan, broker, topic, "consume_batches", subscription="", sent=sent or plan.shares, stop_at_head=True
    )
    with Crew([spec]) as readers:
        readers.go()
        return readers.results()


def _create(plan: Plan, broker: RunningBroker, topic: str) -> None:
    """Make the topic by opening a producer on it: consumers do not create topics."""
    with Crew([_spec(plan, broker, topic, "produce_many", messages=0)]) as crew:
        crew.go()
        crew.results()


def _rates(messages: int, size: int, seconds: float) -> Run:
    return {
        "messages": messages,
        "seconds": round(seconds, 4),
        "messages_per_s": round(messages / seconds, 1),
        "megabytes_per_s": round(messages * size / seconds / 1e6, 3),
    }


def _worst(results: list[dict[str, Any]]) -> Run:
    """Percentiles of the slowest consumer."""
    first: Run = results[0]["latency"]
    if any(value is None for value in first.values()):
        return _no_latency("the payload has no room for the time: --size 16 or more")
    return {name: max(result["latency"][name] for result in results) for name in first}


def _no_latency(reason: str) -> Run:
    return {"p50_ms": None, "p99_ms": None, "p999_ms": None, "max_ms": None, "p50_ms_reason": reason}


def _verified(results: list[dict[str, Any]]) -> dict[str, int]:
    names = ("sent", "received", "missing", "duplicates", "out_of_order")
    return {name: sum(result["verified"][name] for result in results) for name in names}


def _publish_rate(made: list[dict[str, Any]]) -> float:
    seconds = (max(r["ended"] for r in made) - min(r["begun"] for r in made)) / 1e9
    return round(float(sum(int(r["acknowledged"]) for r in made)) / float(seconds), 1)


def _one_rate(result: dict[str, Any]) -> float:
    seconds = float(result["ended"] - result["begun"]) / 1e9
    return round(int(result["acknowledged"]) / seconds, 1)


def _server(cost: ServerCost, messages: int) -> Run:
    cpu_us = None if cost.cpu_s is None else round(cost.cpu_s * 1e6 / max(1, messages), 3)
    return {"server": {"cpu_us_per_message": cpu_us, "rss_peak_bytes": cost.rss_peak_bytes}}
