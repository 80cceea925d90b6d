"""Connectors that workers run: declare, change, pause and delete them, and show what their workers report."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydanube_core.connectors import (
    CONNECTORS,
    EPOCHS,
    MOST_CONNECTORS,
    MOST_DEFINITION_CHARS,
    MOST_PARTS,
    REPORT_COUNTS_MS,
    REPORTS,
    ConnectorRecord,
    check_definition,
    connector_key,
    topics_of,
)
from pydanube_core.diagnosis.connectors import ConnectorView, connector_findings
from pydanube_core.diagnosis.findings import Finding
from pydanube_core.errors import ConnectorNotFound, TopicNotFound
from pydanube_core.facts import MessageFacts
from pydanube_core.units import format_time

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.declared_records import DeclaredRecords, paused_or_not, undone_pause
from pydanube_admin.engine.models import Change, Effect, Page, Request, Result, SortedListRequest
from pydanube_admin.engine.operation import operation
from pydanube_admin.engine.paging import glob, page_of
from pydanube_admin.operations.messages import CHUNK_BYTES
from pydanube_admin.operations.topics import find_topic

MOST_TEXT_CHARS: Final = 2_000  # of a text in a report
MOST_SHARDS: Final = 10_000  # with a position each
MOST_REPORTS: Final = 500  # messages: 60 workers in the time that reports count
_BLOCK: Final = 50  # messages that are read together
MOST_MS: Final = 253_402_300_799_999  # the last millisecond of the year 9999
_ONLY_REPORTED: Final = {"error_code", "refused_per_min", "busy", "last_record_ms", "held_bytes"}
#: fields of reports whose values are added for the parts of a connector, and those of which the greatest counts
_SUMS: Final = ("rate", "records", "refused", "repeated", "retries", "refused_per_min")
_GREATEST: Final = ("lag_messages", "since_ms", "busy", "last_record_ms", "held_bytes")
CHANGE: Final = "connectors:change"


def _shown(record: ConnectorRecord) -> dict[str, Any]:
    return {"definition": record.definition, "group": record.group, "paused": record.paused}


RECORDS: Final = DeclaredRecords(
    kind="connector",
    prefix=CONNECTORS,
    key=connector_key,
    record=ConnectorRecord,
    shown=_shown,
    pinned=lambda record: record.to_bytes().decode(),
    missing=ConnectorNotFound,
)

NameArgument = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,79}$", description="Its name"),
]
DefinitionArgument = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MOST_DEFINITION_CHARS,
        description="TOML, with secrets as ${env:NAME}",
    ),
]
GroupArgument = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,79}$", description="Workers that run it: connect worker --group"
    ),
]


class ConnectorRequest(Request):
    connector: NameArgument


class CreateConnectorRequest(ConnectorRequest):
    definition: DefinitionArgument
    group: GroupArgument = "default"


class SetConnectorRequest(ConnectorRequest):
    definition: DefinitionArgument


class ConnectorItem(Result):
    identity: ClassVar = ("connector",)

    connector: str
    kind: str | None  # source, sink
    kind_reason: str | None = None
    type: str
    state: str  # starting, running, paused, failing, stopped
    group: str
    worker: str | None
    worker_reason: str | None = None
    topic: str | None
    rate: float | None  # records per second over the last minute
    lag_messages: int | None  # unread messages of a sink
    refused: int | None  # records refused since the connector started at this worker
    last_error: str | None
    since: str | None  # when the state began
    guarantee: str | None
    generation: int  # grows with each change and restart


class ConnectorDescription(ConnectorItem):
    topics: list[str]
    definition: str
    records: int | None
    repeated: int | None
    retries: int | None
    epoch: int  # grows when offsets of a sink are set
    position: dict[str, str]  # of each partition or shard, as the worker reported it last


class ChangedConnector(Change):
    connector: str
    group: str
    paused: bool
    generation: int


class DeletedConnector(Change):
    connector: str


#: texts and numbers of a report, which any producer may have written
Text = Annotated[str, AfterValidator(lambda text: text[:MOST_TEXT_CHARS])]
Count = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]


class Report(BaseModel):
    """A worker's report on one connector. Any producer may write to the topic, so values are checked."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    connector: Annotated[str, Field(max_length=200)]
    worker: Annotated[str, Field(max_length=200)]
    part: Annotated[int, Field(ge=0, lt=MOST_PARTS)] = 0
    state: Literal["starting", "running", "failing", "stopped"]
    kind: Literal["source", "sink"] | None = None
    guarantee: Text | None = None
    rate: float | None = None
    lag_messages: Count | None = None
    records: Count | None = None
    refused: Count | None = None
    repeated: Count | None = None
    retries: Count | None = None
    last_error: Text | None = None
    since_ms: Annotated[int, Field(ge=0, le=MOST_MS)] | None = None
    position: Annotated[dict[Text, Text], Field(max_length=MOST_SHARDS)] = {}
    error_code: Text | None = None
    refused_per_min: Count | None = None
    busy: float | None = None
    last_record_ms: Count | None = None
    held_bytes: Count | None = None


