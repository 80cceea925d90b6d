"""The facts that the broker observes of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydanube_broker.data_dir import DataDir
from pydanube_broker.health import Health
from pydanube_broker.journal import Journal
from pydanube_broker.metrics import BrokerMetrics
from pydanube_broker.observation.cluster_viewing import Told
from pydanube_broker.serving.registry import Registry
from pydanube_broker.settings import Settings
from pydanube_broker.tier.tier import Tier
from pydanube_broker.topics.topic import Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The parts of the broker that it observes, as the module says."""

    registry: Registry
    journal: Journal
    tier: Tier
    health: Health
    metrics: BrokerMetrics
    data_dir: DataDir
    settings: Settings
    told: Told
    started_at: float  # monotonic seconds
    # Of the message at an offset, as far as it is in memory
    append_time_ms: Callable[[Topic, int], int | None]
