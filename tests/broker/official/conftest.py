"""A broker in this process and a raw gRPC client: what is on the wire, without any client library's own behaviour."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pydanube_broker.broker import Broker
from pydanube_broker.settings.load import load_settings
from pydanube_core.names import TopicName

from tests.broker.official.raw_client import RawClient
from tests.support.one_loop import one_loop  # noqa: F401  # a fixture

StartBroker = Callable[..., Awaitable[Broker]]


class Brokers:
    """Brokers on one data directory, one after the other.

    Each lives in a task of its own: a test that restarts one would otherwise enter its task group inside the test's
    deadline and leave it outside.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._life: asyncio.Task[None] | None = None
        self._end = asyncio.Event()
        self.port = 0
        self.broker: Broker

    async def start(self, **overrides: Any) -> Broker:
        """Start, on the port of the first start; `section__key=value` sets settings."""
        settings = load_settings(
            overrides={
                "data.dir": str(self._folder / "data"),
                "server.grpc_port": self.port,
                "server.admin_port": 0,
                "server.metrics_port": 0,
                "journal.segment_bytes": "4MiB",
                **{name.replace("__", "."): value for name, value in overrides.items()},
            }
        )
        started: asyncio.Future[Broker] = asyncio.get_running_loop().create_future()
        self._end = asyncio.Event()
        self._life = asyncio.create_task(self._live(Broker(settings), started))
        await asyncio.wait([started, self._life], return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            await self._life  # raises what kept it from starting
        self.broker = started.result()
        self.port = self.port or int(self.broker.broker_url.rpartition(":")[2])
        return self.broker

    async def _live(self, broker: Broker, started: asyncio.Future[Broker]) -> None:
        async with broker:
            started.set_result(broker)
            await self._end.wait()

    async def stop(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            self._end.set()
            await life

    async def restart(self, **overrides: Any) -> Broker:
        await self.stop()
        return await self.start(**overrides)


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    brokers = Brokers(tmp_path)
    await brokers.start()
    try:
        yield brokers
    finally:
        await brokers.stop()


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    brokers = Brokers(tmp_path_factory.mktemp("shared"))
    broker = await brokers.start()
    try:
        yield broker
    finally:
        await brokers.stop()


@pytest.fixture
async def broker(shared: Broker) -> AsyncIterator[Broker]:
    """A broker without topics, for a test that leaves it alive; those that restart or break theirs take `brokers`."""
    yield shared
    for topic in shared.registry.topics:
        name = TopicName.parse(topic.name).base
        if shared.registry.parts(name)[1]:
            await shared.registry.delete(name)


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[RawClient]:
    async with RawClient(broker.broker_url) as client:
        yield client
