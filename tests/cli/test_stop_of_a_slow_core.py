"""A broker whose admin core does not stop in time: a task that is slow to end, or an audit on a disk that stands still."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from pydanube import connect
from pydanube_admin.core import AdminCore
from pydanube_broker.broker import Broker
from pydanube_broker.settings.sections import MEMORY_DIR, Data, Settings
from pydanube_cli.composition import administered

from tests.support.several_brokers import FREE

pytestmark = pytest.mark.anyio

GRACE_S = 1.0


@pytest.mark.parametrize("slow", ["end_calls", "aclose"])
async def test_clients_have_their_part_of_the_grace(monkeypatch: pytest.MonkeyPatch, slow: str) -> None:
    drain, given = Broker.drain, list[float]()

    async def never(_: AdminCore) -> None:
        await anyio.sleep_forever()

    async def noted(broker: Broker, grace_s: float) -> None:
        given.append(grace_s)
        await drain(broker, grace_s)

    monkeypatch.setattr(AdminCore, slow, never)
    monkeypatch.setattr(Broker, "drain", noted)
    async with administered(Settings(data=Data(dir=MEMORY_DIR), server=FREE), grace_s=GRACE_S):
        pass
    *within_the_grace, last_resort = given
    assert last_resort > GRACE_S
    assert len(within_the_grace) == 1, "streams end before the watchdog ends the process"
    assert within_the_grace[0] < GRACE_S


async def test_a_subscription_made_during_the_drain_is_in_the_audit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drain = Broker.drain

    async def with_a_late_client(broker: Broker, grace_s: float) -> None:
        if not broker.health.draining:
            async with connect(broker.broker_url) as client, client.consumer("orders", "late"):
                pass
        await drain(broker, grace_s)

    settings = Settings(data=Data(dir=tmp_path), server=FREE)
    with anyio.fail_after(60):
        async with administered(settings, grace_s=30.0) as (broker, core):
            await core.call("topics.create", {"topic": "orders"}, principal="ann", face="cli")
            monkeypatch.setattr(Broker, "drain", with_a_late_client)
        monkeypatch.setattr(Broker, "drain", drain)
        async with administered(settings, grace_s=30.0) as (broker, _):
            _, stored = await broker.port.read_audit(start=0, max_messages=100)
    records = [json.loads(payload) for _, payload in stored]
    assert [
        (each["phase"], each["arguments"]["subscription"]) for each in records if each["face"] == "data"
    ] == [
        ("call", "late"),
        ("outcome", "late"),
    ]
