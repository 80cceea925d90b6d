"""List connected producers and consumers, and close their connections. They may reconnect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, ClassVar

from pydantic import Field
from pydanube_core.errors import InvalidArgument
from pydanube_core.facts import SessionFacts
from pydanube_core.units import known_time

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Forecast, blast_radius, entry
from pydanube_admin.engine.models import (
    Change,
    Effect,
    OptionalTopic,
    Page,
    Request,
    Result,
    SortedListRequest,
)
from pydanube_admin.engine.operation import next_call, operation
from pydanube_admin.engine.paging import glob, page_of
from pydanube_admin.operations.topics import find_topic


class ListSessionsRequest(SortedListRequest):
    topic: OptionalTopic = None


class ProducerItem(Result):
    identity: ClassVar = ("topic", "id")

    id: str
    topic: str
    producer: str
    exclusive: bool


class ConsumerItem(Result):
    identity: ClassVar = ("topic", "id")

    id: str
    topic: str
    subscription: str
    consumer: str
    active: bool  # of a failover subscription only one is
    in_flight: int
    standing: str  # answering, set_aside (all its messages expire), on_trial (it was set aside)
    connected_at: str | None
    connected_at_reason: str | None = None


class DisconnectRequest(Request):
    id: Annotated[str, Field(min_length=1, max_length=32, description="id of the list")]


class Disconnected(Change):
    id: str
    topic: str
    name: str


async def _of_topic(
    context: Context, request: ListSessionsRequest, everywhere: Sequence[SessionFacts]
) -> list[SessionFacts]:
    matches = glob(request.filter)
    logs = None
    if request.topic is not None:
        logs = {log.topic for log in (await find_topic(context, request.topic)).logs}
    return [each for each in everywhere if (logs is None or each.topic in logs) and matches(each.name)]


@operation(
    "producers.list",
    effect=Effect.READ,
    summary="List connected producers.",
    examples=(Example({"topic": "orders"}, "of one topic"),),
)
async def list_producers(context: Context, request: ListSessionsRequest) -> Page[ProducerItem]:
    found = await _of_topic(context, request, await context.port.producers())
    return await page_of(
        context,
        ProducerItem,
        found,
        lambda each: ProducerItem(
            id=each.session_id, topic=each.topic, producer=each.name, exclusive=each.exclusive
        ),
        key=lambda each: (each.topic, int(each.session_id)),
        request=request,
    )


@operation(
    "consumers.list",
    effect=Effect.READ,
    summary="List connected consumers of subscriptions with what they hold.",
    examples=(Example({"topic": "orders"}, "of one topic"),),
)
async def list_consumers(context: Context, request: ListSessionsRequest) -> Page[ConsumerItem]:
    found = await _of_topic(context, request, await context.port.consumers())
    return await page_of(
        context,
        ConsumerItem,
        found,
        lambda each: ConsumerItem(
            id=each.session_id,
            topic=each.topic,
            subscription=each.subscription or "",
            consumer=each.name,
            active=each.exclusive,
            in_flight=each.in_flight or 0,
            standing=each.standing,
            connected_at=known_time(each.connected_at_ms),
            connected_at_reason="not_known" if each.connected_at_ms is None else None,
        ),
        key=lambda each: (each.topic, each.subscription or "", int(each.session_id)),
        request=request,
    )


async def _find(
    port: Callable[[], Awaitable[Sequence[SessionFacts]]], request: DisconnectRequest, kind: str
) -> SessionFacts:
    for each in await port():
        if each.session_id == request.id:
            return each
    raise InvalidArgument(
        f"no {kind} with the id {request.id!r} is connected: it may have gone, or have come back under another id",
        field="id",
        value=request.id,
    ).followed_by(next_call(f"{kind}s.list", {}, "shows who is connected"))


def _forecast(found: SessionFacts, kind: str) -> Forecast:
    return Forecast(
        diff=[entry(f"topics{found.topic}/{kind}s/{found.session_id}", {"name": found.name}, None)],
        blast_radius=blast_radius(consumers=int(kind == "consumer")),
    )


async def forecast_disconnect_producer(context: Context, request: DisconnectRequest) -> Forecast:
    return _forecast(await _find(context.port.producers, request, "producer"), "producer")


async def forecast_disconnect_consumer(context: Context, request: DisconnectRequest) -> Forecast:
    return _forecast(await _find(context.port.consumers, request, "consumer"), "consumer")


@operation(
    "producers.disconnect",
    effect=Effect.CHANGE,
    title="Disconnect a producer",
    summary="End a producer's connection; it may connect again.",
    forecast=forecast_disconnect_producer,
    examples=(Example({"id": "1732276800000001"}, "by its id in producers.list"),),
)
async def disconnect_producer(context: Context, request: DisconnectRequest) -> Disconnected:
    return await _disconnect(context, await _find(context.port.producers, request, "producer"))


@operation(
    "consumers.disconnect",
    effect=Effect.CHANGE,
    title="Disconnect a consumer",
    summary="End a consumer's connection; what it held goes to others. It may connect again.",
    forecast=forecast_disconnect_consumer,
    examples=(Example({"id": "42"}, "by its id in consumers.list"),),
)
async def disconnect_consumer(context: Context, request: DisconnectRequest) -> Disconnected:
    return await _disconnect(context, await _find(context.port.consumers, request, "consumer"))


async def _disconnect(context: Context, found: SessionFacts) -> Disconnected:
    await context.port.disconnect(found.session_id)
    return Disconnected(id=found.session_id, topic=found.topic, name=found.name)
