"""Reading a topic three ways, side by side in one run: spark.read.parquet on the objects, read_topic, the data source.

    .venv/bin/python benchmarks/spark_reading.py [--messages 10000000] [--size 128] [--runs 3] [--data DIR] [--profile]

With `--data` the objects are written there if there are none, and kept: `--runs 0` only writes them. With `--profile`
nothing is run in Spark: the processor seconds per million messages of each step of the data source before the JVM.

Every column is consumed (a hash over all of them). Prints a line of JSON: messages a second of each, and their ratio to
Spark's own reader: the aim is 0.85 for read_topic and 0.35 for the data source.
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

import pyarrow as pa
from pydanube_core.batch.encode import encode_batch
from pydanube_spark import open_session, read_topic
from pydanube_storage.objects.names import ObjectName, topic_folder
from pydanube_storage.parquet import Meta, ObjectWriter
from pydanube_storage.topics.extent import slices_of
from pydanube_storage.topics.located import locate, open_for_reading
from pydanube_storage.topics.query import TopicQuery
from pydanube_storage.topics.reading import Times, open_object, read_slices
from pydanube_storage.topics.rows import ROWS

TOPIC_MESSAGES = 500_000  # in one object: about 30 MB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-reading-") as temporary:
        folder = str(given.data or temporary)
        paths = sorted(map(str, Path(folder).rglob("*.parquet")))
        if not paths:
            paths = write(Path(folder), given.messages, given.size)
        if given.profile:
            print(json.dumps(profile(folder)))
            return
        if not given.runs:
            return
        spark = open_session(given.master)

        def source(end: int) -> Any:
            options = {"topic": "orders", "tier": folder, "end": f"offset:{end}"}
            return spark.read.format("danube").options(**options).load()

        ways = {
            "parquet": lambda end: spark.read.parquet(*paths[: -(-end // TOPIC_MESSAGES)]),
            "read_topic": lambda end: read_topic(spark, "orders", tier=folder, end=f"offset:{end}"),
            "source": source,
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for run in range(given.runs + 1):  # the first one, over one object, warms up
            messages = given.messages if run else min(given.messages, TOPIC_MESSAGES)
            for name, way in ways.items():
                begun = time.monotonic()
                consume(way(messages), messages)
                if run:
                    rates[name].append(messages / (time.monotonic() - begun))
                    print(f"{name}: {rates[name][-1]:,.0f} messages/s", file=sys.stderr, flush=True)
    medians = {name: statistics.median(each) for name, each in rates.items()}
    print(
        json.dumps(
            {
                "messages_per_s": {name: round(rate) for name, rate in medians.items()},
                "ratio": {name: round(rate / medians["parquet"], 3) for name, rate in medians.items()},
                "messages": given.messages,
                "load": round(os.getloadavg()[0], 1),
                "cpus": os.cpu_count(),
            }
        )
    )


def profile(folder: str) -> dict[str, float]:
    """Return processor seconds per million messages: to read Parquet, with the columns made, with them serialised."""
    located = locate(TopicQuery(topics=("orders",), tier=folder))
    assert located.store is not None
    store, objects = open_for_reading(located.store), located.extents[0].objects

    def read() -> int:
        readers = [open_object(store, each) for each in objects]
        return sum(
            each.read_row_group(index).num_rows for each in readers for index in range(each.row_groups)
        )

    def rows() -> int:
        assert located.store is not None
        tasks = slices_of(located.extents, split_bytes=32 << 20)
        return sum(batch.num_rows for task in tasks for batch in read_slices(located.store, task, Times()))

    def serialised() -> int:
        assert located.store is not None
        found = 0
        for task in slices_of(located.extents, split_bytes=32 << 20):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, ROWS) as writer:
                for batch in read_slices(located.store, task, Times()):
                    writer.write_batch(batch)
                    found += batch.num_rows
        return found

    seconds = {}
    for step in (read, rows, serialised):
        step()
        begun = time.process_time()
        messages = step()
        seconds[step.__name__] = round(1e6 * (time.process_time() - begun) / messages, 2)
    return seconds | {"load": round(os.getloadavg()[0], 1)}


def consume(frame: Any, expected: int) -> None:
    """Read every column of every row."""
    columns = [
        f"map_entries({name})" if kind.startswith("map") else f"`{name}`" for name, kind in frame.dtypes
    ]
    (row,) = (
        frame.selectExpr(f"xxhash64({', '.join(columns)}) h")
        .selectExpr("count(*) n", "bit_xor(h) h")
        .collect()
    )
    assert row.n == expected


def write(folder: Path, messages: int, size: int) -> list[str]:
    """Objects as a broker writes them; their paths."""
    place = folder / topic_folder("cluster", "default", "orders", 1)
    place.mkdir(parents=True)
    paths, base = [], 0
    while base < messages:
        count = min(TOPIC_MESSAGES, messages - base)
        name = ObjectName(start=base, end=base + count, epoch=1, generation=0, random="0")
        meta = Meta(cluster="cluster", topic="/default/orders", topic_id=1, start=base, end=base + count)
        with ObjectWriter(place / str(name), meta) as writer:
            at = base
            while at < base + count:
                part = min(2000, base + count - at)
                writer.add(stored_batch(at, part, size, encode_batch))
                at += part
            writer.finish()
        paths.append(str(place / str(name)))
        base += count
    return paths


def stored_batch(base: int, count: int, size: int, encode: Any) -> bytes:
    """A batch with a broker part, of payloads that do not compress to nothing."""
    from pydanube_core.batch import broker_part

    body = encode(
        [os.urandom(size // 2) + bytes(size - size // 2) for _ in range(count)],
        keys=[b"k%d" % (number % 97) for number in range(count)],
        producer_id=1,
        producer_epoch=1,
        first_sequence=base,
        publish_time_ms=1_700_000_000_000 + base,
    )
    return bytes(
        broker_part(
            base_offset=base, last_offset=base + count - 1, epoch=1, append_time_ms=1_700_000_000_000 + base
        )
    ) + bytes(body)


if __name__ == "__main__":
    main()