# -- reading -----------------------------------------------------------------------------------------------------


@operation(
    "connectors.list",
    effect=Effect.READ,
    summary="List declared connectors with state, worker, rate and last error.",
    examples=(Example({}, "every connector"),),
)
async def list_connectors(context: Context, request: SortedListRequest) -> Page[ConnectorItem]:
    matches = glob(request.filter)
    reports = await reports_of(context)
    records = [each for each in await RECORDS.all(context) if matches(each.name)]
    return await page_of(
        context,
        ConnectorItem,
        records,
        lambda record: ConnectorItem(**item_facts(record, reports.get(record.name))),
        key=lambda record: (record.name,),
        request=request,
    )


@operation(
    "connectors.describe",
    effect=Effect.READ,
    tool="describe_connector",
    title="Describe a connector",
    summary="Show a connector: its file, state, worker, counters, position and last error.",
    examples=(Example({"connector": "orders-delta"}, "one connector"),),
)
async def describe_connector(context: Context, request: ConnectorRequest) -> ConnectorDescription:
    record = await RECORDS.found(context, request.connector)
    report = (await reports_of(context)).get(record.name)
    return ConnectorDescription(
        **item_facts(record, report),
        topics=topics_of(record.tree),
        definition=record.definition,
        records=None if report is None else report.records,
        repeated=None if report is None else report.repeated,
        retries=None if report is None else report.retries,
        epoch=await epoch_of(context, record.name),
        position={} if report is None else report.position,
    )


async def findings_of_connectors(context: Context) -> list[Finding]:
    """Return the findings about the declared connectors."""
    records = await RECORDS.all(context)
    reports = await reports_of(context) if records else {}
    found: list[Finding] = []
    for record in records:
        report = reports.get(record.name)
        facts = item_facts(record, report)
        more: dict[str, Any] = {}
        if report is not None:
            more = report.model_dump(include=_ONLY_REPORTED)
        names = (
            "connector",
            "type",
            "kind",
            "group",
            "state",
            "worker",
            "last_error",
            "refused",
            "lag_messages",
        )
        view = ConnectorView(**{name: facts[name] for name in names}, **more)
        found += connector_findings(view, context.now_ms())
    return found


async def epoch_of(context: Context, name: str) -> int:
    """Return how many times the offsets of a sink of that name were set."""
    item = await context.port.read_state(EPOCHS + name)
    return 0 if item is None else int(item.value)


def item_facts(record: ConnectorRecord, report: Report | None) -> dict[str, Any]:
    """Return the fields of an item, from the record and the newest report that counts."""
    tree = record.tree
    topics = topics_of(tree)
    kind = report.kind if report is not None else None
    return {
        "connector": record.name,
        "kind": kind or kind_of(record),
        "kind_reason": "only its installation has its class, and no worker has reported it",
        "type": tree["connector"],
        "state": "paused" if record.paused else "stopped" if report is None else report.state,
        "group": record.group,
        "worker": None if report is None else report.worker,
        "worker_reason": "it is paused"
        if record.paused
        else f"no worker of the group {record.group} reports it. Start one: danube connect worker --group {record.group}",
        "topic": topics[0] if topics else None,
        "rate": None if report is None else report.rate,
        "lag_messages": None if report is None else report.lag_messages,
        "refused": None if report is None else report.refused,
        "last_error": None if report is None else report.last_error,
        "since": None if report is None or report.since_ms is None else format_time(report.since_ms),
        "guarantee": None if report is None else report.guarantee,
        "generation": record.generation,
    }


def kind_of(record: ConnectorRecord) -> str | None:
    _, _, kind = str(record.tree["connector"]).rpartition("-")
    return kind if kind in ("source", "sink") else None


