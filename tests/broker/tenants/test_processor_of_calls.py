"""The budget stands before the calls of a real broker, on each of its ports."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest
from pydanube.wire.ops_channel import OpsChannel
from pydanube_broker.broker import Broker
from pydanube_broker.settings.load import load_settings
from pydanube_broker.tenants import processor
from pydanube_core.generated.danube_ops_pb2 import CallResponse
from pydanube_core.ops_call import call_request

from tests.support.broker_process import SMALL_SEGMENT_BYTES

pytestmark = pytest.mark.anyio


async def _burns(request: bytes) -> bytes:
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        sum(range(100))
    return CallResponse(result=b"{}").SerializeToString()


@pytest.mark.parametrize("port", ["broker_url", "admin_url"])
async def test_calls_of_an_address_take_their_share_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: str
) -> None:
    monkeypatch.setattr(processor, "BUDGET_US", 100_000)
    values = {
        "data.dir": str(tmp_path / "data"), "journal.segment_bytes": SMALL_SEGMENT_BYTES,
        **{f"server.{each}_port": 0 for each in ("grpc", "admin", "metrics", "http")},
    }  # fmt: skip
    async with Broker(load_settings(None, {}, values), ops=_burns) as broker:
        channel = OpsChannel(getattr(broker, port))
        request = call_request("security.whoami", {}, principal="", face="cli")
        answered: list[float] = []

        async def call() -> None:
            await channel.call(request, timeout_s=30)
            answered.append(time.monotonic())

        begun = time.monotonic()
        with anyio.move_on_after(2):
            async with anyio.create_task_group() as group:
                for _ in range(100):
                    group.start_soon(call)
        elapsed = time.monotonic() - begun
        await channel.aclose()
        assert 2 <= len(answered) <= (elapsed * 100_000 + 100_000) / 50_000 + 2
