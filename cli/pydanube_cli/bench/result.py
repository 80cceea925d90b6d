"""The result of a benchmark: medians over the runs, sums of what was verified, ratios to the raw.

Its fields are those of docs/interface.md#12-objects-metrics-benchmarks-make.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any, Final

FIGURES: Final = ("messages_per_s", "megabytes_per_s", "p50_ms", "p99_ms", "p999_ms", "max_ms")
COUNTS: Final = ("sent", "received", "missing", "duplicates", "out_of_order")


def assemble(
    *,
    scenario: str,
    command: str,
    config: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    raw: Mapping[str, Any],
    machine: Mapping[str, Any],
) -> dict[str, Any]:
    """One JSON object; everything that was measured is in it."""
    middle: dict[str, Any] = {name: _median([run.get(name) for run in runs]) for name in FIGURES}
    if (reason := runs[0].get("p50_ms_reason")) is not None:
        middle["p50_ms_reason"] = reason
    for name in ("beside", "topics"):
        if name in runs[0]:
            middle[name] = _median_tree([run[name] for run in runs])
    if "reference" in runs[0]:
        middle["reference_messages_per_s"] = _median([run["reference"]["messages_per_s"] for run in runs])
    if "publish_messages_per_s" in runs[0]:
        middle["publish_messages_per_s"] = _median([run["publish_messages_per_s"] for run in runs])
    return {
        "scenario": scenario,
        "command": command,
        "config": dict(config),
        "durability": runs[0].get("durability"),
        "runs": [dict(run) for run in runs],
        "median": middle,
        "verified": {name: sum(run["verified"][name] for run in runs) for name in COUNTS},
        "server": {
            "cpu_us_per_message": _median([run["server"]["cpu_us_per_message"] for run in runs]),
            "rss_peak_bytes": max((run["server"]["rss_peak_bytes"] or 0 for run in runs), default=0) or None,
        },
        "raw": dict(raw),
        "ratio": _ratios(middle, raw)
        # The median of the runs' own ratios: each compares neighbours in time.
        | {"messages_per_s_to_exclusive": _median([run.get("share_of_reference") for run in runs])},
        "machine": dict(machine),
    }


def _ratios(middle: Mapping[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """How the figures stand to the machine's own; null where either is unknown."""
    return {
        "messages_per_fdatasync": _quotient(middle["messages_per_s"], raw.get("fdatasync_per_s")),
        "messages_per_empty_grpc_call": _quotient(
            middle["messages_per_s"], raw.get("empty_grpc_calls_per_s")
        ),
        "megabytes_per_crc32_megabyte": _quotient(middle["megabytes_per_s"], raw.get("crc32_mb_per_s")),
        "p50_per_fdatasync_p50": _quotient(middle["p50_ms"], raw.get("fdatasync_p50_ms")),
        "p50_over_fdatasync_p50_ms": _difference(middle["p50_ms"], raw.get("fdatasync_p50_ms")),
    }


def machine() -> dict[str, Any]:
    """Return the machine's facts; to be called before the load starts."""
    names = ("pydanube", "grpcio", "protobuf", "numpy", "uvloop")
    return {
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_before": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "python": sys.version.split()[0],
        "versions": {name: _version(name) for name in names} | {"kernel": platform.release()},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), 4) if len(known) == len(values) and known else None


def _median_tree(trees: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        name: _median_tree([tree[name] for tree in trees])
        if isinstance(trees[0][name], Mapping)
        else _median([tree[name] for tree in trees])
        for name in trees[0]
    }


def _quotient(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else round(a / b, 4)


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else round(a - b, 4)
