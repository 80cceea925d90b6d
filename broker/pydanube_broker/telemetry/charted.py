"""Read the last hour before a broker's start back from telemetry, for its charts, in the tier's process. Blocking.

Counters of the tables begin with each start of the broker. Here their rises are joined over starts, and shifted so
that they end with 0, where the counters of the present run begin.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

from pydanube_core.cursor_state import lag_messages
from pydanube_core.telemetry.tables import CURSORS, HEADS
from pydanube_storage.objects import ObjectStore
from pydanube_storage.telemetry.reading import newest_rows

from pydanube_broker.telemetry.past import own_rounds

STEP_MS: Final = 60_000
MOST_ROUNDS: Final = 20_000  # an hour of them lasts as long as `telemetry.sample_interval` is at least 180 ms
#: of all cursors. Beyond, the oldest are left out: 70 that change in each round have an hour
MOST_ROWS: Final = 50_000
TRAFFIC: Final = ("messages_in", "bytes_in", "messages_out", "bytes_out")

Facts: TypeAlias = dict[str, Any]
#: rows of the broker, of logs by topic id, of cursors by (topic id, subscription id): `Series.rows` of `observation.charted`
Read: TypeAlias = tuple[bytes, dict[int, bytes], dict[tuple[int, int], bytes]]


def charted_before(
    store: ObjectStore, cluster: str, broker_id: str, *, start_ms: int, end_ms: int, hold_ms: int
) -> Read:
    """Return the rows of a broker's charts in `[start_ms, end_ms)`, one a minute. A cursor's row holds for `hold_ms`."""
    bounds: Facts = {"broker_id": broker_id, "start_ms": start_ms, "end_ms": end_ms}
    seen = own_rounds(store, cluster, most=MOST_ROUNDS, **bounds)[::-1]
    if not seen:
        return b"", {}, {}
    rows, cut = newest_rows(store, cluster, CURSORS, most=MOST_ROWS, **bounds)
    logs: dict[int, list[tuple[int, int]]] = {}
    cursors: dict[tuple[int, int], list[tuple[int, int, int]]] = {}  # time, unread, acknowledged of each row
    lag_in: dict[int, dict[tuple[int, int], int]] = {}  # minute → cursor → unread messages
    for row in reversed(rows):
        each = dict(zip(CURSORS.names, row, strict=True))
        key, head = (each["topic_id"], each["subscription_id"]), each["next_offset"]
        unacked, above = head - each["unread_offsets"], each["acked_above"]
        taken, lag = each["taken_at"], lag_messages(each["start_offset"], head, unacked, above)
        logs.setdefault(key[0], []).append((taken, head))
        # Not the row: 50 000 of them take 44 MB. The acknowledged are for their rise, as the counter's
        cursors.setdefault(key, []).append((taken, lag, unacked + above))
        lag_in.setdefault(taken // STEP_MS, {})[key] = lag
    followed = {topic_id for topic_id, _ in cursors}
    for row in reversed(newest_rows(store, cluster, HEADS, most=MOST_ROWS, **bounds)[0]):
        each = dict(zip(HEADS.names, row, strict=True))
        if each["topic_id"] not in followed:
            logs.setdefault(each["topic_id"], []).append((each["taken_at"], each["next_offset"]))
    # Before the first row of each cursor the sum of all would be too small
    known_ms = rows[-1][0] + hold_ms if cut else 0
    back = -(-hold_ms // STEP_MS)

    def unread(taken_ms: int) -> int:
        now: dict[tuple[int, int], int] = {}
        for minute in range(taken_ms // STEP_MS - back, taken_ms // STEP_MS + 1):
            now |= lag_in.get(minute, {})
        return sum(now.values())

    last_of = {each["taken_at"] // STEP_MS: each["taken_at"] for each in seen}
    broker = [
        (*totals, unread(totals[0]))
        for totals in rises_of(
            [(each["taken_at"], each["incarnation"], *(each[name] for name in TRAFFIC)) for each in seen]
        )
        if totals[0] >= known_ms and totals[0] == last_of[totals[0] // STEP_MS]
    ]
    return (
        packed_rows(broker),
        {topic_id: packed_rows(heads) for topic_id, heads in logs.items()},
        {
            key: packed_rows(
                (taken, lag, acks)
                for (_, lag, _), (taken, acks) in zip(
                    of_one, rises_of([(taken, 0, acks) for taken, _, acks in of_one]), strict=True
                )
            )
            for key, of_one in cursors.items()
        },
    )


def rises_of(rows: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return the time and the totals of each row, shifted so that the last are 0.

    Args:
        rows: time, run, and counters, which begin with 0 in each run.
    """
    totals, found = [0] * (len(rows[0]) - 2), []
    for number, (taken, run, *counters) in enumerate(rows):
        _, run_before, *before = rows[number - 1] if number else rows[0]
        for place, count in enumerate(counters):
            totals[place] += max(0, count - (before[place] if run == run_before else 0))
        found.append((taken, *totals))
    return [(taken, *(now - last for now, last in zip(each, totals, strict=True))) for taken, *each in found]


def packed_rows(rows: Iterable[Sequence[int]]) -> bytes:
    """Return the last row of each minute, in one array. Of a run of equal rows, the first and the last stay."""
    packed = list[Sequence[int]]()
    for row in {row[0] // STEP_MS: row for row in rows}.values():
        if len(packed) > 1 and packed[-1][1:] == packed[-2][1:] == row[1:]:
            packed.pop()
        packed.append(row)
    return array("q", itertools.chain.from_iterable(packed)).tobytes()
