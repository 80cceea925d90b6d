"""The broker as calls and streams of clients that bring or take messages need it, and no more."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from pydanube_core.errors import ClusterError

from pydanube_broker.delivery.engine import DeliveryEngine
from pydanube_broker.health import Health
from pydanube_broker.serving.ownership import Ownership
from pydanube_broker.serving.topic_access import TopicAccess


class Rejected(Protocol):
    """Counts a refused publish, and the messages it held."""

    def __call__(self, topic: str, error: ClusterError, messages: int = 1) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlane:
    """The broker as the data plane sees it; see the module."""

    access: TopicAccess
    ownership: Ownership
    health: Health
    engine: DeliveryEngine
    spawn: Callable[[Coroutine[Any, Any, None]], None]  # runs a task that ends with the broker
    rejected: Rejected
    window_messages: int  # of an official consumer: so many are in flight at the most
