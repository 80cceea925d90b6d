"""The parts of a running broker, for its streams, status pages and administration."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Coroutine
from typing import Any

from pydanube_core.errors import ClusterError, QuotaExceeded
from pydanube_core.facts import BrokerAddress
from pydanube_core.security.credential import Credential
from pydanube_core.security.permissions import Principal
from pydanube_core.security.records import TokenRecord

from pydanube_broker.admin_state import AdminState
from pydanube_broker.delivery.engine import DeliveryEngine
from pydanube_broker.home.data_dir import DataDir
from pydanube_broker.journal import Journal
from pydanube_broker.links.links import ClusterLinks
from pydanube_broker.moves.moves import Moves
from pydanube_broker.observation.cluster_viewing import BalanceResult
from pydanube_broker.observation.load_meter import LoadMeter
from pydanube_broker.relay.dead_letters import RelayedDeadLetters
from pydanube_broker.relay.relay import Relay
from pydanube_broker.rpc.certificates import PortCertificates
from pydanube_broker.rpc.peer_memory import PeerMemory
from pydanube_broker.security.locks import Locks
from pydanube_broker.serving.data_changes import DataChanges
from pydanube_broker.serving.levels import Levels
from pydanube_broker.serving.ownership import Ownership
from pydanube_broker.serving.registry import Registry
from pydanube_broker.serving.topic_access import TopicAccess
from pydanube_broker.settings.sections import Settings
from pydanube_broker.slices import Slices
from pydanube_broker.status.health import Health
from pydanube_broker.status.log import LogRing
from pydanube_broker.status.metrics import BrokerMetrics
from pydanube_broker.telemetry.writer import TelemetryWriter
from pydanube_broker.tenants.processor import ProcessorBudget
from pydanube_broker.tier.chain_record import ChainRecord
from pydanube_broker.tier.journal_chain import JournalChain
from pydanube_broker.tier.storing import Storing
from pydanube_broker.tier.tier import Tier
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.retention import JournalRetention
from pydanube_broker.topics.topic import Topic

log = logging.getLogger("pydanube.broker")


class BrokerParts:
    """See the module. `Broker` makes the parts in the order of its start. `tier` is None until the journal has begun."""

    chain: JournalChain
    storing: Storing
    levels: Levels
    data_dir: DataDir
    engine: DeliveryEngine
    health: Health
    hub: Hub
    journal: Journal
    letters: RelayedDeadLetters
    links: ClusterLinks
    registry: Registry
    access: TopicAccess
    admin_state: AdminState
    retention: JournalRetention
    tier: Tier
    moves: Moves
    relay: Relay | None  # None for a lone broker

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.telemetry: TelemetryWriter | None = None  # None: switched off, or no store for it
        self.locks: Locks | None = None  # None: off
        self.tls: PortCertificates | None = None  # None: plain text
        self.durability = "memory" if settings.data.memory else "fsynced"
        self.metrics = BrokerMetrics(topic_series_limit=settings.metrics.topic_series_limit)
        self.peer_memory = PeerMemory(settings.server.peer_memory_bytes)
        self.budget = ProcessorBudget()
        self.started_at = time.monotonic()
        self.broker_url = ""
        self.admin_url = ""
        self.metrics_url = ""
        self.http_url: str | None = None  # of the HTTP port, which the command starts beside this broker
        self.log_ring = LogRing()
        self.data_changes = DataChanges()
        self.load_meter = LoadMeter(settings.balance.interval)
        self.balance = BalanceResult()
        self.tasks: set[asyncio.Task[None]] = set()
        # The record by which others take this broker's topics over without a plan. None: its topics wait for it
        self.taken_over_by: ChainRecord | None = None

    @property
    def is_taken_over(self) -> bool:
        """Whether other brokers would take this one's topics over if it stopped now, with all their messages."""
        found = self.chain.statistics()
        return self.taken_over_by is not None and found is not None and found.last_error is None

    def address(self) -> BrokerAddress:
        """Return this broker's id and addresses, after its ports are bound."""
        return BrokerAddress(
            broker_id=str(self.data_dir.broker_id),
            broker_url=self.broker_url,
            admin_url=self.admin_url,
            zone=self.settings.server.zone or "",
            name=self.settings.server.name or "",
        )

    @property
    def life(self) -> str:
        """The name of this start of the broker: `<broker_id>/<incarnation>`."""
        return f"{self.data_dir.broker_id}/{self.registry.ownership.incarnation}"

    @property
    def ownership(self) -> Ownership:
        return self.registry.ownership

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task that ends with the broker. A failure is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("task_failed", exc_info=task.exception())

    def append_time_ms(self, topic: Topic, offset: int) -> int | None:
        """Return the append time of the message at an offset, if it is in memory. In the cold tier: times read before."""
        if offset < topic.state.tiered_offset:
            tier: Tier | None = getattr(self, "tier", None)  # the tier may still be opening
            known = None if tier is None else tier.lag.known_time_ms(topic.topic_id, offset)
            if known is not None:
                return known
            first = self.journal.first_offset(topic.topic_id)
            if first is None or offset < first:
                return None
        return self.journal.time_at_offset(topic.topic_id, offset)

    def credentials(self) -> tuple[Credential, ...]:
        """Return the certificates that expire, and of each principal the token that expires last.

        A rotation has replaced the other tokens, or their owner does without them.
        """
        files = () if self.tls is None else self.tls.credentials
        last: dict[Principal, TokenRecord] = {}
        for token in () if self.locks is None else self.locks.access_records.tokens.values():
            known = last.get(token.principal)
            if known is None or _end(token) > _end(known):
                last[token.principal] = token
        tokens = (
            Credential(kind="token", name=each.token_id, from_ms=each.created_ms, until_ms=each.until_ms)
            for each in last.values()
            if each.until_ms is not None
        )
        return (*files, *tokens)

    async def measure_stored(self) -> None:
        """Measure the stored bytes that quotas limit."""
        await self.registry.quotas.measure(self.stored_of)

    def stored_bytes(self, topic: Topic) -> tuple[int, int]:
        """Return a topic's stored bytes: in the journal, and in the cold tier. Bytes that are in both count for the cold tier."""
        in_journal = self.journal.stored_bytes(topic.topic_id, topic.state.needed_offset)
        return in_journal, self.tier.object_bytes.get(topic.topic_id, 0)

    async def stored_of(self, namespace: str) -> int:
        """Return the stored bytes of a namespace's topics at this broker."""
        slices, total = Slices(), 0
        for topic in self.registry.topics:
            if topic.options.topic.namespace == namespace:
                total += sum(self.stored_bytes(topic))
            await slices()
        return total

    def rejected(self, topic: str, error: ClusterError, messages: int = 1) -> None:
        """Count a refused publish, and the messages it held."""
        self.metrics.rejected[topic, error.code] += 1
        self.metrics.rejected_messages[topic, error.code] += messages
        if isinstance(error, QuotaExceeded):
            self.registry.quotas.refused.note(topic, f"{error.details['quota']}: {error.details['field']}")


def _end(token: TokenRecord) -> float:
    return math.inf if token.until_ms is None else token.until_ms
