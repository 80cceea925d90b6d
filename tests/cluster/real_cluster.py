"""Three brokers as processes in networks of their own, three members of etcd, an S3 server: all that can fail, at hand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import anyio
from anyio import to_thread
from pydanube_admin.remote import OpsClient
from pydanube_core.errors import ClusterError

from tests.cluster.networks import ETCD, STORE, Networks
from tests.support.broker_process import BrokerProcess
from tests.support.etcd import EtcdMembers
from tests.support.faulty_proxy import FaultyProxy
from tests.support.s3_door import conditional
from tests.support.s3_server import BUCKET, running_s3_server, s3_environment

BROKERS: Final = (1, 2, 3)
DRAINED_S: Final = 400.0  # it may take five minutes, and stays some seconds for clients
_ENVIRONMENT: Final = {
    # Small, so that what is under way crosses segments, heads, uploads and clean-up too.
    "DANUBE_JOURNAL__SEGMENT_BYTES": "1MiB",
    "DANUBE_DATA__MIN_FREE_BYTES": "1MiB",
    "DANUBE_TIER__FLUSH_BYTES": "1MiB",
    "DANUBE_TIER__FLUSH_AGE": "5s",
    "DANUBE_TIER__TIMEOUT": "5s",
}
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class RealCluster:
    """Brokers, etcd members and an object store in networks of their own, as the module describes.

    Args:
        environment: more variables of all brokers.
        environments: more variables of single brokers.
        program: another `danube` than that of this environment, for the first life of each broker.
        later: more variables of the lives after it, which that one may not know.
    """

    def __init__(
        self,
        folder: Path,
        networks: Networks,
        etcd: EtcdMembers,
        store: FaultyProxy,
        *,
        environment: Mapping[str, str] = _NONE,
        environments: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
        program: str | None = None,
        later: Mapping[str, str] = _NONE,
    ) -> None:
        self.networks = networks
        self.etcd = etcd
        self.store = store
        self._environment = environment
        self._environments = environments
        self._program = program
        self._later = later
        self._folder = folder
        self._lives = dict.fromkeys(BROKERS, 0)
        self.brokers = {n: self._broker(n) for n in BROKERS}

    def _broker(self, n: int, *, again: bool = False) -> BrokerProcess:
        """Return the next broker in a place: `again` with the directory of the one before."""
        self._lives[n] += 1
        life = self._lives[n] - again
        host = self.networks.address(n)
        return BrokerProcess(
            self._folder / f"broker-{n}-{self._lives[n]}",
            arguments=["--metadata", self.etcd.url("/cluster"), "--drain"],
            environment={
                **_ENVIRONMENT,
                **s3_environment(),
                "DANUBE_SERVER__HOST": host,
                "DANUBE_SERVER__INSECURE_BIND": "true",
                "DANUBE_TIER__URL": f"s3://{BUCKET}/cluster",
                "DANUBE_TIER__ENDPOINT": self.store.endpoint,
                "DANUBE_TIER__REGION": "us-east-1",
                "DANUBE_TIER__PATH_STYLE": "true",
                **self._environment,
                **self._environments.get(n, {}),
                **(self._later if self._lives[n] > 1 else {}),
            },
            face="broker",
            within=self.networks.command(n),
            data_dir=self._folder / f"broker-{n}-{life}" / "data",
            program=self._program if self._lives[n] == 1 else None,
        )

    @property
    def urls(self) -> str:
        """Return the brokers' addresses, as `connect` takes them."""
        return "danube://" + ",".join(broker.url.partition("://")[2] for broker in self.brokers.values())

    @property
    def admin(self) -> str:
        """Return the admin address of a broker that runs."""
        return next(broker.admin for broker in self.brokers.values() if broker.running)

    async def start(self) -> None:
        async with anyio.create_task_group() as group:
            for broker in self.brokers.values():
                group.start_soon(to_thread.run_sync, broker.start)

    async def replace(self, n: int, *, again: bool = False) -> None:
        """Drain a broker, and put another one in its place, with an empty directory or `again` with the same."""
        old = self.brokers[n]
        old.terminate()
        await to_thread.run_sync(old.wait, DRAINED_S)
        fresh = self._broker(n, again=again)
        fresh.begin()
        self.brokers[n] = fresh
        await to_thread.run_sync(fresh.wait_ready)

    def close(self) -> None:
        self.networks.heal()
        self.store.fault = None
        for broker in self.brokers.values():
            if broker.running:
                broker.kill()  # without the drain that SIGTERM begins
            broker.close()

    # -- asked ---------------------------------------------------------------------------------------------------

    async def call(
        self, operation: str, arguments: dict[str, Any] | None = None, *, at: BrokerProcess | None = None
    ) -> Any:
        """An operation, at a broker or at whichever answers."""
        failed: ClusterError | None = None
        for broker in self.brokers.values() if at is None else [at]:
            if not broker.running:
                continue
            try:
                with anyio.fail_after(10):
                    async with OpsClient(broker.admin) as ops:
                        return await ops.call(operation, arguments or {})
            except ClusterError as error:
                failed = error
            except TimeoutError:
                continue  # it is stopped, or cut off
        raise failed or AssertionError("no broker answers")

    async def leader(self) -> int | None:
        """Which broker leads, as far as any knows."""
        listed = await self.call("brokers.list")
        for item in listed["items"]:
            if item["leader"]:
                return next(
                    (n for n, b in self.brokers.items() if b.running and b.url in str(item.values())), None
                )
        return None

    def id_of(self, n: int) -> str:
        """Return a broker's id."""
        return str(self.brokers[n].info["broker_id"])

    async def owner(self, topic: str) -> int | None:
        """Return which broker owns a topic, None while it is between two."""
        try:
            found = (await self.call("topics.describe", {"topic": topic}))["owner"]
        except ClusterError:
            return None
        return next((n for n in self.brokers if self.id_of(n) == found), None)

    async def moved(self, topic: str, target: int) -> dict[str, Any]:
        """Move a topic to a broker, and return the task once it has ended."""
        begun = await self.call("topics.move", {"topic": topic, "to_broker": self.id_of(target)})
        while True:
            task: dict[str, Any] = await self.call("tasks.get", {"task_id": begun["task_id"]})
            if task["state"] != "running":
                return task
            await anyio.sleep(0.2)

    async def placed(self, topic: str, n: int) -> None:
        """Move a topic to a broker, unless that one owns it."""
        if await self.owner(topic) != n:
            await self.moved(topic, n)

    async def begin_move(self, topic: str) -> bool:
        """Send a topic to another broker; False where that cannot be begun now."""
        try:
            await self.call("topics.unload", {"topic": topic})
        except ClusterError:
            return False
        return True


@contextlib.contextmanager
def real_cluster(
    folder: Path, *, creates_only: bool = False, more: int = 0, **given: Any
) -> Iterator[RealCluster]:
    """Not started yet; all of it is gone in the end. `given`: see `RealCluster`.

    `creates_only`: the object store creates an object only where its name is free, if asked to. `more`: networks of others.
    """
    with contextlib.ExitStack() as stack:
        networks = stack.enter_context(Networks(len(BROKERS) + more))
        etcd = stack.enter_context(EtcdMembers(folder / "etcd", 3, host=networks.address(ETCD)))
        server = stack.enter_context(running_s3_server(folder / "s3", public=creates_only))
        if creates_only:
            server = stack.enter_context(conditional(server))
        store = stack.enter_context(FaultyProxy(server.endpoint, host=networks.address(STORE)))
        cluster = RealCluster(folder, networks, etcd, store, **given)
        stack.callback(cluster.close)
        yield cluster
