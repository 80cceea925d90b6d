"""Made-up telemetry of several brokers, the same for the same plan: what reports are tested and measured on.

Each subscription behaves in one known way, so that a report's answer can be held against the truth; topics have skewed
loads, so that there is something to balance. Written exactly as brokers write it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydanube_core.telemetry import Table, TelemetryFile, table_named, telemetry_folder
from pydanube_core.telemetry.files import HOUR_MS, date_of
from pydanube_core.telemetry.tables import HEADS_EVERY, LOAD_EVERY
from pydanube_storage.objects import ObjectStore
from pydanube_storage.telemetry.writing import arrow_schema, encode

Ints = npt.NDArray[np.int64]
MEAN_RATE: Final = 100.0  # messages a second of a middling topic
MESSAGE_BYTES: Final = 400
FIRST_BROKER: Final = 1_000_000_000_000_000_001


class Behaviour(StrEnum):
    """The behaviour of a subscription; `_cursor` gives its rates and how long they last."""

    KEEPS_UP = "keeps_up"
    FALLS_BEHIND = "falls_behind"  # consumes nine tenths
    DIES = "dies"  # its consumer leaves in the middle
    POISONED = "poisoned"  # the cursor stands, what is behind it is acknowledged
    CATCHES_UP = "catches_up"  # begins far behind, at twice the rate
    IDLE = "idle"  # nothing is published
    CRAWLS = "crawls"  # begins far behind, and gains too little to be done within the hour
    LOSES = "loses"  # dies like `dies`, and retention takes what it has not read
    RISKS = "risks"  # dies early; retention will take what it has not read before long


_ORDER: Final = (
    *(Behaviour.KEEPS_UP,) * 6,
    Behaviour.IDLE,
    Behaviour.FALLS_BEHIND,
    Behaviour.DIES,
    Behaviour.POISONED,
    Behaviour.KEEPS_UP,
    Behaviour.CATCHES_UP,
    Behaviour.CRAWLS,
    Behaviour.LOSES,
    Behaviour.RISKS,
)


def behaviour_of(subscription: int) -> Behaviour:
    """Return the behaviour of the subscription of that number."""
    return _ORDER[subscription % len(_ORDER)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One subscription a topic; topics are shared out between the brokers unevenly on purpose.

    `hot_topics` of the first broker take most of the traffic.
    """

    start_ms: int
    hours: int
    subscriptions: int = 12
    brokers: int = 3
    interval_ms: int = 5000
    jitter_ms: int = 40
    hot_topics: int = 2
    cluster: str = "made-up"
    seed: int = 1
    capacity_bytes_per_s: float | None = 20e6
    partitioned: int = 0  # so many of the first topics are partitions of one, /default/parted
    restarts: bool = False  # each broker is started anew a third into the time: its counters begin again

    def __post_init__(self) -> None:
        assert self.start_ms % HOUR_MS == 0, "files are of whole hours"
        assert self.brokers >= 1
        assert self.hours >= 1
        assert self.subscriptions >= 1

    @property
    def ticks(self) -> int:
        """Rounds in the whole time."""
        return self.hours * HOUR_MS // self.interval_ms

    @property
    def restart(self) -> Ints:
        """The round in which brokers start anew, as an array of one."""
        return np.array([self.ticks // 3], np.int64)

    def retention_s_of(self, topic: int) -> int | None:
        """Return how long a log keeps messages, read or not; None: for ever."""
        whole_s = self.ticks * self.interval_ms // 1000
        return {Behaviour.LOSES: whole_s // 4, Behaviour.RISKS: whole_s}.get(behaviour_of(topic))

    def name_of(self, topic: int) -> str:
        return f"/default/parted-part-{topic}" if topic < self.partitioned else f"/default/topic-{topic}"

    def broker_of(self, topic: int) -> int:
        """The first broker owns half of the topics."""
        return 0 if topic % 2 == 0 else topic // 2 % self.brokers

    def rate_of(self, topic: int) -> float:
        """Return the messages a second of a log."""
        if behaviour_of(topic) is Behaviour.IDLE:
            return 0.0
        return MEAN_RATE * (20.0 if topic < self.hot_topics else 0.5 + topic % 7 / 4)


def generate(store: ObjectStore, plan: Plan) -> dict[str, int]:
    """Write all tables; {files, rows, bytes, cursors}. Memory is bounded by one hour of one broker."""
    written = {"files": 0, "rows": 0, "bytes": 0, "cursors": 0}
    for hour in range(plan.hours):
        for broker in range(plan.brokers):
            topics = np.array([t for t in range(plan.subscriptions) if plan.broker_of(t) == broker], np.int64)
            for table, columns in _tables(plan, hour, broker, topics):
                samples = pa.Table.from_arrays(columns, schema=arrow_schema(table))
                if not samples.num_rows:
                    continue
                data = encode(table, samples)
                start_ms = plan.start_ms + hour * HOUR_MS
                name = TelemetryFile(
                    start_ms=start_ms,
                    end_ms=start_ms + HOUR_MS,
                    broker_id=str(FIRST_BROKER + broker),
                    generation=1,
                    random="0",
                )
                folder = telemetry_folder(plan.cluster, table.name, date_of(start_ms))
                store.put(f"{folder}/{name}", data)
                written["files"] += 1
                written["rows"] += samples.num_rows
                written["bytes"] += len(data)
                written["cursors"] += samples.num_rows if table.name == "cursors" else 0
    return written


def _tables(plan: Plan, hour: int, broker: int, topics: Ints) -> Iterator[tuple[Table, Sequence[Any]]]:
    count = HOUR_MS // plan.interval_ms
    ticks = np.arange(count, dtype=np.int64) + hour * count
    late = _noise(plan, -1 - broker, ticks, plan.jitter_ms)  # a round begins when the loop gets to it
    times = plan.start_ms + ticks * plan.interval_ms + late
    broker_id = str(FIRST_BROKER + broker)
    heads = (
        np.stack([_head(plan, int(t), ticks) for t in topics])
        if len(topics)
        else np.zeros((0, count), np.int64)
    )
    cursors = [_cursor(plan, int(t), ticks, heads[i]) for i, t in enumerate(topics)]
    anew = plan.restarts & (ticks >= plan.restart[0])
    before = [_cursor(plan, int(t), plan.restart, _head(plan, int(t), plan.restart)) for t in topics]
    if plan.restarts:
        for found, then in zip(cursors, before, strict=True):
            found["redelivered"] = found["redelivered"] - anew * then["redelivered"]
    #: what counters say: what was counted before the start of the broker is taken away
    counted = np.stack([_head(plan, int(t), plan.restart) for t in topics]) * anew if len(topics) else heads
    unread_before = np.stack([c["unread_offsets"] for c in before]) * anew if len(topics) else heads

    def spread(table: str, picked: npt.NDArray[Any], values: dict[str, Any]) -> tuple[Table, Sequence[Any]]:
        """Columns of `len(topics) × len(picked)` rows."""
        found = table_named(table)
        rows = len(topics) * len(picked)
        columns: dict[str, Any] = {
            "taken_at": np.tile(times[picked], len(topics)),
            "broker_id": pa.repeat(broker_id, rows),
            "incarnation": np.tile(1 + anew[picked], len(topics)),
            "topic": pa.array([plan.name_of(int(t)) for t in topics], pa.string()).take(
                pa.array(np.repeat(np.arange(len(topics)), len(picked)))
            ),
            "topic_id": np.repeat(topics + 1, len(picked)),
            "partition": pa.array(
                [int(t) if t < plan.partitioned else None for t in topics for _ in picked], pa.int64()
            ),
            **values,
        }
        return found, [
            pa.array(columns.get(c.name, np.zeros(rows, np.int64))).cast(
                arrow_schema(found).field(c.name).type
            )
            for c in found.columns
        ]

    every = np.arange(count)
    flat: dict[str, Any] = {
        name: np.concatenate([c[name] for c in cursors]) if cursors else [] for name in _CURSOR_COLUMNS
    }
    rows = len(topics) * count
    age = flat.pop("age")
    yield spread(
        "cursors",
        every,
        {
            **flat,
            "subscription": pa.repeat("worker", rows),
            "type": pa.repeat("shared", rows),
            "subscription_id": np.repeat(topics + 1_000_001, count),
            "next_offset": heads.reshape(-1),
            "generation": np.ones(rows, np.int64),
            "oldest_unread_age_ms": pa.array(age, mask=np.asarray(age) < 0)
            if rows
            else pa.nulls(0, pa.int64()),
        },
    )
    sparse = every[ticks % HEADS_EVERY == 0]
    yield spread("heads", sparse, {"next_offset": heads[:, sparse].reshape(-1)})
    load = every[ticks % LOAD_EVERY == 0]
    sent = (heads - counted)[:, load]
    unread = np.stack([c["unread_offsets"][load] for c in cursors]) if cursors else sent
    read = sent - unread + unread_before[:, load]
    kept = [plan.retention_s_of(int(t)) for t in topics]
    yield spread(
        "topics",
        load,
        {
            "messages_in": sent.reshape(-1),
            "bytes_in": (sent * MESSAGE_BYTES).reshape(-1),
            "messages_out": read.reshape(-1),
            "bytes_out": (read * MESSAGE_BYTES).reshape(-1),
            "unread_messages": unread.reshape(-1),
            "producers": np.ones(sent.size, np.int64),
            "subscriptions": np.ones(sent.size, np.int64),
            "retention_age_s": pa.array([limit for limit in kept for _ in load], pa.int64()),
            "retention_bytes": pa.nulls(sent.size, pa.int64()),
            "drop_unread": np.array([limit is not None for limit in kept for _ in load], bool),
        },
    )
    yield _consumers(plan, spread, load, cursors, read)
    read = (
        heads - counted - np.stack([c["unread_offsets"] for c in cursors]) + unread_before
        if cursors
        else heads
    )
    yield _brokers(plan, broker_id, times, 1 + anew, heads, heads - counted, read)


def _consumers(
    plan: Plan,
    spread: Callable[[str, npt.NDArray[Any], dict[str, Any]], tuple[Table, Sequence[Any]]],
    load: Ints,
    cursors: Sequence[dict[str, Ints]],
    delivered: Ints,
) -> tuple[Table, Sequence[Any]]:
    """One consumer of each subscription, while it has a member."""
    picked = {
        name: np.stack([c[name][load] for c in cursors]).reshape(-1) if cursors else np.zeros(0, np.int64)
        for name in ("in_flight", "members", "age")
    }
    count = len(picked["members"])
    topic = np.repeat(np.arange(len(cursors), dtype=np.int64), len(load))
    table, columns = spread(
        "consumers",
        load,
        {
            "subscription": pa.repeat("worker", count),
            "subscription_id": topic + 1_000_001,
            "consumer_id": topic + 2_000_001,
            "name": pa.repeat("worker", count),
            "active": np.ones(count, bool),
            "connected_at": np.full(count, plan.start_ms),
            "credit_messages": 1000 - picked["in_flight"],
            "in_flight": picked["in_flight"],
            "delivered": delivered.reshape(-1),
            "oldest_in_flight_age_ms": pa.array(picked["age"], mask=picked["age"] < 0),
        },
    )
    there = pa.array(picked["members"] > 0)
    return table, [column.filter(there) for column in columns]


def _brokers(
    plan: Plan, broker_id: str, times: Ints, incarnation: Ints, heads: Ints, counted: Ints, delivered: Ints
) -> tuple[Table, Sequence[Any]]:
    """`heads`: all that was ever published, by topic; `counted`, `delivered`: since the broker started."""
    table, rows = table_named("brokers"), len(times)
    sent = counted.sum(axis=0) if len(heads) else np.zeros(rows, np.int64)
    read = delivered.sum(axis=0) if len(heads) else np.zeros(rows, np.int64)
    stored = heads.sum(axis=0) if len(heads) else np.zeros(rows, np.int64)
    started_ms = np.where(incarnation > 1, plan.start_ms + plan.restart[0] * plan.interval_ms, plan.start_ms)
    seconds = np.maximum(0, times - started_ms) / 1000
    columns: dict[str, Any] = {
        "taken_at": times,
        "broker_id": pa.repeat(broker_id, rows),
        "incarnation": incarnation,
        "uptime_s": seconds,
        "topics": np.full(rows, len(heads)),
        "subscriptions": np.full(rows, len(heads)),
        "cpu_s": 0.02 * seconds + sent * 8e-5,
        "cpus": np.full(rows, 2),
        "rss_bytes": np.full(rows, 300 << 20),
        "memory_bytes": np.full(rows, 4 << 30),
        "disk_free_bytes": (200 << 30) - stored * MESSAGE_BYTES // 10,
        "disk_total_bytes": np.full(rows, 256 << 30),
        "journal_read_only": np.zeros(rows, bool),
        "store_error": pa.nulls(rows, pa.string()),
        "messages_in": sent,
        "bytes_in": sent * MESSAGE_BYTES,
        "messages_out": read,
        "bytes_out": read * MESSAGE_BYTES,
        "state": pa.repeat("active", rows),
    }
    for name in ("network_in_bytes_per_s", "network_out_bytes_per_s"):
        capacity = plan.capacity_bytes_per_s
        columns[name] = pa.nulls(rows, pa.float64()) if capacity is None else np.full(rows, capacity)
    kinds = arrow_schema(table)
    return table, [
        pa.array(columns.get(c.name, np.zeros(rows, np.int64))).cast(kinds.field(c.name).type)
        for c in table.columns
    ]


def _noise(plan: Plan, topic: int, ticks: Ints, spread: int) -> Ints:
    """Values from 0 to `spread` that hang on nothing but seed, topic and tick, and on the one before not at all.

    The mixing is SplitMix64's: a plain multiple of the tick would compress as no real rate does.
    """
    stream = np.uint64((topic * 7919 + plan.seed * 104_729) * 1_000_003 % 2**64)
    mixed = (ticks.astype(np.uint64) + stream) * np.uint64(0x9E37_79B9_7F4A_7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    mixed ^= mixed >> np.uint64(31)
    return ((mixed >> np.uint64(33)) % np.uint64(spread + 1)).astype(np.int64)


def _head(plan: Plan, topic: int, ticks: Ints) -> Ints:
    """The head at each tick: steady, with noise of less than one interval's messages, so that it never falls."""
    step = plan.rate_of(topic) * plan.interval_ms / 1000
    before = int(step * plan.ticks * 4) if behaviour_of(topic) is Behaviour.CRAWLS else 0
    return before + (ticks * step).astype(np.int64) + _noise(plan, topic, ticks, max(0, int(step * 0.4)))


_CURSOR_COLUMNS: Final = (
    *(
        "start_offset",
        "unread_offsets",
        "acked_above",
        "in_flight",
        "members",
        "redelivered",
        "failed",
        "age",
    ),
)


def _cursor(plan: Plan, topic: int, ticks: Ints, head: Ints) -> dict[str, Ints]:
    """One subscription at each tick; age -1: nothing is unread."""
    step = plan.rate_of(topic) * plan.interval_ms / 1000
    total = plan.ticks
    behaviour = behaviour_of(topic)
    zeros, ones = np.zeros(len(ticks), np.int64), np.ones(len(ticks), np.int64)
    members, above, failed, start = ones, zeros, zeros, zeros
    broken = np.int64(total // 2)
    match behaviour:
        case Behaviour.KEEPS_UP | Behaviour.IDLE:
            cursor = np.maximum(0, head - _noise(plan, topic + 500_000, ticks, int(step * 0.02)))
        case Behaviour.FALLS_BEHIND:
            cursor = head * 9 // 10
        case Behaviour.DIES | Behaviour.LOSES | Behaviour.RISKS:
            broken = np.int64(total // 8) if behaviour is Behaviour.RISKS else broken
            stop = _head(plan, topic, np.array([broken]))[0]
            cursor, members = np.minimum(head, stop), (ticks < broken).astype(np.int64)
        case Behaviour.POISONED:
            stop = _head(plan, topic, np.array([broken]))[0]
            cursor = np.minimum(head, stop)
            above, failed = np.maximum(0, head - cursor - 1), (ticks >= broken) * np.int64(4)
        case Behaviour.CATCHES_UP:
            behind = np.maximum(0, int(step * total * 0.5) - (ticks * step / 2).astype(np.int64))
            cursor = np.maximum(0, head - behind)
        case Behaviour.CRAWLS:
            cursor = head - int(step * total * 4) + (ticks * step / 10).astype(np.int64)
    kept_s = plan.retention_s_of(topic)
    if kept_s is not None:
        start = _head(plan, topic, np.maximum(0, ticks - kept_s * 1000 // plan.interval_ms))
    unread = head - cursor
    per_ms = plan.rate_of(topic) / 1000
    waiting = head - np.maximum(cursor, start)
    exact = (waiting / per_ms).astype(np.int64) if per_ms else zeros
    step_ms = np.where(exact < 100_000, 100, 1000)  # as `rounded_age_ms`
    age = np.where((unread > 0) & (per_ms > 0), exact // step_ms * step_ms, -1)
    return {
        "start_offset": start,
        "unread_offsets": unread,
        "acked_above": above,
        "in_flight": np.minimum(unread, 20) * members,
        "members": members,
        "redelivered": failed * 10 + ticks * (behaviour is Behaviour.POISONED),
        "failed": failed,
        "age": age,
    }
