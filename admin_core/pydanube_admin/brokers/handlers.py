"""Brokers."""

from __future__ import annotations

from typing import Any

from pydanube_core.errors import InvalidArgument, LastBroker
from pydanube_core.facts import BrokerFacts
from pydanube_core.names import SYSTEM_NAMESPACE, TopicName
from pydanube_core.positions import Position, PositionKind
from pydanube_core.units import format_time

from pydanube_admin.brokers.models import (
    BrokerChangeRequest,
    BrokerConfig,
    BrokerItem,
    BrokerLogs,
    BrokerMetricsResult,
    BrokerRequest,
    BrokerStatus,
    BrokerStatusRequest,
    ChangedBroker,
    ClusterMetrics,
    ClusterRequest,
    Leader,
    ListBrokersRequest,
    LogsRequest,
    ReasonItem,
    SettingItem,
)
from pydanube_admin.context import Context
from pydanube_admin.forecast import Forecast, blast_radius
from pydanube_admin.models import Page
from pydanube_admin.next_calls import next_call
from pydanube_admin.paging import cut, glob


async def broker_status(context: Context, request: BrokerStatusRequest) -> BrokerStatus:
    facts = await context.port.status()
    return BrokerStatus(
        version=facts.version,
        broker_id=facts.broker_id,
        pid=facts.pid,
        uptime_s=round(facts.uptime_s, 3),
        durability=facts.durability,
        data_dir=facts.data_dir,
        data_dir_reason=facts.data_dir_reason,
        listen=dict(facts.listen),
        disk=dict(facts.disk),
        journal=dict(facts.journal),
        tier=dict(facts.tier),
        peer_memory=dict(facts.peer_memory),
        topics=facts.topics,
        read_only=facts.read_only,
        ready=facts.ready,
        reasons=[ReasonItem(code=reason.code, message=reason.message) for reason in facts.reasons],
    )


async def _this(context: Context, broker_id: str | None) -> BrokerFacts:
    """The broker that is asked for: there is one."""
    facts = await context.port.status()
    if broker_id not in (None, facts.broker_id):
        raise InvalidArgument(
            f"there is no broker {broker_id!r}; this cluster has one, {facts.broker_id}",
            field="broker_id",
            value=broker_id,
        ).followed_by(next_call("brokers.list", {}, "shows the brokers there are"))
    return facts


async def list_brokers(context: Context, request: ListBrokersRequest) -> Page[BrokerItem]:
    facts = await context.port.status()
    matches = glob(request.filter)
    found = [facts] if matches(facts.broker_id) else []
    page = cut(found, key=lambda each: (each.broker_id,), operation="brokers.list", request=request)
    return Page[BrokerItem](
        items=[
            BrokerItem(
                broker_id=each.broker_id,
                state="draining" if any(r.code == "DRAINING" for r in each.reasons) else "active",
                is_leader=True,  # of one
                version=each.version,
                uptime_s=round(each.uptime_s, 3),
                topics=each.topics,
                ready=each.ready,
                listen=dict(each.listen),
            )
            for each in page.items
        ],
        next_page=page.next_page,
        total=page.total,
        as_of=format_time(context.now_ms()),
    )


async def describe_broker(context: Context, request: BrokerRequest) -> BrokerStatus:
    await _this(context, request.broker_id)
    return await broker_status(context, BrokerStatusRequest())


async def broker_config(context: Context, request: BrokerRequest) -> BrokerConfig:
    facts = await _this(context, request.broker_id)
    return BrokerConfig(
        broker_id=facts.broker_id,
        settings=[
            SettingItem(
                name=each.name,
                value=each.value,
                default=each.default,
                source=each.source,
                description=each.description,
            )
            for each in await context.port.settings()
        ],
    )


async def broker_logs(context: Context, request: LogsRequest) -> BrokerLogs:
    facts = await _this(context, request.broker_id)
    since_ms: int | None = None
    if request.since is not None:
        position = Position.parse(request.since, now_ms=context.now_ms(), field="since")
        if position.kind is not PositionKind.TIME:
            raise InvalidArgument("since: give a time, such as time:-15m", field="since", value=request.since)
        since_ms = position.value
    found = await context.port.log_lines(lines=request.lines, level=request.level, since_ms=since_ms)
    return BrokerLogs(
        broker_id=facts.broker_id,
        items=[
            {
                "time": format_time(line.time_ms),
                "level": line.level,
                "event": line.event,
                "untrusted": {"text": line.text},
            }
            for line in found
        ],
    )


async def leader(context: Context, request: ClusterRequest) -> Leader:
    facts = await context.port.status()
    return Leader(broker_id=facts.broker_id, admin_url=facts.listen.get("admin"))


async def metrics_of(context: Context, topic: str | None) -> dict[str, Any]:
    """Counters of one topic, or of all but the broker's own."""
    facts = await context.port.status()
    traffic = await context.port.traffic(topic)
    if topic is None:
        logs = [each for each in await context.port.topics() if not each.partitions]
        logs = [each for each in logs if TopicName.parse(each.topic).namespace != SYSTEM_NAMESPACE]
        topics = facts.topics
    else:
        own, *parts = await context.port.topic(topic)
        logs, topics = parts or [own], 1
    names = {each.topic for each in logs}
    found = [each for each in await context.port.subscriptions(topic, None) if each.topic in names]
    return {
        "topics": topics,
        "subscriptions": len(found),
        "producers": sum(each.producers for each in logs),
        "consumers": sum(each.consumers for each in logs),
        "messages_in": traffic.messages_in,
        "bytes_in": traffic.bytes_in,
        "messages_out": traffic.messages_out,
        "redelivered": traffic.redelivered,
        "publish_rejected": traffic.publish_rejected,
        "dropped": traffic.dropped,
        "lag_messages": sum(each.state.lag_messages for each in found),
        "stored_bytes": sum(each.bytes for each in logs),
        "uptime_s": round(facts.uptime_s, 3),
        "as_of": format_time(context.now_ms()),
    }


async def cluster_metrics(context: Context, request: ClusterRequest) -> ClusterMetrics:
    return ClusterMetrics(brokers=1, **await metrics_of(context, None))


async def broker_metrics(context: Context, request: BrokerRequest) -> BrokerMetricsResult:
    facts = await _this(context, request.broker_id)
    return BrokerMetricsResult(broker_id=facts.broker_id, **await metrics_of(context, None))


async def unload_broker(context: Context, request: BrokerChangeRequest) -> ChangedBroker:
    await forecast_unload(context, request)
    raise AssertionError("a lone broker is refused")


async def forecast_unload(context: Context, request: BrokerChangeRequest) -> Forecast:
    facts = await _this(context, request.broker_id)
    raise LastBroker(
        f"the broker {facts.broker_id} is the only one: its topics have nowhere to go",
        field="broker_id",
        value=facts.broker_id,
    )


async def activate_broker(context: Context, request: BrokerChangeRequest) -> ChangedBroker:
    """A lone broker takes topics as long as it runs: there is nothing to change."""
    facts = await _this(context, request.broker_id)
    return ChangedBroker(broker_id=facts.broker_id, state="active")


async def forecast_activate(context: Context, request: BrokerChangeRequest) -> Forecast:
    await _this(context, request.broker_id)
    return Forecast(diff=[], blast_radius=blast_radius())
