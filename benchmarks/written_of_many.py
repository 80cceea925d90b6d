"""Fail-over of a broker with many topics of which few are written: the busiest ones are taken over first.

    python benchmarks/written_of_many.py --topics 2000 --written 100

The broker is killed after it has reported the times of its topics' messages, which it does once a minute.
"""

from __future__ import annotations

import argparse
import asyncio
from statistics import median

from pydanube_broker.moves.moves import REPORT_S
from pydanube_cli.bench.take_over_scenario import taken_over


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--topics", type=int, default=2_000)
    options.add_argument("--written", type=int, default=100)
    options.add_argument("--runs", type=int, default=1)
    chosen = options.parse_args()
    late, _, counts = asyncio.run(
        taken_over(chosen.topics, chosen.runs, None, written=chosen.written, loaded_s=REPORT_S + 5)
    )
    print(f"first receipt after {median(late):.2f} s, at most {max(late):.2f} s: {counts}")


if __name__ == "__main__":
    main()
