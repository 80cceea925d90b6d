"""How large a day of telemetry is: made-up telemetry of a mixed load, and of one in which everything is busy.

    .venv/bin/python benchmarks/telemetry_size.py [--subscriptions 1000] [--hours 2]

Prints a line of JSON for each load: bytes of each table, scaled to a day. Written exactly as brokers write it, in files
of an hour.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from unittest import mock

from pydanube_core.telemetry.files import HOUR_MS
from pydanube_storage.objects.local import LocalStore

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support import telemetry_generator as generator
from tests.support.telemetry_generator import Behaviour, Plan, generate

LOADS = {
    "mixed": None,
    "all keep up, all busy": Behaviour.KEEPS_UP,
    "all fall behind": Behaviour.FALLS_BEHIND,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subscriptions", type=int, default=1000)
    parser.add_argument("--hours", type=int, default=2)
    given = parser.parse_args()
    plan = Plan(
        start_ms=472_222 * HOUR_MS,
        hours=given.hours,
        subscriptions=given.subscriptions,
        brokers=1,
        hot_topics=0,
    )
    for load, behaviour in LOADS.items():
        with (
            tempfile.TemporaryDirectory(prefix="telemetry-size-") as folder,
            mock.patch.object(
                generator,
                "behaviour_of",
                generator.behaviour_of if behaviour is None else lambda number, b=behaviour: b,
            ),
        ):
            written = generate(LocalStore(Path(folder)), plan)
            sizes: Counter[str] = Counter()
            for path in Path(folder).rglob("*.parquet"):
                sizes[path.parts[-3]] += path.stat().st_size
        day = 24 / given.hours
        print(
            json.dumps(
                {
                    "load": load,
                    "subscriptions": given.subscriptions,
                    "rows": written["rows"],
                    "megabytes_a_day": {
                        table: round(size * day / 1e6, 2) for table, size in sorted(sizes.items())
                    },
                    "megabytes_a_day_in_all": round(sum(sizes.values()) * day / 1e6, 1),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
