"""The part of a broker that the calls and streams of producers and consumers need."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from pydanube_core.errors import ClusterError

from pydanube_broker.delivery.engine import DeliveryEngine
from pydanube_broker.serving.ownership import Ownership
from pydanube_broker.serving.topic_access import TopicAccess
from pydanube_broker.settings.sections import Settings
from pydanube_broker.status.health import Health
from pydanube_broker.tenants.processor import ProcessorBudget


class DataPlane(Protocol):
    """The parts of a broker that the data plane uses."""

    access: TopicAccess
    health: Health
    engine: DeliveryEngine
    settings: Settings
    budget: ProcessorBudget

    @property
    def ownership(self) -> Ownership: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task that ends with the broker. A failure is logged."""

    def rejected(self, topic: str, error: ClusterError, messages: int = 1) -> None:
        """Count a refused publish, and the messages it held."""
