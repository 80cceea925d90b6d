"""Refused records, log and positions of a connector, and changes of its positions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from pydanube_core.connectors import (
    EPOCHS,
    LOG_LINES,
    LOGS,
    LOGS_KEPT_S,
    ConnectorRecord,
    connector_key,
    topics_of,
)
from pydanube_core.errors import Conflict, InvalidArgument, SubscriptionNotFound, TopicNotFound
from pydanube_core.facts import SubscriptionFacts
from pydanube_core.names import TopicName
from pydanube_core.positions import Position
from pydanube_core.units import counted, format_time

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Forecast, blast_radius, entry
from pydanube_admin.engine.models import Change, Effect, Result
from pydanube_admin.engine.operation import next_call, operation
from pydanube_admin.operations.connectors import (
    CHANGE,
    RECORDS,
    ConnectorRequest,
    epoch_of,
    item_facts,
    json_object,
    kind_of,
    newest_first,
    reports_of,
    subscription_of,
)
from pydanube_admin.operations.messages import MessageItem, message_item
from pydanube_admin.operations.subscriptions import subscription_facts

MOST_LOG_MESSAGES: Final = 5_000  # read for one answer: the busiest hour of some ten connectors
MAX_ERRORS_BYTES: Final = 256 * 1024  # of refused records in an answer
MOST_POSITION_CHARS: Final = 1_024
ONLY_SHARD: Final = "position"  # shown for the shard of a source that has only one, whose name is empty


class ConnectorErrorsRequest(ConnectorRequest):
    limit: Annotated[int, Field(ge=1, le=100, description="Most records of each topic, the newest")] = 10


class ConnectorLogsRequest(ConnectorRequest):
    lines: Annotated[int, Field(ge=1, le=LOG_LINES, description="Most lines, the last")] = 100
    level: Annotated[
        Literal["info", "warning", "error"] | None, Field(description="Only this level and above")
    ] = None


class SetOffsetsRequest(ConnectorRequest):
    place: Annotated[
        str, Field(min_length=1, max_length=512, description="Topic or shard, as connectors.offsets shows it")
    ]
    position: Annotated[
        str,
        Field(
            min_length=1,
            max_length=MOST_POSITION_CHARS,
            description="Of a sink: 42, earliest, latest, time:-1h. Of a source: in the form of connectors.offsets",
        ),
    ]


class ConnectorErrors(Result):
    connector: str
    state: str
    last_error: str | None
    refused: list[MessageItem]  # newest last. Their attribute x-failure-reason has the reason
    dead_letter_topics: list[str]


class ConnectorLogs(Result):
    connector: str
    items: list[dict[str, Any]]  # {time, level, worker, untrusted: {text}}, the oldest first


class ConnectorOffset(Result):
    place: str  # partition of a topic, or shard of a source
    position: str  # next offset of a sink, or position of a source in its own form
    lag_messages: int | None


class ConnectorOffsets(Result):
    connector: str
    stored_in: str  # subscription of a sink, topic with the positions of a source
    items: list[ConnectorOffset]


class ChangedOffsets(Change):
    connector: str
    generation: int
    items: list[ConnectorOffset]


@operation(
    "connectors.errors",
    effect=Effect.READ,
    tool="list_connector_errors",
    title="Errors of a connector",
    summary="Show a connector's last error and the newest records that it refused, with the reason.",
    examples=(Example({"connector": "orders-delta"}, "its newest ten of each topic"),),
)
async def connector_errors(context: Context, request: ConnectorErrorsRequest) -> ConnectorErrors:
    record = await RECORDS.found(context, request.connector)
    facts = item_facts(record, (await reports_of(context)).get(record.name))
    refused: list[MessageItem] = []
    room = MAX_ERRORS_BYTES
    found_in: list[str] = []
    for topic in topics_of(record.tree):
        name = f"{TopicName.parse(topic)}-dlq-{subscription_of(record)}"
        found = []
        async for message in newest_first(context, name, request.limit):
            item, used = message_item(message, room)
            found.append(item)
            room -= used
        found_in += [name] if found else []
        refused += reversed(found)
    return ConnectorErrors(
        connector=record.name,
        state=facts["state"],
        last_error=facts["last_error"],
        refused=refused,
        dead_letter_topics=found_in,
    )


@operation(
    "connectors.logs",
    effect=Effect.READ,
    tool="list_connector_logs",
    title="Log of a connector",
    summary="Show the last log lines of a connector, of one hour, as its workers reported them.",
    examples=(Example({"connector": "orders-delta", "level": "warning"}, "warnings and errors"),),
)
async def connector_logs(context: Context, request: ConnectorLogsRequest) -> ConnectorLogs:
    record = await RECORDS.found(context, request.connector)
    levels = ("info", "warning", "error", "critical")
    wanted = levels[levels.index(request.level or "info") :]
    since_ms = context.now_ms() - LOGS_KEPT_S * 1_000
    found: list[dict[str, Any]] = []
    async for message in newest_first(context, LOGS, MOST_LOG_MESSAGES):
        if message.append_time_ms < since_ms or len(found) >= request.lines:
            break
        said = json_object(message.payload)
        lines = said.get("lines")
        if said.get("connector") != record.name or not isinstance(lines, list):
            continue
        for line in reversed(lines[-LOG_LINES:]):  # any producer may write to the topic
            match line:
                case {"time_ms": int(time_ms), "level": str(level), "text": str(text)} if level in wanted:
                    time = format_time(max(since_ms, min(time_ms, context.now_ms())))
                    worker = str(said.get("worker"))[:200]
                    found.append(
                        {"time": time, "level": level, "worker": worker, "untrusted": {"text": text[:2_000]}}
                    )
    return ConnectorLogs(connector=record.name, items=found[: request.lines][::-1])


# -- positions ---------------------------------------------------------------------------------------------------


async def _cursors(context: Context, record: ConnectorRecord) -> list[SubscriptionFacts]:
    """Return the cursors of a sink on each partition of its topics. Empty if it has not run yet."""
    found: list[SubscriptionFacts] = []
    for topic in topics_of(record.tree) if kind_of(record) != "source" else ():
        try:
            found += await subscription_facts(context, str(TopicName.parse(topic)), subscription_of(record))
        except (TopicNotFound, SubscriptionNotFound):
            continue
    return found


def _positions_topic(record: ConnectorRecord) -> str:
    topics = topics_of(record.tree)
    namespace = TopicName.parse(topics[0]).namespace if topics else "default"
    return f"/{namespace}/connect-{record.name}-positions"


async def _positions(context: Context, record: ConnectorRecord) -> dict[str, str]:
    """Return the positions of a source by shard. Empty if it has stored none."""
    async for message in newest_first(context, _positions_topic(record), 1):
        positions = json_object(message.payload).get("positions")
        if isinstance(positions, dict):
            return {str(shard) or ONLY_SHARD: str(position) for shard, position in sorted(positions.items())}
    return {}


async def _offsets(context: Context, record: ConnectorRecord) -> ConnectorOffsets:
    cursors = await _cursors(context, record)
    if cursors or kind_of(record) == "sink":
        items = [
            ConnectorOffset(
                place=each.topic,
                position=str(each.state.next_unacked),
                lag_messages=each.state.lag_messages,
            )
            for each in cursors
        ]
        return ConnectorOffsets(connector=record.name, stored_in=subscription_of(record), items=items)
    items = [
        ConnectorOffset(place=shard, position=position, lag_messages=None)
        for shard, position in (await _positions(context, record)).items()
    ]
    return ConnectorOffsets(connector=record.name, stored_in=_positions_topic(record), items=items)


@operation(
    "connectors.offsets",
    effect=Effect.READ,
    tool="list_connector_offsets",
    title="Positions of a connector",
    summary="Show how far a connector is: a sink in its topics, a source in the other system.",
    examples=(Example({"connector": "orders-delta"}, "by partition or shard"),),
)
async def connector_offsets(context: Context, request: ConnectorRequest) -> ConnectorOffsets:
    return await _offsets(context, await RECORDS.found(context, request.connector))


async def _resting(context: Context, request: ConnectorRequest) -> ConnectorRecord:
    """Return the record of a connector that no worker runs.

    Raises:
        Conflict: it is not paused, or a worker still reports it. Its next batch would overwrite the positions.
    """
    record = await RECORDS.found(context, request.connector)
    report = (await reports_of(context)).get(record.name)
    if not record.paused or (report is not None and report.state != "stopped"):
        raise Conflict(
            f"the connector {record.name} runs. Pause it, wait until connectors.describe shows no worker, and set its "
            "positions then",
            field="connector",
            connector=record.name,
            retryable=False,
        ).followed_by(next_call("connectors.pause", {"connector": record.name}, "stops it after its batch"))
    return record


def _none_yet(record: ConnectorRecord) -> Conflict:
    return Conflict(
        f"the connector {record.name} has no positions, because it has not run yet",
        field="connector", connector=record.name, retryable=False,
    )  # fmt: skip


async def _targets(
    context: Context, record: ConnectorRecord, places: Mapping[str, str | None]
) -> tuple[list[SubscriptionFacts], dict[str, int]]:
    """Return the cursors of a sink that move, and where to. None: to the oldest message."""
    found = [each for each in await _cursors(context, record) if each.topic in places]
    if context.pinned is not None:
        return found, dict(context.pinned["targets"])
    targets: dict[str, int] = {}
    for each in found:
        given = places[each.topic] or "earliest"
        text = f"offset:{given}" if given.isdecimal() else given
        Position.parse(text, now_ms=context.now_ms(), field="position")
        targets |= await context.port.resolve_position(each.topic, text)
    return found, targets


async def _forecast(
    context: Context, record: ConnectorRecord, places: Mapping[str, str | None] | None
) -> Forecast:
    """Forecast other positions of some places. None: of all, to the beginning."""
    offsets = await _offsets(context, record)
    if not offsets.items:
        raise _none_yet(record)
    known = {item.place: item.position for item in offsets.items}
    if places is not None and (wrong := places.keys() - known.keys()):
        raise InvalidArgument(
            f"the connector {record.name} has no place {min(wrong)!r}. It has {', '.join(list(known)[:20])}",
            field="place", value=min(wrong),
        )  # fmt: skip
    found, targets = await _targets(context, record, places or dict.fromkeys(known))
    if found:
        after: Mapping[str, Any] = targets
        passed = sum(
            max(0, each.state.lag_messages - max(0, each.state.next_offset - targets[each.topic]))
            for each in found
            if targets[each.topic] > each.state.next_unacked
        )
        again = sum(max(0, each.state.next_unacked - targets[each.topic]) for each in found)
        later = (
            f"{counted(again, 'message is', 'messages are')} written again, by a sink under new positions in its target"
            if again
            else "The sink passes over unread messages, which stay in the topic"
            if passed
            else "No message is passed over, and none is written again"
        )
    else:
        after, passed = places or dict.fromkeys(known), 0
        later = "Messages that the source published from there on are published again"
    diff = [entry(f"connectors/{record.name}/offsets/{place}", known[place], after[place]) for place in after]
    return Forecast(
        diff=diff,
        blast_radius=blast_radius(subscriptions=len(found), messages=passed),
        basis=[diff, record.generation],
        pinned={"targets": targets},
        later=later,
    )


async def _moved(
    context: Context, record: ConnectorRecord, places: Mapping[str, str | None] | None
) -> ChangedOffsets:
    known = {item.place: item.position for item in (await _offsets(context, record)).items}
    found, targets = await _targets(context, record, places or dict.fromkeys(known))
    after = replace(record, generation=record.generation + 1)
    written: dict[str, bytes | None] = {connector_key(record.name): after.to_bytes()}
    if found:
        # The position in an exactly-once sink's target outranks the cursor, so the sink gets a new name there
        written[EPOCHS + record.name] = str(await epoch_of(context, record.name) + 1).encode()
        for each in found:
            at = max(targets[each.topic], each.state.start_offset)
            await context.port.seek_subscription(each.topic, subscription_of(record), f"offset:{at}")
    else:
        positions: dict[str, str | None] = {} if places is None else {**known, **places}
        if ONLY_SHARD in positions:
            positions[""] = positions.pop(ONLY_SHARD)
        # Without a generation: the source begins one, whose producers hold no records that it would skip
        state = {"generation": "", "positions": positions, "counts": {}}
        await context.port.publish_message(
            _positions_topic(record), payload=json.dumps(state).encode(), key=None, attributes={}
        )
    await context.port.write_state(written)
    items = (await _offsets(context, after)).items
    return ChangedOffsets(connector=record.name, generation=after.generation, items=items)


async def forecast_reset(context: Context, request: ConnectorRequest) -> Forecast:
    return await _forecast(context, await _resting(context, request), None)


@operation(
    "connectors.reset_offsets",
    effect=Effect.DESTROY,
    tool="reset_connector_offsets",
    title="Reset the positions of a connector",
    permission=CHANGE,
    summary="Let a paused connector begin again: a sink at the oldest message, a source at its beginning.",
    forecast=forecast_reset,
    examples=(Example({"connector": "orders-delta"}, "everything again, for example into an emptied table"),),
)
async def reset_connector_offsets(context: Context, request: ConnectorRequest) -> ChangedOffsets:
    return await _moved(context, await _resting(context, request), None)


async def forecast_set_offsets(context: Context, request: SetOffsetsRequest) -> Forecast:
    return await _forecast(context, await _resting(context, request), {request.place: request.position})


@operation(
    "connectors.set_offsets",
    effect=Effect.DESTROY,
    tool="set_connector_offsets",
    title="Set a position of a connector",
    permission=CHANGE,
    summary="Set the position of a paused connector at one place, a partition of a sink or a shard of a source.",
    forecast=forecast_set_offsets,
    required_flags=("place", "position"),
    examples=(
        Example(
            {"connector": "orders-delta", "place": "/default/orders", "position": "time:-1h"},
            "the last hour again",
        ),
    ),
)
async def set_connector_offsets(context: Context, request: SetOffsetsRequest) -> ChangedOffsets:
    return await _moved(context, await _resting(context, request), {request.place: request.position})
