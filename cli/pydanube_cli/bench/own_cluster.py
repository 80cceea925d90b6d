"""Several brokers and etcd for a benchmark, and measurements of the unavoidable costs beside them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydanube import Retry
from pydanube_admin.remote import OpsClient
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.election import LeaderRecord
from pydanube_broker.settings.sections import Server
from pydanube_core.errors import DeadlineExceeded, PortInUse
from pydanube_core.names import MAX_PARTITIONS
from pydanube_storage.metadata import Put, read_all
from pydanube_storage.metadata.etcd import EtcdAddress, EtcdOptions, EtcdStore

from pydanube_cli.bench.fleet import RunningBroker
from pydanube_cli.local_cluster.cluster import PORTS_APART, LocalCluster, prepared
from pydanube_cli.render import prose

BROKERS: Final = 3
LOOK_S: Final = 0.02
_PATIENCE_S: Final = 300.0
PATIENCE: Final = Retry(max_elapsed_s=120.0)  # of clients while brokers stop
_RECORD_BYTES: Final = 400
_OFFSETS: Final = range(200, 14_000)  # the highest port stays below 65536


class OwnCluster:
    """See the module. Made by `own_cluster`. Single user: the loop.

    Args:
        store: of the cluster's metadata.
    """

    def __init__(self, local: LocalCluster, store: EtcdStore) -> None:
        self.local = local
        self.store = store

    def broker(self, n: int) -> RunningBroker:
        """Return broker `n` (from 1) in the form that scenarios of one broker take."""
        facts = self.local.facts(n)
        return RunningBroker(
            url=facts["grpc"],
            admin_url=facts["admin"],
            pid=facts["pid"],
            data_dir=Path(facts["data_dir"]),
            owned=None,
        )

    def number(self, broker_id: str) -> int:
        """Return the number of the broker that has an id."""
        facts = map(self.local.facts, self.local.state.brokers)
        return int(next(each["n"] for each in facts if each["broker_id"] == broker_id))

    async def call(self, operation: str, arguments: Mapping[str, Any], *, at: int = 1) -> dict[str, Any]:
        """Call an operation at the broker `at`. Raises the operation's error."""
        async with OpsClient(self.broker(at).admin_url, timeout_s=60.0) as client:
            return await client.call(operation, dict(arguments))

    async def owner(self, topic: str, *, at: int = 1) -> int:
        """Return the number of the broker that owns a topic, once one does."""
        described: list[str | None] = []

        async def known() -> bool:
            described.append((await self.call("topics.describe", {"topic": topic}, at=at))["owner"])
            return described[-1] is not None

        await until(known, f"{topic} has an owner")
        return self.number(str(described[-1]))

    async def topics_of(self, numbers: Sequence[int], each: int) -> dict[int, list[str]]:
        """Create topics until each of these brokers has `each` of them. Return them by broker."""
        found: dict[int, list[str]] = {n: [] for n in numbers}
        made = itertools.count()
        while any(len(names) < each for names in found.values()):
            name = f"on-{next(made)}"
            await self.call("topics.create", {"topic": name})
            found.setdefault(await self.owner(name), []).append(name)
        return found

    async def partitions_of(self, n: int, count: int) -> list[str]:
        """Create partitioned topics until a broker has so many partitions. Return their names.

        As many plain topics take minutes, because each creation has an audit record of its own.
        """
        broker_id, found = self.local.facts(n)["broker_id"], list[str]()
        for number in itertools.count():
            partitions = min(count, MAX_PARTITIONS)
            await self.call("topics.create", {"topic": f"many-{number}", "partitions": partitions})
            items, _ = await read_all(self.store, keys.ASSIGNMENTS)
            made = [Assignment.of(item.key, item.value) for item in items]
            found = [
                str(each.topic)
                for each in made
                if str(each.broker_id) == broker_id and not each.topic.is_audit
            ]
            if len(found) >= count:
                break
        return found[:count]

    async def revision(self) -> int:
        """Return etcd's revision: how many changes it has seen."""
        return int((await self.store.range(keys.MEMBERS, limit=1)).revision)

    async def leader(self) -> int | None:
        """Return the number of the leading broker according to etcd, or None."""
        held = await self.store.get(keys.LEADER)
        return (
            None
            if held is None
            else self.number(LeaderRecord.from_json(held.value, key=keys.LEADER).broker_id)
        )

    async def transaction_ms(self) -> float:
        """Return the milliseconds of one transaction of etcd."""
        begun = time.perf_counter()
        await self.store.transact([Put("/bench", os.urandom(_RECORD_BYTES))])
        return (time.perf_counter() - begun) * 1000

    async def sync_ms(self) -> float:
        """Return the milliseconds of one write and sync of a small file on the disk of the first broker."""
        path = Path(self.local.facts(1)["data_dir"]) / "bench.sync"

        def write() -> None:
            with path.open("wb") as file:
                file.write(os.urandom(_RECORD_BYTES))
                file.flush()
                os.fdatasync(file.fileno()) if hasattr(os, "fdatasync") else os.fsync(file.fileno())

        begun = time.perf_counter()
        await asyncio.to_thread(write)
        elapsed_ms = (time.perf_counter() - begun) * 1000
        path.unlink()
        return elapsed_ms


@asynccontextmanager
async def own_cluster(
    parent: Path | None,
    *,
    brokers: int = BROKERS,
    one_address: bool = False,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[OwnCluster]:
    """Start it on free ports and a temporary folder below `parent`. Stop it and clean up at the end.

    Args:
        one_address: clients get the first broker's address, and it relays calls for topics of others.
        environment: additional variables for the brokers.

    Raises:
        ClusterError: it did not start. The message contains its output.
    """
    home = Path(tempfile.mkdtemp(prefix="danube-bench-", dir=parent or Path.cwd()))
    try:
        state = prepared(home, brokers=brokers, etcd=1, port_offset=_free_offset())
        port = _ports()[0] + state.port_offset
        more = {"DANUBE_SERVER__CONNECT_URL": f"http://127.0.0.1:{port}"} if one_address else {}
        local = LocalCluster(home, state, prose, environment={**more, **environment})
        try:
            await local.start()
            address = EtcdAddress.parse(local.metadata)
            async with EtcdStore(EtcdOptions(address=address)) as store:
                yield OwnCluster(local, store)
        finally:
            await local.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


async def until(so: Callable[[], Awaitable[bool]], what: str) -> float:
    """Poll until a condition holds. Return the seconds. Raises `DeadlineExceeded` after five minutes."""
    begun = time.perf_counter()
    while not await so():
        if time.perf_counter() - begun > _PATIENCE_S:
            raise DeadlineExceeded(f"not so after {_PATIENCE_S:g} s: {what}")
        await asyncio.sleep(LOOK_S)
    return time.perf_counter() - begun


def _ports() -> list[int]:
    server = Server()
    return [server.grpc_port, server.admin_port, server.metrics_port, server.http_port]


def _free_offset() -> int:
    """Return a port offset at which all ports of all brokers are free."""
    for offset in random.sample(_OFFSETS, 50):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for n in range(BROKERS):
                for port in _ports():
                    each = stack.enter_context(socket.socket())
                    each.bind(("127.0.0.1", port + offset + n * PORTS_APART))
            return offset
    raise PortInUse("no free ports for three brokers", field="port")
