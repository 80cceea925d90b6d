"""Make a snapshot of the cluster from telemetry rows of a stretch of time. Without Spark.

A rate is the rise of a counter over the samples of the stretch; it began at 0 with each incarnation of the broker, and
of the topic. A topic's processor time is its broker's, shared out by bytes: what a topic costs is not measured one by
one. A topic that every broker told of its topics without since is gone: it had a part in the load, and has no place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from pydanube_core.balance import BrokerLoad, Resource, Snapshot, TopicLoad
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

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A snapshot, and what happened in its stretch of time."""

    snapshot: Snapshot
    owner_changes: int
    flapping: int  # changes that were undone
    disk_used_share: float | None  # of the fullest broker


def rate(rows: Sequence[Row], counter: str) -> float | None:
    """Return a counter's rise per second in one broker's rows, ascending; None for fewer than two."""
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
    brokers: Iterable[Row], topics: Iterable[Row], *, end_ms: int, interval_ms: int, epoch: int
) -> Stretch:
    """Times in the rows are milliseconds since 1970."""
    by_broker: dict[str, list[Row]] = defaultdict(list)
    for row in brokers:
        by_broker[row["broker_id"]].append(row)
    found_brokers: list[BrokerLoad] = []
    disk: list[float] = []
    for broker_id in sorted(by_broker):
        rows = sorted(by_broker[broker_id], key=lambda row: row["taken_at"])
        last = rows[-1]
        if last["disk_free_bytes"] is not None and last["disk_total_bytes"]:
            disk.append(1 - last["disk_free_bytes"] / last["disk_total_bytes"])
        found_brokers.append(
            BrokerLoad(
                broker_id=broker_id,
                load=_load(rows),
                capacity=_capacity(last),
                age_s=max(0, end_ms - last["taken_at"]) / 1000,
                accepts=last["state"] == "active",
            )
        )
    loads = {broker.broker_id: broker for broker in found_brokers}
    owned, changes, flapping = _topics(topics, loads, end_ms)
    return Stretch(
        snapshot=Snapshot(epoch=epoch, brokers=found_brokers, topics=owned, interval_s=interval_ms / 1000),
        owner_changes=changes,
        flapping=flapping,
        disk_used_share=max(disk, default=None),
    )


def _load(rows: Sequence[Row]) -> dict[Resource, float]:
    names = ((Resource.CPU, "cpu_s"), (Resource.NETWORK_IN, "bytes_in"), (Resource.NETWORK_OUT, "bytes_out"))
    return {resource: rate(rows, name) or 0.0 for resource, name in names}


def _capacity(row: Row) -> dict[Resource, float]:
    declared = {
        Resource.CPU: row["cpus"],
        Resource.NETWORK_IN: row["network_in_bytes_per_s"],
        Resource.NETWORK_OUT: row["network_out_bytes_per_s"],
    }
    return {resource: float(value) for resource, value in declared.items() if value}


def _topics(
    rows: Iterable[Row], brokers: Mapping[str, BrokerLoad], end_ms: int
) -> tuple[list[TopicLoad], int, int]:
    by_topic: dict[str, list[Row]] = defaultdict(list)
    told_ms: dict[str, int] = {}
    for row in rows:
        by_topic[row["topic"]].append(row)
        told_ms[row["broker_id"]] = max(row["taken_at"], told_ms.get(row["broker_id"], 0))
    all_told_ms = min(told_ms.values(), default=0)
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
        changes += len(owners) - 1
        flapping += sum(before == after for before, after in zip(owners, owners[2:], strict=False))
        if seen[-1]["broker_id"] not in brokers:
            continue
        owner[topic] = seen[-1]
        cooling[topic] = changed_ms is not None and end_ms - changed_ms < COOLDOWN_MS
        own = [row for row in seen if row["broker_id"] == owners[-1]]  # counters are of one broker
        bytes_of[topic] = {
            Resource.NETWORK_IN: rate(own, "bytes_in") or 0.0,
            Resource.NETWORK_OUT: rate(own, "bytes_out") or 0.0,
        }
    total: dict[str, float] = defaultdict(float)
    for topic, row in owner.items():
        total[row["broker_id"]] += sum(bytes_of[topic].values())
    found = []
    for topic, row in owner.items():
        broker = brokers[row["broker_id"]]
        share = sum(bytes_of[topic].values()) / total[broker.broker_id] if total[broker.broker_id] else 0.0
        if row["taken_at"] < all_told_ms:
            continue
        base = TopicName.parse(topic).base
        # More than its broker has, by samples of other moments, would make loads negative when it moves.
        load = {r: min(value, broker.load[r]) for r, value in bytes_of[topic].items()}
        found.append(
            TopicLoad(
                topic=topic,
                broker_id=broker.broker_id,
                load={Resource.CPU: share * broker.load[Resource.CPU], **load},
                unread_messages=row["unread_messages"],
                cooling_down=cooling[topic],
                group=None if str(base) == topic else str(base),
            )
        )
    return found, changes, flapping
