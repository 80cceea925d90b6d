"""`danube cluster snapshot` as a process, over a broker that works and over snapshots that were damaged."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess, client_environment, refusal, run_danube
from tests.support.etcd import EtcdMembers, etcd
from tests.support.mirrors import until

__all__ = ["etcd"]
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

Make = Callable[..., BrokerProcess]


def command(objects: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = client_environment({"DANUBE_TIER__URL": str(objects)})
    return run_danube("cluster", "snapshot", *arguments, "--json", environment=environment)


def answered(done: subprocess.CompletedProcess[bytes]) -> dict[str, Any] | None:
    return json.loads(done.stdout) if done.returncode == 0 else None


def test_a_snapshot_is_compared_while_its_cluster_works_and_a_damaged_one_is_named(
    make_broker: Make, etcd: EtcdMembers, tmp_path: Path
) -> None:
    objects, url = tmp_path / "objects", etcd.url("/production")
    broker = make_broker(arguments=["--metadata", url], environment={"DANUBE_TIER__URL": str(objects)})
    broker.start()
    stopping = Event()

    def work() -> int:
        count = 0
        while not stopping.is_set():
            broker.ask("topics.create", topic=f"/default/t{count}")
            count += 1
        return count

    def verify(*more: str) -> subprocess.CompletedProcess[bytes]:
        return command(objects, str(broker.data_dir), "--metadata", url, *more)

    until("a snapshot", lambda: answered(verify("--verify")))
    with ThreadPoolExecutor() as pool:
        working = pool.submit(work)
        try:
            # Keys change and come while it reads. The snapshot's revision says which of them it has to have.
            for _ in range(3):
                found = answered(verify("--verify"))
                assert found is not None
                assert found["verified"] is True, found
                assert found["comparison"]["wrong"] == []
        finally:
            stopping.set()
        assert working.result(60) > 0
    broker.kill()  # so that it writes no more
    pieces = sorted(each for each in objects.rglob("*.json.gz") if found["snapshot"] in str(each))
    piece = pieces[0]
    whole = piece.read_bytes()
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[: len(whole) // 2], b""):
        piece.write_bytes(damaged)
        error = refusal(verify("--verify"), 5, "CORRUPT_OBJECT")
        assert found["snapshot"] in json.dumps(error), error
    piece.unlink()
    refusal(verify("--verify"), 5, "OBJECT_MISSING")
    piece.write_bytes(whole)
    again = answered(verify("--verify"))
    assert again is not None
    assert again["verified"] is True


def test_the_snapshot_of_a_lone_broker_is_compared_once_it_is_stopped(make_broker: Make) -> None:
    broker = make_broker()
    broker.start()
    objects = broker.data_dir / "objects"
    read = until("a snapshot", lambda: answered(command(objects, str(broker.data_dir))))
    assert read["verified"] is None
    error = refusal(command(objects, str(broker.data_dir), "--verify"), 1, "DATA_DIR_LOCKED")
    assert "stop" in error["message"].lower(), error
    assert broker.stop() == 0
    compared = answered(command(objects, str(broker.data_dir), "--verify"))
    assert compared is not None
    assert compared["verified"] is True
