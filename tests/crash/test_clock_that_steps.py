"""A real broker whose machine's clock is set: a year ahead for a second and an hour back leave nothing behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import anyio
import pytest
from pydanube import connect

from tests.support.broker_process import BrokerProcess
from tests.support.stepped_clock import Clock
from tests.support.waiting import wait_until

pytest.importorskip("pyarrow")

YEAR_S = 365 * 86_400
DEADLINE_S = 120.0


@pytest.mark.long
def test_a_year_ahead_for_a_second_and_an_hour_back_heal(
    make_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    clock = Clock(tmp_path)
    if not clock.environment:
        pytest.skip("NOT RUN: no C compiler here to make a clock that can be set")
    broker = make_broker(
        environment={
            "DANUBE_TIER__FLUSH_AGE": "300ms",
            "DANUBE_JOURNAL__SEGMENT_BYTES": "256KiB",
            **clock.environment,
        }
    )
    broker.start()

    def publish() -> None:
        async def send() -> None:
            async with connect(broker.url) as client, client.producer("t") as producer:
                await producer.send_many([b"x" * 100] * 20)

        anyio.run(send)

    def tiered() -> bool:
        found = broker.call("topics.describe", topic="t")
        return bool(found["tiered_offset"] == found["next_offset"])

    def off_by_s(position: str) -> float:
        """How far from now the broker says that a message was appended."""
        found = broker.call("messages.peek", topic="t", **{"from": position}, limit=1)["items"][0]
        return abs(datetime.fromisoformat(found["append_time"]).timestamp() - time.time())

    def stepped() -> bool:
        return any(reason["code"] == "CLOCK_STEPPED" for reason in broker.status()["reasons"])

    publish()
    assert not stepped()

    clock.set(YEAR_S)
    publish()
    wait_until(stepped)
    time.sleep(1.0)
    publish()
    clock.set(0)
    publish()
    wait_until(tiered)
    for offset in range(0, 80, 20):
        assert off_by_s(f"offset:{offset}") < 100
    assert broker.call("messages.peek", topic="t", **{"from": "time:-1h"}, limit=1)["items"][0]["offset"] == 0

    clock.set(-3600)
    os.kill(
        broker.status()["tier"]["process_id"], signal.SIGKILL
    )  # whose next flush fails, and is tried again
    publish()
    wait_until(tiered)
    clock.set(0)

    def heals() -> bool:
        publish()
        return off_by_s(f"offset:{broker.call('topics.describe', topic='t')['next_offset'] - 1}") < 20

    wait_until(heals)
    wait_until(tiered)
    # What was stamped meanwhile is as old as it is: retention takes it
    policies = {"retention_age_s": 1}
    plan = broker.call("topics.set_policies", topic="t", policies=policies, plan_only=True)
    broker.call("topics.set_policies", topic="t", policies=policies, plan_token=plan["plan_token"])
    wait_until(lambda: broker.call("topics.describe", topic="t")["start_offset"] >= 100)
    assert broker.stop() == 0
