"""Requests and results of the operations on brokers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pydanube_admin.models import Change, ListRequest, Request, Result


class BrokerStatusRequest(Request):
    pass


class ReasonItem(Result):
    code: str
    message: str


class BrokerStatus(Result):
    """The broker as it is now; the same object as `GET /status`."""

    version: str
    broker_id: str
    pid: int
    uptime_s: float
    durability: str
    data_dir: str | None
    data_dir_reason: str | None = None  # memory_only
    listen: dict[str, str]
    disk: dict[str, Any]
    journal: dict[str, Any]
    tier: dict[str, Any]
    peer_memory: dict[str, int]
    topics: int
    read_only: bool
    ready: bool
    reasons: list[ReasonItem]


class ListBrokersRequest(ListRequest):
    pass


class BrokerItem(Result):
    broker_id: str
    state: str  # active | draining
    is_leader: bool
    version: str
    uptime_s: float
    topics: int
    ready: bool
    listen: dict[str, str]


class BrokerRequest(Request):
    broker_id: Annotated[
        str | None, Field(max_length=32, description="Id of the broker; without it, the one that answers")
    ] = None


class SettingItem(Result):
    name: str
    value: str
    default: str
    source: str
    description: str


class BrokerConfig(Result):
    broker_id: str
    settings: list[SettingItem]


class LogsRequest(BrokerRequest):
    lines: Annotated[int, Field(ge=1, le=500, description="Last lines")] = 100
    level: Annotated[
        Literal["debug", "info", "warning", "error"] | None, Field(description="This level and above")
    ] = None
    since: Annotated[
        str | None, Field(max_length=64, description="time:2026-01-31T12:00:00Z or time:-15m")
    ] = None


class BrokerLogs(Result):
    broker_id: str
    items: list[dict[str, Any]]  # {time, level, event, untrusted: {text}}: a line may quote what clients sent


class Leader(Result):
    broker_id: str
    admin_url: str | None


class Metrics(Result):
    """Counters since the broker started; rates are differences of two answers over their times."""

    topics: int
    subscriptions: int
    producers: int
    consumers: int
    messages_in: int
    bytes_in: int
    messages_out: int
    redelivered: int
    publish_rejected: int
    dropped: int
    lag_messages: int
    stored_bytes: int
    uptime_s: float
    as_of: str


class ClusterMetrics(Metrics):
    brokers: int


class BrokerMetricsResult(Metrics):
    broker_id: str


class ClusterRequest(Request):
    pass


class BrokerChangeRequest(Request):
    broker_id: Annotated[str, Field(min_length=1, max_length=32, description="Id of the broker")]


class ChangedBroker(Change):
    broker_id: str
    state: str
