"""The parts of a broker that observation reads."""

from __future__ import annotations

from typing import Protocol

from pydanube_core.security.credential import Credential

from pydanube_broker.home.data_dir import DataDir
from pydanube_broker.journal import Journal
from pydanube_broker.links.links import ClusterLinks
from pydanube_broker.observation.cluster_viewing import BalanceResult
from pydanube_broker.relay.relay import Relay
from pydanube_broker.serving.registry import Registry
from pydanube_broker.settings.sections import Settings
from pydanube_broker.status.health import Health
from pydanube_broker.status.metrics import BrokerMetrics
from pydanube_broker.tier.journal_chain import JournalChain
from pydanube_broker.tier.tier import Tier
from pydanube_broker.topics.topic import Topic


class Observed(Protocol):
    """The parts of a broker that observation reads."""

    registry: Registry
    journal: Journal
    tier: Tier
    chain: JournalChain
    health: Health
    metrics: BrokerMetrics
    links: ClusterLinks
    relay: Relay | None  # None for a lone broker
    data_dir: DataDir
    settings: Settings
    balance: BalanceResult
    started_at: float  # monotonic seconds

    def credentials(self) -> tuple[Credential, ...]:
        """Return the certificates and tokens that expire at some time."""

    def append_time_ms(self, topic: Topic, offset: int) -> int | None:
        """Return the append time of the message at an offset. None if it is not in memory."""