def subscription_of(record: ConnectorRecord) -> str:
    delivery = record.tree.get("delivery")
    given = delivery.get("subscription") if isinstance(delivery, dict) else None
    return given if isinstance(given, str) else f"connect-{record.name}"


async def reports_of(context: Context) -> dict[str, Report]:
    """Return what the workers report of each connector, its parts as one.

    Of each worker the newest message counts, for `REPORT_COUNTS_MS`. Of a part the newest report counts.
    """
    since_ms = context.now_ms() - REPORT_COUNTS_MS
    found: dict[str, dict[int, Report]] = {}
    workers: set[str] = set()
    async for message in newest_first(context, REPORTS, MOST_REPORTS):
        if message.append_time_ms < since_ms:
            break
        body = json_object(message.payload)
        worker, connectors = body.get("worker"), body.get("connectors")
        if not isinstance(worker, str) or worker in workers:
            continue
        workers.add(worker)
        for each in connectors if isinstance(connectors, list) else ():
            with suppress(ValidationError, TypeError):
                report = Report(**{**each, "worker": worker})
                found.setdefault(report.connector, {}).setdefault(report.part, report)
    return {name: _merged([parts[part] for part in sorted(parts)]) for name, parts in found.items()}


def _merged(parts: list[Report]) -> Report:
    """Return the reports of a connector's parts as one. If one of several parts has stopped, the connector fails."""
    if len(parts) == 1:
        return parts[0]

    def known(field: str) -> list[Any]:
        return [value for each in parts if (value := getattr(each, field)) is not None]

    first = next((each for each in parts if each.error_code is not None), parts[0])
    states = {each.state for each in parts}
    failing = states & {"failing", "stopped"} and "failing"
    more: dict[str, Any] = {field: sum(known(field)) for field in _SUMS if known(field)}
    more |= {field: max(known(field)) for field in _GREATEST if known(field)}
    return first.model_copy(
        update=more
        | {
            "worker": ", ".join(sorted({each.worker for each in parts})),
            "state": first.state if len(states) == 1 else failing or "starting",
            "last_error": next(iter(known("last_error")), None)
            if first.error_code is None
            else first.last_error,
            "position": {place: at for each in parts for place, at in each.position.items()},
        }
    )


async def newest_first(context: Context, topic: str, count: int) -> AsyncIterator[MessageFacts]:
    """Yield up to `count` messages of each partition, the newest first. None if the topic does not exist."""
    try:
        logs = (await find_topic(context, topic)).logs
    except TopicNotFound:
        return
    for log in logs:
        end, block = log.next_offset, _BLOCK
        oldest = max(log.start_offset, end - count)
        while end > oldest:
            start = max(oldest, end - block)
            found = await context.port.read_messages(
                log.topic, start=start, end=end, max_messages=block, max_bytes=CHUNK_BYTES
            )
            if found and found[-1].offset + 1 < end and block > 1:
                block //= 2  # they are large: any producer may write to these topics
                continue
            for message in reversed(found):
                yield message
            end = start


def json_object(payload: bytes) -> dict[str, Any]:
    """Return the object of a payload, or an empty one if it holds none: any producer may write to these topics."""
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


# -- changing ----------------------------------------------------------------------------------------------------


async def _changed(context: Context, record: ConnectorRecord) -> ChangedConnector:
    await RECORDS.write(context, record.name, record)
    return ChangedConnector(
        connector=record.name, group=record.group, paused=record.paused, generation=record.generation
    )


def _made(request: CreateConnectorRequest) -> ConnectorRecord:
    return ConnectorRecord(name=request.connector, definition=request.definition, group=request.group)


async def _created(
    context: Context, request: CreateConnectorRequest
) -> tuple[ConnectorRecord | None, ConnectorRecord]:
    check_definition(request.definition)
    change = f"Change it: danube connectors set {request.connector} --file FILE"
    await RECORDS.check_new(context, request.connector, most=MOST_CONNECTORS, instead=change)
    return None, _made(request)


@operation(
    "connectors.create",
    effect=Effect.CREATE,
    title="Create a connector",
    summary="Declare a connector from its file. A worker of its group runs it within seconds.",
    forecast=RECORDS.forecast_of(_created),
    undo=RECORDS.undo_of(lambda request, before: _made(request)),
    required_flags=("definition",),
    text_argument="definition",
    examples=(
        Example(
            {"connector": "orders-delta", "definition": 'connector = "my_sinks:Delta"'},
            "of your own class. Mostly --file orders-delta.toml",
        ),
    ),
)
async def create_connector(context: Context, request: CreateConnectorRequest) -> ChangedConnector:
    return await _changed(context, (await _created(context, request))[1])


