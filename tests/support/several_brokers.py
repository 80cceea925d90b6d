"""Several whole brokers on one etcd and one folder of objects, each in a task of its own."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import TaskGroup, TaskStatus
from pydanube_broker.broker import Broker
from pydanube_broker.cluster import coordinator
from pydanube_broker.moves import moves
from pydanube_broker.settings.sections import Data, Journal, Metadata, Server, Settings, Telemetry, Tier
from pydanube_core.names import TopicName

from tests.support.broker_process import SMALL_SEGMENT_BYTES
from tests.support.etcd import EtcdMembers
from tests.support.waiting import until

FREE = Server(grpc_port=0, admin_port=0, metrics_port=0, http_port=0)
QUICK_S = 0.2  # between two looks of the leader, in place of a second or two: tests wait for what it does
SMALL = Journal(segment_bytes=SMALL_SEGMENT_BYTES)
NONE = Telemetry(enabled=False)  # with it each broker starts its tier's process: a second of a core


class SeveralBrokers:
    """Brokers that are started and stopped by their number.

    Args:
        make: a broker of settings, as a context.
    """

    def __init__(
        self,
        etcd: EtcdMembers,
        folder: Path,
        group: TaskGroup,
        make: Callable[[Settings], AbstractAsyncContextManager[Broker]] = Broker,
    ) -> None:
        self._make = make
        self._url = etcd.url(f"/{uuid.uuid4().hex}")
        self._folder = folder
        self._group = group  # each in a task of its own: they end in any order
        self._ends: dict[int, tuple[anyio.Event, anyio.Event]] = {}
        self.brokers: dict[int, Broker] = {}

    def settings(self, n: int, *, tier: str = "objects") -> Settings:
        return Settings(
            server=FREE,
            data=Data(dir=self._folder / f"broker-{n}"),
            journal=SMALL,
            metadata=Metadata(url=self._url),
            tier=Tier(url=str(self._folder / tier)),
            telemetry=NONE,
        )

    async def start(self, n: int) -> None:
        await self._group.start(self._run, n)

    async def _run(self, n: int, *, task_status: TaskStatus[None]) -> None:
        settings = self.settings(n)
        end, ended = self._ends[n] = (anyio.Event(), anyio.Event())
        async with self._make(settings) as self.brokers[n]:
            task_status.started()
            await end.wait()
        ended.set()

    async def stop(self, n: int) -> None:
        del self.brokers[n]
        end, ended = self._ends.pop(n)
        end.set()
        await ended.wait()

    async def all_know_all(self) -> None:
        """Wait until every broker sees every one as ready for topics."""
        for broker in self.brokers.values():
            await until(lambda broker=broker: self._sees(broker) == len(self.brokers))

    @staticmethod
    def _sees(broker: Broker) -> int:
        members = broker.registry.ownership.coordinator.members
        return sum(member.state == "active" for member in members.values())

    def owner(self, name: str) -> Broker:
        (found,) = [b for b in self.brokers.values() if b.registry.find(TopicName.parse(name)) is not None]
        return found

    def serves(self, name: TopicName) -> bool:
        """Whether any broker serves a topic now."""
        return any(broker.registry.find(name) is not None for broker in self.brokers.values())

    def serves_name(self, name: str) -> bool:
        return self.serves(TopicName.parse(name))

    def others(self, name: str) -> list[Broker]:
        owner = self.owner(name)
        return [broker for broker in self.brokers.values() if broker is not owner]


def id_of(broker: Broker) -> str:
    return str(broker.data_dir.broker_id)


@asynccontextmanager
async def no_brokers(
    etcd: EtcdMembers,
    folder: Path,
    make: Callable[[Settings], AbstractAsyncContextManager[Broker]] = Broker,
    look_s: float = QUICK_S,
) -> AsyncIterator[SeveralBrokers]:
    """A prefix of its own, on which no broker has been; those that are started are stopped at the end.

    Args:
        look_s: between two looks of the leader.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator, "SWEEP_S", look_s)
        patch.setattr(moves, "LOOK_S", look_s)
        async with anyio.create_task_group() as group:
            cluster = SeveralBrokers(etcd, folder, group, make)
            yield cluster
            for n in list(cluster.brokers):
                await cluster.stop(n)


@asynccontextmanager
async def several_brokers(
    etcd: EtcdMembers,
    folder: Path,
    make: Callable[[Settings], AbstractAsyncContextManager[Broker]] = Broker,
    look_s: float = QUICK_S,
) -> AsyncIterator[SeveralBrokers]:
    """Three that know one another."""
    async with no_brokers(etcd, folder, make, look_s) as cluster:
        for n in (1, 2, 3):
            await cluster.start(n)
        await cluster.all_know_all()
        yield cluster
