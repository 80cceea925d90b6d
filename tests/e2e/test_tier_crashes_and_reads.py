"""The cold tier in a real broker: every reader across the three tiers, SIGKILL at every step, damage said aloud."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess, run_danube
from tests.support.waiting import wait_until

pytest.importorskip("pyarrow")

SETTINGS = {
    "DANUBE_TIER__FLUSH_AGE": "100ms",
    "DANUBE_JOURNAL__SEGMENT_BYTES": "256KiB",
    "DANUBE_JOURNAL__TAIL_CACHE_BYTES": "16KiB",
}
HOOK = "PYDANUBE_TEST_KILL_AT"
DEADLINE_S = 60.0


def danube(
    broker: BrokerProcess, *words: str, input_bytes: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    return run_danube(*words, *broker.client_arguments(), stdin=input_bytes, timeout_s=DEADLINE_S)


def lines_of(run: int, count: int = 2000) -> list[bytes]:
    return [b"run %d line %06d %s" % (run, i, b"x" * (i % 300)) for i in range(count)]


def produce(broker: BrokerProcess, lines: list[bytes]) -> bool:
    """Whether all of them were acknowledged."""
    done = danube(
        broker, "produce", "logs", "--timeout", "2s", "--json", input_bytes=b"\n".join(lines) + b"\n"
    )
    return done.returncode == 0 and json.loads(done.stdout)["acknowledged"] == len(lines)


def consume(broker: BrokerProcess, *words: str) -> list[bytes]:
    done = danube(broker, "consume", "logs", "--format", "raw", *words)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.split(b"\n")[:-1]


def status(broker: BrokerProcess, path: str = "/status") -> dict[str, Any]:
    with urllib.request.urlopen(broker.metrics + path, timeout=10) as page:
        found: dict[str, Any] = json.load(page)
    return found


def all_tiered(broker: BrokerProcess, *, segments: int = 2) -> bool:
    now = status(broker)
    tier = now["tier"]
    return bool(
        tier["objects_written"] and not tier["backlog_bytes"] and now["journal"]["segments"] <= segments
    )


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, environment=SETTINGS) as started:
        yield started


def objects(broker: BrokerProcess) -> list[Path]:
    """Of the topics of the namespace `default`: the audit's and telemetry come by themselves."""
    return sorted((broker.data_dir / "objects").glob("*/topics/default/**/*.parquet"))


def test_every_reader_finds_the_same_messages_wherever_they_are(broker: BrokerProcess) -> None:
    cold = lines_of(1, 6000)
    assert produce(broker, cold)
    wait_until(lambda: all_tiered(broker))
    assert objects(broker)
    hot = lines_of(2, 500)
    assert produce(broker, hot)
    assert consume(broker, "--exit") == cold + hot
    assert consume(broker, "--exit", "--from", "offset:1234") == (cold + hot)[1234:]
    count = str(len(cold + hot))
    for kind in ("exclusive", "shared", "failover", "key-shared"):
        got = consume(
            broker,
            "-s",
            f"all-{kind}",
            "--sub-type",
            kind,
            "--from",
            "earliest",
            "--count",
            count,
            "--for",
            "30s",
        )
        assert got == cold + hot, kind
    assert status(broker)["tier"]["cold_reads"] > 0
    broker.kill()
    broker.start()
    assert consume(broker, "--exit") == cold + hot


@pytest.mark.long
def test_killed_at_every_step_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    steps = ("encoded", "uploaded", "verified", "planned", "answered", "committed", "trimmed")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for step in steps:
        (hooks / step).touch()
    sent: list[list[bytes]] = []
    acknowledged: list[int] = []
    with BrokerProcess(tmp_path, environment={**SETTINGS, HOOK: str(hooks)}) as broker:
        end = time.monotonic() + 100
        while any(hooks.iterdir()):
            assert time.monotonic() < end, f"not reached: {[path.name for path in hooks.iterdir()]}"
            if not broker.running:
                broker.kill()  # it is dead already; this waits for what it has started
                broker.start()
            sent.append(lines_of(len(sent), 1500))
            if produce(broker, sent[-1]):
                acknowledged.append(len(sent) - 1)
            time.sleep(0.2)
        if not broker.running:
            broker.kill()
            broker.start()
        sent.append(lines_of(len(sent), 1500))
        assert produce(broker, sent[-1])
        acknowledged.append(len(sent) - 1)
        wait_until(lambda: all_tiered(broker))
        got = consume(broker, "--exit")
        assert broker.lives >= 5, "four steps are the broker's own"
    times = Counter(got)
    assert max(times.values()) == 1
    known = [line for lines in sent for line in lines]
    assert set(got) <= set(known)
    place = {line: i for i, line in enumerate(known)}
    assert [place[line] for line in got] == sorted(place[line] for line in got)
    missing = [run for run in acknowledged if not set(sent[run]) <= set(got)]
    assert missing == []


def test_a_damaged_and_a_missing_object_are_errors_of_the_reader_and_nobody_else(
    broker: BrokerProcess,
) -> None:
    assert produce(broker, lines_of(1, 6000))
    wait_until(lambda: all_tiered(broker))
    first = objects(broker)[0]
    whole = first.read_bytes()
    first.write_bytes(whole[:100] + bytes([whole[100] ^ 255]) + whole[101:])
    done = danube(broker, "consume", "logs", "--exit", "--format", "raw", "--json")
    assert done.returncode == 5
    assert b"CORRUPT_OBJECT" in done.stderr
    first.unlink()
    broker.kill()  # what a reader had open is gone with the process
    broker.start()
    done = danube(broker, "consume", "logs", "--exit", "--format", "raw", "--json")
    assert done.returncode == 5
    assert b"OBJECT_MISSING" in done.stderr
    assert "cold_read_failed" in broker.log_file.read_text()
    assert produce(broker, lines_of(2, 10))
    first.write_bytes(whole)
    assert len(consume(broker, "--exit")) == 6010


def test_a_store_that_is_away_degrades_and_is_caught_up_with(tmp_path: Path) -> None:
    blocked = tmp_path / "store"
    blocked.write_text("not a folder")
    with BrokerProcess(tmp_path, environment={**SETTINGS, "DANUBE_TIER__URL": str(blocked)}) as broker:
        lines = lines_of(1, 3000)
        assert produce(broker, lines)
        wait_until(lambda: bool(status(broker)["tier"]["errors"]))
        for page in ("/readyz", "/status"):
            degraded = status(broker, page)
            assert degraded["ready"]
            assert [reason["code"] for reason in degraded["reasons"]] == ["TIER_STORE_UNAVAILABLE"]
            assert str(blocked) in degraded["reasons"][0]["message"]
        blocked.unlink()
        wait_until(lambda: all_tiered(broker))
        assert status(broker)["reasons"] == []
        assert consume(broker, "--exit") == lines
