"""The official Python client 0.5.0 from PyPI, unmodified, against a real broker: see `scenarios.py` for what each does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.official.conftest import Scenario
from tests.support.broker_process import BrokerProcess

ALONE = [
    "reliable",
    "non_reliable",
    "exclusive",
    "shared",
    "failover",
    "key_shared",
    "key_filters",
    "partitions",
    "mistakes",
    "takeover",
    "nack",
]


@pytest.mark.parametrize("name", ALONE)
def test_official_python_client(broker: BrokerProcess, topic: str, name: str) -> None:
    with Scenario(name, broker.url, topic):
        pass


@pytest.mark.parametrize("name", ["schemas", "protobuf_enforced"])
def test_official_python_client_with_schemas(broker: BrokerProcess, topic: str, name: str) -> None:
    with Scenario(name, broker.url, topic):
        pass


def test_row_32_slow_reader_gets_everything(broker: BrokerProcess, topic: str) -> None:
    with Scenario("slow_reader", broker.url, topic, "1500", "16"):
        pass


@pytest.mark.long
@pytest.mark.timeout(900)
def test_row_32_slow_reader_gets_twenty_thousand_messages(broker: BrokerProcess, topic: str) -> None:
    with Scenario("slow_reader", broker.url, topic, "20000", "16", deadline_s=800):
        pass


def test_row_33_second_producer_with_another_subject_is_refused(broker: BrokerProcess, topic: str) -> None:
    with Scenario("second_subject", broker.url, topic):
        pass


def test_row_34_single_partition_is_not_deleted(broker: BrokerProcess, topic: str) -> None:
    with Scenario("partitions", broker.url, topic):
        pass
    done = broker.command("topics", "delete", f"{topic}-part-1", "--yes", "--json", check=False)
    assert done.returncode == 2
    assert b"INVALID_ARGUMENT" in done.stderr
    assert b"Cannot delete individual partition" in done.stderr
    listed = broker.json_command("topics", "describe", topic)
    assert listed["partitions"] == 3


def test_row_35_nacked_key_shared_message_comes_again(broker: BrokerProcess, topic: str) -> None:
    with Scenario("nack_key_shared", broker.url, topic):
        pass


def test_dead_letters_go_to_their_topic(broker: BrokerProcess, topic: str) -> None:
    with Scenario("dead_letter", broker.url, topic) as scenario:
        scenario.wait_for("subscribed")
        broker.command("topics", "create", f"{topic}-dead")
        broker.command(
            "subscriptions", "set-failure-policy", topic, "s", "--poison-policy", "dead_letter",
            "--dead-letter-topic", f"{topic}-dead", "--max-redelivery-count", "1", "--base-redelivery-delay-ms", "100",
        )  # fmt: skip
        scenario.go_on()


def test_deleted_topic_is_left_and_found_again(broker: BrokerProcess, topic: str) -> None:
    with Scenario("deleted_topic", broker.url, topic) as scenario:
        scenario.wait_for("delete")
        broker.command("topics", "delete", topic, "--yes")
        scenario.go_on()


def test_unacknowledged_message_comes_again_after_the_ack_timeout(tmp_path: Path, topic: str) -> None:
    with (
        BrokerProcess(tmp_path, environment={"DANUBE_DELIVERY__ACK_TIMEOUT": "1s"}) as broker,
        Scenario("ack_timeout", broker.url, topic),
    ):
        pass


@pytest.mark.parametrize(
    "down_s", [0.0, pytest.param(12.0, marks=pytest.mark.long, id="over-two-health-checks")]
)
def test_client_goes_on_after_the_broker_was_killed(tmp_path: Path, topic: str, down_s: float) -> None:
    """With `down_s` the client's health checks find nobody and end for good: it never subscribes again by itself."""
    with BrokerProcess(tmp_path) as broker, Scenario("restart", broker.url, topic) as scenario:
        scenario.wait_for("kill")
        broker.kill()
        scenario.sleep(down_s)
        broker.start()
        scenario.go_on()
