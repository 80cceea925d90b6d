"""List connected producers and consumers, and close their connections. They may reconnect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field
from pydanube_core.errors import InvalidArgument
from pydanube_core.facts import SessionFacts
from pydanube_core.names import TopicName
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
from pydanube_admin.operations.subscriptions import no_such_subscription
from pydanube_admin.operations.topics import find_topic

_FROM: Final[dict[bool, Literal["taken", "sent"]]] = {True: "taken", False: "sent"}


MOST_TOTALS: Final = 5  # groups of each kind: an answer is read by models, too
MOST_DISCONNECTED: Final = 100  # in one plan, which lists each


class ListSessionsRequest(SortedListRequest):
    topic: OptionalTopic = None


class ListConsumersRequest(ListSessionsRequest):
    subscription: Annotated[str | None, Field(max_length=256, description="Only of this one")] = None


class ProducerItem(Result):
    identity: ClassVar = ("topic", "id")

    id: str
    topic: str
    producer: str
    exclusive: bool
    connected_at: str | None
    connected_at_reason: str | None = None
    principal: str | None  # None without authentication
    msgs_per_s: float | None  # average of the last one to two minutes
    bytes_per_s: float | None
    untrusted: dict[str, Any]  # host, client: its address and program


class ConsumerItem(Result):
    identity: ClassVar = ("topic", "id")

    id: str
    topic: str
    subscription: str
    consumer: str
    active: bool  # In a failover subscription only one consumer is active
    in_flight: int
    standing: str  # answering, set_aside (all its messages expire), on_trial (it was set aside)
    connected_at: str | None
    connected_at_reason: str | None = None
    principal: str | None  # None without authentication
    acks_per_s: float | None  # average of the last one to two minutes
    # From sending to acknowledgement, over the same time, by a histogram of powers of two
    handling_p50_ms: int | None
    handling_p99_ms: int | None
    handling_from: Literal["taken", "sent"] | None  # taken: from the report that the application took it
    handling_reason: str | None = None
    late_acks: (
        int | None
    )  # messages acknowledged after their delivery had expired, since the consumer connected
    expired: int | None
    untrusted: dict[str, Any]  # host, client: its address and program


class ProducersOf(Result):
    """Connected producers that have a principal, an address or a program in common, and what they publish."""

    by: Literal["principal", "host", "client"]
    producers: int
    msgs_per_s: float
    bytes_per_s: float
    untrusted: dict[str, Any]  # value: the principal, host or program


class ProducersPage(Page[ProducerItem]):
    totals: list[ProducersOf]  # of all that match, those with the most connections of each kind


class DisconnectRequest(Request):
    id: Annotated[
        str, Field(min_length=1, max_length=4096, description="As the list shows it, or several: 41,42")
    ]


class Session(Result):
    id: str
    topic: str
    name: str


class Disconnected(Change, Session):
    more: list[Session] | None = Field(default=None, exclude_if=lambda value: value is None)


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
async def list_producers(context: Context, request: ListSessionsRequest) -> ProducersPage:
    found = await _of_topic(context, request, await context.port.producers())
    page = await page_of(
        context,
        ProducerItem,
        found,
        lambda each: ProducerItem(
            id=each.session_id,
            topic=each.topic,
            producer=each.name,
            exclusive=each.exclusive,
            connected_at=known_time(each.connected_at_ms),
            connected_at_reason="not_known" if each.connected_at_ms is None else None,
            principal=each.principal,
            msgs_per_s=each.msgs_per_s,
            bytes_per_s=each.bytes_per_s,
            untrusted={"host": each.host, "client": each.program},
        ),
        key=lambda each: (each.topic, int(each.session_id)),
        request=request,
    )
    return ProducersPage(**dict(page), totals=_totals(found))


@operation(
    "consumers.list",
    effect=Effect.READ,
    summary="List connected consumers of subscriptions with their unacknowledged messages.",
    examples=(Example({"topic": "orders"}, "of one topic"),),
)
async def list_consumers(context: Context, request: ListConsumersRequest) -> Page[ConsumerItem]:
    found = await _of_topic(context, request, await context.port.consumers())
    if request.subscription is not None:
        found = [each for each in found if each.subscription == request.subscription]
        topic = None if request.topic is None else str(TopicName.parse(request.topic))
        if not found and not await context.port.lag_index(topic, request.subscription):
            raise await no_such_subscription(context, topic, request.subscription)
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
            principal=each.principal,
            acks_per_s=each.msgs_per_s,
            handling_p50_ms=each.handling_p50_ms,
            handling_p99_ms=each.handling_p99_ms,
            handling_from=None if each.handling_from_taken is None else _FROM[each.handling_from_taken],
            handling_reason=_why_no_handling(each),
            late_acks=each.late_acks,
            expired=each.expired,
            untrusted={"host": each.host, "client": each.program},
        ),
        key=lambda each: (each.topic, each.subscription or "", int(each.session_id)),
        request=request,
    )


def _why_no_handling(each: SessionFacts) -> str | None:
    if each.handling_from_taken is None:
        return "not_counted"  # of a non-reliable topic, or by an older broker
    return None if each.handling_p50_ms is not None else "nothing_acknowledged"


def _totals(found: Sequence[SessionFacts]) -> list[ProducersOf]:
    """Return the largest groups of producers by principal, host and program. One pass for each."""
    totals: list[ProducersOf] = []
    kinds: tuple[tuple[Literal["principal", "host", "client"], Callable[[SessionFacts], str | None]], ...] = (
        ("principal", lambda each: each.principal),
        ("host", lambda each: each.host),
        ("client", lambda each: each.program),
    )
    for kind, value_of in kinds:
        groups: dict[str, list[SessionFacts]] = {}
        for each in found:
            if (value := value_of(each)) is not None:
                groups.setdefault(value, []).append(each)
        largest = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
        totals += [
            ProducersOf(
                by=kind,
                producers=len(group),
                msgs_per_s=round(sum(each.msgs_per_s or 0 for each in group), 3),
                bytes_per_s=round(sum(each.bytes_per_s or 0 for each in group), 1),
                untrusted={"value": value},
            )
            for value, group in largest[:MOST_TOTALS]
        ]
    return totals


async def _find(
    port: Callable[[], Awaitable[Sequence[SessionFacts]]], request: DisconnectRequest, kind: str
) -> list[SessionFacts]:
    """Return the sessions with these ids, in their order. All of them have to be connected."""
    wanted = list(dict.fromkeys(part.strip() for part in request.id.split(",")))
    if len(wanted) > MOST_DISCONNECTED:
        raise InvalidArgument(
            f"id: {len(wanted)} {kind}s in one call, at most {MOST_DISCONNECTED}: give the rest in another call",
            field="id",
            value=len(wanted),
            limit=MOST_DISCONNECTED,
        )
    connected = {each.session_id: each for each in await port()}
    missing = [one for one in wanted if one not in connected]
    if missing:
        raise InvalidArgument(
            f"no {kind} with the id {missing[0]!r} is connected: it may have gone, or have come back under another id",
            field="id",
            value=missing[0],
        ).followed_by(next_call(f"{kind}s.list", {}, "shows the connected clients"))
    return [connected[one] for one in wanted]


def _forecast(found: Sequence[SessionFacts], kind: str) -> Forecast:
    return Forecast(
        diff=[
            entry(f"topics{each.topic}/{kind}s/{each.session_id}", {"name": each.name}, None)
            for each in found
        ],
        blast_radius=blast_radius(consumers=len(found) if kind == "consumer" else 0),
    )


async def forecast_disconnect_producer(context: Context, request: DisconnectRequest) -> Forecast:
    return _forecast(await _find(context.port.producers, request, "producer"), "producer")


async def forecast_disconnect_consumer(context: Context, request: DisconnectRequest) -> Forecast:
    return _forecast(await _find(context.port.consumers, request, "consumer"), "consumer")


@operation(
    "producers.disconnect",
    effect=Effect.CHANGE,
    ends=True,
    title="Disconnect a producer",
    summary="End a producer's connection. It may connect again.",
    forecast=forecast_disconnect_producer,
    examples=(Example({"id": "1732276800000001"}, "by its id in producers.list"),),
)
async def disconnect_producer(context: Context, request: DisconnectRequest) -> Disconnected:
    return await _disconnect(context, await _find(context.port.producers, request, "producer"))


@operation(
    "consumers.disconnect",
    effect=Effect.CHANGE,
    ends=True,
    title="Disconnect a consumer",
    summary="End a consumer's connection. Its messages go to others. It may connect again.",
    forecast=forecast_disconnect_consumer,
    examples=(Example({"id": "42"}, "by its id in consumers.list"),),
)
async def disconnect_consumer(context: Context, request: DisconnectRequest) -> Disconnected:
    return await _disconnect(context, await _find(context.port.consumers, request, "consumer"))


async def _disconnect(context: Context, found: Sequence[SessionFacts]) -> Disconnected:
    for each in found:
        await context.port.disconnect(each.session_id)
    first, *more = [Session(id=each.session_id, topic=each.topic, name=each.name) for each in found]
    return Disconnected(id=first.id, topic=first.topic, name=first.name, more=more or None)
