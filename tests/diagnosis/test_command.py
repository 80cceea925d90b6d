"""What a person types."""

from __future__ import annotations

import json
from typing import Any

from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until


def of_the_cluster(broker: BrokerProcess, *flags: str) -> dict[str, Any]:
    """Return the finding of the cluster's diagnosis about a subscription without a consumer, once a sample has it."""
    found: list[dict[str, Any]] = []

    def named() -> list[dict[str, Any]]:
        findings = broker.json_command("diagnose", "cluster", *flags)["findings"]
        found[:] = [each for each in findings if each["rule"] == "no_consumers"]
        return found

    wait_until(named)
    return found[0]


def test_a_check_of_a_subscription_exits_with_six(broker: BrokerProcess) -> None:
    broker.command("produce", "logs", stdin=b"line\n" * 30)
    broker.command("consume", "logs", "-s", "billing", "--count", "10", "--for", "20s")
    check = ("diagnose", "subscription", "logs", "billing", "--json", "--fail-on", "warning", "--explain")
    # while the rule is patient, for a second here, its consumers may be on their way
    wait_until(lambda: broker.command(*check, check=False).returncode != 0)
    done = broker.command(*check, check=False)
    assert done.returncode == 6
    answer = json.loads(done.stdout)
    [finding] = answer["findings"]
    assert (finding["rule"], finding["evidence"]["lag_messages"]) == ("no_consumers", 20)
    assert (answer["verdict"], answer["passed"]) == ("degraded", False)
    assert all(call["command"].startswith("danube ") for call in finding["next"])
    assert {one["rule"] for one in finding["ruled_out"]} >= {
        "consumer_dead",
        "consumer_slow",
        "poison_message",
    }
    assert finding["ruled_out_count"] == len(finding["ruled_out"])
    brief = json.loads(broker.command(*check[:-1], check=False).stdout)["findings"][0]
    assert (brief["ruled_out"], brief["ruled_out_count"]) == ([], finding["ruled_out_count"])
    whole, counted = of_the_cluster(broker, "--explain"), of_the_cluster(broker)
    rules = [{each["rule"] for each in one["ruled_out"]} for one in (whole, finding)]
    assert rules[0] == rules[1], "the cluster's answer lists them, too"
    assert (counted["ruled_out"], counted["ruled_out_count"]) == ([], len(rules[1]))
    passing = broker.command(
        "diagnose", "subscription", "logs", "billing", "--fail-on", "critical", check=False
    )
    assert passing.returncode == 0
    text = passing.stdout.decode()
    assert "no_consumers" in text
    # A command stays on one line, so that it can be copied
    assert max(len(line) for line in text.splitlines() if "danube " not in line) <= 80
    [item] = broker.json_command("subscriptions", "lag", "--topic", "logs")["items"]
    assert (item["lag_messages"], item["lost_messages"]) == (20, 0)
    assert (item["eta_s"], item["eta_s_reason"]) in ((None, "not_gaining"), (None, "too_few_samples"))
