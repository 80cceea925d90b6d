"""What telemetry costs the broker: its end-to-end rate with and without, in turns.

    .venv/bin/python benchmarks/telemetry_cost.py [--pairs 4] [--messages 2000000] [--interval 5s]

Prints a line of JSON: the median rate of each, and of the ratios of neighbours; the aim is 0.98. Turns, since a machine's
speed drifts by more than that.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measuring import end_to_end_per_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--interval", default="5s")
    given = parser.parse_args()
    rates: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory(prefix="spark-cost-") as folder:
        for pair in range(given.pairs):
            for enabled in ((True, False), (False, True))[pair % 2]:
                environment = {
                    "DANUBE_TELEMETRY__ENABLED": str(enabled).lower(),
                    "DANUBE_TELEMETRY__SAMPLE_INTERVAL": given.interval,
                }
                rates[enabled].append(
                    end_to_end_per_s(given.messages, "--data-dir", folder, environment=environment)
                )
    ratios = [on / off for on, off in zip(rates[True], rates[False], strict=True)]
    print(
        json.dumps(
            {
                "with": round(statistics.median(rates[True])),
                "without": round(statistics.median(rates[False])),
                "ratio": round(statistics.median(ratios), 3),
                "ratios": [round(each, 3) for each in ratios],
                "cpus": os.cpu_count(),
            }
        )
    )


if __name__ == "__main__":
    main()
