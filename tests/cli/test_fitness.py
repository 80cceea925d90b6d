"""The verdicts of `danube doctor`, what it finds on this machine, and that a broker's start says the same words."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydanube_cli.fitness import (
    NEEDED_PARTS,
    PARTS,
    TIME_ERROR,
    Finding,
    Level,
    clock_findings,
    disk_finding,
    files_finding,
    part_finding,
    store_clock_finding,
    sync_finding,
)

from tests.cli.running import Danube, command_line
from tests.support.broker_process import free_ports
from tests.support.etcd import EtcdMembers
from tests.support.s3_server import BUCKET, running_s3_server, s3_environment
from tests.support.small_disk import small_disk as mounted

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "total", "guard", "level"),
    [
        (50 * GIB, 100 * GIB, GIB, Level.OK),
        (GIB + 1, 100 * GIB, GIB, Level.WARNING),
        (GIB - 1, 100 * GIB, GIB, Level.PROBLEM),
        (100 << 20, GIB, 50 << 20, Level.PROBLEM),
        (0, 100 * GIB, GIB, Level.PROBLEM),
    ],
)
def test_disk_is_judged_by_the_guard_as_it_will_hold(free: int, total: int, guard: int, level: Level) -> None:
    found = disk_finding(Path("/data"), free_bytes=free, total_bytes=total, guard_bytes=guard)
    assert found.level is level
    assert (found.remedy is None) == (level is Level.OK)


@pytest.mark.parametrize(
    ("limit", "level"),
    [(None, Level.OK), (65_536, Level.OK), (1024, Level.WARNING), (64, Level.PROBLEM)],
)
def test_a_file_limit_is_judged_by_what_a_broker_may_take(limit: int | None, level: Level) -> None:
    found = files_finding(limit, connections=576)
    assert found.level is level
    if level is not Level.OK:
        assert str(limit) in found.summary
        assert "LimitNOFILE" in (found.remedy or "")


def clock(now_s: float, **facts: float | int | None) -> list[Finding]:
    known = {"newest_file_s": None, "ntp_state": 0, "data_dir": Path("/data")} | facts
    return list(clock_findings(now_s=now_s, **known))  # type: ignore[arg-type]


def test_a_clock_that_is_a_minute_off_is_told_by_what_was_written_before() -> None:
    now = 1_900_000_000.0
    [found] = clock(now, newest_file_s=now + 60)
    assert found.level is Level.PROBLEM
    assert "60 s behind the last write in /data" in found.summary
    assert [f.level for f in clock(now, newest_file_s=now + 5)] == [Level.OK]
    assert [f.level for f in clock(now, ntp_state=TIME_ERROR)] == [Level.WARNING]
    [inside] = clock(now, ntp_state=TIME_ERROR, contained=True)
    assert (inside.level, inside.in_order) == (Level.SKIPPED, True)
    assert "its host has to" in inside.summary
    assert [f.level for f in clock(1.0)] == [Level.PROBLEM]


def test_a_clock_beside_the_object_stores() -> None:
    assert store_clock_finding("s3://b", ahead_s=-5) is None
    behind = store_clock_finding("s3://b", ahead_s=-60)
    assert behind is not None
    assert "60 s behind the one of the object store s3://b" in behind.summary


def test_a_slow_disk_is_a_warning_that_says_what_it_costs() -> None:
    assert sync_finding(Path("/d"), p50_ms=0.2, p99_ms=1).level is Level.OK
    slow = sync_finding(Path("/d"), p50_ms=35.0, p99_ms=80)
    assert (slow.level, slow.remedy) == (Level.WARNING, "danube up --data-dir on a faster disk")


def test_parts_are_the_extras_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    shown = {extra for extra in extras if not extra.startswith("connect")}  # those: danube connect list
    assert set(PARTS) == shown - {"all", "dev", "docs"}
    for extra in PARTS:
        found = part_finding(extra, ["x"], install=f"pip install pydanube[{extra}]")
        assert found.level is (Level.WARNING if extra in NEEDED_PARTS else Level.SKIPPED)
        assert found.remedy == f"pip install pydanube[{extra}]"


LIMITED = ("sh", "-c", 'ulimit -n 1024 && exec "$@"', "sh")


@pytest.fixture(autouse=True)
def any_ports(monkeypatch: pytest.MonkeyPatch, clean_environment: None) -> None:
    for name in ("GRPC", "ADMIN", "METRICS", "HTTP"):
        monkeypatch.setenv(f"DANUBE_SERVER__{name}_PORT", "0")


def unfit(data: Path, *before: str) -> list[dict[str, str]]:
    """What the start of a broker on `data` logs of what is not in order."""
    words = [*before, *command_line("broker", "--data-dir", str(data), "--json", "--log-format", "json")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        assert json.loads(broker.stdout.readline())["event"] == "ready"
        broker.terminate()
        _, err = broker.communicate(timeout=60)
        assert broker.returncode == 0
    lines = map(json.loads, err.decode().splitlines())
    return [line for line in lines if line["event"] == "unfit" and line["level"] == "warning"]


def test_doctor_and_start_say_the_same_of_the_file_limit_and_the_clock(tmp_path: Path) -> None:
    data = tmp_path / "data"

    def start_and_stop() -> list[dict[str, str]]:
        return unfit(data, *LIMITED)

    start_and_stop()
    ahead = time.time() + 90
    os.utime(data / "LOCK", (ahead, ahead))
    words = command_line("doctor", "--json", "--data-dir", str(data), "--admin", "http://127.0.0.1:1")
    doctor = subprocess.run([*LIMITED, *words], capture_output=True, timeout=60)
    assert doctor.returncode == 6
    found = {
        (each["check"], each["summary"].split(" s behind")[-1], each["remedy"])
        for each in json.loads(doctor.stdout)["findings"]
        if each["level"] in ("warning", "problem") and each["check"] in ("limits", "clock", "disk")
    }
    os.utime(data / "LOCK", (ahead, ahead))
    said = {
        (line["check"], line["message"].split(" s behind")[-1], line["remedy"]) for line in start_and_stop()
    }
    assert said == found
    assert {check for check, _, _ in found} >= {"limits", "clock"}


@pytest.mark.parametrize(
    "fault", ["port", "same port", "folder", "file", "store", "setting", "certificate", "keys"]
)
def test_what_ends_a_start_is_said_in_the_same_words(
    fault: str, danube: Danube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        if fault == "port":
            monkeypatch.setenv("DANUBE_SERVER__GRPC_PORT", str(taken.getsockname()[1]))
        elif fault == "folder":
            data.mkdir()
            (data / "letters.txt").write_text("mine")
        elif fault == "file":
            data.write_text("mine")
        elif fault == "same port":
            (number,) = free_ports(1)
            for name in ("GRPC", "METRICS"):
                monkeypatch.setenv(f"DANUBE_SERVER__{name}_PORT", str(number))
        elif fault == "certificate":
            monkeypatch.setenv("DANUBE_TLS__CERT", str(tmp_path / "server.crt"))
            monkeypatch.setenv("DANUBE_TLS__KEY", str(tmp_path / "server.key"))
        elif fault == "keys":
            monkeypatch.setenv("DANUBE_AUTH__MODE", "optional")
            monkeypatch.setenv("DANUBE_AUTH__JWT_KEYS", str(tmp_path / "jwks.json"))
        elif fault == "store":
            monkeypatch.setenv("DANUBE_TIER__URL", "ftp://elsewhere/x")
        else:
            monkeypatch.setenv("DANUBE_JOURNAL__SEGMENT_BYTES", "64 apples")
        refused = danube("up", "--data-dir", str(data), "--json")
        doctor = danube("doctor", "--data-dir", str(data), "--json", "--admin", "http://127.0.0.1:1")
    assert refused.code != 0
    assert doctor.code == 6
    problems = [f["summary"] for f in doctor.result["findings"] if f["level"] == "problem"]
    assert refused.error["message"] in problems
    assert fault in ("folder", "file") or not data.exists()  # a start that is refused leaves nothing behind


def test_doctor_names_a_folder_that_is_somebody_elses(danube: Danube, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "letters.txt").write_text("mine")
    ran = danube("doctor", "--data-dir", str(other), "--json", "--admin", "http://127.0.0.1:1")
    [found] = [f for f in ran.result["findings"] if f["check"] == "data"]
    assert found["level"] == "problem"
    assert "letters.txt" in found["summary"]


def test_doctor_tries_the_object_store_and_names_missing_rights(
    danube: Danube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_s3_server(tmp_path / "s3") as server:
        monkeypatch.setenv("DANUBE_TIER__URL", f"s3://{BUCKET}/prod")
        monkeypatch.setenv("DANUBE_TIER__ENDPOINT", server.endpoint)
        monkeypatch.setenv("DANUBE_TIER__REGION", "us-east-1")
        monkeypatch.setenv("DANUBE_TIER__PATH_STYLE", "true")
        words = ("doctor", "--json", "--data-dir", str(tmp_path / "d"), "--admin", "http://127.0.0.1:1")
        for name, value in s3_environment().items():
            monkeypatch.setenv(name, value)
        found = [f for f in danube(*words).result["findings"] if f["check"] == "store"]
        assert [f["level"] for f in found] == ["ok"], found
        assert not [path for path in (server.folder / BUCKET).rglob("*") if path.is_file()]
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        ran = danube(*words)
        [said] = [line for line in unfit(tmp_path / "d") if line["check"] == "store"]
    [refused] = [f for f in ran.result["findings"] if f["check"] == "store"]
    assert ran.code == 6
    assert refused["level"] == "problem"
    assert "the secret key does not belong to the key id" in refused["remedy"]
    assert "wrong" not in refused["summary"]
    assert (said["message"], said["remedy"]) == (refused["summary"], refused["remedy"])


def test_a_full_volume_is_said_in_the_same_words(danube: Danube, small_disk: Path) -> None:
    data = small_disk / "data"
    with (small_disk / "letters").open("wb", buffering=0) as file:
        assert file.write(bytes(16 << 20)) <= 8 << 20  # as much as there is room
    words = ("--data-dir", str(data), "--json")
    ports = (word for name in ("grpc", "admin", "metrics") for word in (f"--{name}-port", "0"))
    refused = danube("broker", *words, *ports)
    assert (refused.code, refused.error["code"]) == (3, "DISK_FULL"), refused.error
    shutil.rmtree(data, ignore_errors=True)
    ran = danube("doctor", *words, "--admin", "http://127.0.0.1:1")
    [found] = [f for f in ran.result["findings"] if f["check"] == "disk"]
    assert refused.error["message"] == found["summary"]
    assert refused.error["details"]["remedy"] == found["remedy"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "8m") as disk:
        yield disk


def test_doctor_asks_etcd_and_knows_a_volume_of_another_cluster(
    danube: Danube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    for name in ("GRPC", "ADMIN", "METRICS", "HTTP"):
        monkeypatch.setenv(f"DANUBE_SERVER__{name}_PORT", "0")
    monkeypatch.setenv("DANUBE_TIER__URL", str(tmp_path / "objects"))
    words = ("--data-dir", str(data), "--json")

    def found() -> dict[str, str]:
        ran = danube("doctor", *words, "--admin", "http://127.0.0.1:1")
        [one] = [f for f in ran.result["findings"] if f["check"] == "metadata"]
        return dict(one)

    with EtcdMembers(tmp_path / "etcd") as etcd:
        here = etcd.url("/here")
        monkeypatch.setenv("DANUBE_METADATA__URL", here)
        assert found()["level"] == "ok"
        begun = [*command_line("broker", *words)]
        with subprocess.Popen(begun, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as broker:
            assert broker.stdout is not None
            assert json.loads(broker.stdout.readline())["event"] == "ready"
            broker.terminate()
            assert broker.wait(60) == 0
        assert found()["level"] == "ok"
        for url in (here.replace("/here", "/elsewhere"), "embedded"):
            monkeypatch.setenv("DANUBE_METADATA__URL", url)
            refused = danube("broker", *words)
            assert refused.error["code"] == "CLUSTER_MISMATCH"
            assert found()["summary"] == refused.error["message"]
    monkeypatch.setenv("DANUBE_METADATA__URL", here)
    away = found()
    assert away["level"] == "problem"
    assert "etcd" in away["summary"]
