"""Brokers."""

from __future__ import annotations

from pydanube_admin.brokers.models import BrokerStatus, BrokerStatusRequest, ReasonItem
from pydanube_admin.context import Context

__all__ = ["broker_status"]


async def broker_status(context: Context, request: BrokerStatusRequest) -> BrokerStatus:
    facts = await context.port.status()
    return BrokerStatus(
        version=facts.version,
        broker_id=facts.broker_id,
        pid=facts.pid,
        uptime_s=round(facts.uptime_s, 3),
        durability=facts.durability,
        grpc_runtime=facts.grpc_runtime,
        data_dir=facts.data_dir,
        data_dir_reason=facts.data_dir_reason,
        listen=dict(facts.listen),
        disk=dict(facts.disk),
        journal=dict(facts.journal),
        tier=dict(facts.tier),
        topics=facts.topics,
        read_only=facts.read_only,
        ready=facts.ready,
        reasons=[ReasonItem(code=reason.code, message=reason.message) for reason in facts.reasons],
    )
