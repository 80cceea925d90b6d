"""The benchmark's scenarios of subscriptions and of many topics, small, with a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import Danube, command_line
from tests.support.broker_process import client_environment

Bench = Callable[..., Any]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def bench(danube: Danube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.delenv("DANUBE_BROKER_URL")  # it starts brokers of its own

    def measure(*words: str) -> Any:
        ran = danube(
            "bench", *words, "--runs", "1", "--data-dir", str(tmp_path), "--timeout", "60s", "--json"
        )
        assert ran.code == 0, ran.err
        return ran.result

    return measure


def test_consumers_of_a_key_shared_subscription_are_checked_together(bench: Bench) -> None:
    result = bench(
        "e2e", "--sub-type", "key_shared", "--keys", "10", "--consumers", "2", "--messages", "4000"
    )
    assert result["verified"] == {
        "sent": 4000, "received": 4000, "missing": 0, "duplicates": 0, "out_of_order": 0,
    }  # fmt: skip
    [run] = result["runs"]
    assert sum(run["by_consumer"]) == 4000
    assert min(run["by_consumer"]) > 0
    assert run["reference"]["verified"]["missing"] == 0
    assert result["config"]["sub_type"] == "key-shared"
    assert result["ratio"]["messages_per_s_to_exclusive"] > 0


def test_a_broker_that_ran_before_is_left_without_the_topics(live: Danube) -> None:
    def topics() -> list[str]:
        return [item["topic"] for item in live("topics", "list", "--limit", "1000", "--json").result["items"]]

    before = topics()  # of other tests: the broker is theirs as well
    ran = live("bench", "e2e", "--messages", "1000", "--runs", "1", "--timeout", "60s", "--json")
    assert ran.code == 0, ran.err
    assert topics() == before


# Nine seconds of processors for the options of one scenario: its reckoning is held by test_bench_parts.
@pytest.mark.long
def test_keyed_backlog_drains_with_nothing_published_and_late_acks(bench: Bench) -> None:
    result = bench(
        "backlog", "--sub-type", "shared", "--keys", "5", "--consumers", "2", "--ack-delay", "10ms",
        "--messages", "3000",
    )  # fmt: skip
    assert result["verified"]["missing"] == result["verified"]["duplicates"] == 0
    assert sum(result["runs"][0]["by_consumer"]) == 3000
    assert result["config"]["ack_delay_ms"] == 10


def test_the_official_path_loses_nothing(bench: Bench) -> None:
    result = bench("profile", "unary", "--messages", "203", "--producers", "5")
    # Those read back from the log, and those that the official consumer received.
    assert result["verified"] == {
        "sent": 406, "received": 406, "missing": 0, "duplicates": 0, "out_of_order": 0,
    }  # fmt: skip
    sampled = result["runs"][0]["profile"]["broker"]
    assert {"rpc", "services"} <= {one["stage"] for one in sampled["stages"]}
    assert sum(one["share"] for one in sampled["stages"]) == pytest.approx(1, abs=0.01)
    assert result["durability"] == "fsynced"
    assert result["median"]["p50_ms"] > 0


def test_many_topics_survive_a_stop_and_a_kill(bench: Bench) -> None:
    result = bench("topics", "--topics", "20", "--messages", "205")
    assert result["verified"]["received"] == 205
    assert result["verified"]["missing"] == result["verified"]["duplicates"] == 0
    many = result["median"]["topics"]
    assert many["count"] == 20
    assert many["ready_s"].keys() == {"after_stop", "after_kill"}
    assert min(many["rss_bytes"].values()) > 0


def test_what_only_objects_hold_is_replayed_whole(bench: Bench) -> None:
    result = bench("replay", "--messages", "2000")
    assert result["verified"] == {
        "sent": 2000, "received": 2000, "missing": 0, "duplicates": 0, "out_of_order": 0,
    }  # fmt: skip
    cold = result["median"]["tier"]
    assert cold["objects"] >= 1
    assert cold["share_of_pyarrow"] > 0


@pytest.mark.long
def test_a_backlog_is_written_to_the_store_that_was_away(bench: Bench) -> None:
    result = bench("tier", "--messages", "2000", "--size", "1024")
    assert result["verified"]["received"] == 2000
    assert result["verified"]["missing"] == result["verified"]["duplicates"] == 0
    assert result["median"]["tier"]["objects"] >= 1
    assert result["median"]["tier"]["pyarrow_megabytes_per_s"] > 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("scenario", "words", "ratios"),
    [
        ("move", ["--topics", "20"], {"pause_p99_to_bound", "heavy_pause_p99_to_bound", "drain_s_to_bound"}),
        ("failover", [], {"topics_after_restart_to_bound", "leader_to_bound"}),
        (
            "cluster",
            ["--messages", "200000", "--topics", "300"],
            {
                "creation_p99_to_bound", "one_of_three_to_lone", "relayed_batched", "relayed_single",
                "idle_to_bound", "idle_writes_to_bound",
            },
        ),
        (
            "link",
            ["--messages", "20000", "--topics", "20"],
            {"top_to_sdk", "quiet_to_bound", "fail_over_to_bound"},
        ),
    ],
)  # fmt: skip
def test_several_brokers_are_measured_and_lose_nothing(
    bench: Bench, scenario: str, words: list[str], ratios: set[str], tmp_path: Path
) -> None:
    result = bench(scenario, *words)
    assert result["ratio"].keys() == ratios
    assert None not in result["ratio"].values()
    assert result["verified"]["missing"] == result["verified"]["duplicates"] == 0
    assert list(tmp_path.glob("danube-bench-*")) == [], "nothing is left behind"


def test_broker_of_its_own_does_not_outlive_a_terminated_benchmark(tmp_path: Path) -> None:
    words = command_line("bench", "e2e", "--messages", "100000000", "--data-dir", str(tmp_path))
    environment = client_environment()
    del environment["DANUBE_BROKER_URL"]  # it starts a broker of its own
    process = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (ready := list(tmp_path.glob("danube-bench-*/ready.json"))):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        broker = int(json.loads(ready[0].read_text())["pid"])
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    with suppress(ProcessLookupError):
        os.kill(broker, signal.SIGKILL)
        pytest.fail("the broker still ran")
    assert list(tmp_path.iterdir()) == []
