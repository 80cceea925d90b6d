"""Writing the same rows two ways, side by side in one run: spark.write.parquet, and the sink into a topic.

    .venv/bin/python benchmarks/spark_sink.py [--rows 2000000] [--size 128] [--partitions 0] [--runs 3]

A broker of its own, fsynced; Spark as local[2]; rows of payload and key, in memory before anything is timed. Prints a line of
JSON: rows a second of each (medians), and their ratio: the aim is 0.6. Exit 1 below `--least`. How many rows the topic
holds afterwards is checked.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pydanube_spark import open_session

from tests.support.broker_process import BrokerProcess


def rows(spark: Any, count: int, size: int) -> Any:
    """Payloads that do not compress to nothing, and keys; in memory."""
    payload = "||".join(["unhex(sha2(cast(id as string), 256))"] * -(-size // 64))
    frame = spark.range(count).selectExpr(
        f"rpad({payload}, {size}, x'00') as payload", "'k' || (id % 97) as key"
    )
    frame.cache().count()
    return frame


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--partitions", type=int, default=0, help="of the topic; 0: none")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--least", type=float, default=0.6)
    given = parser.parse_args()
    rates: dict[str, list[float]] = {"parquet": [], "sink": []}
    with tempfile.TemporaryDirectory(prefix="spark-sink-") as folder, BrokerProcess(Path(folder)) as broker:
        spark = open_session("local[2]")
        frame, few = rows(spark, given.rows, given.size), rows(spark, 10_000, given.size)
        for run in range(given.runs + 1):  # the first one, of few rows, warms up
            topic = f"sink-{run}"
            if given.partitions:
                broker.command("topics", "create", topic, "--partitions", str(given.partitions))

            def sink(some: Any, topic: str = topic) -> None:
                options = {"topic": topic, "broker": broker.url}
                some.write.format("danube").options(**options).mode("append").save()

            def parquet(some: Any, run: int = run) -> None:
                some.write.parquet(f"{folder}/rows-{run}")

            for name, way in (("parquet", parquet), ("sink", sink)):
                begun = time.monotonic()
                way(frame if run else few)
                if run:
                    rates[name].append(given.rows / (time.monotonic() - begun))
                    print(f"{name}: {rates[name][-1]:,.0f} rows/s", file=sys.stderr, flush=True)
            stored = spark.read.format("danube").option("topic", topic).option("broker", broker.url).load()
            assert stored.count() == (given.rows if run else 10_000)
        spark.stop()
    medians = {name: statistics.median(each) for name, each in rates.items()}
    ratio = medians["sink"] / medians["parquet"]
    print(
        json.dumps(
            {
                "rows_per_s": {name: round(rate) for name, rate in medians.items()},
                "ratio": round(ratio, 3),
                "rows": given.rows,
                "load": round(os.getloadavg()[0], 1),
                "cpus": os.cpu_count(),
            }
        )
    )
    return int(ratio < given.least)


if __name__ == "__main__":
    raise SystemExit(main())
