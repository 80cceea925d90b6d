"""Requests and results of the operations on brokers."""

from __future__ import annotations

from typing import Any

from pydanube_admin.models import Request, Result

__all__ = ["BrokerStatus", "BrokerStatusRequest", "ReasonItem"]


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
    grpc_runtime: str
    data_dir: str | None
    data_dir_reason: str | None = None  # memory_only
    listen: dict[str, str]
    disk: dict[str, Any]
    journal: dict[str, Any]
    tier: dict[str, Any]
    topics: int
    read_only: bool
    ready: bool
    reasons: list[ReasonItem]
