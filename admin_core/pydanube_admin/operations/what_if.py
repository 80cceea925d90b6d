"""Compute what a change would come to, from what is measured now. Nothing is planned, kept or changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, assert_never

from pydantic import Field, WithJsonSchema
from pydanube_core.balance import LoadReport, Resource
from pydanube_core.errors import InvalidArgument
from pydanube_core.facts import JUMP, LEASE_S, TopicFacts
from pydanube_core.names import TopicName
from pydanube_core.projection import Outlook, Pace, full_in_days, kept_bytes, outlook
from pydanube_core.units import format_time

from pydanube_admin.engine.broker_names import BROKER, MAX_CHARS
from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.models import Effect, OptionalTopic, Place, Request, Result
from pydanube_admin.engine.operation import next_call, operation
from pydanube_admin.engine.permission import Sight
from pydanube_admin.operations.broker_stops import may_stop_broker
from pydanube_admin.operations.brokers import BrokerRequest
from pydanube_admin.operations.namespaces import Policies, with_changes
from pydanube_admin.operations.subscriptions import no_such_subscription
from pydanube_admin.operations.topics import Topic, find_topic

MOST_SUBSCRIPTIONS: Final = 10  # of a topic, those furthest behind
LEAST_RATIO: Final = 0.001  # of a compression. A ratio outside compares gaps of offsets, not messages
MOST_RATIO: Final = 10.0
MOST_POLICIES: Final = 1000  # subscriptions whose failure policy is read for one answer
ALONE: Final = frozenset(("exclusive", "failover"))  # one consumer works, the others wait or are refused


class WhatIfRequest(Request):
    scenario: Annotated[
        Literal["broker_lost", "consumers", "load", "retention", "topic_deleted"],
        Field(description="What happens"),
    ]
    broker_id: Annotated[
        str | None, Field(max_length=MAX_CHARS, description="Only for broker_lost"), BROKER
    ] = None
    topic: OptionalTopic = None
    subscription: Annotated[str | None, Field(max_length=256, description="Only for consumers")] = None
    factor: Annotated[int, Field(ge=1, le=1000, description="For consumers, load: times this number")] = 2
    policies: Annotated[
        Policies | None,
        # Without the names, which the schema of set_topic_policies has
        WithJsonSchema({"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}}),
        Field(description="Only for retention: as set_topic_policies"),
    ] = None


class Unknown(Result):
    what: str
    why: str


class WhatIf(Result):
    """The outcome of a scenario, computed from `as_of`. Rates are a second."""

    scenario: str
    as_of: str
    outcome: dict[str, Any]
    assumptions: list[str]
    unknown: list[Unknown]
    next: list[dict[str, Any]]


class _Found:
    """The parts of an answer, gathered."""

    def __init__(self) -> None:
        self.outcome: dict[str, Any] = {}
        self.assumptions: list[str] = []
        self.unknown: list[Unknown] = []
        self.next: list[dict[str, Any]] = []

    def not_known(self, what: str, why: str) -> None:
        self.unknown.append(Unknown(what=what, why=why))


@operation(
    "cluster.what_if",
    effect=Effect.READ,
    at=Place.BROKER,
    tool="what_if",
    title="Compute a scenario",
    summary="Compute the effects of a lost broker, more consumers, more load, retention, or a deletion.",
    default_profile=True,
    examples=(
        Example({"scenario": "load", "factor": 3}, "three times the messages: disks and lag"),
        Example({"scenario": "consumers", "topic": "orders", "subscription": "billing"}, "twice as many"),
    ),
)
async def what_if(context: Context, request: WhatIfRequest) -> WhatIf:
    found = _Found()
    match request.scenario:
        case "broker_lost":
            await _broker_lost(context, request, found)
        case "consumers":
            await _consumers(context, request, found)
        case "load":
            await _load(context, request, found)
        case "retention":
            await _retention(context, request, found)
        case "topic_deleted":
            await _topic_deleted(context, request, found)
        case _:
            assert_never(request.scenario)
    return WhatIf(
        scenario=request.scenario,
        as_of=format_time(context.now_ms()),
        outcome=found.outcome,
        assumptions=found.assumptions,
        unknown=found.unknown,
        next=found.next,
    )


async def _broker_lost(context: Context, request: WhatIfRequest, found: _Found) -> None:
    if request.topic is not None:  # the permission was checked where the topic is
        raise InvalidArgument(
            "broker_lost is about a whole broker: leave topic out", field="topic", value=request.topic
        )
    stop = await may_stop_broker(context, BrokerRequest(broker_id=request.broker_id))
    found.outcome = stop.model_dump(
        include={"broker_id", "would_wait", "would_be_taken_over", "not_named", "would_lose"}
    )
    found.outcome["without_an_owner_s"] = LEASE_S
    found.assumptions += [
        "the broker and its disk are lost, and it does not come back",
        f"it stops without a word, so its topics have no owner for up to {LEASE_S} s, until its lease ends",
        "the other brokers and the object store go on",
    ]
    found.not_known("load of the others", "their share depends on where each topic is taken over")
    if stop.would_lose is not None and stop.would_lose["ms"] is None:
        found.not_known("would_lose.ms", "the oldest of these messages is not in memory")
    found.next.append(next_call("cluster.balance", {}, "shows how loaded each broker is now"))


async def _consumers(context: Context, request: WhatIfRequest, found: _Found) -> None:
    topic = await _topic(context, request)
    if request.subscription is None:
        raise _missing(request, "subscription")
    if request.subscription not in topic.subscriptions:
        raise await no_such_subscription(context, topic.own.topic, request.subscription)
    parts = await context.port.subscriptions(topic.own.topic, request.subscription)
    kind, logs = parts[0].type, max(1, len(parts))
    names = {each.name for part in parts for each in part.consumers}
    then = round(len(names) * request.factor)
    working, would_work = len(names), then
    if kind in ALONE:
        working, would_work = min(working, logs), min(then, logs)
        found.assumptions.append(
            f"{kind}: one consumer {'works' if logs == 1 else f'of each of the {logs} logs works'}, the others do not"
        )
    limits = (await context.port.topic_policies(topic.own.topic)).effective
    for key in ("max_consumers_per_subscription", "max_consumers_per_topic"):
        if 0 < (allowed := limits.get(key) or 0) < then:
            would_work = min(would_work, max(working, allowed))
            found.assumptions.append(f"{key} allows {allowed}: further consumers are refused")
    found.outcome = {
        "type": kind,
        "consumers": len(names),
        "consumers_then": then,
        "working_then": would_work,
    }
    pace = (await _paces(context, topic, request.subscription, found))[1].get(request.subscription)
    if not working:
        found.not_known("rate of a consumer", "no consumer is connected")
    if pace is None or not working:
        return
    rate = limits.get("max_subscription_dispatch_rate")
    most = float(rate * logs) if rate else None
    found.outcome["now"] = _shown(outlook(pace))
    found.outcome["then"] = _shown(outlook(pace, workers=would_work / working, most=most))
    found.assumptions.append("linear: each further consumer acknowledges as fast as the present ones do")
    found.assumptions.append("the publish rate stays as it is")
    if most is not None:
        found.assumptions.append(f"max_subscription_dispatch_rate allows {most:g} messages a second")
    if pace.keeps_up:
        found.not_known("the consumers' highest rate", "they keep up, so only the rate of arrival was seen")
    if kind == "key-shared":
        found.not_known(
            "the hottest key", "one consumer handles all messages of a key, however many there are"
        )
    found.not_known("what consumers share", "a database or service behind them may be the limit")


async def _load(context: Context, request: WhatIfRequest, found: _Found) -> None:
    found.outcome["factor"] = request.factor
    found.assumptions += [
        "messages keep their size, consumers their pace, and each log its share of them",
        "no quota slows producers",
    ]
    found.not_known("processors and network", "only lag and disks are computed")
    if request.topic is not None:
        topic = await find_topic(context, request.topic)
        produced, paces = await _paces(context, topic, None, found)
        found.outcome["subscriptions"] = {
            name: {"now": _shown(outlook(pace)), "then": with_load(pace, request.factor)}
            for name, pace in paces.items()
        }
        for name, pace in paces.items():
            if pace.keeps_up:
                found.not_known(
                    f"the highest rate of {name}", "it keeps up, so only the rate of arrival was seen"
                )
        limits = (await context.port.topic_policies(topic.own.topic)).effective
        rate = limits.get("max_publish_rate") or None
        if produced is None:
            found.not_known("publish rate", "the broker has not observed the topic for long enough")
        if rate is not None and produced is not None:
            logs = len(topic.logs)
            found.outcome["publish_limit"] = rate * logs
            found.outcome["refused_per_s"] = max(0.0, round(produced * request.factor - rate * logs, 3))
    if Sight(context.port, "cluster:read").everything:
        found.outcome["disks"] = await _disks(context, request, found)
    else:
        found.not_known("disks", "cluster:read is needed on the cluster")
    found.next.append(next_call("cluster.balance", {}, "shows processors and network of each broker"))


async def _disks(context: Context, request: WhatIfRequest, found: _Found) -> list[dict[str, Any]]:
    """Return when each disk is full, as things are and with the factor."""
    reports = {each.broker.broker_id: each for each in await context.port.loads()}
    disks = []
    for status in await context.port.statuses():
        free, guard = status.disk.get("free_bytes"), status.disk.get("guard_bytes") or 0
        report = reports.get(status.broker_id)
        written = None if report is None else report.broker.load.get(Resource.NETWORK_IN)
        if free is None or report is None or written is None:
            why = "it keeps nothing on a disk" if free is None else "it has not measured its load yet"
            found.not_known(f"disk of broker {status.broker_id}", why)
            continue
        more = _written_more(report, request)
        disks.append(
            {
                "broker_id": status.broker_id,
                "free_bytes": free,
                "bytes_per_s": round(written, 1),
                "bytes_per_s_then": round(written + more, 1),
                "full_in_days": _days(free, guard, written),
                "full_in_days_then": _days(free, guard, written + more),
            }
        )
    if disks:
        found.assumptions.append(
            "a disk takes every byte that is published, and nothing is deleted: retention and an object store "
            "only make the time longer"
        )
        found.assumptions.append(
            "bytes_per_s are bytes as the disk stores them, after the producers' compression, and further messages "
            "compress as well as those did"
        )
    return disks


def _written_more(report: LoadReport, request: WhatIfRequest) -> float:
    """Return the bytes a second that the factor adds at a broker: of one topic, or of all."""
    if request.topic is None:
        return report.broker.load[Resource.NETWORK_IN] * (request.factor - 1)
    return sum(_loads_of(report, request.topic)) * (request.factor - 1)


def _loads_of(report: LoadReport, topic: str) -> list[float]:
    """Return the bytes a second that a broker takes for each log of a topic."""
    name = TopicName.parse(topic)
    return [
        each.load.get(Resource.NETWORK_IN, 0.0)
        for each in report.topics
        if TopicName.parse(each.topic).base == name or each.topic == str(name)
    ]


def _days(free: int, guard: int, bytes_per_s: float) -> float | None:
    days = full_in_days(free_bytes=free, guard_bytes=guard, bytes_per_s=bytes_per_s)
    return None if days is None else round(days, 2)


def compression_of(logs: Sequence[TopicFacts]) -> float | None:
    """Return the bytes of a message in objects, divided by those of one in the journal.

    None if one of them is unknown, or if offsets do not count messages: a lossy take-over or a mirror skips some.
    """
    in_objects = in_journal = 0
    for log in logs:
        copied = max(log.start_offset, log.tiered_offset or 0)
        if log.next_offset - log.start_offset >= JUMP:
            return None
        in_objects, in_journal = in_objects + copied - log.start_offset, in_journal + log.next_offset - copied
    objects, journal = sum(log.object_bytes for log in logs), sum(log.journal_bytes for log in logs)
    if not (objects and journal and in_objects and in_journal):
        return None
    ratio = round(objects / in_objects / (journal / in_journal), 3)
    return ratio if LEAST_RATIO <= ratio <= MOST_RATIO else None


async def _retention(context: Context, request: WhatIfRequest, found: _Found) -> None:
    topic = await _topic(context, request)
    if request.policies is None:
        raise _missing(request, "policies")
    given: dict[str, Any] = {str(name): value for name, value in request.policies.items()}
    name = topic.own.topic
    above = await context.port.namespace_policies(TopicName.parse(name).namespace)
    before = (await context.port.topic_policies(name)).effective
    after = with_changes(before, given, above.effective)
    loss = await context.port.forecast_retention({name: after})
    stored = sum(log.bytes for log in topic.logs)
    found.outcome = {
        "deleted_messages": loss.messages,
        "deleted_bytes": loss.bytes,
        "deleted_later_messages": loss.later_messages,
        "stored_bytes": stored,
    }
    compression = compression_of(topic.logs)
    if compression is not None:
        found.outcome["compression"] = compression
        found.assumptions.append(
            f"objects are as small as now: {compression:g} of the bytes in the journal, message by message"
        )
    else:
        found.assumptions.append("a message takes as many bytes in an object as in the journal")
        found.not_known(
            "compression", "it takes messages of the topic in objects, and others in the journal only"
        )
    per_s = await _bytes_per_s(context, name)
    if per_s is None:
        found.not_known("size in the end", "the broker has not measured this topic's load yet")
    else:
        logs = max(1, len(topic.logs))
        for key, policies in (("settles_at_bytes", before), ("settles_at_bytes_then", after)):
            limit = policies.get("retention_bytes") or None
            found.outcome[key] = kept_bytes(
                stored_bytes=stored,
                bytes_per_s=per_s * (compression or 1.0),
                age_s=policies.get("retention_age_s") or None,
                limit_bytes=None if limit is None else limit * logs,
            )
        found.assumptions.append(
            f"publishing goes on at {per_s:g} bytes a second. settles_at_bytes is null if the topic grows without an end"
        )
    if loss.waits_for_cursors:
        found.assumptions.append(
            "retention waits for cursors: unread messages stay until they are acknowledged"
        )
    found.next.append(
        next_call(
            "topics.set_policies",
            {"topic": name, "policies": given, "plan_only": True},
            "plans it",
        )
    )


async def _topic_deleted(context: Context, request: WhatIfRequest, found: _Found) -> None:
    topic = await _topic(context, request)
    name = topic.own.topic
    parts = await context.port.subscriptions(name, None)
    unread: dict[str, int] = {}
    for part in parts:
        unread[part.subscription] = unread.get(part.subscription, 0) + part.state.lag_messages
    furthest = sorted(unread.items(), key=lambda one: (-one[1], one[0]))[:MOST_SUBSCRIPTIONS]
    found.outcome = {
        "messages": sum(log.messages for log in topic.logs),
        "bytes": sum(log.bytes for log in topic.logs),
        "producers_refused": topic.producers,
        "consumers_refused": topic.consumers,
        "subscriptions": len(unread),
        "unread_messages": dict(furthest),
        "named_by": await _named_by(context, name, found),
    }
    found.assumptions += [
        "clients of the topic do not make it again",
        "the deletion can be undone until the undo_until of its result, if its plan is reversible",
    ]
    found.not_known("programs that are not connected now", "only connections and declarations are recorded")
    found.next.append(next_call("topics.delete", {"topic": name, "plan_only": True}, "plans it"))


async def _named_by(context: Context, name: str, found: _Found) -> list[dict[str, str]]:
    """Return what declares the topic by name: dead letters of other subscriptions, and links."""
    sight = Sight(context.port, "topics:read")
    named = [
        {"kind": "link", "name": link.link}
        for link in (await context.port.links() if sight.everything else ())
        if any(str(TopicName.parse(mirror.topic).base) == name for mirror in link.mirrors)
    ]
    index = await context.port.lag_index(None, None)
    keys = [key for key in index if key.topic != name and sight.topic(key.topic)]
    pairs = list(dict.fromkeys((key.topic, key.subscription) for key in keys))
    for topic, subscription in pairs[:MOST_POLICIES]:
        policy = await context.port.failure_policy(topic, subscription)
        if policy.get("dead_letter_topic") == name:
            named.append({"kind": "dead_letters", "name": f"{topic} {subscription}"})
    if len(pairs) > MOST_POLICIES:
        found.not_known("dead letters", f"only {MOST_POLICIES} of {len(pairs)} subscriptions were looked at")
    if not sight.everything:
        found.not_known("links, and topics that are not visible", "topics:read is needed on the cluster")
    found.not_known("connectors", "their settings are not searched for topics")
    return named


async def _paces(
    context: Context, topic: Topic, subscription: str | None, found: _Found
) -> tuple[float | None, dict[str, Pace]]:
    """Return the measured publish rate, and the pace of the topic's subscriptions, those furthest behind first."""
    history = await context.port.topic_history(topic.own.topic, subscription, most=MOST_SUBSCRIPTIONS)
    produced = _per_s(history.times_ms, history.published)
    paces = {}
    for name, cursor in history.cursors.items():
        consumed = _per_s(history.times_ms, cursor.acknowledged)
        lag = next((one for one in reversed(cursor.lag_messages) if one is not None), None)
        if produced is None or consumed is None or lag is None:
            found.not_known(f"pace of {name}", "the broker has not observed it for long enough")
        else:
            paces[name] = Pace(produced=produced, consumed=consumed, lag_messages=lag)
    if history.more_cursors:
        found.not_known("further subscriptions", f"{history.more_cursors} are less far behind than these")
    return produced, paces


