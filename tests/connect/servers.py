"""PostgreSQL of the system, in a folder of its own, for the tests that need it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

import psycopg

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
MISSING = None if BINARIES else "NOT RUN: PostgreSQL is not installed (make test-connect installs it)"


class Postgres:
    """A server on a free port of 127.0.0.1; `sql` runs statements as its owner."""

    def __init__(self) -> None:
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
            [BINARIES[-1] / program, *words], cwd="/", capture_output=True, text=True, check=False, timeout=100, **user,  # type: ignore[call-overload]
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
