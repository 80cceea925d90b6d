"""The operations on brokers."""

from __future__ import annotations

from typing import Final

from pydanube_admin.brokers.handlers import broker_status
from pydanube_admin.brokers.models import BrokerStatus, BrokerStatusRequest
from pydanube_admin.effect import Effect
from pydanube_admin.operation import Example, Operation

__all__ = ["BROKER_OPERATIONS"]

BROKER_OPERATIONS: Final = (
    Operation(
        name="brokers.status",
        tool="get_broker_status",
        title="Broker status",
        effect=Effect.READ,
        permission="brokers:read",
        reversible=None,
        summary="Show the broker: readiness and reasons, version, uptime, durability, disk, journal, cold tier.",
        request=BrokerStatusRequest,
        result=BrokerStatus,
        handler=broker_status,
        examples=(Example(arguments={}, note="the broker that answers"),),
        default_profile=True,
    ),
)
