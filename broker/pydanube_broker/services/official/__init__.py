"""The data plane of Danube's own clients: package `danube` on port 6650 (`docs/research/data-plane.md`).

The broker creates one `OfficialServices`, calls `load` before the port opens, `start` and `close` around its life, and
`end` to end its streams as retryable. Its properties `cold`, `hot` and `server_streams` are the gRPC methods to serve,
by path. The other modules of this package hold a service each. `client_registry` maps ids to producers and consumers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from pydanube_core.errors import ClusterError
from pydanube_core.services import (
    AUTH_SERVICE,
    CONSUMER_SERVICE,
    DISCOVERY,
    HEALTH_CHECK,
    PRODUCER_SERVICE,
    STORAGE_SERVICE,
)
from pydanube_storage.metadata import MetadataStore

from pydanube_broker.cluster.records import TopicRecord
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_broker.rpc.caller import Keeper
from pydanube_broker.rpc.hot import ColdHandler, HotHandler, ServerStreamOpener
from pydanube_broker.schema.topic_schemas import TopicSchemas
from pydanube_broker.services.official.auth import AuthService
from pydanube_broker.services.official.client_registry import ClientRegistry
from pydanube_broker.services.official.consumer import ConsumerService
from pydanube_broker.services.official.discovery import DiscoveryService, ForeignIds
from pydanube_broker.services.official.health_check import HealthCheckService
from pydanube_broker.services.official.producer import ProducerService
from pydanube_broker.services.official.receive import ReceiveStream
from pydanube_broker.services.official.schema_gate import SchemaGate
from pydanube_broker.services.official.storage import StorageService
from pydanube_broker.serving.data_plane import DataPlane
from pydanube_broker.tier.tier import Tier
from pydanube_broker.topics.topic import Topic

__all__ = ["OfficialServices"]

SWEEP_S: Final = 5.0  # the clients' health-check interval


class OfficialServices:
    """All services for official clients, and their shared state."""

    def __init__(
        self,
        plane: DataPlane,
        store: MetadataStore,
        tier: Callable[[], Tier],
        *,
        schemas: TopicSchemas,
        keeper: Keeper | None,
    ) -> None:
        self.clients = ClientRegistry(store, ForeignIds(plane.access, plane.ownership))
        self._producer = ProducerService(plane, self.clients, SchemaGate(schemas))
        self._consumer = ConsumerService(plane, self.clients)
        self._discovery = DiscoveryService(plane.access, plane.ownership)
        self._health = HealthCheckService(self.clients, plane.access)
        self._storage = StorageService(plane.access, tier)
        self._auth = AuthService(keeper)
        self._timer: asyncio.TimerHandle | None = None

    async def load(self, topics: Sequence[Topic], catalog: TopicCatalog) -> None:
        """Read the names behind the ids that were assigned."""
        await self.clients.load(topics, catalog)

    async def arriving(self, record: TopicRecord) -> Callable[[Topic], None]:
        """As `load`, for a topic that arrives from another broker. Call the result once the topic is served."""
        return await self.clients.read(record)

    def start(self) -> None:
        """Keep the places of consumers that may return, and start the sweeps."""
        loop = asyncio.get_running_loop()
        self.clients.keep_filtered(loop.time())
        self._timer = loop.call_later(SWEEP_S, self._tick)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self.sweep()
        self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._tick)

    def sweep(self) -> None:
        """Mark clients without recent calls as gone. Runs every `SWEEP_S` once started."""
        self.clients.sweep(asyncio.get_running_loop().time())

    def send_away(self) -> None:
        """From now on, make clients of topics that have left look up the new owner, because the broker is leaving."""
        self._health.sends_away = True

    def end(self, error: ClusterError) -> None:
        """End the streams as retryable, because the broker is shutting down."""
        self._consumer.end(error)

    @property
    def streams(self) -> Iterable[ReceiveStream]:
        """Return the open receiving streams."""
        return self._consumer.streams

    @property
    def cold(self) -> Mapping[str, ColdHandler]:
        return {
            PRODUCER_SERVICE["CreateProducer"].path: self._producer.create_producer,
            CONSUMER_SERVICE["Subscribe"].path: self._consumer.subscribe,
            AUTH_SERVICE["Authenticate"].path: self._auth.authenticate,
            DISCOVERY["TopicLookup"].path: self._discovery.topic_lookup,
            DISCOVERY["TopicPartitions"].path: self._discovery.topic_partitions,
            STORAGE_SERVICE["ListSegmentDescriptors"].path: self._storage.list_segment_descriptors,
        }

    @property
    def hot(self) -> Mapping[str, HotHandler]:
        return {
            PRODUCER_SERVICE["SendMessage"].path: self._producer.send_message,
            CONSUMER_SERVICE["Ack"].path: self._consumer.ack,
            CONSUMER_SERVICE["Nack"].path: self._consumer.nack,
            HEALTH_CHECK["HealthCheck"].path: self._health.check,
        }

    @property
    def carried(self) -> frozenset[str]:
        """Return the methods that can be relayed to another broker, because each is about one topic."""
        cold = (PRODUCER_SERVICE["CreateProducer"].path, CONSUMER_SERVICE["Subscribe"].path)
        return frozenset((*cold, *self.hot, *self.server_streams))

    @property
    def server_streams(self) -> Mapping[str, ServerStreamOpener]:
        return {CONSUMER_SERVICE["ReceiveMessages"].path: self._consumer.receive_messages}
