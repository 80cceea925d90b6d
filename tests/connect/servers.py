"""Servers of other systems, each in a folder of its own: PostgreSQL and mosquitto of the system, Kafka from Maven Central."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.pinned_packages import TOOLS, ensure_package

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
MOSQUITTO_MISSING = (
    None if MOSQUITTO else "NOT RUN: mosquitto is not installed (make test-connect installs it)"
)
MISSING = None if BINARIES else "NOT RUN: PostgreSQL is not installed (make test-connect installs it)"


class Postgres:
    """A server on a free port of 127.0.0.1; `sql` runs statements as its owner."""

    def __init__(self, binaries: Path | None = None) -> None:
        self._binaries = binaries or BINARIES[-1]
        self.folder = Path(
            tempfile.mkdtemp(prefix="danube-postgres-", dir="/tmp")
        )  # the server's user comes in
        if os.getuid() == 0:
            shutil.chown(self.folder, "postgres")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.dsn = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def _run(self, program: str, *words: str) -> None:
        user = {"user": "postgres"} if os.getuid() == 0 else {}
        done = subprocess.run(
            [self._binaries / program, *words], cwd="/", capture_output=True, text=True, check=False, timeout=100, **user,  # type: ignore[call-overload]
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        terms = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c wal_level=logical -c max_wal_senders=8"
        self._run(
            "pg_ctl",
            "-D",
            f"{self.folder}/data",
            "-w",
            "-t",
            "90",
            "-l",
            f"{self.folder}/log",
            "-o",
            terms,
            "start",
        )

    def stop(self, how: str = "fast") -> None:
        """`immediate` is a crash."""
        self._run("pg_ctl", "-D", f"{self.folder}/data", "-w", "-m", how, "stop")

    def sql(self, text: str, parameters: Any = None) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(text, parameters)
            return cursor.fetchall() if cursor.description else []

    def __enter__(self) -> Self:
        self._run("initdb", "-D", f"{self.folder}/data", "-A", "trust", "-U", "postgres", "-N", "-E", "UTF8")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop("immediate")
        shutil.rmtree(self.folder)


def pgvector_binaries() -> Path:
    """Return the programs of a PostgreSQL with pgvector, from the package pgserver."""
    folder = ensure_package("pgserver==0.1.4") / "pgserver" / "pginstall" / "bin"
    if not os.access(folder / "initdb", os.X_OK):
        for program in folder.iterdir():
            program.chmod(0o755)
    return folder


class Mosquitto:
    """An MQTT broker on a free port of 127.0.0.1 that keeps its sessions in a file."""

    def __init__(self, folder: Path, *lines: str) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"mqtt://127.0.0.1:{self.port}"
        user = [] if os.getuid() else ["user root"]
        self._lines = [
            f"listener {self.port} 127.0.0.1", "persistence true", f"persistence_location {folder}/", "autosave_on_changes true",
            "autosave_interval 1", "max_queued_messages 0", *user, *(lines or ["allow_anonymous true"]),
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        file = self.folder / "mosquitto.conf"
        file.write_text("\n".join(self._lines) + "\n", encoding="utf-8")
        assert MOSQUITTO is not None
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([MOSQUITTO, "-c", str(file)], stdout=log, stderr=log)
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        raise AssertionError((self.folder / "log").read_text())

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


KAFKA_VERSION = "3.9.1"
KAFKA_JARS = TOOLS / f"kafka-{KAFKA_VERSION}"
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>danube.tests</groupId><artifactId>kafka</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA_VERSION}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""


def kafka_jars() -> Path:
    """Return the folder with Kafka and what it needs. Skips if `make test-connect` has not fetched it."""
    if shutil.which("java") is None or not KAFKA_JARS.is_dir():
        pytest.skip("NOT RUN: Java or Kafka is not here (make test-connect fetches them)")
    return KAFKA_JARS


def fetch_kafka() -> None:
    """Fetch Kafka from Maven Central, with Maven."""
    if KAFKA_JARS.is_dir():
        return
    TOOLS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TOOLS) as scratch:
        Path(scratch, "pom.xml").write_text(_POM, encoding="utf-8")
        words = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
        subprocess.run(words, cwd=scratch, check=True, timeout=600)
        with contextlib.suppress(FileExistsError):
            Path(scratch, "jars").rename(KAFKA_JARS)


class Kafka:
    """One broker of Kafka, its own controller, on free ports of 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._jars = kafka_jars()
        ports = []
        for _ in range(2):
            with socket.create_server(("127.0.0.1", 0)) as free:
                ports.append(free.getsockname()[1])
        self.bootstrap = f"127.0.0.1:{ports[0]}"
        self._file = folder / "server.properties"
        self._file.write_text(
            "\n".join([
                "process.roles=broker,controller", "node.id=1", f"controller.quorum.voters=1@127.0.0.1:{ports[1]}",
                f"listeners=PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{ports[1]}",
                f"advertised.listeners=PLAINTEXT://{self.bootstrap}", "controller.listener.names=CONTROLLER",
                f"log.dirs={folder}/logs", "offsets.topic.replication.factor=1", "offsets.topic.num.partitions=2",
                "transaction.state.log.replication.factor=1", "transaction.state.log.min.isr=1",
                "group.initial.rebalance.delay.ms=0", "auto.create.topics.enable=false", "log.cleaner.backoff.ms=200",
                "log.retention.check.interval.ms=500", "log.segment.delete.delay.ms=100",
            ]) + "\n",
            encoding="utf-8",
        )  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._java(
            "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(self._file)
        ).wait(120)

    def _java(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                ["java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{self._jars}/*", *words],
                stdout=log, stderr=log, cwd=self.folder,
            )  # fmt: skip

    def start(self) -> None:
        self._process = self._java("kafka.Kafka", str(self._file))
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        end = time.monotonic() + 120
        while time.monotonic() < end:
            assert self._process.poll() is None, (self.folder / "log").read_text()[-4000:]
            with contextlib.suppress(KafkaException):
                if admin.list_topics(timeout=2).brokers:
                    return
        raise AssertionError((self.folder / "log").read_text()[-4000:])

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        terms = {name.replace("_", "."): value for name, value in config.items()}
        made = admin.create_topics([NewTopic(topic, partitions, 1, config=terms)])
        made[topic].result(30)

    def send(
        self, topic: str, records: Iterable[tuple[str | bytes | None, str | bytes | None]], **more: Any
    ) -> None:
        """Produce keys and values. Returns when Kafka has them."""
        # Idempotent, because a plain producer that sends again changes the order
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, "enable.idempotence": True})
        for key, value in records:
            while len(producer) > 50_000:
                producer.poll(0.1)
            producer.produce(topic, value, key, **more)
            producer.poll(0)
        assert producer.flush(60) == 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


if __name__ == "__main__":  # make test-connect
    fetch_kafka()
