"""How long the lag report takes over made-up telemetry, and how that grows with the samples.

    .venv/bin/python benchmarks/spark_reports.py [--subscriptions 1000] [--hours 14] [--master local[2]]

One line of JSON for each size: cursor samples, seconds, seconds for a million, peak memory of the Python processes. The
second size has twice the samples of the first, by half the interval; 1 000 subscriptions for 14 hours at 5 s are ten
million samples.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path

from pydanube_core.telemetry.files import HOUR_MS
from pydanube_spark import open_session
from pydanube_spark.reports.lag import LagQuestion, lag_table
from pydanube_spark.reports.lag_rows import Span
from pydanube_spark.telemetry.generator import Plan, generate
from pydanube_storage.objects import StoreOptions
from pydanube_storage.objects.local import LocalStore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subscriptions", type=int, default=1000)
    parser.add_argument("--hours", type=int, default=14)
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    spark = open_session(given.master)
    spark.range(10).count()
    for interval_ms in (5000, 2500):
        plan = Plan(
            start_ms=472_222 * HOUR_MS,
            hours=given.hours,
            subscriptions=given.subscriptions,
            interval_ms=interval_ms,
        )
        with tempfile.TemporaryDirectory(prefix="spark-reports-") as folder:
            samples = generate(LocalStore(Path(folder)), plan)["cursors"]
            span = Span(since_ms=plan.start_ms, until_ms=plan.start_ms + plan.hours * HOUR_MS)
            begun = time.monotonic()
            load_before = os.getloadavg()[0]
            frame, _ = lag_table(spark, LagQuestion(store=StoreOptions(url=folder), cluster=None, span=span))
            rows = frame.toArrow().num_rows
            took_s = time.monotonic() - begun
        print(
            json.dumps(
                {
                    "samples": samples,
                    "rows": rows,
                    "took_s": round(took_s, 1),
                    "s_a_million": round(took_s / samples * 1e6, 2),
                    "driver_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
                    "load_before": round(load_before, 1),
                    "cpus": os.cpu_count(),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
