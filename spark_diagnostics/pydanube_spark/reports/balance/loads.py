"""Make a snapshot of the cluster from telemetry rows of a stretch of time. Without Spark.

A rate is the rise of a counter over the samples of the stretch, or since the sample before it if there is only one.
Without two samples it is unknown, which is not 0. A counter starts at 0 with each incarnation of the broker, and of the
topic. Processor time per topic is not measured, so a broker's is split among its topics by bytes. A topic is gone if
every broker has sampled its topics since without it. It contributed to the load, and is not in the snapshot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from pydanube_core.balance import BrokerLoad, Policy, Resource, Snapshot, TopicLoad
from pydanube_core.names import TopicName

BROKER_COLUMNS: Final = (
    *(
        "broker_id",
        "incarnation",
        "taken_at",
        "cpu_s",
        "cpus",
        "bytes_in",
        "bytes_out",
        "network_in_bytes_per_s",
    ),
    *("network_out_bytes_per_s", "disk_free_bytes", "disk_total_bytes", "state"),
)
TOPIC_COLUMNS: Final = (
    *("topic", "topic_id", "broker_id", "incarnation", "taken_at"),
    *("bytes_in", "bytes_out", "unread_messages"),
)
COOLDOWN_MS: Final = 600_000
GONE: Final = ("drained", "stopped", "removed")  # last states after which a broker is not missing
_UNKNOWN_SHARE: Final = 0.2  # of a broker's bytes. With a larger share of unknown topics its load is unknown
_FLOORS: Final = Policy().floors

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A snapshot, and what happened in its stretch of time."""

    snapshot: Snapshot
    owner_changes: int
    flapping: int  # changes that were undone
    disk_used_share: float | None  # of the fullest broker
    told: Mapping[str, tuple[int, str]]  # broker → time and state of its last row of the stretch


def rate(rows: Sequence[Row], counter: str) -> float | None:
    """Return a counter's rise per second in one broker's rows, ascending. None for fewer than two."""
    if len(rows) < 2 or rows[-1]["taken_at"] <= rows[0]["taken_at"]:
        return None
    rise = sum(
        max(0, after[counter] - before[counter])
        if (after["incarnation"], after.get("topic_id")) == (before["incarnation"], before.get("topic_id"))
        else after[counter]
        for before, after in pairwise(rows)
    )
    return float(1000 * rise / (rows[-1]["taken_at"] - rows[0]["taken_at"]))


def snapshot_of(
    brokers: Iterable[Row],
    topics: Iterable[Row],
    *,
    begin_ms: int = 0,
    end_ms: int,
    interval_ms: int,
    epoch: int,
) -> Stretch:
    """Make the snapshot of one stretch. Times in the rows are milliseconds since 1970.

    Args:
        begin_ms: start of the stretch. Rows before it only contribute to rates and moves.
    """
    by_broker: dict[str, list[Row]] = defaultdict(list)
    for row in brokers:
        by_broker[row["broker_id"]].append(row)
    found_brokers: list[BrokerLoad] = []
    disk: list[float] = []
    told: dict[str, tuple[int, str]] = {}
    for broker_id in sorted(by_broker):
        rows = sorted(by_broker[broker_id], key=lambda row: row["taken_at"])
        last = rows[-1]
        if last["taken_at"] < begin_ms:
            continue
        told[broker_id] = last["taken_at"], last["state"]
        if last["state"] in GONE:
            continue
        if last["disk_free_bytes"] is not None and last["disk_total_bytes"]:
            disk.append(1 - last["disk_free_bytes"] / last["disk_total_bytes"])
        found_brokers.append(
            BrokerLoad(
                broker_id=broker_id,
                load=_load(_own(rows, begin_ms)),
                capacity=_capacity(last),
                age_s=max(0, end_ms - last["taken_at"]) / 1000,
                accepts=last["state"] == "active",
                unknown=None if len(rows) > 1 else "it has one sample so far, and a rate takes two",
            )
        )
    loads = {broker.broker_id: broker for broker in found_brokers}
    owned, unknown, changes, flapping = _topics(topics, loads, begin_ms, end_ms)
    found_brokers = [
        replace(broker, unknown=unknown[broker.broker_id])
        if broker.unknown is None and broker.broker_id in unknown
        else broker
        for broker in found_brokers
    ]
    return Stretch(
        snapshot=Snapshot(epoch=epoch, brokers=found_brokers, topics=owned, interval_s=interval_ms / 1000),
        owner_changes=changes,
        flapping=flapping,
        disk_used_share=max(disk, default=None),
        told=told,
    )


def _own(rows: Sequence[Row], begin_ms: int) -> Sequence[Row]:
    """Return a subject's rows of the stretch, ascending. If there is only one, add the row before it."""
    own = [row for row in rows if row["taken_at"] >= begin_ms]
    return own if len(own) > 1 else rows[-2:]


