"""What applications do with the JavaScript client, against real brokers: `clients/javascript/test/scenarios.mjs` says what each does.

The same scenarios as those of the official Python client (tests/conformance/official).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.official.conftest import Scenario
from tests.conformance.official.locked import Locked
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import make_certificates

pytestmark = pytest.mark.timeout(300)

ALONE = [
    "reliable", "non_reliable", "exclusive", "shared", "failover", "key_shared", "key_filters", "partitions", "mistakes",
    "takeover", "nack", "nack_key_shared", "schemas", "protobuf_enforced", "second_subject",
]  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_scenario(node: list[str], broker: BrokerProcess, topic: str, name: str) -> None:
    with Scenario(name, broker.url, topic, program=node):
        pass


def test_slow_reader_gets_everything(node: list[str], broker: BrokerProcess, topic: str) -> None:
    with Scenario("slow_reader", broker.url, topic, "1500", "16", program=node):
        pass


@pytest.mark.long
@pytest.mark.timeout(900)
def test_slow_reader_gets_twenty_thousand_messages(
    node: list[str], broker: BrokerProcess, topic: str
) -> None:
    with Scenario("slow_reader", broker.url, topic, "20000", "16", program=node, deadline_s=800):
        pass


def test_dead_letters_go_to_their_topic(node: list[str], broker: BrokerProcess, topic: str) -> None:
    with Scenario("dead_letter", broker.url, topic, program=node) as scenario:
        scenario.wait_for("subscribed")
        broker.command("topics", "create", f"{topic}-dead")
        broker.command(
            "subscriptions", "set-failure-policy", topic, "s", "--poison-policy", "dead_letter",
            "--dead-letter-topic", f"{topic}-dead", "--max-redelivery-count", "1", "--base-redelivery-delay-ms", "100",
        )  # fmt: skip
        scenario.go_on()


def test_deleted_topic_is_left_and_found_again(node: list[str], broker: BrokerProcess, topic: str) -> None:
    with Scenario("deleted_topic", broker.url, topic, program=node) as scenario:
        scenario.wait_for("delete")
        broker.command("topics", "delete", topic, "--yes")
        scenario.go_on()


def test_unacknowledged_message_comes_again_after_the_ack_timeout(
    node: list[str], tmp_path: Path, topic: str
) -> None:
    with (
        BrokerProcess(tmp_path, environment={"DANUBE_DELIVERY__ACK_TIMEOUT": "1s"}) as broker,
        Scenario("ack_timeout", broker.url, topic, program=node),
    ):
        pass


@pytest.mark.parametrize(
    "down_s", [0.0, pytest.param(12.0, marks=pytest.mark.long, id="over-two-health-checks")]
)
def test_client_goes_on_after_the_broker_was_killed(
    node: list[str], tmp_path: Path, topic: str, down_s: float
) -> None:
    with BrokerProcess(tmp_path) as broker, Scenario("restart", broker.url, topic, program=node) as scenario:
        scenario.wait_for("kill")
        broker.kill()
        scenario.sleep(down_s)
        broker.start()
        scenario.go_on()


# -- locked brokers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("credential", ["DANUBE_TEST_TOKEN", "DANUBE_TEST_API_KEY"])
@pytest.mark.parametrize("name", ["reliable", "key_shared", "partitions", "nack", "schemas"])
def test_scenario_over_tls(node: list[str], locked: Locked, topic: str, name: str, credential: str) -> None:
    environment = {"DANUBE_TEST_CA": locked.ca, credential: locked.token}
    with Scenario(name, locked.broker.url, topic, program=node, environment=environment):
        pass


@pytest.mark.parametrize(
    ("credential", "code"), [("stranger", "PERMISSION_DENIED"), ("nonsense", "UNAUTHENTICATED")]
)
def test_a_principal_without_permissions_is_refused(
    node: list[str], locked: Locked, topic: str, credential: str, code: str
) -> None:
    token = locked.stranger if credential == "stranger" else "nonsense"
    environment = {"DANUBE_TEST_CA": locked.ca, "DANUBE_TEST_TOKEN": token}
    with (
        pytest.raises(pytest.fail.Exception, match=code),
        Scenario("reliable", locked.broker.url, topic, program=node, environment=environment),
    ):
        pass


def test_a_broker_that_wants_certificates_is_shown_one(node: list[str], tmp_path: Path, topic: str) -> None:
    keys = make_certificates(tmp_path)
    settings = {
        "DANUBE_TLS__CERT": f"{keys}/server.pem",
        "DANUBE_TLS__KEY": f"{keys}/server.key",
        "DANUBE_TLS__CLIENT_CA": f"{keys}/ca.pem",
        "DANUBE_TLS__CLIENT_AUTH": "required",
    }
    shown = {"DANUBE_TEST_CERT": f"{keys}/client.pem", "DANUBE_TEST_KEY": f"{keys}/client.key"}
    with BrokerProcess(tmp_path / "broker", environment=settings) as broker:
        assert broker.url.startswith("https://")
        authority = {"DANUBE_TEST_CA": f"{keys}/ca.pem"}
        with Scenario("reliable", broker.url, topic, program=node, environment={**authority, **shown}):
            pass
        with (
            pytest.raises(pytest.fail.Exception, match="UNAVAILABLE"),
            Scenario("reliable", broker.url, topic, program=node, environment=authority),
        ):
            pass
