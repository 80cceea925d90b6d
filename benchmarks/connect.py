"""Connectors beside the library alone: topic → Delta, topic → PostgreSQL (insert), Kafka → topic, webhook → topic.

    .venv/bin/python benchmarks/connect.py [--rows 200000] [--pairs 3] [--only kafka,delta]

A broker in memory, in a process of its own, holds the topic; each pair runs the library alone, then `danube connect run
--once` in this process, decoding and acknowledgements included. Connector and consume loop are timed from their first batch on,
so that connecting and making a table do not count. PostgreSQL is the system's (apt-get install postgresql),
Kafka comes from Maven Central, and is compared with confluent-kafka's own loop. The webhook has 64 connections, and is compared
with a starlette that answers 200. A system that is missing is left out.
The goals are ratios of 0.5.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pyarrow as pa
import uvicorn
from confluent_kafka import Consumer, TopicPartition
from deltalake import write_deltalake
from pydanube.testing import InMemoryCluster
from pydanube_cli.connect import collect_seldom
from pydanube_connect.file import declared
from pydanube_connect.running import runner_of
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.connect.servers import KAFKA_JARS, MISSING, Kafka, Postgres

BATCH = {"batch_size": 20_000, "batch_age": "1s"}


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"id": n, "name": f"customer {n % 977}", "total": n / 7, "ok": n % 2 == 0} for n in range(count)]


async def connector_us(
    cluster: InMemoryCluster,
    name: str,
    connector: str,
    settings: dict[str, Any],
    count: int,
    topic: str = "t",
) -> float:
    tree = {"name": name, "connector": connector, "topic": topic, "settings": settings, "delivery": BATCH}
    async with cluster.connect() as client:
        runner = runner_of(declared(tree, path="bench"), client, stop=anyio.Event(), once=True)
        facts = runner.statistics
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.run)
            while not facts.records:  # noqa: ASYNC110
                await anyio.sleep(0.001)
            begun, first = time.perf_counter(), facts.records
            while facts.records < count:  # noqa: ASYNC110  # the quiet time at the end is not its work
                await anyio.sleep(0.001)
            took = time.perf_counter() - begun
        return took / (count - first) * 1e6


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


def consume_us(bootstrap: str, count: int) -> float:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition("t", n, 0) for n in range(4)])
    while not (first := sum(message.error() is None for message in consumer.consume(5_000, 0.05))):
        pass
    begun, seen = time.perf_counter(), first
    while seen < count:
        seen += sum(message.error() is None for message in consumer.consume(5_000, 0.05))
    took = time.perf_counter() - begun
    consumer.close()
    return took / (count - first) * 1e6


async def post_s(port: int, count: int) -> float:
    """Post bodies of 200 bytes over 64 connections, one at a time on each."""
    body = b"x" * 200
    request = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 200\r\n\r\n" + body

    async def one(times: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(times):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head, head
        writer.close()

    begun = time.perf_counter()
    await asyncio.gather(*(one(count // 64) for _ in range(64)))
    return time.perf_counter() - begun


async def bare_s(count: int) -> float:
    app = Starlette(routes=[Route("/", _answer, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False, lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    took = await post_s(server.servers[0].sockets[0].getsockname()[1], count)
    server.should_exit = True
    await task
    return took


async def _answer(request: Request) -> Response:
    await request.body()
    return Response()


async def webhook_s(cluster: InMemoryCluster, count: int) -> float:
    tree = {"name": "w", "connector": "webhook-source", "topic": "w", "settings": {"listen": "127.0.0.1:0"}}
    stop = anyio.Event()
    async with cluster.connect() as client, anyio.create_task_group() as tasks:
        runner = runner_of(declared(tree, path="bench"), client, stop=stop)
        tasks.start_soon(runner.run)
        source: Any = runner.source  # type: ignore[union-attr]
        while not source.port:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        took = await post_s(source.port, count)
        stop.set()
    return took


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--only", default="delta,postgres,webhook,kafka", help="systems, with commas")
    given = parser.parse_args()
    only = given.only.split(",")
    collect_seldom()  # as `danube connect run` does. The library alone runs under it too
    rows = rows_of(given.rows)
    found: dict[str, list[float]] = {"delta": [], "postgres": [], "kafka": [], "webhook": []}
    with InMemoryCluster() as cluster, tempfile.TemporaryDirectory() as folder:
        async with cluster.connect() as client, client.producer("t") as producer:
            await producer.send_many([json.dumps(row).encode() for row in rows])
        for pair in range(given.pairs if "delta" in only else 0):
            alone = delta_s(Path(folder) / f"plain{pair}", rows) / given.rows * 1e6
            table = {"table": f"{folder}/sink{pair}"}
            through = await connector_us(cluster, f"d{pair}", "delta-sink", table, given.rows)
            found["delta"].append(alone / through)
            print(
                f"delta: alone {1e6 / alone:,.0f} rows/s, sink {1e6 / through:,.0f}",
                file=sys.stderr,
            )
        if MISSING is None and "postgres" in only:
            with Postgres() as server:
                for pair in range(given.pairs):
                    alone = copy_s(server.dsn, rows) / given.rows * 1e6
                    target = {"dsn": server.dsn, "table": f"orders{pair}"}
                    through = await connector_us(cluster, f"p{pair}", "postgres-sink", target, given.rows)
                    found["postgres"].append(alone / through)
                    print(
                        f"postgres: COPY {1e6 / alone:,.0f} rows/s, sink {1e6 / through:,.0f}",
                        file=sys.stderr,
                    )
        for _ in range(given.pairs if "webhook" in only else 0):
            requests = min(given.rows, 20_000)
            alone, through = await bare_s(requests), await webhook_s(cluster, requests)
            found["webhook"].append(alone / through)
            print(
                f"webhook: starlette {requests / alone:,.0f}/s, source {requests / through:,.0f}",
                file=sys.stderr,
            )
        if "kafka" in only and shutil.which("java") and KAFKA_JARS.is_dir():
            (Path(folder) / "kafka").mkdir()
            with Kafka(Path(folder) / "kafka") as kafka:
                kafka.create("t", 4)
                kafka.send("t", [(f"k{n % 977}", json.dumps(row)) for n, row in enumerate(rows)])
                for pair in range(given.pairs):
                    alone = consume_us(kafka.bootstrap, given.rows)
                    terms = {"bootstrap": kafka.bootstrap, "subscribe": ["t"]}
                    name = f"k{pair}"
                    through = await connector_us(cluster, name, "kafka-source", terms, given.rows, name)
                    found["kafka"].append(alone / through)
                    print(
                        f"kafka: consume {1e6 / alone:,.0f}/s, source {1e6 / through:,.0f}",
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
