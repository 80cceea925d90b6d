"""Three brokers as processes in networks of their own, three members of etcd, an S3 server: all that can fail, at hand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import anyio
from anyio import to_thread
from pydanube_admin.remote import OpsClient
from pydanube_core.errors import ClusterError

from tests.cluster.networks import Networks
from tests.support.broker_process import BrokerProcess
from tests.support.etcd import EtcdMembers
from tests.support.faulty_proxy import FaultyProxy
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


class RealCluster:
    """Brokers, etcd members and an object store in networks of their own, as the module describes."""

    def __init__(self, folder: Path, networks: Networks, etcd: EtcdMembers, store: FaultyProxy) -> None:
        self.networks = networks
        self.etcd = etcd
        self.store = store
        self._folder = folder
        self._lives = dict.fromkeys(BROKERS, 0)
        self.brokers = {n: self._broker(n) for n in BROKERS}

    def _broker(self, n: int) -> BrokerProcess:
        self._lives[n] += 1
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
            },
            face="broker",
            within=self.networks.command(n),
        )

    @property
    def urls(self) -> str:
        """Return the brokers' addresses, as `connect` takes them."""
        return "danube://" + ",".join(broker.url.partition("://")[2] for broker in self.brokers.values())

    async def start(self) -> None:
        async with anyio.create_task_group() as group:
            for broker in self.brokers.values():
                group.start_soon(to_thread.run_sync, broker.start)

    async def replace(self, n: int) -> None:
        """Drain a broker, and put another one with an empty directory in its place."""
        old = self.brokers[n]
        old.terminate()
        await to_thread.run_sync(old.wait, DRAINED_S)
        fresh = self._broker(n)
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

    async def call(self, operation: str, arguments: dict[str, Any] | None = None) -> Any:
        """An operation, at whichever broker answers."""
        failed: ClusterError | None = None
        for broker in self.brokers.values():
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
            if item["is_leader"]:
                return next(
                    (n for n, b in self.brokers.items() if b.running and b.url in str(item.values())), None
                )
        return None

    async def begin_move(self, topic: str) -> bool:
        """Send a topic to another broker; False where that cannot be begun now."""
        try:
            await self.call("topics.unload", {"topic": topic})
        except ClusterError:
            return False
        return True


@contextlib.contextmanager
def real_cluster(folder: Path) -> Iterator[RealCluster]:
    """Not started yet; all of it is gone in the end."""
    with contextlib.ExitStack() as stack:
        networks = stack.enter_context(Networks(len(BROKERS)))
        etcd = stack.enter_context(EtcdMembers(folder / "etcd", 3, host=networks.here))
        server = stack.enter_context(running_s3_server(folder / "s3"))
        store = stack.enter_context(FaultyProxy(server.endpoint, host=networks.here))
        cluster = RealCluster(folder, networks, etcd, store)
        stack.callback(cluster.close)
        yield cluster
