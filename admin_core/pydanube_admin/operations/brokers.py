"""Operations on brokers: list, describe, status, settings, logs, unload, activate."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any, ClassVar, Final, Literal

import anyio
from pydantic import Field
from pydanube_core.balance import BrokerLoad, Resource
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import (
    ClusterError,
    Conflict,
    Draining,
    InvalidArgument,
    LastBroker,
    MetadataUnavailable,
    Unavailable,
)
from pydanube_core.facts import BrokerAddress, BrokerFacts, TopicFacts
from pydanube_core.names import SYSTEM_NAMESPACE
from pydanube_core.units import counted, format_time, parse_moment_ms

from pydanube_admin.engine.broker_names import BROKER, MAX_CHARS
from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.following import LOOK_S, FollowedMoves
from pydanube_admin.engine.forecast import Forecast, blast_radius, entry
from pydanube_admin.engine.models import (
    SINCE_DESCRIPTION,
    Change,
    Effect,
    NotSeen,
    Page,
    Place,
    Request,
    Result,
    SortedListRequest,
)
from pydanube_admin.engine.operation import next_call, operation
from pydanube_admin.engine.paging import glob, page_of
from pydanube_admin.gone_owners import GONE, STORES_S, GoneOwner, gone_owner
from pydanube_admin.operations.topic_moves import owner_of
from pydanube_admin.peers import not_seen, unseen

MAX_NAMES_CHARS: Final = 4096  # of namespaces with commas between


class ReasonItem(Result):
    code: str
    message: str


class BrokerStatus(Result):
    """The broker as it is now: the same object as `GET /status`."""

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
    name: str = ""  # as in brokers.list. Empty: the broker is of an older build


class BrokerItem(Result):
    identity: ClassVar = ("broker_id",)

    broker_id: str
    # Empty: as of an older build
    name: str = ""  # its setting server.name, else host and port of its clients' port, else its id
    state: str  # starting | active | read_only | draining | drained | gone: not registered, and topics or its audit wait for it
    leader: bool
    zone: str | None  # its setting server.zone
    version: str | None
    version_reason: str | None = None  # gone
    uptime_s: float | None
    uptime_s_reason: str | None = None  # gone
    heard_s_ago: float | None  # 0: it answered this call
    heard_s_ago_reason: str | None = None  # gone_before_this_start
    topics: int  # topics that it serves, or that wait for it
    load: dict[str, float]  # cpu, in_bytes_s, out_bytes_s, disk_bytes. A key without a sample yet is absent
    capacity: dict[str, float]  # of the same keys, without those that are unknown. cpu: processors
    ready: bool
    listen: dict[str, str]
    journal: dict[str, Any] | None = Field(  # {id, term, state: open | closing | closed, copies, on_loss,
        default=None  # copied_lag_bytes, copied_lag_ms: null without copies}. Null for a lone broker, or without metadata
    )


class BrokerRequest(Request):
    broker_id: Annotated[
        str | None, Field(max_length=MAX_CHARS, description="Id, name or URL. Default: this broker"), BROKER
    ] = None


class SettingItem(Result):
    name: str
    value: str
    default: str
    source: str
    description: str


class BrokerConfig(Result):
    broker_id: str
    settings: list[SettingItem]  # those that differ from their default first


class LogsRequest(BrokerRequest):
    lines: Annotated[int, Field(ge=1, le=500, description="Most lines, the last")] = 100
    level: Annotated[
        Literal["debug", "info", "warning", "error"] | None, Field(description="Only this level and above")
    ] = None
    since: Annotated[str | None, Field(max_length=64, description=SINCE_DESCRIPTION)] = None


class BrokerLogs(Result):
    broker_id: str
    items: list[dict[str, Any]]  # {time, level, event, untrusted: {text}}: a line may quote what clients sent


class Leader(Result):
    broker_id: str
    admin_url: str | None


class Metrics(Result):
    """Counters since the broker started. A rate is the difference of two answers over the time between them."""

    topics: int
    subscriptions: int
    producers: int
    consumers: int
    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int = 0  # 0 from a broker of an older build
    redelivered: int
    publish_rejected: int
    dropped: int
    lag_messages: int
    stored_bytes: int
    uptime_s: float
    as_of: str


class ClusterMetrics(Metrics):
    brokers: int
    # Those that did not answer, and whose counts are missing
    not_seen: list[NotSeen] | None = Field(default=None, exclude_if=lambda value: value is None)


class BrokerMetricsResult(Metrics):
    broker_id: str


class BrokerChangeRequest(Request):
    broker_id: Annotated[
        str,
        Field(min_length=1, max_length=MAX_CHARS, description="Id, name or URL, as in brokers.list"),
        BROKER,
    ]


class UnloadBrokerRequest(BrokerChangeRequest):
    namespaces: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=MAX_NAMES_CHARS,
            description="Only of these namespaces, commas between. The broker stays active",
        ),
    ] = None
    except_namespaces: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=MAX_NAMES_CHARS,
            description="Namespaces whose topics stay, commas between. Default: none",
        ),
    ] = None

    @property
    def is_filtered(self) -> bool:
        return self.namespaces is not None or self.except_namespaces is not None

    def selects(self, topic: str) -> bool:
        """Return whether the topic's namespace is one of those to unload. A broker keeps its own topics."""
        namespace = topic.split("/")[1]
        included = self.namespaces is None or namespace in _namespaces(self.namespaces)
        excluded = _namespaces(self.except_namespaces or "") | {SYSTEM_NAMESPACE}
        return included and namespace not in excluded


