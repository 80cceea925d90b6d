"""A helper process that is stopped is not dead, and nothing is acknowledged: readiness says so."""

from __future__ import annotations

import os
import signal

import pytest
from pydanube import Client, connect
from pydanube_broker.broker import Broker
from pydanube_broker.journal import journal

from tests.broker.delivery.conftest import Opener
from tests.support.sync_gate import SyncGate
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


async def test_a_stopped_sync_helper_is_why_the_broker_is_not_ready(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as broker, connect(broker.broker_url) as client:
        await stall(broker, client, monkeypatch)


async def stall(broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "STALLED_S", 0.05)
    gate = SyncGate(monkeypatch, held=False)
    async with client.producer("t") as producer:
        await producer.send(b"1")
        (syncer,) = gate.syncers
        await until(lambda: not broker.health.reasons())
        os.kill(syncer.pid, signal.SIGSTOP)
        try:
            waiting = producer.send_nowait(b"2")
            await until(broker.health.reasons)
            assert [reason.code for reason in broker.health.reasons()] == ["JOURNAL_STALLED"]
        finally:
            os.kill(syncer.pid, signal.SIGCONT)
        assert (await waiting).offset == 1
        await until(lambda: not broker.health.reasons())
