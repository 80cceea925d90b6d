"""What the cold tier does in a second, beside what the machine does for the same rows without us.

    python benchmarks/tier.py                                  # every scenario at a tenth of the size of issue 6
    python benchmarks/tier.py analytics --messages 5000000 --json

Reading from objects and writing them: `danube bench replay` and `danube bench tier`.

Each scenario starts brokers of its own (data on disk, fsynced, default settings but for those it names) and its load in
processes of their own, on this machine. Megabytes are 10⁶ bytes of payload; payloads are lines of a log from a seeded
generator. Scenarios, and the goals of issue 6:

* `beside`: a producer of 1 KiB messages as fast as it can, by turns against a broker that tiers and one that is held
  back. Goals: 60 MB/s tiered while it publishes, and 70 % of the rate kept.
* `analytics`: `count(*), min, max` in DuckDB over the topic's objects and over the same rows in one file that pyarrow
  wrote. Goal: at most 1.25 ×, which DuckDB 2 gives up at the second file: of several it reads the columns. So also beside
  the same rows in as many files that pyarrow wrote.
* `catalog`: a catalog with 100 000 objects: how long a reader takes to find its object, and to get its first message
  from a broker. Goal 50 ms.
* `idle`: end to end over 128 B messages (no cold reads) with the tier on and held back, by turns. Goal: within 10 %.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measuring import danube, parser_of, processor_s, resident_bytes
from benchmarks.tier_load import DEADLINE_S, SEED, TOPIC, Load, load
from tests.support.broker_process import BrokerProcess, client_environment
from tests.support.pinned_packages import ensure_package

HELD: Final = {"DANUBE_TIER__FLUSH_BYTES": "100GiB", "DANUBE_TIER__FLUSH_AGE": "10h"}
CATALOG_OBJECTS: Final = 100_000
_DUCKDB: Final = "duckdb==2.0.0"


# -- what is measured on processes --------------------------------------------------------------------------------


def processes(broker: BrokerProcess) -> dict[str, Any]:
    """Processor time and memory of broker and child."""
    child = broker.status()["tier"]["process_id"]
    return {
        name: {
            "cpu_s": round(processor_s(pid), 2),
            "rss_peak_mb": round(resident_bytes(pid, peak=True) / 1e6, 1),
        }
        for name, pid in (("broker", broker.pid), ("child", child))
        if pid is not None
    }


def until(condition: Callable[[], bool]) -> float:
    """Wait; the monotonic time when it was seen."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"it took longer than {DEADLINE_S:g} s")
        time.sleep(0.1)
    return time.monotonic()


def tiered(broker: BrokerProcess, bytes_in: int) -> bool:
    tier = broker.status()["tier"]
    return tier["bytes_in"] >= bytes_in and not tier["backlog_bytes"]


def objects(broker: BrokerProcess) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = broker.json_command("objects", "list", TOPIC, "--limit", "1000")["items"]
    return items


# -- scenarios ----------------------------------------------------------------------------------------------------


