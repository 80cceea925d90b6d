"""A disk that is full to the last byte: what frees space can still be done, recorded and undone as ever."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydanube_core.errors import ClusterError

from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until

Make = Callable[..., BrokerProcess]
DEADLINE_S = 120.0


def reasons(broker: BrokerProcess) -> list[str]:
    """The codes that `/readyz` gives."""
    try:
        with urllib.request.urlopen(f"{broker.metrics}/readyz", timeout=60) as response:
            body = json.load(response)
    except urllib.error.HTTPError as error:
        body = json.load(error)
    return [reason["code"] for reason in body["reasons"]]


def fill(path: Path) -> None:
    """Take what is left, to the last byte."""
    with path.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1 << 9):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


def test_what_frees_space_is_done_recorded_and_undone_on_a_full_disk(
    make_broker: Make, small_disk: Path
) -> None:
    broker = make_broker(
        data_dir=small_disk / "data",
        environment={"DANUBE_JOURNAL__SEGMENT_BYTES": "4MiB", "DANUBE_DATA__MIN_FREE_BYTES": "4MiB"},
    )
    broker.start()

    def apply(operation: str, /, **arguments: Any) -> dict[str, Any]:
        plan = broker.call(operation, **arguments, plan_only=True)
        return broker.call(operation, **arguments, plan_token=plan["plan_token"])

    for topic in ("big", "kept"):
        broker.call("topics.create", topic=topic)
        broker.call("subscriptions.create", topic=topic, subscription="s")
    text = small_disk.parent / "text"
    text.write_text("x" * 500_000)
    broker.command("produce", "big", "-f", str(text), "--delimiter", "none", "--count", "30")
    broker.command("produce", "kept", "-m", "a message")
    reserve = small_disk / "data" / "reserve"
    wait_until(reserve.exists)
    whole, ballast = reserve.stat().st_size, small_disk / "ballast"
    fill(ballast)
    wait_until(lambda: "DISK_GUARD" in reasons(broker))
    # The write-ahead log of the metadata has to grow: plans fill what it had
    for number in range(400):
        broker.call("plans.create", operation="topics.create", arguments={"topic": f"t{number}"})
        if reserve.stat().st_size < whole:
            break
        fill(ballast)
    assert reserve.stat().st_size < whole, "it was not needed: the disk was not full enough for this test"

    skipped = apply("subscriptions.purge", topic="kept", subscription="s")
    broker.call("changes.undo", call_id=skipped["call_id"])
    assert broker.call("subscriptions.lag", topic="kept")["items"][0]["lag_messages"] == 1
    apply("topics.set_policies", topic="kept", policies={"retention_age_s": 1})
    deleted = apply("topics.delete", topic="big")
    assert deleted["call_id"]
    found = broker.call("audit.query", call_id=deleted["call_id"])["items"]
    assert [each["decision"] for each in found] == ["allowed"]
    assert broker.call("audit.verify")["intact"]
    ballast.unlink()
    wait_until(lambda: reasons(broker) == [])
    assert broker.stop() == 0


@pytest.mark.long
def test_readyz_says_when_no_change_can_be_made(make_broker: Make, small_disk: Path) -> None:
    broker = make_broker(
        data_dir=small_disk / "data",
        environment={"DANUBE_JOURNAL__SEGMENT_BYTES": "1MiB", "DANUBE_DATA__MIN_FREE_BYTES": "1MiB"},
    )
    broker.start()
    reserve = small_disk / "data" / "reserve"
    wait_until(reserve.exists)
    ballast = small_disk / "ballast"
    fill(ballast)
    code = ""
    for number in range(5000):
        arguments = {"namespace": f"n{number}", "policies": {"max_publish_rate": number}}
        try:
            broker.call("namespaces.create", **arguments)
        except ClusterError as error:
            code = error.code
            break
        fill(ballast)
    assert code in ("AUDIT_UNAVAILABLE", "DISK_FULL")
    assert {"AUDIT_UNWRITABLE", "METADATA_UNWRITABLE"} & set(reasons(broker))
    # Reads go on
    broker.call("topics.list")
    ballast.unlink()
    wait_until(lambda: reasons(broker) == [])
    broker.call("namespaces.create", namespace="after")
    assert broker.stop() == 0
