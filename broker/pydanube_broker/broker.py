"""A broker in one process: data directory, journal, topics, delivery, services, ports.

`async with Broker(settings, ops=…)` starts it and stops it. Start: lock the directory, read the journal (nothing is
changed before all of it is understood), open the metadata store, take the topics, bind the ports, then serve. Stop:
unready, refuse new publishes as retryable, finish accepted ones, make cursors durable, close.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Self

import anyio
from pydanube_core.errors import ClusterError, DiskFull, Draining, NotImplementedYet, Retryable
from pydanube_core.facts import Reason
from pydanube_core.ops_call import CARRIED_CALL
from pydanube_core.services import AUTH_SERVICE, OPS, STREAM
from pydanube_storage.metadata import MetadataStore

from pydanube_broker.admin_state import AdminState
from pydanube_broker.cluster.format_gate import object_format
from pydanube_broker.cluster.id_blocks import NewestIds
from pydanube_broker.cluster.ids import BrokerId, TopicId
from pydanube_broker.cluster.membership import Registration
from pydanube_broker.delivery.dead_letter_publisher import DeadLetterPublisher
from pydanube_broker.delivery.engine import DeliveryEngine
from pydanube_broker.delivery.pump import SubscriptionPump
from pydanube_broker.home.data_dir import DataDir
from pydanube_broker.home.metadata_home import check_settings, opened_metadata
from pydanube_broker.home.metadata_watch import look_after
from pydanube_broker.home.reserve import Reserve
from pydanube_broker.journal import Disk, HelperPreparer, Journal, JournalOptions
from pydanube_broker.journal.helper import HelperSyncer, InlineSyncer
from pydanube_broker.journal.identity import journal_id
from pydanube_broker.journal.recovery import Recovered
from pydanube_broker.links.links import ClusterLinks
from pydanube_broker.moves.moves import Moves
from pydanube_broker.observation.alert_webhook import AlertWebhook
from pydanube_broker.observation.watch import Observation
from pydanube_broker.parts import BrokerParts
from pydanube_broker.port import BrokerPort
from pydanube_broker.port.sessions import shown_settings
from pydanube_broker.ports import admin_port, grpc_port, status_port
from pydanube_broker.relay.carried_calls import CarriedCalls
from pydanube_broker.relay.dead_letters import APPEND, RelayedDeadLetters
from pydanube_broker.relay.link import Links
from pydanube_broker.relay.relay import client_context, join, open_relay
from pydanube_broker.rpc.certificates import port_certificates
from pydanube_broker.rpc.hot import Route, StreamReply
from pydanube_broker.rpc.own_server import OwnServer
from pydanube_broker.rpc.places import places, raise_limit
from pydanube_broker.security.locks import open_locks
from pydanube_broker.services.consume import ConsumeStream
from pydanube_broker.services.copy_stream import COPY, copy_stream, wires
from pydanube_broker.services.health import HealthService
from pydanube_broker.services.mirror import MIRROR, MIRRORED, MirroredService, SourceCluster, mirror_stream
from pydanube_broker.services.official import OfficialServices
from pydanube_broker.services.publish import PublishStream
from pydanube_broker.services.resolve import match, resolve
from pydanube_broker.services.schema_registry import SchemaRegistryService
from pydanube_broker.serving.following import Following
from pydanube_broker.serving.levels import Levels
from pydanube_broker.serving.registry import Registry
from pydanube_broker.serving.rights_watch import RightsWatch
from pydanube_broker.serving.topic_access import TopicAccess
from pydanube_broker.serving.unused_topics import UnusedTopics
from pydanube_broker.settings.advertised import advertised_url
from pydanube_broker.settings.sections import Settings
from pydanube_broker.status.health import Health
from pydanube_broker.telemetry.events import Events, hash_of
from pydanube_broker.telemetry.writer import TelemetryWriter, machine_of
from pydanube_broker.tier.chain_record import ChainRecord
from pydanube_broker.tier.journal_chain import JournalChain
from pydanube_broker.tier.lease_guard import LeaseGuard
from pydanube_broker.tier.lost_and_found import refuse_removed
from pydanube_broker.tier.metadata_snapshots import MetadataSnapshots
from pydanube_broker.tier.options import check_asked_for, store_options
from pydanube_broker.tier.storing import Storing
from pydanube_broker.tier.tier import Tier, cluster_name
from pydanube_broker.topics.agreement import ids_in
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.retention import JournalRetention
from pydanube_broker.topics.topic import CLOCK, earliest_ms, now_ms

log = logging.getLogger("pydanube.broker")

OpsHandler = Callable[[bytes], Awaitable[bytes]]
MAINTENANCE_S: Final = 5.0
OFFSET_STEP_MS: Final = 10_000  # gradual corrections by a time service are recorded in such steps
GRACE_SLACK_MS: Final = 60_000  # a grace that ends even later was begun by a clock that ran ahead
UNDO_SLACK_MS: Final = 10_000  # an undo that was accepted in time has begun by then
LEAVE_S: Final = 3.0  # maximum that a stop waits for the store
_RECORD_S: Final = 3.0  # and for the metadata


class Broker(BrokerParts):
    """See the module.

    Args:
        settings: the result of `load_settings`.
        ops: serves `danube.ops/Call`: request bytes to response bytes.
        administration: more methods of the admin port, path → handler as `ops`. They win over the broker's own.
        upgrade: False refuses a data directory of an older format.

    Raises (on entering): any `ClusterError` of the start: `DATA_DIR_LOCKED`, `PORT_IN_USE`, `CORRUPT_JOURNAL` …
    """

    def __init__(
        self,
        settings: Settings,
        *,
        ops: OpsHandler | None = None,
        administration: Mapping[str, OpsHandler] = MappingProxyType({}),
        upgrade: bool = True,
    ) -> None:
        super().__init__(settings)
        self._ops = ops
        self._administration = administration
        self._upgrade = upgrade
        self._stack = contextlib.AsyncExitStack()
        self._streams: set[PublishStream | ConsumeStream] = set()
        self.servers: list[OwnServer] = []
        self.official: OfficialServices  # made on entering
        self.observation: Observation  # the same
        self.port = BrokerPort(self)
        self.recovered: dict[str, Any] = {}

    # -- start -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _start(self) -> None:
        """Start the parts in order. Each puts its own end on the stack."""
        settings, stack = self.settings, self._stack
        settings.check_startable()
        root = logging.getLogger()
        root.addHandler(self.log_ring)
        stack.callback(root.removeHandler, self.log_ring)
        check_asked_for(settings)
        check_settings(settings)
        begun = time.monotonic()
        self._take_directory()
        await self._reopen_chain()
        found = self._read_journal()
        newest = NewestIds.among(
            ids_in(self.hub.states.values(), (header.topic_id for header, _ in found.tail))
        )
        store = await stack.enter_async_context(
            opened_metadata(
                settings, self.data_dir, newest, self.engine.worker_threads.pending, self._make_room
            )
        )
        await refuse_removed(settings, BrokerId(self.data_dir.broker_id), self.hub, store, self._make_room)
        await self._make_services(store)
        await self._take_topics(store)
        await self._open_tier(store)
        self.health.recovering = False
        self.recovered = {
            "records": found.records,
            "torn_bytes": found.torn_bytes,
            "seconds": round(time.monotonic() - begun, 3),
        }
        for server in self.servers:
            await server.start()
        await self._run_tasks(store)
        told = {"grpc": self.broker_url, "data_dir": str(self.data_dir.path), **self.recovered}
        log.info("broker_ready", extra=told)

    def _take_directory(self) -> None:
        """Lock the data directory, and watch its disk."""
        settings, stack = self.settings, self._stack
        self.data_dir = stack.enter_context(DataDir(settings.data.dir, upgrade=self._upgrade))
        path = self.data_dir.path
        self._timed_at = CLOCK.adopted
        self._reserve = Reserve(path)
        if not self.data_dir.memory:
            if self._reserve.release():
                log.warning("reserve_released", extra={"path": str(path)})
            stack.callback(lambda: self._reserve.give_back(self.health.disk.get("guard_bytes") or 0))
        self.engine = DeliveryEngine()
        self.metrics.dropped = self.engine.dropped
        stack.callback(self.engine.close)
        self.health = Health(
            path,
            min_free_bytes=settings.data.min_free_bytes,
            explicit=settings.is_set("data.min_free_bytes"),
            memory=settings.data.memory,
        )
        self.health.start()
        stack.callback(self.health.close)

    async def _reopen_chain(self) -> None:
        """Fence the earlier start of a journal with a chain, before its files are read."""
        folder = self.data_dir.path
        options = store_options(self.settings, folder, spool=f"{self.data_dir.broker_id}-chain")
        self.chain = JournalChain(folder / "journal", options, linger_s=self.settings.journal.stored_linger)
        self._stack.push_async_callback(self.chain.close)
        take_over = self.settings.tier.take_over is not None
        same_boot = self.data_dir.clock_offset_ms() is not None
        await self.chain.reopen(copy=self.settings.journal.copy, take_over=take_over, is_disk_whole=same_boot)

    async def _attach_chain(self, store: MetadataStore) -> None:
        """Continue the chain of the journal, or begin one, if it is to be copied."""
        record: ChainRecord | None = None
        if self.ownership.several:
            journal = journal_id(self.journal.folder)
            take_over = self.settings.cluster.on_loss == "take_over"
            record = ChainRecord(store, BrokerId(self.data_dir.broker_id), journal, take_over=take_over)
        self.chain.attach(self.journal, self.hub, record_from=None if record is None else record.begins_at)
        self.hub.on_fenced = self.health.fence
        self.hub.stores = lambda: self.chain.is_needed
        self.storing = Storing(
            self.chain, record, self.ownership.coordinator.membership, partial(cluster_name, store)
        )
        if record is not None:
            self.storing.on_recorded = partial(self._hold_by_lease, record)
        self.levels = Levels(self.registry, self.hub, store, self.storing)
        if self.data_dir.memory:
            return
        self.registry.storing = self.storing
        self.ownership.on_stored = self.storing.want
        self.ownership.on_level = self.levels.look
        for topic in self.hub.topics.values():
            self.levels.look(topic)
        needed = self.chain.is_needed or any(topic.in_store for topic in self.hub.topics.values())
        if needed and not self.chain.is_late:
            # the record may be closing, and the leader opens it soon
            await (self.storing.begin_in_time if self.ownership.several else self.storing.begin)(needed=True)
        elif needed or self.settings.journal.copy:
            try:
                await self.storing.begin(needed=needed)
            except Retryable:  # the record is closing
                self.storing.want(needed=needed)

    def _hold_by_lease(self, record: ChainRecord, registration: Registration) -> None:
        """Acknowledge only records of the chain while the lease is over, if others take over then (`on_loss`)."""
        if self.settings.cluster.on_loss == "take_over" and self.taken_over_by is None:
            self.taken_over_by = record
            membership = self.ownership.coordinator.membership
            self.spawn(LeaseGuard(self.hub, membership, record, registration).run())

    async def _begin_journal(self) -> int | None:
        """Begin the journal and its chain. Return its end if stored topics wait for the store, which is away."""
        await self.journal.begin(self._make_room)
        self.spawn(self.storing.run())
        self.spawn(self.levels.run())
        self.spawn(self.storing.keep_recorded())
        self.spawn(self.chain.run())
        # The journal may have more than the store. Such records are shown, or answered as duplicates, when they are
        # stored: before the start ends, unless the store is away.
        if self.chain.is_late:
            return self.journal.durable_lsn
        if self.chain.is_needed:
            await self.chain.until_stored(self.journal.durable_lsn)
        return None

    def _read_journal(self) -> Recovered:
        """Open the journal and read its contents. Nothing is changed yet."""
        self.hub = Hub()
        self.hub.on_failure = self._journal_failed
        self.journal = self._open_journal()
        self.health.journal_trouble = self._journal_trouble
        self.journal.keep_free(lambda: self.health.disk.get("guard_bytes") or 0)
        self._stack.push_async_callback(self._close_journal)
        return self.journal.recover(self.hub.begins)

    async def _make_services(self, store: MetadataStore) -> None:
        """Make the services and bind the ports. Calls are answered when the servers have started."""
        settings, stack = self.settings, self._stack
        self.registry = Registry(self.hub, self.engine, store, settings)
        self.registry.catalog.raises_format = self._upgrade
        self.admin_state = AdminState(store)
        self.locks = await open_locks(
            settings.auth,
            self.admin_state,
            self.metrics.security_refused,
            self.registry.quotas.connection,
            self.registry.catalog.quarantine,
        )
        if self.locks is not None:
            stack.push_async_callback(self.locks.access_records.records.aclose)
        self.access = TopicAccess(self.registry, self.health, settings, self.data_changes, self.locks)
        self.metrics.quota_felt = self.registry.quotas.felt
        self.metrics.validations = self.registry.schemas.counters.validations
        self.metrics.validation_failures = self.registry.schemas.counters.failures
        self.official = OfficialServices(
            self,
            store,
            lambda: self.tier,
            schemas=self.registry.schemas,
            keeper=None if self.locks is None else self.locks.authenticator,
        )
        stack.callback(self.official.close)
        self.relay = open_relay(self.registry, settings, self.spawn)
        sources = Links(self.spawn, lambda: client_context(settings.tls))
        stack.callback(sources.close)
        self.links = ClusterLinks(
            self.registry,
            store,
            lambda link: SourceCluster(sources, link),
            lambda: self.tier.cluster,
            self.registry.catalog.quarantine,
        )
        self.metrics.link_lags, self.metrics.link_logs = self.links.lags, self.links.counts
        self.letters = RelayedDeadLetters(self.registry, self.relay)
        self.engine.dead_letters = DeadLetterPublisher(
            self.letters.targets, self.spawn, lambda: self.broker_url
        )
        await self.bind(stack)

    async def _take_topics(self, store: MetadataStore) -> None:
        """Register this broker, adopt the topics that it owns, and begin the journal."""
        stack = self._stack
        self.following = Following(self.registry)
        self.moves = Moves(self.registry, self.hub, store, self.engine.worker_threads, self.settings)
        self.ownership.arriving = self.official.arriving
        await stack.enter_async_context(
            self.registry.opened(self.address(), self.following.changed, self.moves.seen)
        )
        await join(self.relay, store, stack)
        await self.official.load(self.registry.topics, self.registry.catalog)
        await self.registry.check_journal()
        newest_ms, newest_topic = self.registry.newest_message()
        CLOCK.started(newest_ms, before_ms=self.data_dir.clock_offset_ms(), newest_topic=newest_topic)
        self.data_dir.upgraded()
        await self._attach_chain(store)
        stack.push_async_callback(self._stop_tasks)
        unstored_lsn = await self._begin_journal()
        with contextlib.suppress(OSError):  # tried again every few seconds
            await self._keep_reserve()  # a disk may be filled up between two attempts
        self.registry.begin(unstored_lsn)
        self.registry.accepted.used()

    async def _open_tier(self, store: MetadataStore) -> None:
        """Open the cold tier, and start retention, diagnosis and the sampler."""
        catalog = self.registry.catalog
        self.tier = await self._stack.enter_async_context(
            Tier(
                self.settings,
                self.data_dir.path,
                self.hub,
                store,
                self.spawn,
                broker_id=str(self.data_dir.broker_id),
                shared=self.ownership.several,
                disk=self.health.room,
                deleted=self.registry.restorable,
                object_format=lambda: object_format(catalog.index.format.metadata_format),
                was_deleted=lambda topic_id: (
                    catalog.index.topic_by_id(TopicId(topic_id)) is None
                    and not catalog.restorable.keeps_data(topic_id)
                ),
            )
        )
        self.retention = JournalRetention(self.hub, self.settings.journal)
        self.unused = UnusedTopics(self.registry, self.data_changes)
        self.official.start()
        self.observation = self.port.observation = Observation(self)

    async def _run_tasks(self, store: MetadataStore) -> None:
        """Start the tasks that run until the broker stops."""
        self.spawn(self.maintain())
        self.spawn(self.following.run())
        self.spawn(self.links.run())
        self.spawn(MetadataSnapshots(store, self.tier, self.ownership.coordinator.leads).run())
        if self.relay is not None:
            open_wire = wires(self.relay, self.ownership.url_of)
            self.spawn(self.moves.run(self.tier, self.load_meter.busy, self.health, open_wire, self.chain))
        await self.ownership.coordinator.open()
        self.spawn(look_after(store, self.data_dir, self.health))
        if self.locks is not None:
            streams = lambda: (*self._streams, *self.official.streams)  # noqa: E731
            self.spawn(RightsWatch(self.locks, self.access, streams).run())
            self.spawn(self.locks.run())
        if self.settings.balance.mode != "off":
            self.observation.observe(self.load_meter.take)
        self._start_telemetry(self._stack)
        self.spawn(self.observation.run())
        for url in self.settings.alerts.webhook or ():
            webhook = AlertWebhook(
                url,
                self.settings.alerts.webhook_secret,
                self.observation.alerts,
                cluster=self.tier.cluster,
                broker=str(self.data_dir.broker_id),
                leads=self.ownership.speaks_for_all,
                sent=self.metrics.alerts_sent,
                silences=self.port.silences,
            )
            self.spawn(webhook.run())
        self._stack.push_async_callback(self._stop_tasks)

    def _start_telemetry(self, stack: contextlib.AsyncExitStack) -> None:
        """Start to write telemetry, if the object store outlives this broker."""
        settings = self.settings.telemetry
        if not settings.enabled or self.tier.missing is not None or self.data_dir.memory:
            return
        machine, coordinator = (
            machine_of(str(self.data_dir.broker_id), self.ownership.incarnation),
            self.ownership.coordinator,
        )
        self.telemetry = TelemetryWriter(
            settings,
            machine,
            self.tier.write_telemetry,
            self.tier.cluster,
            now_ms=earliest_ms,
            state=lambda: coordinator.membership.state.value,
        )
        self.observation.observe(self.telemetry.take)
        self.events = Events(
            machine,
            self.telemetry.note_events,
            members=lambda: {each.broker_id: each.software for each in coordinator.members.values()},
            leads=self.ownership.speaks_for_all,
        )
        self.events.started(
            now_ms(), version=self.port.version, settings=hash_of(shown_settings(self.settings))
        )
        self.observation.alerts.changed = self.events.alert
        self.observation.observe(self.events.take)
        # A process that starts for the rows of the last minute would delay the stop by seconds, so only a ready one is used.
        stack.push_async_callback(self._close_telemetry)
        self.spawn(self.telemetry.run(self.observation.recall))

    async def _close_telemetry(self) -> None:
        if self.telemetry is not None and self.tier.child.ready:
            await self.telemetry.aclose([self.events.stopped(now_ms())])

    def _open_journal(self) -> Journal:
        settings = self.settings.journal
        disk = Disk()
        syncer = InlineSyncer(disk) if self.data_dir.memory else HelperSyncer()
        self.hub.journal = Journal(
            self.data_dir.path / "journal",
            JournalOptions(segment_bytes=settings.segment_bytes, tail_cache_bytes=settings.tail_cache_bytes),
            self.hub,
            disk=disk,
            syncer=syncer,
            preparer=HelperPreparer(),
        )
        self.hub.journal.when_synced(self.metrics.fsync)
        return self.hub.journal

    async def _close_journal(self) -> None:
        if self.health.recovering:
            return self.journal.abandon()
        await self.journal.close()

    async def bind(self, stack: contextlib.AsyncExitStack) -> None:
        server = self.settings.server
        raise_limit()
        room = places(server.connections_per_address)
        self.tls = port_certificates(self.settings.tls)
        health = HealthService(lambda: not self.health.reasons())
        schemas = SchemaRegistryService(self.registry.schemas, self.locks)
        probes = frozenset(health.hot)
        # Changes of the registry are planned, recorded and undone like those of the admin port.
        registry = {path: self._administration.get(path, own) for path, own in schemas.cold.items()}
        grpc = grpc_port(
            self,
            Route(
                streams={
                    STREAM["Publish"].path: self._publish_stream,
                    STREAM["Consume"].path: self._consume_stream,
                    MIRROR: lambda reply: mirror_stream(
                        reply, self.access, self.registry, self.engine.worker_threads
                    ),
                    COPY: lambda reply: copy_stream(reply, self.relay, self.moves),
                },
                cold={
                    APPEND: self.letters.append,
                    **self.budget.bound_all(
                        {
                            **({OPS["Call"].path: self._call} if server.ops_on_grpc_port else {}),
                            STREAM["Resolve"].path: partial(resolve, self.access, self.registry),
                            STREAM["Match"].path: partial(match, self.access),
                            MIRRORED: MirroredService(
                                self.access, self.registry, lambda: self.tier.cluster, self.links.grants
                            ).call,
                            **registry,
                            **self.official.cold,
                        }
                    ),
                },
                hot={**self.official.hot, **health.hot},
                server_streams=self.official.server_streams,
                open=probes | {AUTH_SERVICE["Authenticate"].path, APPEND, COPY},
                carried=self.official.carried | {STREAM["Publish"].path, STREAM["Consume"].path},
                elsewhere=self.relay,
            ),
            room,
        )
        self.servers.append(grpc)
        self.engine.turns.flush = grpc.flush_woken
        stack.push_async_callback(grpc.stop, 0)
        admin = admin_port(
            self,
            Route(
                streams={},
                cold={
                    CARRIED_CALL: CarriedCalls(self.relay, self.locks, self.budget.bound(self._call)).call,
                    **self.budget.bound_all(
                        {OPS["Call"].path: self._call, **registry, **self._administration}
                    ),
                },
                hot=health.hot,
                open=probes | {CARRIED_CALL},
            ),
            room,
        )
        self.servers.append(admin)
        stack.push_async_callback(admin.stop, 0)
        status = status_port(self, self.port, room)
        stack.push_async_callback(status.stop)
        await status.start()
        secure = self.tls is not None
        self.broker_url = advertised_url(server.advertised_url, server.host, grpc.port, secure=secure)
        self.admin_url = advertised_url(
            None, server.host, admin.port, secure=secure and self.settings.tls.admin
        )
        self.metrics_url = advertised_url(None, server.host, status.port, secure=secure)

    async def _call(self, request: bytes) -> bytes:
        if self._ops is None:
            raise NotImplementedYet("this broker was started without an admin core")
        return await self._ops(request)

    # -- stop ------------------------------------------------------------------------------------------------

    async def drain(self, grace_s: float) -> None:
        """Refuse new publishes, finish accepted ones, make cursors durable, end the streams as retryable."""
        if self.health.draining:
            return
        self.health.draining = True
        self.registry.ownership.recheck_waits()
        log.info("broker_draining", extra={"grace_s": grace_s})
        error = Draining("the broker is shutting down. Connect again in a moment", retry_after_ms=500)
        with anyio.move_on_after(grace_s):
            await self._settled()
            self.engine.cursors.flush()
            await self._settled()
            for stream in tuple(self._streams):
                stream.end(error)
            self.official.end(error)
            await asyncio.gather(*(server.stop(min(1.0, grace_s / 2)) for server in self.servers))
            # acknowledgements of consumers while their streams ended
            self.engine.cursors.flush()
            await self._settled()

    async def _settled(self) -> None:
        """Wait until everything appended so far is safe or has failed, and its producers were answered."""
        with contextlib.suppress(ClusterError):
            await self.hub.settled()
        await asyncio.sleep(0)

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.drain(2.0)
            await self._leave_chain()
        finally:
            await self._stack.aclose()

    async def _leave_chain(self) -> None:
        """Before this broker deregisters, let its chain have all that it acknowledged, else its topics wait for it."""
        if self.taken_over_by is None:
            return
        self.hub.needs_store = lambda: True  # no connected client is answered from the disk alone
        is_whole = False
        with contextlib.suppress(ClusterError), anyio.move_on_after(LEAVE_S):
            await self.chain.until_stored(self.journal.durable_lsn)
            is_whole = True
        if not is_whole:
            log.warning("topics_wait", extra={"why": "the copy of the journal is not complete"})
        with contextlib.suppress(ClusterError), anyio.move_on_after(_RECORD_S):
            await (self.taken_over_by.leaves() if is_whole else self.taken_over_by.waits())

    async def _stop_tasks(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def maintain(self) -> None:
        """Every few seconds apply retention, clean up the journal, and resolve unknown outcomes. Errors are logged."""
        steps: Sequence[Callable[[], Awaitable[None]]] = (
            self._keep_list_changes_within, self._time_delays_anew, self._keep_clock_offset, self.port.keep_audit_begin, self.port.keep_silences, self._apply_retention, self.registry.resolve_unknown, self._expire_sessions, self._keep_reserve,
            self.port.look_whether_changes_are_possible_again, self.forget_deleted, self.unused.delete, self.registry.unused.expire,
            self._look_at_certificates, self.measure_stored, self.levels.look_whether_needed,
        )  # fmt: skip
        failing: set[int] = set()
        while True:
            await asyncio.sleep(MAINTENANCE_S)
            for number, step in enumerate(steps):
                try:
                    await step()
                except Exception as error:
                    # logged once, until it succeeds again, because the next round is seconds away
                    if number not in failing:
                        log.exception("maintenance_failed", extra={"error": str(error)})
                    failing.add(number)
                else:
                    failing.discard(number)

    async def _keep_list_changes_within(self) -> None:
        self.hub.changes.keep_within()

    async def _time_delays_anew(self) -> None:
        """After an adopted step of the wall clock, let no delayed message wait longer than its delay."""
        now, adopted = CLOCK.now_ms(), CLOCK.adopted
        if adopted == self._timed_at:
            return
        self._timed_at = adopted
        for topic in list(self.hub.topics.values()):
            for pump in list(topic.subscriptions.values()):
                if isinstance(pump, SubscriptionPump):
                    pump.time_anew(now)

    async def _keep_clock_offset(self) -> None:
        """Keep the clock's place for the next start in this boot, as long as no witness disagrees with it."""
        offset_ms, kept_ms = CLOCK.offset_ms, self.data_dir.clock_offset_ms()
        if offset_ms is not None and (kept_ms is None or abs(offset_ms - kept_ms) > OFFSET_STEP_MS):
            with contextlib.suppress(OSError):  # a full disk: tried again
                await anyio.to_thread.run_sync(self.data_dir.keep_clock_offset_ms, offset_ms)

    async def _look_at_certificates(self) -> None:
        if self.tls is not None:
            self.tls.look()

    async def _keep_reserve(self) -> None:
        if not self.data_dir.memory:
            guard = self.health.disk.get("guard_bytes") or 0
            with self.engine.worker_threads.pending():
                await anyio.to_thread.run_sync(self._reserve.keep, guard, self.journal.next_segment_bytes)

    def _make_room(self) -> bool:
        """On a full disk give up some of the reserve, because a deletion that frees space has to be recorded."""
        released = not self.data_dir.memory and self._reserve.give_up()
        if released:
            log.warning("reserve_released", extra={"path": str(self.data_dir.path)})
        return released

    async def _expire_sessions(self) -> None:
        now_s = time.monotonic()
        for topic in self.registry.topics:
            # Producers of a mirror are connected at its source, so that their sessions are idle here for as long.
            if len(topic.state.producers) and topic.link is None:
                topic.state.producers.expire(now_s)

    async def _apply_retention(self) -> None:
        if self.journal.read_only is None:
            self.retention.apply()
            self.hub.collect()

    async def forget_deleted(self) -> None:
        """Delete topics for good when their grace is over, or immediately if the disk is full."""
        if self.journal.read_only is not None:
            return
        if isinstance(self.health.disk_error, DiskFull):
            await self.registry.deleted.give_up()
        elif self.ownership.coordinator.leads():  # of several brokers, one clock decides
            longest_ms = int(self.settings.admin.undo_grace * 1000) + GRACE_SLACK_MS
            await self.registry.deleted.forget(
                CLOCK.earliest_ms() - UNDO_SLACK_MS, CLOCK.latest_ms() + longest_ms
            )
            await self.ownership.coordinator.sweep_metadata()
        else:
            self.registry.catalog.index.dropped.clear()  # a new leader checks everything

    def _journal_trouble(self) -> Reason | None:
        return Reason(code=trouble[0], message=trouble[1]) if (trouble := self.journal.trouble()) else None

    def _journal_failed(self, error: ClusterError) -> None:
        self.health.journal_error = self.hub.failure

    # -- for the streams -------------------------------------------------------------------------------------

    def _publish_stream(self, reply: StreamReply) -> PublishStream:
        stream = PublishStream(reply, self, self._gone)
        self._streams.add(stream)
        return stream

    def _consume_stream(self, reply: StreamReply) -> ConsumeStream:
        stream = ConsumeStream(reply, self, self._gone)
        self._streams.add(stream)
        return stream

    def _gone(self, stream: PublishStream | ConsumeStream) -> None:
        self._streams.discard(stream)