def _namespaces(given: str) -> frozenset[str]:
    return frozenset(each.strip().strip("/") for each in given.split(","))


class ChangedBroker(Change):
    broker_id: str
    state: str


class UnloadedBroker(ChangedBroker):
    topics: int  # topics that were to leave when the call was made
    not_begun: dict[str, str] = Field(default_factory=dict)  # topic → why, of a call with namespaces
    task_id: str | None = None  # of the task that follows the moves. None in the task's own result


@operation(
    "brokers.status",
    at=Place.BROKER,
    effect=Effect.READ,
    tool="get_broker_status",
    title="Broker status",
    summary="Show the broker: readiness and reasons, version, uptime, durability, disk, journal, cold tier.",
    default_profile=True,
    examples=(Example({}, "the broker that answers"),),
)
async def broker_status(context: Context, request: BrokerRequest) -> BrokerStatus:
    facts = await this_broker(context, request.broker_id)
    return BrokerStatus.of(
        facts,
        uptime_s=round(facts.uptime_s, 3),
        reasons=[ReasonItem(code=reason.code, message=reason.message) for reason in facts.reasons],
    )


async def this_broker(context: Context, broker_id: str | None) -> BrokerFacts:
    """Return the broker of the request, which is this one: a call about another was relayed there."""
    facts = await context.port.status()
    if broker_id not in (None, facts.broker_id):
        gone = await gone_owner(context.port, broker_id or "") if context.port.several else None
        if gone is not None:
            raise gone.own_error()
        raise InvalidArgument(
            f"there is no broker {broker_id!r} that is registered now. This one is {facts.broker_id}",
            field="broker_id",
            value=broker_id,
        ).followed_by(next_call("brokers.list", {}, "shows the brokers there are"))
    return facts


@operation(
    "brokers.list",
    effect=Effect.READ,
    summary="List brokers with state, version, topics and addresses.",
    default_profile=True,
    examples=(Example({}, "those that are registered, and those that are gone"),),
)
async def list_brokers(context: Context, request: SortedListRequest) -> Page[BrokerItem]:
    leading, matches = await context.port.leader(), glob(request.filter)
    members = {each.broker_id: each for each in context.port.known_brokers()}

    def name(broker_id: str) -> str:
        return members[broker_id].shown_name if broker_id in members else broker_id

    def wanted(broker_id: str) -> bool:
        return matches(broker_id) or matches(name(broker_id))

    statuses = [facts for facts in await context.port.statuses() if wanted(facts.broker_id)]
    journals: Mapping[str, Mapping[str, Any]] = {}
    with suppress(MetadataUnavailable), anyio.move_on_after(STORES_S):  # the brokers answer without it
        journals = await context.port.journals()
    loads = {each.broker.broker_id: each.broker for each in await context.port.loads()}
    found = [
        BrokerItem.of(
            each,
            name=name(each.broker_id),
            state=_state(each, members.get(each.broker_id)),
            zone=(members[each.broker_id].zone or None) if each.broker_id in members else None,
            leader=leading is not None and each.broker_id == leading.broker_id,
            uptime_s=round(each.uptime_s, 3),
            heard_s_ago=0.0,
            load={**_amounts(loads, each, "load"), "disk_bytes": each.journal["bytes"]},
            capacity=_amounts(loads, each, "capacity"),
            journal=_journal(each, journals.get(each.broker_id)),
        )
        for each in statuses
    ]
    answered = {each.broker_id for each in found}
    for broker_id in sorted(await context.port.missed()):
        if wanted(broker_id) and broker_id not in answered:
            gone = await gone_owner(context.port, broker_id)
            if gone is not None:
                found.append(_gone_item(gone, name(broker_id), context.now_ms(), journals.get(broker_id)))
    return await page_of(
        context,
        BrokerItem,
        found,
        lambda each: each,
        key=lambda each: (each.broker_id,),
        request=request,
    )


