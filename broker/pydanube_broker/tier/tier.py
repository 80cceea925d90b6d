"""The broker's cold tier: the child process, the catalog, flushing, reading back, status.

Entered after the journal has begun. Without pyarrow the tier is off: the broker runs and reports it, and reads of
tiered messages fail with `MISSING_EXTRA`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from pydanube_core.errors import ClusterError, DiskFull, StoreUnavailable
from pydanube_core.kill_steps import reached
from pydanube_storage.boot import boot_id
from pydanube_storage.catalog import CatalogHead, Moment, ObjectCatalog
from pydanube_storage.metadata import Absent, BootClock, GuardFailed, MetadataStore, Put

from pydanube_broker.cluster.deleting.tombstone_records import TopicTombstone
from pydanube_broker.long_work import LongWork
from pydanube_broker.settings.sections import Settings
from pydanube_broker.tier.adopting import adopt
from pydanube_broker.tier.child import TierChild
from pydanube_broker.tier.cold_lag import ColdLag
from pydanube_broker.tier.cold_reads import ColdReads
from pydanube_broker.tier.collecting import Collector
from pydanube_broker.tier.deleted_topics import DeletedTopics
from pydanube_broker.tier.disk_room import DiskRoom, Measure, shares_disk
from pydanube_broker.tier.flushing import Due, Flusher
from pydanube_broker.tier.maintenance import Maintenance
from pydanube_broker.tier.object_checks import ObjectChecks
from pydanube_broker.tier.options import missing_extra, store_options
from pydanube_broker.tier.owned_store import OwnedStore
from pydanube_broker.tier.parts import TierParts
from pydanube_broker.tier.steps import TierStep
from pydanube_broker.tier.upkeep import Upkeep
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.topic import Topic, now_ms

log = logging.getLogger("pydanube.tier")

OBJECTS_PER_S: Final = 10.0
CONCURRENT: Final = 2
_SLICE: Final = 200  # topics examined before other tasks of the loop run
# With more sealed segments, topics that prevent deletion are flushed at any size
_HELD_UP_SEGMENTS: Final = 8
_STORE_PAUSE_S: Final = 30.0
_LAG_INTERVAL_S: Final = 15.0
_UNDER_WAY_PAUSE_S: Final = 0.02
CLUSTER_KEY: Final = "/cluster/name"


def _moment() -> Moment:
    return Moment(wall_ms=now_ms(), boot=boot_id(), boot_ms=BootClock().now_ms())


async def cluster_name(metadata: MetadataStore) -> str:
    """Return the first part of every object's key: one name for each metadata store, so that clusters share no folder."""
    item = await metadata.get(CLUSTER_KEY)
    if item is None:
        name = f"cluster-{secrets.token_hex(4)}"
        with contextlib.suppress(GuardFailed):
            await metadata.transact([Put(CLUSTER_KEY, name.encode())], guards=[Absent(CLUSTER_KEY)])
        item = await metadata.get(CLUSTER_KEY)
        assert item is not None
    return item.value.decode()


