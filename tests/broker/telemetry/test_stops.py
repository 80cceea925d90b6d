"""The telemetry of the last minute is written at a stop, if that is quick."""

from __future__ import annotations

import os
import signal

import pytest
from pydanube_broker.observation import watch

from tests.broker.delivery.conftest import Opener, one_loop, opened
from tests.support.waiting import until

__all__ = ["one_loop", "opened"]
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop")]


@pytest.mark.parametrize("starting", [True, False])
async def test_a_stop_writes_telemetry_unless_its_process_is_still_starting(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, cold_helpers: None, starting: bool
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(watch, "RECALL_AFTER_S", 0.0)
    written: list[object] = []

    async def note(*rows: object) -> None:
        written.append(rows)

    async with opened() as broker:
        child = broker.tier.child
        await until(lambda: child.pid is not None)
        assert child.pid is not None
        if starting:
            os.kill(child.pid, signal.SIGSTOP)
            assert not child.ready, "its imports take most of a second"
        else:
            await until(lambda: child.ready)
        monkeypatch.setattr(broker.telemetry, "aclose", note)
    assert len(written) == (not starting)
