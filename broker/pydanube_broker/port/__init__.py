"""The broker's implementation of `pydanube_core.cluster_port.ClusterPort`, for the admin core and the status pages.

One module for each area of operations. An operation needs one method here.
"""

from __future__ import annotations

import anyio

from pydanube_broker import software
from pydanube_broker.parts import BrokerParts
from pydanube_broker.port.administration import AdministrationPart
from pydanube_broker.port.balance import BalancePart
from pydanube_broker.port.brokers import BrokersPart
from pydanube_broker.port.diagnosis import DiagnosisPart
from pydanube_broker.port.links import LinksPart
from pydanube_broker.port.messages import MessagesPart
from pydanube_broker.port.objects import ObjectsPart
from pydanube_broker.port.sessions import SessionsPart
from pydanube_broker.port.topics import TopicsPart
from pydanube_broker.serving.registry import Registry

__all__ = ["BrokerPort"]


class BrokerPort(
    TopicsPart,
    DiagnosisPart,
    BrokersPart,
    SessionsPart,
    ObjectsPart,
    MessagesPart,
    LinksPart,
    AdministrationPart,
    BalancePart,
):
    """Facts, read at the moment of the call, and the changes that operations may make."""

    def __init__(self, broker: BrokerParts) -> None:
        self._broker = broker
        self._loading_key = anyio.Lock()
        self.version = software.version()

    @property
    def _registry(self) -> Registry:
        return self._broker.registry

    @property
    def this(self) -> BrokerPort:
        return self