def beside(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    runs: list[dict[str, Any]] = []
    for number in range(options.rounds):
        for held in (True, False):
            where = folder / f"beside-{number}-{held}"
            with BrokerProcess(where, environment=HELD if held else {}) as broker:
                load("produce", broker, size=1024, messages=1000)  # opens the topic
                running = Load("produce", broker, size=1024, messages=None, seconds=options.seconds)
                found = running.result()
                # What was committed between the producer's first message and its last. An object under way is not.
                tier = broker.status()["tier"]
                cost = processes(broker)
                runs.append(
                    {
                        "held": held,
                        "per_s": found["per_s"],
                        "tiered_mb_per_s": round(
                            tier["bytes_in"] / 1e6 / (found["ended"] - found["begun"]), 1
                        ),
                        **cost,
                    }
                )
            shutil.rmtree(where, ignore_errors=True)
    alone = median(run["per_s"] for run in runs if run["held"])
    kept = median(run["per_s"] for run in runs if not run["held"])
    return {
        "producer_alone_per_s": alone,
        "producer_beside_per_s": kept,
        "producer_keeps": round(kept / alone, 3),
        "goal_keeps": 0.7,
        "tiered_mb_per_s": median(run["tiered_mb_per_s"] for run in runs if not run["held"]),
        "goal_mb_per_s": 60,
        "runs": runs,
    }


def analytics(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    settings = {"DANUBE_TIER__FLUSH_AGE": "500ms"}
    with BrokerProcess(folder, environment=settings) as broker:
        load("produce", broker, size=128, messages=options.messages)
        until(lambda: tiered(broker, options.messages * 128))
        flushed = [item["path"] for item in objects(broker)]
        broker.command("objects", "compact", TOPIC)
        compacted = [item["path"] for item in objects(broker)]
        answers = json.loads(
            subprocess.check_output(
                [
                    sys.executable,
                    "-c",
                    _QUERIES,
                    json.dumps([flushed, compacted]),
                    str(folder / "one.parquet"),
                ],
                env=client_environment({"PYTHONPATH": str(ensure_package(_DUCKDB))}),
            )
        )
    for name in ("flushed", "compacted"):
        assert answers[name]["count"] == answers[name]["distinct"] == options.messages, answers
    one = answers["one_file"]["ms"]
    return {
        "messages": options.messages,
        "goal_ratio": 1.25,
        "ratio_flushed": round(answers["flushed"]["ms"] / one, 3),
        "ratio_compacted": round(answers["compacted"]["ms"] / one, 3),
        "ratio_compacted_to_as_many": round(answers["compacted"]["ms"] / answers["as_many_files"]["ms"], 3),
        "ratio_first_object_to_one_file": round(answers["first_object"]["ms"] / one, 3),
        "objects": {"flushed": len(flushed), "compacted": len(compacted)},
        **answers,
    }


# Best of nine, the files by turns, so that what else runs on the machine touches all alike.
_QUERIES: Final = """
import json, sys, time, duckdb, pyarrow as pa, pyarrow.parquet as pq
(flushed, compacted), one = json.loads(sys.argv[1]), sys.argv[2]
pq.write_table(pa.concat_tables(pq.read_table(path) for path in compacted), one)
columns = '"offset", append_time, publish_time, sequence'.split(", ")
query = "select count(*), " + ", ".join(f"min({c}), max({c})" for c in columns)
connection = duckdb.connect()
split = [f"{one}.{number}" for number in range(len(compacted))]
for path, copy in zip(compacted, split):
    pq.write_table(pq.read_table(path), copy)
sets = {"one_file": [one], "as_many_files": split, "flushed": flushed, "compacted": compacted}
sets["first_object"] = compacted[:1]
best = dict.fromkeys(sets, 1e9)
for _ in range(9):
    for name, files in sets.items():
        begun = time.perf_counter()
        connection.execute(f"{query} from read_parquet({files})").to_arrow_table()
        best[name] = min(best[name], time.perf_counter() - begun)
found = {}
for name, files in sets.items():
    count, distinct = connection.execute(
        f'select count(*), count(distinct "offset") from read_parquet({files})'
    ).fetchone()
    found[name] = {"ms": round(best[name] * 1000, 2), "count": count, "distinct": distinct}
print(json.dumps(found))
"""


def catalog(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    settings = {"DANUBE_TIER__FLUSH_AGE": "100ms", "DANUBE_JOURNAL__SEGMENT_BYTES": "256KiB"}
    with BrokerProcess(folder, environment=settings) as broker:
        load("produce", broker, size=128, messages=10_000)
        until(lambda: tiered(broker, 10_000 * 128))
    found = asyncio.run(_many_objects(folder / "data", CATALOG_OBJECTS))
    with BrokerProcess(folder, environment=settings, data_dir=folder / "data") as broker:
        firsts = asyncio.run(_first_messages(broker.url))
        found.update(processes(broker))
    found |= {"goal_ms": 50, "broker_first_message_ms": round(median(firsts), 1)}
    return found


async def _first_messages(url: str) -> list[float]:
    """From opening a reader at the start, in the cold part, to its first message, in ms."""
    from pydanube import connect

    taken = []
    async with connect(url) as client:
        for _ in range(9):
            begun = time.perf_counter()
            async with client.reader(TOPIC) as reader:
                async for _batch in reader.batches():
                    taken.append((time.perf_counter() - begun) * 1000)
                    break
    return taken


async def _many_objects(data: Path, count: int) -> dict[str, Any]:
    """Give the topic `count` more catalog entries, and time look-ups by offset and by time; what a change takes."""
    from dataclasses import replace

    from pydanube_storage.catalog import ObjectCatalog
    from pydanube_storage.catalog.catalog import entry_key, head_key
    from pydanube_storage.metadata import MAX_OPERATIONS, EmbeddedStore, Put

    async with EmbeddedStore(data / "metadata.sqlite") as store:
        many = ObjectCatalog(store, wall_ms=lambda: 0)
        [(topic_id, head)] = (await many.heads()).items()
        last = (await many.entries_page(topic_id, after=head.tiered_offset - 1))[-1]
        writes, largest = [], 0
        for number in range(1, count + 1):
            # Names without objects: nobody reads behind the real ones here.
            entry = replace(
                last,
                name=f"{last.end + 10 * number - 10:020d}-{last.end + 10 * number}-1-0-0000.parquet",
                start=last.end + 10 * number - 10,
                end=last.end + 10 * number,
                min_append_time_ms=last.max_append_time_ms + number,
                max_append_time_ms=last.max_append_time_ms + number,
            )
            largest = max(largest, len(entry.to_json()))
            writes.append(Put(entry_key(topic_id, entry.end), entry.to_json()))
            if len(writes) == MAX_OPERATIONS:
                await store.transact(writes)
                writes.clear()
        head = replace(head, tiered_offset=entry.end, objects=head.objects + count)
        await store.transact([*writes, Put(head_key(topic_id), head.to_json())])
        by_offset, by_time = [], []
        places = random.Random(SEED)
        for _ in range(200):
            begun = time.perf_counter()
            assert await many.find(topic_id, places.randrange(entry.end)) is not None
            by_offset.append(time.perf_counter() - begun)
        for _ in range(50):
            begun = time.perf_counter()
            wanted = last.max_append_time_ms + places.randrange(1, count)
            found = await many.find_time(topic_id, wanted)
            assert found is not None
            assert found.max_append_time_ms == wanted
            by_time.append(time.perf_counter() - begun)
    return {
        "objects": head.objects,
        "by_offset_p50_ms": round(median(by_offset) * 1000, 2),
        "by_offset_max_ms": round(max(by_offset) * 1000, 2),
        "by_time_p50_ms": round(median(by_time) * 1000, 2),
        "by_time_max_ms": round(max(by_time) * 1000, 2),
        "largest_entry_bytes": largest,
        "head_bytes": len(head.to_json()),
    }


def idle(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for _ in range(options.rounds):
        for held, runs in found.items():
            words = ["bench", "e2e", "--runs", "1", "--messages", str(options.messages)]
            runs.append(danube(*words, "--data-dir", str(folder), environment=HELD if held else {}))
    rates = {held: [run["median"]["messages_per_s"] for run in runs] for held, runs in found.items()}
    return {
        "per_s": median(rates[False]),
        "held_per_s": median(rates[True]),
        "ratio": round(median(rates[False]) / median(rates[True]), 3),
        "goal_ratio": 0.9,
        "runs_per_s": rates[False],
        "held_runs_per_s": rates[True],
        "server_cpu_us_per_message": median(run["server"]["cpu_us_per_message"] for run in found[False]),
        "held_server_cpu_us_per_message": median(run["server"]["cpu_us_per_message"] for run in found[True]),
    }


SCENARIOS: Final[dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]]] = {
    "beside": beside,
    "analytics": analytics,
    "catalog": catalog,
    "idle": idle,
}


@contextlib.contextmanager
def scratch(parent: Path | None) -> Iterator[Path]:
    # Not in /tmp by default, which may be memory: a sync there costs nothing and says nothing.
    with tempfile.TemporaryDirectory(prefix="danube-bench-", dir=parent or Path.cwd()) as folder:
        yield Path(folder)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument(
        "scenarios", nargs="*", metavar="SCENARIO", help=f"{', '.join(SCENARIOS)}; all without"
    )
    parser.add_argument("--messages", type=int, default=500_000, help="analytics (issue 6: 5000000)")
    parser.add_argument("--seconds", type=float, default=8, help="beside: of each run")
    parser.add_argument("--rounds", type=int, default=2, help="beside, idle: how often by turns")
    parser.add_argument("--data-dir", type=Path, help="where the brokers get their folders (default: here)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave no broker behind
    unknown = set(options.scenarios) - set(SCENARIOS)
    if unknown:
        parser.error(f"unknown scenario {', '.join(sorted(unknown))}: choose from {', '.join(SCENARIOS)}")
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "seed": SEED,
    }
    for name in options.scenarios or SCENARIOS:
        with scratch(options.data_dir) as folder:
            facts[name] = SCENARIOS[name](folder, options)
        if not options.json:
            print(f"{name}: {json.dumps(facts[name], indent=2)}", flush=True)
    if options.json:
        print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
