"""The order of a lag report's rows, their JSON form, and their summary. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydanube_core.diagnosis import LagStatus, eta_of_partitions
from pydanube_core.units import known_time

from pydanube_spark.reports.lag.rows import SEVERITY

Row = Mapping[str, Any]

WARNING: Final = frozenset(SEVERITY[:5])
_MOMENTS: Final = ("hour_ms", "as_of_ms", "since_ms", "gone_ms")


def subject_of(row: Row) -> str:
    return f"{row['log']} {row['subscription']}"


def severity(status: str) -> int:
    """Return the rank of a status, the worst is 0."""
    return SEVERITY.index(LagStatus(status))


def offenders(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the whole time, worst first by status and unread messages, with deleted subscriptions last."""
    whole = [row for row in rows if row["hour_ms"] is None]
    return sorted(
        whole,
        key=lambda row: (
            row["gone_ms"] is not None,
            severity(row["status"]),
            -(row["lag_messages"] or 0),
            subject_of(row),
        ),
    )


def shown_row(row: Row) -> dict[str, Any]:
    """Return a row in the form of JSON: times as text, JSON columns as objects."""
    shown = {name: value for name, value in row.items() if name not in _MOMENTS}
    del shown["course"]  # only for the page, and redundant with the statuses of the hours
    for name in ("evidence", "reasons", "minutes"):
        shown[name] = json.loads(row[name])
    for name in _MOMENTS:
        shown[name.removesuffix("_ms")] = known_time(row[name])
    return shown


def lag_summary(rows: Sequence[Row], damaged: Sequence[str]) -> dict[str, Any]:
    """Return the totals of the report. Known lags are summed, unknown ones counted separately."""
    everyone = offenders(rows)
    worst = [row for row in everyone if row["gone_ms"] is None]
    lags = [row["lag_messages"] for row in worst]
    statuses: dict[str, int] = {}
    minutes: dict[str, float] = {}
    for row in worst:
        statuses[row["status"]] = statuses.get(row["status"], 0) + 1
    for row in everyone:
        for status, count in json.loads(row["minutes"]).items():
            minutes[status] = round(minutes.get(status, 0.0) + count, 3)
    total = sum(minutes.values()) - minutes.get(LagStatus.UNKNOWN, 0.0)
    fine = sum(minutes.get(status.value, 0.0) for status in (LagStatus.CAUGHT_UP, LagStatus.CATCHING_UP))
    return {
        "subscriptions": len(worst),
        "gone": len(everyone) - len(worst),
        "statuses": dict(sorted(statuses.items())),
        "lag_messages": sum(lag for lag in lags if lag is not None),
        "lag_unknown": sum(lag is None for lag in lags),
        "lost_messages": sum(row["lost_messages"] or 0 for row in worst),
        "newly_lost_messages": sum(row["newly_lost_messages"] or 0 for row in everyone),
        "minutes": dict(sorted(minutes.items())),
        "fine_share": round(fine / total, 4) if total else None,
        "worst": [
            {
                "topic": row["topic"],
                "partition": row["partition"],
                "subscription": row["subscription"],
                "status": row["status"],
                "lag_messages": row["lag_messages"],
            }
            for row in worst[:10]
            if row["status"] in WARNING
        ],
        "partitioned": _partitioned(worst),
        "damaged_files": list(damaged),
    }


def _partitioned(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return each subscription of a partitioned topic as a whole: its ETA, and how uneven its partitions are."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["partition"] is not None:
            groups.setdefault((row["topic"], row["subscription"]), []).append(row)
    found = []
    for (topic, subscription), parts in sorted(groups.items()):
        etas = [0.0 if row["lag_messages"] == 0 else row["eta_s"] for row in parts]
        eta_s, skew = eta_of_partitions(etas)
        known = [row["lag_messages"] for row in parts if row["lag_messages"] is not None]
        found.append(
            {
                "topic": topic,
                "subscription": subscription,
                "partitions": len(parts),
                "lag_messages": sum(known),
                "lag_unknown": len(parts) - len(known),
                "eta_s": eta_s,
                "eta_skew": skew,
            }
        )
    return found
