"""Read the rings of a broker's run before this one back from telemetry, in the tier's process. Blocking.

A row of the table is one state of a subscription when it changed, so a ring of them is as the sampler keeps it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, Final

from pydanube_core.cursor_state import CursorState
from pydanube_core.telemetry.tables import BROKERS, CURSORS
from pydanube_storage.objects import ObjectStore
from pydanube_storage.telemetry.reading import newest_rows

MOST_ROUNDS: Final = 1000
#: of all cursors: 6 MB. Beyond, the oldest are left out
MOST_ROWS: Final = 50_000


def past_rings(
    store: ObjectStore, cluster: str, broker_id: str, *, start_ms: int, end_ms: int
) -> tuple[list[int], dict[tuple[int, int], bytes]]:
    """Return the times of the last run's rounds in `[start_ms, end_ms)`, ascending, and its rings by (topic id, subscription id)."""
    asked: Mapping[str, Any] = {"broker_id": broker_id, "end_ms": end_ms}
    seen = own_rounds(store, cluster, start_ms=start_ms, most=MOST_ROUNDS, **asked)
    times = sorted({each["taken_at"] for each in seen if each["incarnation"] == seen[0]["incarnation"]})
    if not times:
        return [], {}
    rows, _ = newest_rows(store, cluster, CURSORS, start_ms=times[0], most=MOST_ROWS, **asked)
    rings: dict[tuple[int, int], array[int]] = {}
    for row in reversed(rows):
        facts = dict(zip(CURSORS.names, row, strict=True))
        age_ms = facts["oldest_unread_age_ms"]
        facts["next_unacked"] = facts["next_offset"] - facts["unread_offsets"]
        facts["acknowledged"] = facts["next_unacked"] + facts["acked_above"]  # for its rise, as the counter's
        state = CursorState(
            taken_at_ms=facts["taken_at"],
            **{name: facts.get(name, 0) or 0 for name in CursorState._fields[1:]},
        )
        ring = rings.setdefault((facts["topic_id"], facts["subscription_id"]), array("q"))
        ring.extend((*state, -1 if age_ms is None else facts["taken_at"] - age_ms))
    return times, {key: ring.tobytes() for key, ring in rings.items()}


def own_rounds(
    store: ObjectStore, cluster: str, *, broker_id: str, start_ms: int, end_ms: int, most: int
) -> list[dict[str, Any]]:
    """Return a broker's rows of itself in `[start_ms, end_ms)`, the newest first, `most` at most."""
    asked: Mapping[str, Any] = {"broker_id": broker_id, "start_ms": start_ms, "end_ms": end_ms}
    rounds, _ = newest_rows(store, cluster, BROKERS, most=most, **asked)
    every = (dict(zip(BROKERS.names, row, strict=True)) for row in rounds)
    # A leader's files have rows of removed brokers too
    return [each for each in every if each["broker_id"] == broker_id]
