"""How long the lag report takes over made-up telemetry, and how that grows with the samples.

    .venv/bin/python benchmarks/spark_reports.py [--subscriptions 1000] [--hours 14] [--master local[2]] [--data DIR]

One line of JSON for each size: cursor samples, seconds, seconds for a million, peak memory of the Python processes. The
second size has twice the samples of the first, by half the interval; 1 000 subscriptions for 14 hours at 5 s are ten
million samples. With `--data` the telemetry is written there if there is none, and kept; `--write` only writes it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

import pyarrow.parquet as pq
from pydanube_core.telemetry.files import HOUR_MS
from pydanube_spark import open_session
from pydanube_spark.reports.engine import on_spark
from pydanube_spark.reports.lag.work import LagRequest, LagWork
from pydanube_spark.reports.run import Span
from pydanube_storage.objects import StoreOptions
from pydanube_storage.objects.local import LocalStore

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.telemetry_generator import Plan, generate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subscriptions", type=int, default=1000)
    parser.add_argument("--hours", type=int, default=14)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    if not given.write:
        spark = open_session(given.master)
        spark.range(10).count()
    for interval_ms in (5000, 2500):
        plan = Plan(
            start_ms=472_222 * HOUR_MS,
            hours=given.hours,
            subscriptions=given.subscriptions,
            interval_ms=interval_ms,
        )
        with tempfile.TemporaryDirectory(prefix="spark-reports-") as temporary:
            folder = str(given.data / str(interval_ms)) if given.data else temporary
            samples = cursor_samples(Path(folder))
            if not samples:
                Path(folder).mkdir(parents=True, exist_ok=True)
                samples = generate(LocalStore(Path(folder)), plan)["cursors"]
            if given.write:
                continue
            span = Span(since_ms=plan.start_ms, until_ms=plan.start_ms + plan.hours * HOUR_MS)
            begun = time.monotonic()
            load_before = os.getloadavg()[0]
            request = LagRequest(store=StoreOptions(url=folder), cluster=None, span=span)
            frame = on_spark(spark, LagWork.plan(request))
            with PeakMemory() as memory:
                rows = frame.toArrow().num_rows
            took_s = time.monotonic() - begun
        print(
            json.dumps(
                {
                    "samples": samples,
                    "rows": rows,
                    "took_s": round(took_s, 1),
                    "s_a_million": round(took_s / samples * 1e6, 2),
                    "peak_mb": {name: size >> 20 for name, size in memory.peak.items()},
                    "load_before": round(load_before, 1),
                    "cpus": os.cpu_count(),
                }
            ),
            flush=True,
        )


def cursor_samples(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("*/telemetry/cursors/*/*.parquet"))


class PeakMemory:
    """The peak of resident memory of the JVM, and of all Python processes below this one together, sampled ten times a second."""

    def __init__(self) -> None:
        self.peak = {"java": 0, "python": 0}
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watch.join()

    def _look(self) -> None:
        while not self._ended.wait(0.1):
            now = {"java": 0, "python": 0}
            below = [os.getpid()]
            for pid in below:
                with contextlib.suppress(OSError):
                    name = Path(f"/proc/{pid}/comm").read_text().strip()
                    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                    now["java" if name == "java" else "python"] += pages * os.sysconf("SC_PAGE_SIZE")
                    for task in Path(f"/proc/{pid}/task").iterdir():
                        below += map(int, (task / "children").read_text().split())
            self.peak = {name: max(size, now[name]) for name, size in self.peak.items()}


if __name__ == "__main__":
    main()
