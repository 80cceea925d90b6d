"""The JavaScript client under load while brokers are killed and topics move: every acknowledged message arrives."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.official.conftest import Scenario
from tests.support.broker_process import BrokerProcess, client_environment, danube_command
from tests.support.local_cluster import Local

pytestmark = pytest.mark.timeout(600)


def test_nothing_acknowledged_is_lost_when_the_broker_is_killed_under_load(
    node: list[str], tmp_path: Path, topic: str
) -> None:
    with (
        BrokerProcess(tmp_path) as broker,
        Scenario("under_load", broker.url, topic, "15", "3", program=node, deadline_s=180) as scenario,
    ):
        scenario.wait_for("running")
        for _ in range(3):
            scenario.sleep(3)  # under load for a while
            broker.kill()
            broker.start()


def test_a_broker_that_hangs_is_waited_for(node: list[str], tmp_path: Path, topic: str) -> None:
    with (
        BrokerProcess(tmp_path) as broker,
        Scenario("under_load", broker.url, topic, "12", "0", program=node, deadline_s=180) as scenario,
    ):
        scenario.wait_for("running")
        scenario.sleep(2)
        broker.pause()
        scenario.sleep(6)
        broker.resume()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    local = Local(tmp_path)
    try:
        local.start()
        yield local
    finally:
        local.close()


@pytest.mark.long
def test_three_brokers_topics_that_move_and_one_that_is_killed(
    node: list[str], local: Local, topic: str
) -> None:
    urls = [local.brokers[n]["grpc"] for n in (1, 2, 3)]
    with Scenario("under_load", ",".join(urls), topic, "40", "4", program=node, deadline_s=400) as scenario:
        scenario.wait_for("running")
        outcomes = []
        for turn in range(12):  # each of four partitions visits each broker, and is at one of them already
            to = local.brokers[1 + turn % 3]["broker_id"]
            outcomes.append(move(f"{topic}-part-{turn // 3}", to, local.brokers[1]["admin"]))
        moved = [outcome for outcome in outcomes if outcome is None]
        assert len(moved) >= 6, outcomes
        local.steer("kill", "3")
        local.steer("start", "3")


def move(part: str, to: str, admin: str) -> str | None:
    """Move a partition. Returns None, or why not: it is there already."""
    words = [
        *danube_command(),
        "topics",
        "move",
        part,
        "--to-broker",
        to,
        "--yes",
        "--json",
        "--admin",
        admin,
    ]
    words += ["--timeout", "60s"]
    done = subprocess.run(
        words, capture_output=True, text=True, env=client_environment(), timeout=120, check=False
    )
    return None if done.returncode == 0 else done.stderr[-300:]
