"""Run the declared connectors of a group in this process, shared with the other workers of the group.

Each worker is a consumer of one failover subscription for each connector, on a topic without messages. The active consumer holds
the connector's lease and runs it. A sink with `delivery.workers` has as many parts of its partitions, each with a lease. If a worker dies, the broker makes the next consumer active. A worker that holds more leases than
its share leaves one and queues again as the last. The lease only says who works: two workers that run the same connector for a
moment harm nothing that its guarantee promises, because the target's position or the named producer decides.
"""

from __future__ import annotations

import json
import logging
import math
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import anyio
import anyio.abc
from pydanube import Client, Consumer, Producer
from pydanube_core.connectors import LEASES, LOGS, LOGS_KEPT_S, REPORT_EVERY_S, REPORTS, lease_of, parts_of
from pydanube_core.errors import AlreadyExists, ClusterError

from pydanube_connect.file import Declared, declared
from pydanube_connect.log_lines import LogLines, logs_as
from pydanube_connect.running import Runner, clean_error, runner_of
from pydanube_connect.statistics import State, Statistics

#: seconds for the batch that a connector has begun. Then its run is cancelled
_END_S: Final = 30.0
_LOST_S: Final = 5.0  # the same, if another worker has the lease already
_LEAVE_S: Final = 10.0  # seconds to close the consumers of the leases
_RETENTION_BYTES: Final = 16 << 20
_PAGE: Final = 1_000
log = logging.getLogger("pydanube.connect")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declared:
    """A connector of the group as the cluster declares it."""

    definition: str
    epoch: int
    generation: int
    paused: bool
    parts: int


class _Run:
    """One run of a connector, until it is stopped or fails."""

    def __init__(self, name: str, part: int, declared: _Declared) -> None:
        self.name = name
        self.part = part
        self.generation = declared.generation
        self._declared = declared
        self.stop = anyio.Event()
        self.ended = anyio.Event()
        self.scope = anyio.CancelScope()
        self.runner: Runner | None = None
        self.error: str | None = None
        self.error_code: str | None = None
        self._state = ""
        self._since_ms = 0

    async def run(self, client: Client) -> None:
        path = f"connector {self.name}"
        made: Declared | None = None
        try:
            with self.scope:
                tree = {**tomllib.loads(self._declared.definition), "name": self.name}
                made = declared(tree, path=path, epoch=self._declared.epoch, part=self.part)
                with logs_as(made):
                    self.runner = runner_of(made, client, stop=self.stop)
                    facts = self.runner.statistics
                    log.info("connector_started", extra={"type": facts.type, "guarantee": facts.guarantee})
                    await self.runner.run()
                    log.info("connector_ended", extra={"records": facts.records})
        except Exception as failure:
            if made is not None:
                failure = clean_error(failure, made)
            # else it is a mistake in the definition, whose text has no resolved secret
            self.error = str(failure)
            if isinstance(failure, ClusterError):
                self.error, self.error_code = failure.message, failure.code
            log.error("connector_stopped", extra={"connector": self.name, "error": self.error})
        finally:
            self.ended.set()

    @property
    def statistics(self) -> Statistics | None:
        return None if self.runner is None else self.runner.statistics

    async def end(self, grace_s: float) -> None:
        """Stop after the batch that was begun. Cancel the run if that takes longer than `grace_s`."""
        self.stop.set()
        with anyio.move_on_after(grace_s):
            await self.ended.wait()
        self.scope.cancel()
        await self.ended.wait()

    async def report(self, client: Client) -> dict[str, Any]:
        """Return the facts that the cluster shows of this connector."""
        facts: dict[str, Any] = {"connector": self.name, "part": self.part}
        if self.statistics is not None:
            facts |= self.statistics.to_dict()
        state = State.STOPPED if self.ended.is_set() else facts.get("state", State.STARTING)
        if state != self._state:
            self._state, self._since_ms = str(state), time.time_ns() // 1_000_000
        facts |= {"state": self._state, "since_ms": self._since_ms, "generation": self.generation}
        if self.error is not None:
            facts |= {"last_error": self.error, "error_code": self.error_code}
        facts["lag_messages"] = lag = await self._lag(client)
        if self.statistics is not None:
            self.statistics.lag_messages = lag
        return facts

    async def _lag(self, client: Client) -> int | None:
        made = None if self.runner is None else self.runner.declared
        if made is None or not made.is_sink or self.ended.is_set():
            return None
        lag = 0
        for topic in made.topics:
            try:
                lag += (await client.admin.subscriptions.describe(topic, made.subscription)).lag_messages
            except ClusterError:  # the subscription does not exist yet
                return None
        return lag


