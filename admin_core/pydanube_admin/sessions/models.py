"""Requests and results of the operations on connected producers and consumers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pydanube_admin.models import Change, ListRequest, OptionalTopic, Request, Result


class ListSessionsRequest(ListRequest):
    topic: OptionalTopic = None


class ProducerItem(Result):
    id: str
    topic: str
    producer: str
    exclusive: bool


class ConsumerItem(Result):
    id: str
    topic: str
    subscription: str
    consumer: str
    active: bool  # of a failover subscription only one is
    in_flight: int
    standing: str  # answering; set_aside: it lets everything expire; on_trial: it was set aside
    connected_at: str | None
    connected_at_reason: str | None = None


class DisconnectRequest(Request):
    id: Annotated[str, Field(min_length=1, max_length=32, description="id of the list")]


class Disconnected(Change):
    id: str
    topic: str
    name: str
