"""This broker's status and metrics."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from pydanube_core.errors import Fenced, Unavailable
from pydanube_core.facts import (
    BrokerAddress,
    BrokerFacts,
    DialFacts,
    PeerCertificates,
    Reason,
    RemovalFacts,
    StopFacts,
    TakeOverFacts,
    TopicAtStop,
)
from pydanube_core.names import TopicName
from pydanube_core.refusals import gone_remedy
from pydanube_core.security.identity import current_identity
from pydanube_core.units import counted

from pydanube_broker.chain import ChainStatistics
from pydanube_broker.cluster.ids import BrokerId, broker_number
from pydanube_broker.cluster.records import DispatchStrategy, TopicRecord
from pydanube_broker.moves.moves import Moves
from pydanube_broker.moves.take_over import is_inherited
from pydanube_broker.observation.watch import Observation
from pydanube_broker.parts import BrokerParts
from pydanube_broker.relay.membership import Seals, heard_at
from pydanube_broker.slices import Slices
from pydanube_broker.status.metrics import Gathered, SubscriptionSample, TopicSample
from pydanube_broker.tier.status import reasons_of, status_of
from pydanube_broker.tier.tier import Tier
from pydanube_broker.topics.topic import CLOCK, Topic, now_ms

SHOWN_ASIDE: Final = 10


class BrokersPart:
    """The part of `BrokerPort` about brokers."""

    _broker: BrokerParts
    version: str

    def not_ready(self) -> tuple[Reason, ...]:
        return self._broker.health.reasons()

    @property
    def _tier(self) -> Tier | None:
        return getattr(self._broker, "tier", None)  # none before the journal has begun

    def degraded(self) -> tuple[Reason, ...]:
        """Return the problems that do not prevent publishing and consuming."""
        tier = self._tier
        stepped = CLOCK.reason()
        apart = CLOCK.contradiction()
        found = {"CLOCK_STEPPED": stepped, "CLOCKS_APART": apart}
        clock = tuple(Reason(code=code, message=why) for code, why in found.items() if why is not None)
        if tier is None:
            return (*clock, *self._metadata_away(), *self._crowded())
        return (
            *reasons_of(tier),
            *clock,
            *self._metadata_away(),
            *self._others(),
            *self._crowded(),
            *self._quarantined(),
        )

    def _others(self) -> tuple[Reason, ...]:
        """Return reasons about missing brokers of the cluster."""
        ownership = self._broker.ownership
        if not ownership.several or self._broker.health.metadata_away is not None:
            return ()
        dials = None if self._broker.relay is None else self._broker.relay.dials
        found = [
            Reason(
                code="OWNER_DOWN",
                message=f"broker {broker_id} is not registered, and {counted(topics, 'topic waits', 'topics wait')} for it. "
                + gone_remedy(str(broker_id), tried=None if dials is None else dials.last(broker_id)),
            )
            for broker_id, topics in sorted(ownership.coordinator.absent_owners().items())
            if topics
        ]
        if ownership.leader() is None:
            found.append(
                Reason(
                    code="NO_LEADER",
                    message="no broker leads the cluster now: one does within seconds of the lease's end. Topics without "
                    "an owner wait for it",
                )
            )
        return tuple(found)

    def _metadata_away(self) -> tuple[Reason, ...]:
        health = self._broker.health
        found = health.without_metadata()
        if (error := health.metadata_away) is None:
            return found
        message = f"changes are refused, and messages flow on: {error.message}"
        return (Reason(code=error.code, message=message), *found)

    def _crowded(self) -> tuple[Reason, ...]:
        """Return the reason that the memory budget for clients is exceeded. The largest holders are closed."""
        reason = self._broker.peer_memory.reason()
        return () if reason is None else (reason,)

    def _quarantined(self) -> tuple[Reason, ...]:
        """Return reasons about quarantined metadata, with the remedies."""
        found = self._broker.registry.catalog.restorable.quarantined()
        first = "; ".join(f"{one.key}: {one.why}: {one.mend}" for one in found[:SHOWN_ASIDE])
        message = f"{len(found)} pieces of metadata are quarantined, so that the rest is served. {first}"
        return (Reason(code="METADATA_SET_ASIDE", message=message),) if found else ()

    async def takers(self) -> Sequence[str]:
        return [str(broker) for broker in self._broker.moves.takers()]

    async def destinations(self, topic: str, to_broker: str | None = None) -> Mapping[str, str]:
        moves = self._broker.moves.destinations(*self._to_move(topic, to_broker))
        return {record.name: str(broker) for record, broker in moves}

    async def move_topic(self, topic: str, to_broker: str | None = None) -> Mapping[str, str]:
        begun = await self._broker.moves.begin(*self._to_move(topic, to_broker))
        return {part: str(broker) for part, broker in begun.items()}

    def _to_move(self, topic: str, to_broker: str | None) -> tuple[list[TopicRecord], BrokerId | None]:
        name, index = TopicName.parse(topic), self._broker.registry.catalog.index
        record = index.find_topic(name)
        records = list(index.partitions(name)) if record is None else [record]
        if not records:
            raise self._broker.registry.not_found(name)
        return records, None if to_broker is None else broker_number(to_broker)

    async def unload(self) -> None:
        await self._broker.moves.drain()

    async def activate(self) -> str:
        return await self._broker.moves.activate()

    async def removal(self, broker_id: str) -> RemovalFacts:
        removals, number = self._broker.moves.removals(), broker_number(broker_id, field="broker_id")
        return await removals.forecast(self._broker.ownership.coordinator, number)

    async def remove_broker(self, broker_id: str, *, without_copy: bool = False) -> None:
        removals, number = self._broker.moves.removals(), broker_number(broker_id, field="broker_id")
        coordinator = self._broker.ownership.coordinator
        await removals.check_removable(coordinator, number)
        await removals.remove(coordinator, number, without_copy=without_copy)
        if self._broker.telemetry is not None:
            self._broker.telemetry.note_removed(broker_id)

    async def at_stop(self) -> StopFacts:
        ownership, slices = self._broker.ownership, Slices()
        me = str(self._broker.data_dir.broker_id)
        others = {str(broker) for broker in self._broker.moves.takers()} - {me} if self.several else set()
        topics = []
        for topic in self._broker.registry.topics:
            await slices()
            if not topic.options.topic.is_audit:
                topics.append(self._at_stop(topic, has_others=bool(others)))
        return StopFacts(
            broker_id=me,
            state=ownership.coordinator.membership.state.value,
            others=len(others),
            keeps_disk=not self._broker.data_dir.memory,
            topics=tuple(topics),
        )

    def _at_stop(self, topic: Topic, *, has_others: bool) -> TopicAtStop:
        # A stored topic is taken over with all its messages, and so is any topic where the stop sends the rest first
        stores = topic.options.dispatch_strategy is DispatchStrategy.RELIABLE and not topic.in_store
        stores = stores and not (has_others and self._broker.is_taken_over)
        start = topic.commit
        if stores:
            first = self._broker.journal.first_offset(topic.topic_id)
            start = min(start, max(topic.state.needed_offset, start if first is None else first))
        messages = topic.commit - start
        return TopicAtStop(
            topic=topic.name,
            waits=stores or not has_others,
            messages=messages,
            oldest_ms=self._broker.append_time_ms(topic, start) if messages else None,
        )

    async def journals(self) -> Mapping[str, Mapping[str, Any]]:
        return await self._broker.moves.journals()

    async def take_over_facts(self, topic: str) -> Sequence[TakeOverFacts]:
        return await self._broker.moves.forecast_take_over(self._of_lost_owners(topic))

    async def take_over(self, topic: str, *, without_copy: Collection[str] = ()) -> None:
        await self._broker.moves.take_over(self._of_lost_owners(topic), without_copy)

    def _of_lost_owners(self, topic: str) -> list[TopicRecord]:
        """Return the topic, or its partitions whose owner is not registered, or that heirs cannot rebuild. Else all of them."""
        records, _ = self._to_move(topic, None)
        coordinator = self._broker.ownership.coordinator
        lost = [
            each
            for each in records
            if (place := coordinator.place(each.topic_id)) is not None
            and (
                place.broker_id not in coordinator.members
                or (is_inherited(place) and place.damage is not None)
            )
        ]
        return lost or records

    async def status(self) -> BrokerFacts:
        broker = self._broker
        journal = broker.journal.statistics()
        sync_s = sorted(journal.fsync_s)
        reasons = broker.health.reasons()
        listen = {"grpc": broker.broker_url, "admin": broker.admin_url, "metrics": broker.metrics_url}
        if broker.http_url is not None:
            listen["http"] = broker.http_url
        return BrokerFacts(
            version=self.version,
            broker_id=str(broker.data_dir.broker_id),
            pid=os.getpid(),
            uptime_s=round(time.monotonic() - broker.started_at, 1),
            durability=broker.durability,
            data_dir=None if broker.data_dir.memory else str(broker.data_dir.path),
            data_dir_reason="memory_only" if broker.data_dir.memory else None,
            listen=listen,
            disk=dict(broker.health.disk),
            journal={
                "bytes": journal.bytes,
                "segments": journal.segments,
                "ready_segments": journal.ready_segments,
                "durable_lsn": journal.durable_lsn,
                "waiting_bytes": journal.waiting_bytes,
                "tail_cache_bytes": journal.tail_cache_bytes,
                "syncs": journal.syncs,
                "fsync_p50_ms": _percentile_ms(sync_s, 0.5),
                "fsync_p99_ms": _percentile_ms(sync_s, 0.99),
                **_copied(broker.chain.statistics()),
            },
            tier={
                **({} if (tier := self._tier) is None else status_of(tier)),
                "telemetry": None if broker.telemetry is None else asdict(broker.telemetry.statistics()),
            },
            peer_memory=asdict(broker.peer_memory.statistics()),
            topics=broker.registry.count,
            read_only=journal.read_only,
            ready=not reasons,
            reasons=reasons + self.degraded(),
            name=broker.address().shown_name,
        )

    @property
    def several(self) -> bool:
        return self._broker.ownership.several

    @property
    def peer_certificates(self) -> PeerCertificates:
        tls = self._broker.settings.tls
        return PeerCertificates(
            ca=None if tls.client_ca is None else str(tls.client_ca),
            cert=None if tls.cert is None else str(tls.cert),
            key=None if tls.key is None else str(tls.key),
        )

    def sealed(self, broker_id: str, request: bytes) -> bytes:
        return self._seals.seal(broker_id, current_identity.get(), request, now_ms())

    def clock_differs(self, broker_id: str, sealed: bytes, details: Mapping[str, Any]) -> bool:
        apart_ms = self._seals.differs(broker_id, sealed, details)
        if apart_ms is not None:
            heard_at(broker_id, now_ms() + apart_ms)
        return apart_ms is not None

    @property
    def _seals(self) -> Seals:
        relay = self._broker.relay
        if relay is None or relay.membership is None:
            raise Unavailable("this broker is still joining the cluster", retry_after_ms=500)
        return relay.membership.seals

    async def statuses(self) -> Sequence[BrokerFacts]:
        return [await self.status()]

    async def stops(self) -> Sequence[StopFacts]:
        return [await self.at_stop()]

    async def members(self) -> Sequence[BrokerAddress]:
        return self._broker.ownership.members()

    def known_brokers(self) -> Sequence[BrokerAddress]:
        ownership = self._broker.ownership
        gone = ownership.coordinator.gone_addresses()
        return [*ownership.members(), *(replace(each, state="gone") for each in gone)]

    async def missed(self) -> Mapping[str, int]:
        absent = self._broker.ownership.coordinator.absent_owners()
        return {str(broker): topics for broker, topics in absent.items()}

    def gone_since_ms(self, broker_id: str) -> int | None:
        return self._broker.ownership.coordinator.gone_since_ms(broker_number(broker_id))

    async def dialed(self, broker_id: str) -> DialFacts | None:
        relay = self._broker.relay
        return None if relay is None else await relay.dials.first(broker_number(broker_id))

    async def reported_at_ms(self, broker_id: str) -> int | None:
        return await self._broker.moves.removals().reported_at_ms(broker_number(broker_id))

    async def leader(self) -> BrokerAddress | None:
        return self._broker.ownership.leader()

    async def metrics(self) -> bytes:
        """Return the text of `/metrics`."""
        slices, broker = Slices(), self._broker
        journal = broker.journal.statistics()
        now = now_ms()
        tier: Tier | None = getattr(broker, "tier", None)  # these two are made during the start
        moves: Moves | None = getattr(broker, "moves", None)
        topics: list[TopicSample] = []
        subscriptions: list[SubscriptionSample] = []
        for topic in broker.registry.topics:
            await slices()
            pumps = list(topic.subscriptions.values())
            topics.append(
                TopicSample(
                    topic=topic.name,
                    messages_in=topic.messages_in,
                    bytes_in=topic.bytes_in,
                    producers=topic.producers_connected,
                    consumers=sum(len(pump.links) for pump in pumps) + topic.readers,
                    subscriptions=len(pumps),
                )
            )
            for pump in pumps:
                await slices()
                state = pump.cursor_state(now)
                oldest = broker.append_time_ms(topic, state.oldest_unread) if state.lag_messages else now
                subscriptions.append(
                    SubscriptionSample(
                        topic=topic.name,
                        subscription=pump.name,
                        state=state,
                        oldest_unread_age_s=None if oldest is None else (now - oldest) / 1000,
                        messages_out=pump.delivered,
                    )
                )
        return await broker.metrics.render(
            Gathered(
                broker_id=str(broker.data_dir.broker_id),
                version=self.version,
                journal_bytes=journal.bytes,
                journal_read_only=journal.read_only,
                tier_backlog_bytes=0 if tier is None else tier.backlog_bytes,
                tier_errors=0 if tier is None else tier.errors,
                tier_objects={} if tier is None else tier.object_counts(),
                chain=broker.chain.statistics(),
                chain_fences=0 if moves is None else moves.fences,
                chain_fenced=isinstance(broker.chain.error, Fenced),
                peer_memory=broker.peer_memory.statistics(),
                longest_stop_s=0.0 if self._observation is None else self._observation.stops.longest_s(),
                open_alerts=self._open_alerts(),
                topics=topics,
                subscriptions=subscriptions,
            )
        )

    @property
    def _observation(self) -> Observation | None:
        """Return None while the broker starts."""
        found: Observation | None = getattr(self._broker, "observation", None)
        return found

    def _open_alerts(self) -> Counter[tuple[str, ...]]:
        """Return the number of alerts by (rule, severity)."""
        observation = self._observation
        if observation is None:
            return Counter()
        return Counter((alert.rule, alert.severity.word) for alert in observation.alerts.open())


def _copied(chain: ChainStatistics | None) -> dict[str, int | None]:
    """Return the size of the chain in the object store, and how far it is behind the journal. None without a chain."""
    return {
        "copied_pieces": None if chain is None else chain.pieces,
        "copied_bytes": None if chain is None else chain.bytes,
        "copied_lag_bytes": None if chain is None else chain.behind_bytes,
        "copied_lag_ms": None if chain is None else round(chain.behind_s * 1000),
    }


def _percentile_ms(ascending_s: Sequence[float], share: float) -> float | None:
    if not ascending_s:
        return None
    return round(ascending_s[min(len(ascending_s) - 1, math.floor(len(ascending_s) * share))] * 1000, 3)
