"""The budget stands before the calls of a real broker, on each of its ports."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from pydanube.wire.ops_channel import OpsChannel
from pydanube_broker.broker import Broker
from pydanube_broker.rpc.caller import Caller, Peer
from pydanube_broker.schema.vocabulary import CompatibilityMode, SchemaType
from pydanube_broker.settings.load import load_settings
from pydanube_broker.tenants import processor
from pydanube_core.generated.danube_ops_pb2 import CallResponse
from pydanube_core.ops_call import call_request

from tests.broker.schema.registry_client import RegistryClient
from tests.support.broker_process import SMALL_SEGMENT_BYTES

pytestmark = pytest.mark.anyio


class FromHere:
    identity = None
    caller = Caller(peer=Peer(address="ipv4:127.0.0.1:5"))


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


async def test_a_schema_compared_with_many_versions_holds_the_loop_for_no_step_and_is_charged(
    tmp_path: Path,
) -> None:
    """Versions × fields, with no right but to look: the comparison is in a thread, and its caller waits for the debt."""
    values = {
        "data.dir": str(tmp_path / "data"), "journal.segment_bytes": SMALL_SEGMENT_BYTES,
        **{f"server.{each}_port": 0 for each in ("grpc", "admin", "metrics", "http")},
    }  # fmt: skip

    def schema(version: int) -> bytes:
        fields = [{"name": f"f{n}", "type": ["null", "long"], "default": None} for n in range(2000)]
        return json.dumps({"type": "record", "name": "R", "fields": [*fields, {"name": f"v{version}", "type": "int", "default": 0}]}).encode()  # fmt: skip

    async with (
        Broker(load_settings(None, {}, values)) as broker,
        RegistryClient(broker.broker_url) as schemas,
    ):
        for version in range(5):
            await broker.registry.schemas.registry.register(
                "wide", SchemaType.AVRO, schema(version), created_by="test"
            )
        await broker.registry.schemas.registry.set_compatibility(
            "wide", CompatibilityMode.FULL, transitive=True
        )
        longest, done = 0.0, anyio.Event()

        async def look() -> None:
            nonlocal longest
            before = time.thread_time()
            while not done.is_set():
                await anyio.lowlevel.checkpoint()
                now = time.thread_time()
                longest, before = max(longest, now - before), now

        account = broker.budget.account(cast(Any, FromHere()))
        assert account is not None
        spent: list[float] = []
        account.charge = spent.append  # type: ignore[method-assign]
        async with anyio.create_task_group() as group:
            group.start_soon(look)
            answer = await schemas.CheckCompatibility(
                subject="wide", schema_type="avro", new_schema_definition=schema(99)
            )
            done.set()
        assert answer.is_compatible
        assert longest < 0.1, f"one step of the loop took {longest:.3f} s"
        assert sum(spent) >= 0.05, "the thread's time is its caller's"