class _PartLease:
    """This worker's place in the line for one part of a connector, and its run while it holds the lease."""

    def __init__(self, lease: Consumer, stack: AsyncExitStack) -> None:
        self.lease = lease
        self.stack = stack
        self.run: _Run | None = None

    async def stop(self, grace_s: float = _END_S) -> None:
        if self.run is not None:
            await self.run.end(grace_s)
            self.run = None

    async def leave(self) -> None:
        """Stop the connector, then give up the lease."""
        await self.stop()
        await self.stack.aclose()


class GroupWorker:
    """Runs connectors of a group until `stop` is set.

    Args:
        name: of this worker, unique in the cluster.
        lines: the log lines to report to the cluster.
    """

    def __init__(
        self, client: Client, *, group: str, name: str, stop: anyio.Event, lines: LogLines | None = None
    ) -> None:
        self.group = group
        self.name = name
        self._client = client
        self._stop = stop
        self._lines = lines
        self._declared: dict[str, _Declared] = {}
        self._leases: dict[tuple[str, int], _PartLease] = {}  # by connector and part
        self._tending = anyio.CancelScope()

    def statistics(self) -> list[Statistics]:
        """Return the counters of the connectors that run here."""
        runs = [part_lease.run for part_lease in self._leases.values() if part_lease.run is not None]
        return [run.statistics for run in runs if run.statistics is not None]

    async def run(self) -> None:
        """Take and run connectors. Ends each batch that was begun.

        Raises:
            ClusterError: the topics of workers cannot be created.
        """
        for topic, age_s in ((LEASES, None), (REPORTS, None), (LOGS, LOGS_KEPT_S)):
            with suppress(AlreadyExists):
                await self._client.admin.topics.create(
                    topic, policies={"retention_bytes": _RETENTION_BYTES, "retention_age_s": age_s}
                )
        async with (
            self._client.producer(REPORTS) as reports,
            self._client.producer(LOGS) as logs,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(self._until_stopped, reports, logs)
            with anyio.CancelScope() as self._tending:
                while not self._stop.is_set():
                    with _logged(self.name):
                        await self._look()
                        await self._take(tasks)
                        await self._share()
                    await anyio.sleep(REPORT_EVERY_S)
            await self._leave_all()
            with _logged(self.name), anyio.move_on_after(_LEAVE_S):
                await self._report(reports, logs)  # that nothing runs here

    async def _until_stopped(self, reports: Producer, logs: Producer) -> None:
        """Report until the worker stops, then end the work that waits for the broker or a connector."""
        while not self._stop.is_set():
            with _logged(self.name), anyio.move_on_after(REPORT_EVERY_S * 5):
                await self._report(reports, logs)
            with anyio.move_on_after(REPORT_EVERY_S):
                await self._stop.wait()
        self._tending.cancel()

    async def _leave_all(self) -> None:
        """End all runs at once, since each may have a batch to end, then leave the lines."""
        leases = list(self._leases.values())
        async with anyio.create_task_group() as tasks:
            for part_lease in leases:
                tasks.start_soon(part_lease.stop)
        with anyio.move_on_after(_LEAVE_S):  # the broker may be away
            for part_lease in leases:
                await part_lease.leave()
        self._leases.clear()

    async def _look(self) -> None:
        """Read the declared connectors of the group, and join or leave the line for each."""
        found: dict[str, Any] = {}
        page: str | None = None
        while True:
            answer = await self._client.admin.connectors.list(limit=_PAGE, page=page)
            found |= {item.connector: item for item in answer.items if item.group == self.group}
            if (page := answer.next_page) is None:
                break
        for name in self._declared.keys() - found.keys():
            del self._declared[name]
        for name, item in found.items():
            known, paused = self._declared.get(name), item.state == "paused"
            if known is None or (known.generation, known.paused) != (item.generation, paused):
                whole = await self._client.admin.connectors.describe(name)
                self._declared[name] = _Declared(
                    definition=whole.definition,
                    epoch=whole.epoch,
                    generation=whole.generation,
                    paused=whole.state == "paused",
                    parts=parts_of(whole.definition),
                )
        places = {(name, part) for name, each in self._declared.items() for part in range(each.parts)}
        for place in self._leases.keys() - places:
            await self._leases.pop(place).leave()
        for place in sorted(places - self._leases.keys()):
            self._leases[place] = await self._joined(*place)

    async def _joined(self, name: str, part: int) -> _PartLease:
        async with AsyncExitStack() as stack:
            lease = self._client.consumer(
                LEASES, lease_of(name, part), type="failover", name=self.name, credit_messages=1
            )
            await stack.enter_async_context(lease)
            return _PartLease(lease, stack.pop_all())
        raise AssertionError("unreachable")

    async def _take(self, tasks: anyio.abc.TaskGroup) -> None:
        """Run each part of a connector whose lease this worker holds, as it is declared now. Stop the others."""
        for (name, part), part_lease in self._leases.items():
            declared = self._declared[name]
            if not part_lease.lease.active:
                await part_lease.stop(_LOST_S)
                continue
            if part_lease.run is not None and (
                declared.paused or part_lease.run.generation != declared.generation
            ):
                await part_lease.stop()
            if part_lease.run is None and not declared.paused:
                part_lease.run = _Run(name, part, declared)
                tasks.start_soon(part_lease.run.run, self._client)

    async def _share(self) -> None:
        """Leave leases, if this worker holds more than its share of them: first of the connector of which it holds most."""
        held = [place for place, part_lease in self._leases.items() if part_lease.lease.active]
        if len(held) < 2:
            return
        sessions = await self._client.admin.consumers.list(topic=LEASES, limit=_PAGE)
        workers = {each.consumer for each in sessions.items if each.subscription == lease_of(*held[0])}
        while len(held) > math.ceil(len(self._leases) / max(1, len(workers))):
            parts = Counter(name for name, _ in held)
            place = max(held, key=lambda place: (parts[place[0]], held.index(place)))
            held.remove(place)
            await self._leases.pop(place).leave()
            self._leases[place] = await self._joined(*place)
            log.info("connector_handed_on", extra={"connector": place[0], "worker": self.name})

    async def _report(self, reports: Producer, logs: Producer) -> None:
        for connector, lines in self._lines.take().items() if self._lines is not None else ():
            said = {"connector": connector, "worker": self.name, "lines": lines}
            await logs.send(json.dumps(said, separators=(",", ":")).encode(), key=connector)
        runs = [part_lease.run for part_lease in list(self._leases.values()) if part_lease.run is not None]
        facts = [await run.report(self._client) for run in runs]
        body = {"worker": self.name, "group": self.group, "connectors": facts}
        await reports.send(json.dumps(body, separators=(",", ":")).encode(), key=self.name)


@contextmanager
def _logged(worker: str) -> Iterator[None]:
    """Log an error of the cluster. Connectors that run go on."""
    try:
        yield
    except ClusterError as error:
        log.warning("connect_worker_failed", extra={"worker": worker, "error": error.message})
