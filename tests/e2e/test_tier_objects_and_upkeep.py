"""Objects as operations and as a table; compaction and retention killed at their steps; the same on a real S3 server."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_tier_crashes_and_reads import (
    HOOK,
    SETTINGS,
    all_tiered,
    broker,
    consume,
    danube,
    lines_of,
    objects,
    produce,
)
from tests.support.broker_process import BrokerProcess
from tests.support.s3_server import BUCKET, running_s3_server, s3_environment
from tests.support.waiting import wait_until

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
__all__ = ["broker"]


def answer(broker: BrokerProcess, *words: str) -> dict[str, Any]:
    done = danube(broker, *words, "--json")
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def fill(broker: BrokerProcess, runs: int) -> list[bytes]:
    """Several objects of one topic."""
    sent: list[bytes] = []
    for run in range(runs):
        sent += lines_of(run, 300)
        assert produce(broker, lines_of(run, 300))
        wait_until(
            lambda so_far=run: all_tiered(broker, segments=99) and len(objects_listed(broker)) > so_far
        )
    return sent


def objects_listed(broker: BrokerProcess) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = answer(broker, "objects", "list", "logs")["items"]
    return items


def offsets_in(paths: list[Path]) -> list[int]:
    return [x for path in paths for x in pq.read_table(path, columns=["offset"])["offset"].to_pylist()]


def test_objects_are_listed_verified_merged_and_collected(broker: BrokerProcess) -> None:
    sent = fill(broker, 3)
    items = objects_listed(broker)
    assert [item["start_offset"] for item in items] == [0, 300, 600]
    assert offsets_in([Path(item["path"]) for item in items]) == list(range(900))
    whole = {"checked": 3, "damaged": [], "missing": [], "gaps": [], "duplicates": []}
    assert answer(broker, "objects", "verify", "logs") == whole
    answer(broker, "objects", "compact", "logs")
    merged = objects_listed(broker)
    assert offsets_in([Path(item["path"]) for item in merged]) == list(range(900))
    assert len(merged) == 1
    assert len(objects(broker)) == 4
    deleted = answer(broker, "objects", "collect", "logs", "--yes")["deleted"]
    assert sorted(deleted) == [item["path"] for item in items]
    assert offsets_in(objects(broker)) == list(range(900))
    assert consume(broker, "--exit") == sent
    objects(broker)[0].unlink()
    found = danube(broker, "objects", "verify", "logs", "--json")
    assert (found.returncode, len(json.loads(found.stdout)["missing"])) == (5, 1)


@pytest.mark.long
def test_compaction_killed_at_every_step_keeps_each_offset_once(tmp_path: Path) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    with BrokerProcess(tmp_path, environment={**SETTINGS, HOOK: str(hooks)}) as broker:
        sent = fill(broker, 3)
        for step in ("merged", "replaced", "deleted"):
            (hooks / step).touch()
        end = time.monotonic() + 90
        while any(hooks.iterdir()):
            assert time.monotonic() < end, [path.name for path in hooks.iterdir()]
            if not broker.running:
                broker.kill()
                broker.start()
            danube(broker, "objects", "compact", "logs", "--timeout", "10s")
            if broker.running:
                danube(broker, "objects", "collect", "logs", "--yes", "--timeout", "10s")
        if not broker.running:
            broker.kill()
            broker.start()
        answer(broker, "objects", "collect", "logs", "--yes")
        found = answer(broker, "objects", "verify", "logs")
        assert not any(found[kind] for kind in ("damaged", "missing", "gaps", "duplicates"))
        assert offsets_in(objects(broker)) == list(range(900))
        assert consume(broker, "--exit") == sent


def test_a_topic_tiers_to_a_real_s3_server_and_back(tmp_path: Path) -> None:
    pytest.importorskip("s3fs")
    with running_s3_server(tmp_path / "s3") as server:
        environment = {
            **SETTINGS,
            **s3_environment(),
            "DANUBE_TIER__URL": f"s3://{BUCKET}/cold",
            "DANUBE_TIER__ENDPOINT": server.endpoint,
            "DANUBE_TIER__REGION": "us-east-1",
            "DANUBE_TIER__PATH_STYLE": "true",
        }
        with BrokerProcess(tmp_path / "broker", environment=environment) as broker:
            lines = lines_of(1, 4000)
            assert produce(broker, lines)
            wait_until(lambda: all_tiered(broker))
            assert list(server.folder.rglob("*.parquet"))
            assert consume(broker, "--exit") == lines
