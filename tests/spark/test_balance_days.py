"""Generated days of telemetry: brokers that restart, stop, die and are removed, topics that move, at any boundary."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_core.telemetry.tables import LOAD_EVERY
from pydanube_spark.reports.balance.work import BalanceWork, rows_by_stretch, with_missing
from pydanube_spark.reports.run import Span
from pydanube_spark.reports.source import Telemetry
from pydanube_storage.objects import StoreOptions

MINUTE = 60_000
MINUTES = 360
SPAN = Span(since_ms=1_000_000 * MINUTE, until_ms=(1_000_000 + MINUTES) * MINUTE)
RATE = 10 << 20  # bytes a second of each broker


@dataclass
class Day:
    """What was sampled, once a minute by each broker, and topics by their owners."""

    brokers: list[dict[str, Any]] = field(default_factory=list, repr=False)
    topics: list[dict[str, Any]] = field(default_factory=list, repr=False)


def broker_row(
    broker: str, minute: int, begun: int, incarnation: int, state: str = "active"
) -> dict[str, Any]:
    seconds = 60 * (minute - begun)
    return {
        "broker_id": broker, "incarnation": incarnation, "taken_at": SPAN.since_ms + minute * MINUTE, "cpus": 4,
        "cpu_s": 1.0 * seconds, "bytes_in": RATE * seconds, "bytes_out": 0, "network_in_bytes_per_s": None,
        "network_out_bytes_per_s": None, "disk_free_bytes": 1, "disk_total_bytes": 2, "state": state,
    }  # fmt: skip


minutes = st.integers(1, MINUTES - 1)
lives = st.lists(
    st.tuples(minutes, st.sampled_from(["stopped", "killed", "removed", "drained"]), st.integers(0, 90)),
    max_size=3,
)


@st.composite
def days(draw: st.DrawFn) -> Day:
    day = Day()
    up: dict[tuple[str, int], tuple[int, int]] = {}  # (broker, minute) → (begun, incarnation)
    for broker in ("1", "2", "3"):
        begun, incarnation = 0, 1
        for end, how, away in [*sorted(draw(lives)), (MINUTES, "runs", 0)]:
            for minute in range(begun, max(begun, end)):
                up[broker, minute] = begun, incarnation
                day.brokers.append(broker_row(broker, minute, begun, incarnation))
            if end > begun and how != "runs" and end < MINUTES:
                if how in ("stopped", "drained"):
                    day.brokers.append(broker_row(broker, end, begun, incarnation, how))
                if how == "removed":
                    day.brokers.append(broker_row(broker, end, end, 0, how))
                    break
            begun, incarnation = max(begun, end + 1 + away), incarnation + 1
    for topic in ("/d/a", "/d/b"):
        moves = sorted(draw(st.dictionaries(minutes, st.sampled_from(["1", "2", "3"]), max_size=4)).items())
        for minute in range(0, MINUTES, 5):
            owner = next((to for at, to in reversed(moves) if at <= minute), "1")
            if (owner, minute) in up:
                begun, incarnation = up[owner, minute]
                day.topics.append({
                    "topic": topic, "topic_id": 1, "broker_id": owner, "incarnation": incarnation,
                    "taken_at": SPAN.since_ms + minute * MINUTE, "bytes_in": RATE // 2 * 60 * (minute - begun),
                    "bytes_out": 0, "unread_messages": 0,
                })  # fmt: skip
    return day


def judged(day: Day, bucket_minutes: int, order: random.Random) -> list[dict[str, Any]]:
    known = Telemetry(
        store=StoreOptions(url="memory://"), cluster="c", keys=(), interval_ms=MINUTE, thinned_ms=0, stored_bytes=0,
        oldest_ms=SPAN.since_ms, newest_ms=SPAN.until_ms, last_round_ms={}, alive_ms={},
    )  # fmt: skip
    work = BalanceWork(brokers=known, topics=known, span=SPAN)
    bucket_ms = bucket_minutes * MINUTE
    parts: dict[int, list[dict[str, Any]]] = {}
    for kind, rows in (("brokers", day.brokers), ("topics", day.topics)):
        shuffled = order.sample(rows, len(rows))
        cut = order.randrange(len(rows) + 1) if rows else 0
        before_ms = 2 * MINUTE if kind == "brokers" else 2 * LOAD_EVERY * MINUTE
        for file in (shuffled[:cut], shuffled[cut:]):  # a subject may be told of in two files
            for bucket, own in rows_by_stretch(file, kind, SPAN, bucket_ms, before_ms).items():
                parts.setdefault(bucket, []).append({"bucket": bucket, "kind": kind, "rows": json.dumps(own)})
    return with_missing([row for bucket in sorted(parts) for row in work.judge(parts[bucket])])


@settings(max_examples=40, deadline=None)
@given(day=days(), seed=st.integers(0, 1000))
def test_every_boundary_of_a_day_is_walked(day: Day, seed: int) -> None:
    bucket_minutes = 60
    rows = judged(day, bucket_minutes, random.Random(seed))
    own: dict[str, list[dict[str, Any]]] = {}
    for each in sorted(day.brokers, key=lambda row: row["taken_at"]):
        own.setdefault(each["broker_id"], []).append(each)
    for row in rows:
        begin, end = row["hour_ms"], row["hour_ms"] + bucket_minutes * MINUTE
        missing = {each["broker_id"] for each in json.loads(row["missing"])}
        for broker, samples in own.items():
            before = [each for each in samples if each["taken_at"] < begin]
            inside = [each for each in samples if begin <= each["taken_at"] < end]
            if inside or not before:
                continue
            gone = before[-1]["state"] in ("drained", "stopped", "removed")
            assert (broker in missing) == (not gone)
        if missing and row["score"] is not None:
            assert all(any(begin <= each["taken_at"] < end for each in own[broker]) for broker in missing)
        if row["score"] is not None:
            # Every broker uses a quarter for as long as it runs, and the share is a mean of the hour.
            for broker, share in json.loads(row["resources"])["cpu"]["used"].items():
                lives = [each["incarnation"] for each in own[broker] if begin <= each["taken_at"] < end]
                assert 0.25 * (len(lives) - len(set(lives))) / bucket_minutes <= share <= 0.26, row
            assert row["verdict"] not in ("OVERLOADED",), row
    owners: dict[str, list[str]] = {}
    for each in sorted(day.topics, key=lambda row: row["taken_at"]):
        owners.setdefault(each["topic"], []).append(each["broker_id"])
    changes = sum(a != b for told in owners.values() for a, b in pairwise(told))
    assert sum(row["owner_changes"] for row in rows) <= changes
    if all(
        len([1 for row in rows if row["hour_ms"] == SPAN.since_ms + at * MINUTE])
        for at in range(0, MINUTES, 60)
    ):
        steady = all(len(told) == MINUTES // 5 for told in owners.values())
        assert not steady or sum(row["owner_changes"] for row in rows) == changes


@settings(max_examples=15, deadline=None)
@given(day=days(), seeds=st.tuples(st.integers(0, 1000), st.integers(0, 1000)))
def test_the_order_of_rows_and_the_files_they_are_in_mean_nothing(day: Day, seeds: tuple[int, int]) -> None:
    assert judged(day, 60, random.Random(seeds[0])) == judged(day, 60, random.Random(seeds[1]))
