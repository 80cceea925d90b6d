"""Connected producers and consumers: listing them, ending their connections. They may connect again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from pydanube_core.errors import InvalidArgument
from pydanube_core.facts import SessionFacts
from pydanube_core.units import format_time

from pydanube_admin.context import Context
from pydanube_admin.forecast import Forecast, blast_radius, entry
from pydanube_admin.models import Page
from pydanube_admin.next_calls import next_call
from pydanube_admin.paging import cut, glob
from pydanube_admin.sessions.models import (
    ConsumerItem,
    Disconnected,
    DisconnectRequest,
    ListSessionsRequest,
    ProducerItem,
)
from pydanube_admin.topics.reading import find_topic


async def _of_topic(
    context: Context, request: ListSessionsRequest, everywhere: Sequence[SessionFacts]
) -> list[SessionFacts]:
    matches = glob(request.filter)
    logs = None
    if request.topic is not None:
        logs = {log.topic for log in (await find_topic(context, request.topic)).logs}
    return [each for each in everywhere if (logs is None or each.topic in logs) and matches(each.name)]


async def list_producers(context: Context, request: ListSessionsRequest) -> Page[ProducerItem]:
    found = await _of_topic(context, request, await context.port.producers())
    page = cut(
        found,
        key=lambda each: (each.topic, int(each.session_id)),
        operation="producers.list",
        request=request,
    )
    return Page[ProducerItem](
        items=[
            ProducerItem(id=each.session_id, topic=each.topic, producer=each.name, exclusive=each.exclusive)
            for each in page.items
        ],
        next_page=page.next_page,
        total=page.total,
        as_of=format_time(context.now_ms()),
    )


async def list_consumers(context: Context, request: ListSessionsRequest) -> Page[ConsumerItem]:
    found = await _of_topic(context, request, await context.port.consumers())
    page = cut(
        found,
        key=lambda each: (each.topic, each.subscription or "", int(each.session_id)),
        operation="consumers.list",
        request=request,
    )
    return Page[ConsumerItem](
        items=[
            ConsumerItem(
                id=each.session_id,
                topic=each.topic,
                subscription=each.subscription or "",
                consumer=each.name,
                active=each.exclusive,
                in_flight=each.in_flight or 0,
                standing=each.standing,
                connected_at=None if each.connected_at_ms is None else format_time(each.connected_at_ms),
                connected_at_reason="not_known" if each.connected_at_ms is None else None,
            )
            for each in page.items
        ],
        next_page=page.next_page,
        total=page.total,
        as_of=format_time(context.now_ms()),
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


async def disconnect_producer(context: Context, request: DisconnectRequest) -> Disconnected:
    return await _disconnect(context, await _find(context.port.producers, request, "producer"))


async def disconnect_consumer(context: Context, request: DisconnectRequest) -> Disconnected:
    return await _disconnect(context, await _find(context.port.consumers, request, "consumer"))


async def _disconnect(context: Context, found: SessionFacts) -> Disconnected:
    await context.port.disconnect(found.session_id)
    return Disconnected(id=found.session_id, topic=found.topic, name=found.name)
