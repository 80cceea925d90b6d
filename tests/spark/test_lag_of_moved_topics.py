"""The lag report of a topic that moved away from its broker and back, in which files overlap in time."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydanube_spark.reports.lag.history import ARRAYS, Grid
from pydanube_spark.reports.lag.packing import pack
from pydanube_spark.reports.lag.work import LagRequest, LagWork
from pydanube_spark.reports.run import Span
from pydanube_spark.reports.source import Telemetry
from pydanube_storage.objects import StoreOptions

SECOND = 1000
START = 472_222 * 3_600_000
END = START + 1800 * SECOND


def part(broker: str, *stretches: tuple[int, int], topic_id: int = 1) -> dict[str, Any]:
    """A file's samples of one subscription: 5 s apart, between these seconds."""
    times = np.concatenate([np.arange(begin, end, 5) for begin, end in stretches]) * SECOND + START
    arrays = {name: np.zeros(len(times), np.int64) for name in ARRAYS}
    arrays |= {
        "taken_at": times,
        "members": np.ones(len(times), np.int64),
        "incarnation": arrays["members"] + 1,
    }
    return {
        "topic": "/default/t", "topic_id": topic_id, "partition": None, "subscription": "s", "subscription_id": 1,
        "type": "shared", "broker_id": broker, "last_ms": int(times[-1]),
        "samples": pack(np.stack([arrays[name] for name in ARRAYS])), "damaged": None,
    }  # fmt: skip


def judged(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of the whole time. Broker A dies after 600 s."""
    told = {"A": START + 600 * SECOND, "B": END}
    known = Telemetry(
        store=StoreOptions(url="memory://"), cluster="c", keys=(), interval_ms=5 * SECOND, thinned_ms=0,
        stored_bytes=0, oldest_ms=START, newest_ms=END, last_round_ms=told, alive_ms=told,
    )  # fmt: skip
    span = Span(since_ms=START, until_ms=END)
    request = LagRequest(store=known.store, cluster=None, span=span, exact_ages=False)
    work = LagWork(request=request, telemetry=known, grid=Grid.of(5 * SECOND), logs={})
    return [row for row in work.judge(parts) if row["hour_ms"] is None]


def test_the_newest_sample_says_whose_a_topic_was() -> None:
    """Broker A has the topic, then B, then A again, which dies: B goes on, and told nothing of the topic since."""
    (row,) = judged(part("A", (0, 200), (400, 600)), part("B", (200, 400)))
    assert (row["gone_ms"], row["status"]) == (None, "UNKNOWN")
    (moved,) = judged(part("A", (0, 200)), part("B", (200, 400)))
    assert moved["gone_ms"] == START + 395 * SECOND


def test_a_topic_that_was_made_again_ends_the_row_of_the_former() -> None:
    """Both brokers are silent at the end, so that by their rounds neither topic is known to be gone."""
    rows = judged(part("B", (0, 1700)), part("B", (1705, 1800), topic_id=2))
    assert sorted(row["gone_ms"] or 0 for row in rows) == [0, START + 1695 * SECOND]