def _journal(facts: BrokerFacts, record: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a broker's journal record, and how far its copy in the object store is behind. None for a lone broker."""
    if record is None:
        return None
    lag = {name: facts.journal.get(name) for name in ("copied_lag_bytes", "copied_lag_ms")}
    return {**record, **lag}


_AMOUNTS: Final = {
    Resource.CPU: "cpu",
    Resource.NETWORK_IN: "in_bytes_s",
    Resource.NETWORK_OUT: "out_bytes_s",
}


def _amounts(
    loads: Mapping[str, BrokerLoad], broker: BrokerFacts, of: Literal["load", "capacity"]
) -> dict[str, float]:
    found = loads.get(broker.broker_id)
    known: Mapping[Resource, float] = {} if found is None else getattr(found, of)
    return {_AMOUNTS[resource]: round(amount, 3) for resource, amount in known.items()}


def _gone_item(gone: GoneOwner, name: str, now_ms: int, journal: Mapping[str, Any] | None) -> BrokerItem:
    heard_ms = gone.gone_since_ms or gone.reported_at_ms
    return BrokerItem(
        broker_id=gone.broker_id,
        name=name,
        state=GONE,
        leader=False,
        zone=None,
        version=None,
        version_reason=GONE,
        uptime_s=None,
        uptime_s_reason=GONE,
        heard_s_ago=None if heard_ms is None else max(0, now_ms - heard_ms) / 1000,
        heard_s_ago_reason="gone_before_this_start" if heard_ms is None else None,
        topics=gone.topics,
        load={},
        capacity={},
        ready=False,
        listen={},
        journal=None if journal is None else dict(journal),
    )


def _state(facts: BrokerFacts, registered: BrokerAddress | None) -> str:
    if any(reason.code == Draining.code for reason in facts.reasons):
        return "draining"
    return (registered.state if registered else "") or "active"


@operation(
    "brokers.describe",
    at=Place.BROKER,
    effect=Effect.READ,
    title="Describe a broker",
    summary="Show one broker: readiness, disk, journal, cold tier.",
    examples=(Example({}, "the one that answers"),),
)
async def describe_broker(context: Context, request: BrokerRequest) -> BrokerStatus:
    return await broker_status(context, request)


@operation(
    "brokers.config",
    at=Place.BROKER,
    effect=Effect.READ,
    tool="get_broker_config",
    title="Settings of a broker",
    summary="Show the settings in force and where each came from.",
    examples=(Example({}, "the one that answers"),),
)
async def broker_config(context: Context, request: BrokerRequest) -> BrokerConfig:
    facts = await this_broker(context, request.broker_id)
    found = sorted(await context.port.settings(), key=lambda each: each.value == each.default)
    return BrokerConfig(broker_id=facts.broker_id, settings=[SettingItem.of(each) for each in found])


@operation(
    "brokers.logs",
    at=Place.BROKER,
    effect=Effect.READ,
    tool="get_broker_logs",
    title="Log of a broker",
    summary="Show the last events of the broker's own log.",
    examples=(Example({"level": "warning"}, "warnings and errors"),),
)
async def broker_logs(context: Context, request: LogsRequest) -> BrokerLogs:
    facts = await this_broker(context, request.broker_id)
    since_ms = (
        None
        if request.since is None
        else parse_moment_ms(request.since, now_ms=context.now_ms(), field="since")
    )
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


@operation(
    "brokers.leader",
    effect=Effect.READ,
    tool="get_leader",
    title="Leader",
    summary="Show which broker leads the cluster.",
    examples=(Example({}, "a lone broker leads itself"),),
)
async def leader(context: Context, request: Request) -> Leader:
    found = await context.port.leader()
    if found is None:
        raise Unavailable("no broker leads the cluster now: try again in a moment", retry_after_ms=1000)
    return Leader(broker_id=found.broker_id, admin_url=found.admin_url)


async def metrics_of(context: Context, port: ClusterPort, topic: str | None) -> dict[str, Any]:
    """Return the counters of one topic, or of all except the brokers' own."""
    traffic = asdict(await port.traffic(topic))
    logs = traffic.pop("logs")
    return {
        **traffic,
        "topics": logs if topic is None else 1,
        "uptime_s": round((await context.port.status()).uptime_s, 3),
        "as_of": format_time(context.now_ms()),
    }


@operation(
    "cluster.metrics",
    effect=Effect.READ,
    tool="get_cluster_metrics",
    title="Metrics of the cluster",
    summary="Show counters of the cluster: messages and bytes in and out, lag, refusals.",
    examples=(Example({}, "all topics together"),),
)
async def cluster_metrics(context: Context, request: Request) -> ClusterMetrics:
    counted = await metrics_of(context, context.port, None)
    return ClusterMetrics(brokers=len(await context.port.members()), not_seen=not_seen(unseen()), **counted)


@operation(
    "brokers.metrics",
    at=Place.BROKER,
    effect=Effect.READ,
    tool="get_broker_metrics",
    title="Metrics of a broker",
    summary="Show counters of one broker since it started.",
    examples=(Example({}, "the one that answers"),),
)
async def broker_metrics(context: Context, request: BrokerRequest) -> BrokerMetricsResult:
    facts = await this_broker(context, request.broker_id)
    return BrokerMetricsResult(
        broker_id=facts.broker_id, **await metrics_of(context, context.port.this, None)
    )


async def forecast_unload(context: Context, request: UnloadBrokerRequest) -> Forecast:
    facts = await this_broker(context, request.broker_id)
    if not set(await context.port.takers()) - {facts.broker_id}:
        raise LastBroker(
            f"the topics of broker {facts.broker_id} have nowhere to go: no other broker takes any",
            field="broker_id",
            value=facts.broker_id,
        )
    served = await _served(context, facts, request)
    radius = blast_radius(
        topics=len(served),
        subscriptions=sum(len(log.subscriptions) for log in served.values()),
        consumers=sum(log.consumers for log in served.values()),
    )
    if request.is_filtered:
        ids = {topic: str(log.topic_id) for topic, log in served.items()}
        planned: Mapping[str, str] = ids if context.pinned is None else context.pinned["topics"]
        now = {topic: ids.get(topic) for topic in planned}
        owners = {
            topic: facts.broker_id if topic in served else await owner_of(context, topic)
            for topic in sorted(planned)
        }
        return Forecast(
            diff=[entry(f"topics{topic}/owner", owner, "another broker") for topic, owner in owners.items()],
            blast_radius=radius,
            basis=[facts.broker_id, now],
            pinned={"topics": now},
        )
    state = await _state_now(context, facts)
    return Forecast(
        diff=[entry(f"brokers/{facts.broker_id}/state", state, "draining")],
        blast_radius=radius,
        basis=[facts.broker_id, state],
    )


async def _served(
    context: Context, facts: BrokerFacts, request: UnloadBrokerRequest
) -> dict[str, TopicFacts]:
    """Return the topics that this broker serves in the selected namespaces, each partition by its own name."""
    names = [
        key.topic
        for key in await context.port.topic_index()
        if facts.broker_id in key.owners and request.selects(key.topic)
    ]
    found = await context.port.this.topic_facts(names)
    return {log.topic: log for whole, *parts in found for log in parts or [whole]}


async def _state_now(context: Context, facts: BrokerFacts) -> str:
    members = {each.broker_id: each for each in await context.port.members()}
    return _state(facts, members.get(facts.broker_id))


@operation(
    "brokers.unload",
    at=Place.BROKER,
    effect=Effect.CHANGE,
    title="Unload a broker",
    permission="brokers:change",
    summary="Move all topics of a broker to others. A lone broker answers LAST_BROKER.",
    forecast=forecast_unload,
    followed=True,
    examples=(
        Example({"broker_id": "10203040506070809"}, "before maintenance"),
        Example({"broker_id": "10203040506070809", "namespaces": "billing,audit"}, "of two namespaces alone"),
    ),
)
async def unload_broker(context: Context, request: UnloadBrokerRequest) -> UnloadedBroker:
    """Begin to hand over a broker's topics. Without namespaces it gets no new ones until it is activated."""
    facts, tasks = await this_broker(context, request.broker_id), context.executor.tasks
    tasks.check_follow()
    if request.is_filtered:
        return await _move_selected(context, facts, request)
    await context.port.unload()
    task_id = await tasks.follow(
        context, request.model_dump(exclude_none=True), _until_drained(context, facts)
    )
    return UnloadedBroker(broker_id=facts.broker_id, state="draining", topics=facts.topics, task_id=task_id)


async def _move_selected(
    context: Context, facts: BrokerFacts, request: UnloadBrokerRequest
) -> UnloadedBroker:
    """Begin to move the topics of some namespaces. A topic that cannot move is reported, and the others go on."""
    assert context.pinned is not None, "the forecast gives the topics"
    selected, tasks = sorted(context.pinned["topics"]), context.executor.tasks
    followed, not_begun = await FollowedMoves.of(context.port), dict[str, str]()
    for topic in selected:
        try:
            followed.add(await context.port.move_topic(topic))
        except ClusterError as error:
            not_begun[topic] = error.message
    done = UnloadedBroker(
        broker_id=facts.broker_id,
        state=await _state_now(context, facts),
        topics=len(selected),
        not_begun=not_begun,
    )

    async def begin(one: str) -> str:
        return (await context.port.move_topic(one))[one]

    async def follow() -> UnloadedBroker:
        await followed.until_over(begin, lambda work: tasks.report_progress(context.call_id, *work))
        return done

    task_id = await tasks.follow(context, request.model_dump(exclude_none=True), follow())
    return done.model_copy(update={"task_id": task_id})


async def _until_drained(context: Context, before: BrokerFacts) -> UnloadedBroker:
    """Wait until a broker has handed all topics over. Raises `Conflict`: it was activated before."""
    begun = False
    while True:
        facts = await context.port.status()
        state = await _state_now(context, facts)
        begun = begun or state == "draining"
        if state == "drained":
            return UnloadedBroker(broker_id=facts.broker_id, state=state, topics=before.topics)
        if begun and state == "active":
            raise Conflict(
                f"broker {facts.broker_id} takes topics again: it was activated when {counted(facts.topics, 'topic was', 'topics were')} "
                "left",
                broker_id=facts.broker_id,
                retryable=False,
            )
        done = max(0, before.topics - facts.topics)
        context.executor.tasks.report_progress(
            context.call_id, {"done": done, "total": max(before.topics, facts.topics), "unit": "topics"}
        )
        await anyio.sleep(LOOK_S)


async def forecast_activate(context: Context, request: BrokerChangeRequest) -> Forecast:
    facts = await this_broker(context, request.broker_id)
    path, before = f"brokers/{facts.broker_id}/state", await _state_now(context, facts)
    return Forecast(diff=[] if before == "active" else [entry(path, before, "active")])


@operation(
    "brokers.activate",
    at=Place.BROKER,
    effect=Effect.CHANGE,
    title="Activate a broker",
    permission="brokers:change",
    summary="Let a broker take topics again.",
    forecast=forecast_activate,
    examples=(Example({"broker_id": "10203040506070809"}, "after maintenance"),),
)
async def activate_broker(context: Context, request: BrokerChangeRequest) -> ChangedBroker:
    """Let a broker take topics again. A lone broker always does: nothing is changed."""
    facts = await this_broker(context, request.broker_id)
    return ChangedBroker(broker_id=facts.broker_id, state=await context.port.activate())