class Tier:
    """`async with Tier(…) as tier`. Single user: the loop."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        hub: Hub,
        metadata: MetadataStore,
        start: Callable[[Coroutine[Any, Any, None]], None],
        *,
        broker_id: str = "",
        shared: bool = False,
        was_deleted: Callable[[int], bool] = lambda topic_id: False,
        disk: Measure = lambda: (None, 0),
        deleted: Callable[[], Iterable[TopicTombstone]] = tuple,
        object_format: Callable[[], int] = lambda: 1,
    ) -> None:
        self.options = store_options(settings, folder, spool=broker_id)
        self.room = DiskRoom(folder, disk)
        self._folder = folder
        self.missing = missing_extra(self.options)
        self.catalog = ObjectCatalog(metadata, wall_ms=now_ms, moment=_moment)
        self._deleted_topics = DeletedTopics(hub, self.catalog, deleted)
        self.child = TierChild(self.options)
        self.hold = OwnedStore(
            self.options,
            folder,
            metadata,
            self.child,
            broker_id=broker_id,
            shared=shared,
            take_over=settings.tier.take_over,
            monotonic=time.monotonic,
        )
        self.folders: dict[int, str] = {}
        self.object_bytes: dict[int, int] = {}
        self._settings = settings.tier
        self._hub = hub
        self._metadata = metadata
        self._start = start
        self.cold = ColdReads(
            hub.journal, self.catalog, self.child, self.folders, start, missing=self.missing
        )
        self.lag = ColdLag(self.catalog, self.child, self.cold.where, self.object_bytes)
        self.long_work = LongWork()
        self.flusher: Flusher
        self.collector: Collector
        self.upkeep: Upkeep
        self.tending: Maintenance
        self.checks: ObjectChecks
        self.cluster = ""
        self._wake = asyncio.Event()
        self._tokens = OBJECTS_PER_S
        self._object_format = object_format
        self._was_deleted = was_deleted  # whether the cluster's registry no longer has a topic of that id
        self._tending: asyncio.Task[None] | None = None
        self._due: deque[Due] = deque()  # found by the last look and not flushed yet
        self.backlog_bytes = 0  # not in the cold tier yet, as of the last look
        self.oldest_due_ms: int | None = None
        self._look_again_s = 0.0
        self._store_again_s = 0.0
        self._store_failures = 0  # flushes in a row that the store refused
        self.no_room: DiskFull | None = None  # why due topics wait
        self._lag_again_s = 0.0
        self._running: set[asyncio.Task[None]] = set()
        self._loop_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.cluster = await cluster_name(self._metadata)
        self._make_workers()
        if self.missing is None:
            await self._take_store()
        await self._know_what_is_tiered()
        self._hub.cold = self.cold
        self._hub.on_drop = self.forget
        if self.missing is None:
            self._hub.tiering = True
            self._loop_task = asyncio.get_running_loop().create_task(self._run())
        else:
            log.warning("tier_off", extra={"error": self.missing.message})
        return self

    def _make_workers(self) -> None:
        """Make the workers that write, merge and delete objects. The cluster's name must be set: keys begin with it."""
        parts = TierParts(
            hub=self._hub,
            catalog=self.catalog,
            child=self.child,
            folders=self.folders,
            hold=self.hold,
            room=self.room,
            cluster=self.cluster,
            object_format=self._object_format,
        )
        self.flusher = Flusher(parts, self._settings)
        self.flusher.after_commit = self.committed
        self.collector = Collector(parts, self.flusher)
        self.upkeep = Upkeep(parts, self.flusher, self.cold, object_bytes=self._settings.object_bytes)
        self.checks = ObjectChecks(parts, every_s=self._settings.check_interval)
        self.cold.on_bad = self.checks.reader_failed
        self.tending = Maintenance(parts, self.flusher, self.upkeep, self.collector, self.note)

    async def _take_store(self) -> None:
        """Take the store, and add the objects that the catalog lacks."""
        heads = await self.catalog.heads()
        await self.hold.take(
            self.cluster, objects_listed=any(head.objects for head in heads.values()), adopt=self._adopt
        )
        if not self.options.url.startswith("memory://"):
            self.room.shared = await asyncio.to_thread(shares_disk, self._folder, self.hold.local)

    async def _know_what_is_tiered(self) -> None:
        """Set each topic's tiered offset before the topic assigns offsets."""
        for topic_id, head in (await self.catalog.heads()).items():
            self.folders[topic_id] = head.folder
            self.object_bytes[topic_id] = head.bytes
            topic = self._hub.topics.get(topic_id)
            if topic is None:
                # The topic is another broker's, or was deleted and its objects remained when the broker stopped.
                if self._was_deleted(topic_id):
                    self.tending.topic_deleted(topic_id)
            else:
                state = topic.state
                topic.raise_tiered_offset(head.tiered_offset)
                state.start_offset = max(state.start_offset, head.start_offset)
                if state.next_offset < head.tiered_offset:
                    # This is not the journal that was tiered: the next offset must not be in the tier already.
                    state.next_offset = head.tiered_offset
                    topic.commit = head.tiered_offset

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._running, *filter(None, (self._loop_task, self._tending))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.child.close()

    async def _adopt(self) -> None:
        """Add objects that are newer than the catalog, before a topic assigns offsets that they contain."""
        for topic_id in await self.catalog.heads():
            topic = self._hub.topics.get(topic_id)
            if topic is None:
                continue
            await self.flusher.claim(topic)
            await adopt(topic_id, topic.name, topic.assigned_epoch, self.catalog, self.child)

    # -- the loop --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Start due flushes, each as a task, and maintain topics. Runs until cancelled."""
        pause = min(1.0, self._settings.flush_age / 4)
        clock = asyncio.get_running_loop().time
        looked_s = clock()
        while True:
            now_s = clock()
            self._tokens = min(OBJECTS_PER_S, self._tokens + OBJECTS_PER_S * (now_s - looked_s))
            looked_s = now_s
            try:
                if now_s >= self._look_again_s:
                    self._look_again_s = now_s + pause
                    self._due = deque(await self._look())
                if self.hold.held:
                    self._flush_some()
                if self._tending is None and (now_s >= self._store_again_s or not self.hold.held):
                    self._tending = asyncio.get_running_loop().create_task(self._tend())
                    self._tending.add_done_callback(self._tended)
            except ClusterError as error:
                log.warning("tier_look_failed", extra={"error": error.message})
            except Exception:
                log.exception("tier_failed")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            self._wake.clear()

    async def _look(self) -> list[Due]:
        """Return the topics that are due, oldest first."""
        if self._hub.journal.read_only is not None:
            return []
        now, found, backlog = now_ms(), [], 0
        oldest: int | None = None
        topics = {topic.topic_id: topic for topic in await self._deleted_topics.look()} | self._hub.topics
        forced = self._holding_up(topics)
        for i, topic in enumerate(topics.values()):
            if i % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            if topic.state.tiered_offset >= topic.commit:
                continue
            backlog += self.flusher.backlog_bytes(topic)
            waiting = self.flusher.waiting(topic, now, force=topic.topic_id in forced)
            if waiting is not None:
                oldest = waiting if oldest is None else min(oldest, waiting)
            due = self.flusher.due(topic, now, force=topic.topic_id in forced)
            if due is not None:
                found.append(due)
        self.backlog_bytes, self.oldest_due_ms = backlog, oldest
        found.sort(key=lambda due: (not due.forced, due.since_ms))
        return found

    def _holding_up(self, topics: Mapping[int, Topic]) -> set[int]:
        """Return topics to flush at any size: by `journal.retention_*`, or keeping the oldest of many segments."""
        asked, self._hub.flush_first = self._hub.flush_first, set()
        sealed = self._hub.journal.sealed()
        if len(sealed) <= _HELD_UP_SEGMENTS:
            return asked
        _, _, runs = sealed[0]
        return asked | {
            topic_id
            for topic_id, run in runs.items()
            if topic_id in topics and run.end > topics[topic_id].state.tiered_offset
        }

    def _flush_some(self) -> None:
        """Start flushes that are due, as far as the budget and the number under way allow."""
        loop = asyncio.get_running_loop()
        self.no_room = None
        if self._due:
            try:
                self.room.for_flush()
            except DiskFull as error:
                self.no_room = error
                return
        while self._due and self._tokens >= 1 and len(self._running) < CONCURRENT:
            if loop.time() < self._store_again_s:
                return
            each = self._due.popleft()
            if self.flusher.due(each.topic, now_ms(), force=each.forced) is None:
                continue  # flushed, failed or deleted since the look
            self._tokens -= 1
            task = loop.create_task(self._flush_one(each.topic))
            self._running.add(task)
            task.add_done_callback(self._done)

    def _tended(self, task: asyncio.Task[None]) -> None:
        self._tending = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.warning("tier_upkeep_failed", extra={"error": str(error)})

    async def _tend(self) -> None:
        self.cold.cache.release(self._start_of)
        await self.hold.ask_again()
        if self.hold.held:
            await self._refresh_lag()
            await self.tending.turn()
            await self.checks.turn()

    def _start_of(self, topic_id: int) -> int | None:
        topic = self._hub.topics.get(topic_id)
        return None if topic is None else topic.start_offset

    async def _refresh_lag(self) -> None:
        """Look up the age of the first unread message of cursors in the cold tier, for the metrics."""
        now = asyncio.get_running_loop().time()
        if now < self._lag_again_s:
            return
        self._lag_again_s = now + _LAG_INTERVAL_S
        for topic in list(self._hub.topics.values()):
            for pump in list(topic.subscriptions.values()):
                offset = max(pump.floor, topic.start_offset)
                if offset < topic.state.tiered_offset and topic.closed is None:
                    await self.lag.part(topic, offset)
                    await self.lag.follow(topic, pump.subscription_id, offset)

    async def _flush_one(self, topic: Topic) -> None:
        loop = asyncio.get_running_loop()
        urgent = self.backlog_bytes >= self.flusher.urgent_bytes
        if await self.flusher.flush(topic, urgent=urgent):
            self._store_again_s = 0.0
            self._store_failures = 0
            if self.flusher.due(topic, now_ms()) is not None:
                self._look_again_s = 0.0  # go on with a backlog without waiting for the next look
        else:
            failure = self.flusher.failures.get(topic.topic_id)
            if failure is not None and isinstance(failure.error, StoreUnavailable):
                # The store may be away for all topics, so another topic tries it next. The pause grows until a flush
                # succeeds. A single topic that cannot be written must not delay the others.
                self._store_failures += 1
                pause = min(_STORE_PAUSE_S, 0.5 * 2 ** min(self._store_failures, 6))
                self._store_again_s = loop.time() + pause

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._wake.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("tier_failed", exc_info=task.exception())

    def committed(self, topic: Topic) -> None:
        """Note that a topic has one more object, and delete the journal segments that it made needless."""
        self._start(self.note(topic))
        self.tending.committed(topic.topic_id)
        if self._hub.collect():
            reached(TierStep.TRIMMED)

    async def note(self, topic: Topic) -> None:
        """Read a topic's size from the catalog, and whether it has objects still to be deleted."""
        held = await self.catalog.head(topic.topic_id)
        if held is not None:
            self.object_bytes[topic.topic_id] = held.head.bytes
            self._hub.changes.note(topic.name)
            resting = await self.catalog.resting(topic.topic_id)
            (self.tending.retired.add if resting else self.tending.retired.discard)(topic.topic_id)

    def forget(self, topic_id: int) -> None:
        """Delete a deleted topic's objects and catalog records, now or after a later start."""
        self._drop(topic_id)
        self.tending.topic_deleted(topic_id)
        self.wake()

    def let_go(self, topic_id: int) -> None:
        """Forget the objects of a topic that moved to another broker, which maintains them where they are."""
        self._drop(topic_id)
        self.folders.pop(topic_id, None)

    def _drop(self, topic_id: int) -> None:
        self.flusher.forget(topic_id)
        self.cold.forget(topic_id)
        self.cold.cache.drop(topic_id)
        self.object_bytes.pop(topic_id, None)

    async def adopt(self, topic_id: int, head: CatalogHead | None = None) -> CatalogHead | None:
        """Take over the objects of a topic that came from another broker. Return its head. Raises `StoreUnavailable`.

        `head`: if it has been read already.
        """
        if head is None:
            found = await self.catalog.head(topic_id)
            if found is None:
                return None
            head = found.head
        self.folders[topic_id] = head.folder
        self.object_bytes[topic_id] = head.bytes
        return head

    async def tiered_up_to(self, topic: Topic, offset: int) -> None:
        """Wait until everything below `offset`, which is committed, is in the cold tier.

        Raises `ClusterError`: the topic is closed, or its flush failed.
        """
        while topic.state.tiered_offset < offset:
            if topic.closed is not None:
                raise topic.closed
            if topic.topic_id in self.flusher.in_flight:
                await asyncio.sleep(_UNDER_WAY_PAUSE_S)
            elif not await self.flusher.flush(topic):
                failure = self.flusher.failures.get(topic.topic_id)
                if failure is not None:
                    raise failure.error

    def path(self, topic_id: int, name: str) -> str:
        """Return the path at which tools open an object."""
        return f"{self.options.url.rstrip('/')}/{self.folders[topic_id]}/{name}"

    def wake(self) -> None:
        """Make the tier look for work now."""
        self._look_again_s = 0.0
        self._wake.set()

    # -- for operations --------------------------------------------------------------------------------------

    def enabled(self) -> Upkeep:
        """Return the upkeep. Raises `MissingExtra` if the tier is off."""
        if self.missing is not None:
            raise self.missing
        return self.upkeep

    async def objects(self, topic: Topic, *, start: int, end: int | None) -> list[dict[str, Any]]:
        """Return the committed objects of a topic that overlap `[start, end)`, ascending."""
        return [
            {
                "path": self.path(topic.topic_id, entry.name),
                "start_offset": entry.start,
                "end_offset": entry.end,
                "messages": entry.messages,
                "bytes": entry.bytes,
                "min_append_time_ms": entry.min_append_time_ms,
                "max_append_time_ms": entry.max_append_time_ms,
                "epoch": entry.epoch,
                "footer_bytes": entry.footer_bytes,
                "footer_crc": entry.footer_crc,
            }
            async for entry in self.catalog.entries(topic.topic_id, start=start, end=end)
        ]

    def shown(self, facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return objects of a listing, with the paths that tools open."""
        url = self.options.url.rstrip("/")
        return [{"path": f"{url}/{fact['key']}", "bytes": fact["bytes"]} for fact in facts]

    async def write_telemetry(
        self, name: str, arguments: dict[str, Any], blob: bytes
    ) -> tuple[dict[str, Any], Any]:
        """Call the tier's process for telemetry, within the disk space that the guard leaves.

        Raises `DiskFull` if too little would be left, and the errors of the call.
        """
        if blob:
            self.room.check(len(blob), "telemetry")
        return await self.child.call(name, arguments, blob)

    # -- status ----------------------------------------------------------------------------------------------

    @property
    def errors(self) -> int:
        """Flushes, cold reads and attempts to take the store that failed since the start."""
        return self.flusher.errors + self.cold.errors + self.hold.failures

    def object_counts(self) -> dict[str, int]:
        """Return counts of objects since the start: written, merged into others, dropped by retention, deleted."""
        if self.missing is not None:
            return {}
        return {
            "written": self.flusher.objects,
            "merged": self.upkeep.merged,
            "dropped": self.upkeep.dropped,
            "deleted": self.collector.deleted,
        }
