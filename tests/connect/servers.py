"""Servers of other systems, each in a folder of its own: PostgreSQL and mosquitto of the system."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import psycopg

from tests.support.pinned_packages import ensure_package

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
