"""Memory of the JavaScript client over 200 000 messages sent, received and acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.official.conftest import Scenario
from tests.support.broker_process import BrokerProcess


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_memory_is_flat_over_200_000_messages(client: Path, tmp_path: Path, topic: str) -> None:
    program = ["node", "--expose-gc", str(client / "test" / "scenarios.mjs")]
    with (
        BrokerProcess(tmp_path, environment={"DANUBE_JOURNAL__SEGMENT_BYTES": "64MiB"}) as broker,
        Scenario("memory", broker.url, topic, "200000", program=program, deadline_s=1700),
    ):
        pass
