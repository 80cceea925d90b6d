"""Sinks beside the library's own writing of the same rows: topic → Delta and topic → PostgreSQL (insert).

    .venv/bin/python benchmarks/connect.py [--rows 100000] [--pairs 3]

A broker in memory, in a process of its own, holds the topic; each pair runs the library alone, then `danube connect run
--once` in this process, decoding and acknowledgements included. PostgreSQL is the system's (apt-get install postgresql).
The goals are ratios of 0.5.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pyarrow as pa
from deltalake import write_deltalake
from pydanube.testing import InMemoryCluster
from pydanube_connect.file import declared
from pydanube_connect.running import runner_of

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.connect.servers import MISSING, Postgres

BATCH = {"batch_size": 20_000, "batch_age": "1s"}


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"id": n, "name": f"customer {n % 977}", "total": n / 7, "ok": n % 2 == 0} for n in range(count)]


async def sink_s(
    cluster: InMemoryCluster, name: str, connector: str, settings: dict[str, Any], count: int
) -> float:
    tree = {"name": name, "connector": connector, "topic": "t", "settings": settings, "delivery": BATCH}
    async with cluster.connect() as client:
        runner = runner_of(declared(tree, path="bench"), client, stop=anyio.Event(), once=True)
        begun = time.perf_counter()
        ended = begun
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.run)
            while runner.statistics.records < count:  # noqa: ASYNC110  # the quiet time at the end is not its work
                await anyio.sleep(0.005)
            ended = time.perf_counter()
        return ended - begun


def delta_s(folder: Path, rows: list[dict[str, Any]]) -> float:
    begun = time.perf_counter()
    for at in range(0, len(rows), BATCH["batch_size"]):  # type: ignore[call-overload]
        write_deltalake(str(folder), pa.Table.from_pylist(rows[at : at + 20_000]), mode="append")
    return time.perf_counter() - begun


def copy_s(dsn: str, rows: list[dict[str, Any]]) -> float:
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE plain (id bigint, name text, total double precision, ok boolean)")
        connection.commit()
        begun = time.perf_counter()
        with connection.cursor() as cursor, cursor.copy("COPY plain FROM STDIN") as copy:
            for row in rows:
                copy.write_row(list(row.values()))
        connection.commit()
        took = time.perf_counter() - begun
        connection.execute("DROP TABLE plain")
        return took


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=3)
    given = parser.parse_args()
    rows = rows_of(given.rows)
    found: dict[str, list[float]] = {"delta": [], "postgres": []}
    with InMemoryCluster() as cluster, tempfile.TemporaryDirectory() as folder:
        async with cluster.connect() as client, client.producer("t") as producer:
            await producer.send_many([json.dumps(row).encode() for row in rows])
        for pair in range(given.pairs):
            alone = delta_s(Path(folder) / f"plain{pair}", rows)
            table = {"table": f"{folder}/sink{pair}"}
            through = await sink_s(cluster, f"d{pair}", "delta-sink", table, given.rows)
            found["delta"].append(alone / through)
            print(
                f"delta: alone {given.rows / alone:,.0f} rows/s, sink {given.rows / through:,.0f}",
                file=sys.stderr,
            )
        if MISSING is None:
            with Postgres() as server:
                for pair in range(given.pairs):
                    alone = copy_s(server.dsn, rows)
                    target = {"dsn": server.dsn, "table": f"orders{pair}"}
                    through = await sink_s(cluster, f"p{pair}", "postgres-sink", target, given.rows)
                    found["postgres"].append(alone / through)
                    print(
                        f"postgres: COPY {given.rows / alone:,.0f} rows/s, sink {given.rows / through:,.0f}",
                        file=sys.stderr,
                    )
    print(
        json.dumps(
            {
                name: {"ratio": round(statistics.median(each), 3), "runs": [round(x, 3) for x in each]}
                for name, each in found.items()
                if each
            }
            | {"rows": given.rows, "load_before": os.getloadavg()[0]}
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