async def _set(context: Context, request: SetConnectorRequest) -> tuple[ConnectorRecord, ConnectorRecord]:
    check_definition(request.definition)
    before = await RECORDS.found(context, request.connector)
    return before, replace(before, definition=request.definition, generation=before.generation + 1)


def _was_set(request: SetConnectorRequest, before: ConnectorRecord | None) -> ConnectorRecord:
    assert before is not None
    return replace(before, definition=request.definition)


@operation(
    "connectors.set",
    effect=Effect.CHANGE,
    ends=True,
    tool="set_connector",
    title="Change a connector",
    permission=CHANGE,
    summary="Give a connector another file. Its worker restarts it. Subscription and positions stay.",
    forecast=RECORDS.forecast_of(_set),
    undo=RECORDS.undo_of(_was_set),
    required_flags=("definition",),
    text_argument="definition",
    examples=(
        Example(
            {"connector": "orders-delta", "definition": 'connector = "my_sinks:Other"'},
            "another class. Mostly --file orders-delta.toml",
        ),
    ),
)
async def set_connector(context: Context, request: SetConnectorRequest) -> ChangedConnector:
    return await _changed(context, (await _set(context, request))[1])


async def _with(
    context: Context, request: ConnectorRequest, *, paused: bool | None
) -> tuple[ConnectorRecord, ConnectorRecord]:
    """Return the record, and the record paused or not, with None as it is; a generation later if that is a change."""
    before = await RECORDS.found(context, request.connector)
    if paused is None:
        return before, replace(before, generation=before.generation + 1)
    return before, paused_or_not(before, paused=paused)


@operation(
    "connectors.pause",
    effect=Effect.CHANGE,
    tool="pause_connector",
    title="Pause a connector",
    permission=CHANGE,
    summary="Stop a connector after the batch that it has begun, until it is resumed.",
    forecast=RECORDS.forecast_of(partial(_with, paused=True)),
    undo=RECORDS.undo_of(undone_pause(paused=True)),
    examples=(Example({"connector": "orders-delta"}, "while the target is maintained"),),
)
async def pause_connector(context: Context, request: ConnectorRequest) -> ChangedConnector:
    return await _changed(context, (await _with(context, request, paused=True))[1])


@operation(
    "connectors.resume",
    effect=Effect.CHANGE,
    tool="resume_connector",
    title="Resume a connector",
    permission=CHANGE,
    summary="Let a paused connector run again, from its position.",
    forecast=RECORDS.forecast_of(partial(_with, paused=False)),
    undo=RECORDS.undo_of(undone_pause(paused=False)),
    examples=(Example({"connector": "orders-delta"}, "it goes on"),),
)
async def resume_connector(context: Context, request: ConnectorRequest) -> ChangedConnector:
    return await _changed(context, (await _with(context, request, paused=False))[1])


@operation(
    "connectors.restart",
    effect=Effect.CHANGE,
    tool="restart_connector",
    title="Restart a connector",
    permission=CHANGE,
    summary="Start a connector again from its position, also one that has stopped with an error.",
    forecast=RECORDS.forecast_of(partial(_with, paused=None)),
    idempotent=False,
    examples=(Example({"connector": "orders-delta"}, "after the target was mended"),),
)
async def restart_connector(context: Context, request: ConnectorRequest) -> ChangedConnector:
    return await _changed(context, (await _with(context, request, paused=None))[1])


@operation(
    "connectors.delete",
    effect=Effect.DESTROY,
    title="Delete a connector",
    summary="Delete a connector's declaration. Its worker stops it. Subscription, positions and target stay.",
    forecast=RECORDS.forecast_of(RECORDS.deleted),
    undo=RECORDS.undo_of(lambda request, before: None),
    examples=(Example({"connector": "orders-delta"}, "it runs no more"),),
)
async def delete_connector(context: Context, request: ConnectorRequest) -> DeletedConnector:
    await RECORDS.found(context, request.connector)
    await RECORDS.write(context, request.connector, None)
    return DeletedConnector(connector=request.connector)
