"""A broker in this process with an admin core in front of it, for tests of plans, audit and undo."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydanube_admin.compat.methods import compat_methods
from pydanube_admin.core import AdminCore
from pydanube_admin.engine.context import AdminOptions
from pydanube_broker.broker import Broker
from pydanube_broker.rpc.caller import call_metadata
from pydanube_broker.settings.load import load_settings
from pydanube_broker.settings.sections import MEMORY_DIR
from pydanube_broker.topics.stored_messages import append_durably
from pydanube_broker.topics.topic import now_ms
from pydanube_core.errors import ClusterError, Overloaded
from pydanube_core.names import TopicName

from tests.support.broker_process import SMALL_SEGMENT_BYTES, WITHOUT_TELEMETRY

__all__ = ["Administered", "administered", "cluster", "without_a_cold_tier"]


class Administered:
    """`await cluster("topics.list")`: the result's object; `refused` gives the error; `apply` says --yes."""

    def __init__(self, broker: Broker, core: AdminCore) -> None:
        self.broker = broker
        self.core = core

    @property
    def broker_id(self) -> str:
        return str(self.broker.data_dir.broker_id)

    @property
    def url(self) -> str:
        """The address of `danube.ops`."""
        return self.broker.admin_url

    async def call(self, name: str, arguments: Mapping[str, Any], principal: str) -> Any:
        return await self.core.call(name, arguments, principal=principal, face="cli")

    async def __call__(self, name: str, /, *, by: str = "ann", **arguments: Any) -> dict[str, Any]:
        outcome = await self.call(name, arguments, by)
        assert not isinstance(outcome, ClusterError), outcome
        body: dict[str, Any] = outcome.model_dump(mode="json", by_alias=True)
        return body

    async def refused(self, name: str, *, by: str = "ann", **arguments: Any) -> ClusterError:
        outcome = await self.call(name, arguments, by)
        assert isinstance(outcome, ClusterError), outcome
        return outcome

    async def apply(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Plan an operation and apply it; return its result."""
        plan = await self(name, **arguments, plan_only=True)
        return await self(name, **arguments, plan_token=plan["plan_token"])

    async def publish(self, topic: str, *payloads: bytes) -> None:
        """To every partition; as a client does, once more where the next journal file is still being made."""
        for part in self.broker.registry.parts(TopicName.parse(topic))[1]:
            while True:
                try:
                    await append_durably(part, payloads, producer="test")
                    break
                except Overloaded:
                    await anyio.sleep(0.01)

    async def payloads(self, topic: str) -> list[bytes]:
        found: list[bytes] = []
        for part in self.broker.registry.parts(TopicName.parse(topic))[1]:
            messages = await self.broker.port.read_messages(
                part.name, start=0, end=1 << 60, max_messages=10_000, max_bytes=1 << 30
            )
            found += [message.payload for message in messages]
        return found

    async def seal(self) -> None:
        """What was published so far is in segments that are not written any more: retention can take it."""
        journal = self.broker.journal
        sealed = len(journal.sealed())
        if not self.broker.registry.parts(FILLER)[1]:
            await self.broker.registry.create(FILLER, partitions=0, dispatch_strategy="reliable")
        while len(journal.sealed()) == sealed:
            await self.publish(str(FILLER), bytes(60_000))

    async def retain(self) -> None:
        """One round of retention, which the broker makes every few seconds."""
        self.broker.retention.apply()
        await self.broker.hub.settled()


FILLER = TopicName.parse("/default/filler")


@asynccontextmanager
async def without_a_cold_tier(
    monkeypatch: pytest.MonkeyPatch, data_dir: Path | str = MEMORY_DIR, **settings: Any
) -> AsyncIterator[Administered]:
    """A broker whose retention takes segments of its journal, which are small."""
    monkeypatch.setenv("DANUBE_TEST_SMALL_SEGMENTS", "1")
    async with administered(data_dir, **{"journal.segment_bytes": "256KiB"}, **settings) as cluster:
        cluster.broker.hub.tiering = False  # as without pyarrow
        yield cluster


@asynccontextmanager
async def administered(
    data_dir: Path | str = MEMORY_DIR, *, options: AdminOptions | None = None, **settings: Any
) -> AsyncIterator[Administered]:
    free = {f"server.{name}": 0 for name in ("grpc_port", "admin_port", "metrics_port")}
    small = {"journal.segment_bytes": SMALL_SEGMENT_BYTES}
    loaded = load_settings(
        None, {}, {"data.dir": str(data_dir), **free, **small, **WITHOUT_TELEMETRY, **settings}
    )
    core = AdminCore(options=options, now_ms=now_ms)  # as the composition of a broker's process does
    methods = compat_methods(core, call_metadata)
    async with Broker(loaded, ops=core.serve_call, administration=methods) as broker:
        core.attach(broker.port)
        try:
            yield Administered(broker, core)
        finally:
            await core.aclose()


@pytest.fixture
async def cluster(anyio_backend: str) -> AsyncIterator[Administered]:
    """Run a broker with nothing in it for one test."""
    async with administered() as cluster:
        yield cluster