def _load(rows: Sequence[Row]) -> dict[Resource, float]:
    names = ((Resource.CPU, "cpu_s"), (Resource.NETWORK_IN, "bytes_in"), (Resource.NETWORK_OUT, "bytes_out"))
    rates = {resource: rate(rows, name) for resource, name in names}
    return {resource: value for resource, value in rates.items() if value is not None}


def _capacity(row: Row) -> dict[Resource, float]:
    declared = {
        Resource.CPU: row["cpus"],
        Resource.NETWORK_IN: row["network_in_bytes_per_s"],
        Resource.NETWORK_OUT: row["network_out_bytes_per_s"],
    }
    return {resource: float(value) for resource, value in declared.items() if value}


def _topics(
    rows: Iterable[Row], brokers: Mapping[str, BrokerLoad], begin_ms: int, end_ms: int
) -> tuple[list[TopicLoad], dict[str, str], int, int]:
    """Return loads of topics, brokers with too much unknown load and why, ownership changes, and undone changes."""
    by_topic: dict[str, list[Row]] = defaultdict(list)
    last_round_ms: dict[str, int] = {}
    for row in rows:
        by_topic[row["topic"]].append(row)
        last_round_ms[row["broker_id"]] = max(row["taken_at"], last_round_ms.get(row["broker_id"], 0))
    all_reported_ms = min(last_round_ms.values(), default=0)
    bytes_of: dict[str, dict[Resource, float]] = {}
    owner: dict[str, Row] = {}
    cooling: dict[str, bool] = {}
    changes = flapping = 0
    for topic in sorted(by_topic):
        seen = sorted(by_topic[topic], key=lambda row: row["taken_at"])
        owners = [seen[0]["broker_id"]]
        changed_ms: int | None = None
        for row in seen[1:]:
            if row["broker_id"] != owners[-1]:
                owners.append(row["broker_id"])
                changed_ms = row["taken_at"]
                if changed_ms >= begin_ms:
                    changes += 1
                    flapping += owners[-3:-2] == owners[-1:]
        if seen[-1]["broker_id"] not in brokers:
            continue
        owner[topic] = seen[-1]
        cooling[topic] = changed_ms is not None and end_ms - changed_ms < COOLDOWN_MS
        own = [row for row in seen if row["broker_id"] == owners[-1]]  # counters are per broker
        of_stretch = _own(own, begin_ms)
        rates = {
            Resource.NETWORK_IN: rate(of_stretch, "bytes_in"),
            Resource.NETWORK_OUT: rate(of_stretch, "bytes_out"),
        }
        bytes_of[topic] = {resource: value for resource, value in rates.items() if value is not None}
    total: dict[str, float] = defaultdict(float)
    for topic, row in owner.items():
        total[row["broker_id"]] += sum(bytes_of[topic].values())
    found = []
    for topic, row in owner.items():
        broker = brokers[row["broker_id"]]
        share = sum(bytes_of[topic].values()) / total[broker.broker_id] if total[broker.broker_id] else 0.0
        if row["taken_at"] < all_reported_ms:
            continue
        base = TopicName.parse(topic).base
        # At most its broker's load, which is sampled at other moments: a move must not make loads negative.
        load = {r: min(value, broker.load.get(r, 0.0)) for r, value in bytes_of[topic].items()}
        found.append(
            TopicLoad(
                topic=topic,
                broker_id=broker.broker_id,
                load={Resource.CPU: share * broker.load.get(Resource.CPU, 0.0), **load},
                unread_messages=row["unread_messages"],
                cooling_down=cooling[topic],
                group=None if str(base) == topic else str(base),
            )
        )
    return found, _unknown(found, bytes_of, brokers), changes, flapping


def _unknown(
    topics: Iterable[TopicLoad],
    rates: Mapping[str, Mapping[Resource, float]],
    brokers: Mapping[str, BrokerLoad],
) -> dict[str, str]:
    """Return the brokers whose topics without a rate may have over a fifth of the bytes, and a sentence each."""
    known: dict[str, float] = defaultdict(float)
    without: dict[str, list[str]] = defaultdict(list)
    for topic in topics:
        if rates[topic.topic]:
            known[topic.broker_id] += sum(rates[topic.topic].values())
        else:
            without[topic.broker_id].append(topic.topic)
    found: dict[str, str] = {}
    for broker_id, names in without.items():
        load = brokers[broker_id].load
        network = {r: load.get(r, 0.0) for r in (Resource.NETWORK_IN, Resource.NETWORK_OUT)}
        total = sum(network.values())
        busy = any(value > _FLOORS[r] for r, value in network.items())
        if busy and known[broker_id] < (1 - _UNKNOWN_SHARE) * total:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            found[broker_id] = f"the rates of {shown} take a second sample there"
    return found