def _per_s(times_ms: Sequence[int], totals: Sequence[int | None]) -> float | None:
    """Return the rate over the observed time, None with fewer than two points of one start of the broker."""
    points = [(time, total) for time, total in zip(times_ms, totals, strict=True) if total is not None]
    for at in range(len(points) - 1, 0, -1):
        if points[at][1] < points[at - 1][1]:  # counters began anew
            points = points[at:]
            break
    if len(points) < 2 or points[-1][0] <= points[0][0]:
        return None
    return (points[-1][1] - points[0][1]) * 1000 / (points[-1][0] - points[0][0])


async def _bytes_per_s(context: Context, name: str) -> float | None:
    loads = [load for report in await context.port.loads() for load in _loads_of(report, name)]
    return round(sum(loads), 1) if loads else None


def _shown(found: Outlook) -> dict[str, float | None]:
    return {
        "produced_per_s": round(found.produced, 3),
        "acknowledged_per_s": round(found.consumed, 3),
        "lag_grows_per_s": round(found.grows_per_s, 3),
        "drains_in_s": None if found.drains_in_s is None else round(found.drains_in_s, 1),
    }


def with_load(pace: Pace, factor: int) -> dict[str, float | None]:
    """Return the outlook with more load. Consumers that keep up were not seen at their highest rate."""
    found = _shown(outlook(pace, load=factor))
    if pace.keeps_up and factor > 1:
        return {**dict.fromkeys(found), "produced_per_s": found["produced_per_s"]}
    return found


async def _topic(context: Context, request: WhatIfRequest) -> Topic:
    if request.topic is None:
        raise _missing(request, "topic")
    return await find_topic(context, request.topic)


def _missing(request: WhatIfRequest, field: str) -> InvalidArgument:
    return InvalidArgument(f"scenario {request.scenario!r} needs {field!r}: give it", field=field, value=None)
