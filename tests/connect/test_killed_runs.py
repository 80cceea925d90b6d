"""Kafka → topic → PostgreSQL with real processes. Worker, broker, Kafka and PostgreSQL are killed with SIGKILL at random moments.

Counted independently at both ends: the numbers that were produced to Kafka, and the rows of the table. DANUBE_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.connect.servers import MISSING, Kafka, Postgres
from tests.support.broker_process import BrokerProcess, client_environment, danube_command

pytestmark = [
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    pytest.mark.timeout(800),
]
RECORDS = 12_000
KILLS = 10


class Worker:
    """`danube connect run` with both connectors. It is started again whenever it has ended."""

    def __init__(self, folder: Path, broker: BrokerProcess, files: list[Path]) -> None:
        self._words = [
            *danube_command(),
            "connect",
            "run",
            *map(str, files),
            *broker.client_arguments(),
            "--timeout",
            "120s",
        ]
        self._log = folder / "worker.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._words, stdout=log, stderr=log, env=client_environment())

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)

    def keep(self) -> None:
        """Start it again if it has given up. Its failures are in its log."""
        if self._process is not None and self._process.poll() is not None:
            self.start()

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4_000:]


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with Postgres() as found:
        yield found


def rows(postgres: Postgres) -> list[int]:
    try:
        return [number for (number,) in postgres.sql("SELECT n FROM orders")]
    except psycopg.Error:  # it is down, or the table is not made yet
        return []


def test_nothing_is_lost_or_doubled_whatever_is_killed(tmp_path: Path, postgres: Postgres) -> None:
    seed = int(os.environ.get("DANUBE_SEED", time.time_ns() % 1_000_000))
    dice = random.Random(seed)
    print(f"DANUBE_SEED={seed}")
    source, sink = tmp_path / "source.toml", tmp_path / "sink.toml"
    (tmp_path / "kafka").mkdir()
    with Kafka(tmp_path / "kafka") as kafka, BrokerProcess(tmp_path / "broker") as broker:
        kafka.create("orders", 4)
        patient = '[delivery]\nretries = 100\nbackoff_s = 0.2\nbatch_size = 200\nbatch_age = "100ms"\n'
        source.write_text(
            f'name = "in"\nconnector = "kafka-source"\n[topic]\nname = "orders"\npartitions = 3\n'
            f'[settings]\nbootstrap = "{kafka.bootstrap}"\nsubscribe = ["orders"]\n{patient}'
        )
        sink.write_text(
            f'name = "out"\nconnector = "postgres-sink"\ntopic = "orders"\n'
            f'[settings]\ndsn = "{postgres.dsn}"\ntable = "orders"\n{patient}start = "earliest"\n'
        )
        broker.command("topics", "create", "orders", "--partitions", "3")
        worker = Worker(tmp_path, broker, [source, sink])
        worker.start()

        def produce() -> None:
            for begin in range(0, RECORDS, 100):
                kafka.send("orders", [(f"k{n % 97}", f'{{"n": {n}}}') for n in range(begin, begin + 100)])
                time.sleep(0.1)

        producing = threading.Thread(target=produce)
        producing.start()
        for _ in range(KILLS):
            time.sleep(dice.uniform(0.5, 4))
            match dice.choice(["worker", "worker", "broker", "postgres", "worker and broker"]):
                case "worker":
                    worker.kill()
                    worker.start()
                case "broker":
                    broker.kill()
                    broker.start()
                case "postgres":
                    postgres.stop("immediate")
                    postgres.start()
                case _:
                    worker.kill()
                    broker.kill()
                    broker.start()
                    worker.start()
        producing.join()
        kafka.kill()
        kafka.start()
        deadline = time.monotonic() + 240
        while len(found := rows(postgres)) < RECORDS and time.monotonic() < deadline:
            worker.keep()
            time.sleep(1)
        time.sleep(3)  # what would come twice, comes now
        found = rows(postgres)
        worker.kill()
    assert sorted(found) == list(range(RECORDS)), (
        f"seed {seed}: {RECORDS - len(set(found))} lost, {len(found) - len(set(found))} doubled\n{worker.log()}"
    )
