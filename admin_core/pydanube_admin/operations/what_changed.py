"""List what changed since a moment: changes by operators and clients, starts and losses of brokers."""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from pydanube_core.diagnosis.alerts import Alert
from pydanube_core.errors import InvalidName, MetadataUnavailable
from pydanube_core.facts import EventFacts
from pydanube_core.names import TopicName
from pydanube_core.units import check_period, format_time, parse_duration_s, parse_moment_ms, parse_time_ms

from pydanube_admin.engine.audit.audit_index import topics_of_record
from pydanube_admin.engine.audit.audit_records import DATA
from pydanube_admin.engine.broker_names import BROKER, MAX_CHARS
from pydanube_admin.engine.change_records import APPLIED, ChangeRecord
from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.models import (
    SINCE_DESCRIPTION,
    Effect,
    OptionalTopic,
    Place,
    Request,
    Result,
    is_none,
)
from pydanube_admin.engine.operation import next_call, operation
from pydanube_admin.engine.stored_records import time_of
from pydanube_admin.operations.audit import AuditRecord, QueryAuditRequest, query_audit
from pydanube_admin.operations.past_events import past_events, with_past
from pydanube_admin.peers import unseen_whys

MOST_ITEMS: Final = 20  # without a limit
#: of their JSON, which with the rest of the answer is less than 1 500 tokens for a model
MOST_BYTES: Final = 5_200
MOST_PLACED: Final = 200  # topics with alerts whose owners are looked up
CLOCK_AHEAD_MS: Final = 60_000  # without `until`, changes of brokers whose clock is ahead are listed too
MOST_LOOKED_AT: Final = 2_000  # audit records of changes for one answer
MOST_FINDINGS: Final = 5  # after one change
# Rounds of telemetry between a broker's loss and its record, which the next one writes
LOSS_NOTED_ROUNDS: Final = 2
_INTERVAL: Final = "telemetry.sample_interval"
SAME_MS: Final = 60_000  # two accounts of one start or loss differ by less
#: Events of brokers, as the state after them.
STATES: Final = {
    "broker_started": "started",
    "broker_stopped": "stopped",
    "broker_joined": "joined",
    "broker_gone": "gone",
    "leader_elected": "leads",
}
LOSE_NONE: Final = frozenset({"started", "joined", "leads"})  # states in which a broker loses no topics
MOST_STATE_CHARS: Final = 400  # of a state before or after. A larger one is in the audit
#: Decisions of the audit, as states of a change that took effect, or may have in part. A refused one took none.
MADE: Final[Mapping[str, Literal["failed", "interrupted"] | None]] = {
    "allowed": None,
    "failed": "failed",
    "interrupted": "interrupted",
}
ONLY_PLANNED: Final = frozenset({"plans.create", "plans.discard"})  # recorded as changes, and change nothing
#: Arguments that say what a call was about, in the order in which they are read.
SUBJECTS: Final = ("topic", "namespace", "subscription", "broker_id", "subject", "role", "name", "principal")


class WhatChangedRequest(Request):
    since: Annotated[str, Field(max_length=64, description=SINCE_DESCRIPTION)] = "1h"
    until: Annotated[str | None, Field(max_length=64, description="The same. Default: now")] = None
    topic: OptionalTopic = None
    broker_id: Annotated[
        str | None, Field(max_length=MAX_CHARS, description="Only at this broker"), BROKER
    ] = None
    by: Annotated[str | None, Field(max_length=256, description="Only of this principal")] = None
    limit: Annotated[
        int | None,
        Field(ge=1, le=200, description="Most items, the newest. Default: as many as fit into 5 KB"),
    ] = None

    @property
    def most(self) -> int:
        return self.limit or MOST_ITEMS


class FindingAfter(Result):
    rule: str
    subject: dict[str, Any]
    opened_at: str


class ChangedItem(Result):
    """One change. Its `findings_after` began after it did, and before the next one of the same subject did."""

    at: str  # time of its end. While it is under way, of its begin
    kind: Literal["operator", "client", "cluster"]
    state: Literal["under_way", "failed", "interrupted"] | None = (
        Field(  # absent: it was made. under_way: its task
            default=None,  # goes on. failed, or interrupted by the end of its broker: it may have been made in part
            exclude_if=is_none,
        )
    )
    operation: str | None
    subject: str
    broker_id: str | None
    by: str | None
    before: dict[str, Any] | None  # without the fields that are the same in after
    after: dict[str, Any] | None
    call_id: str | None
    undo: dict[str, Any] | None  # {until, call}: the call is ready to be made
    findings_after: list[FindingAfter] = Field(default_factory=list, exclude_if=lambda value: not value)
    untrusted: dict[str, Any] | None = Field(default=None, exclude_if=is_none)  # {why}: in the caller's words


class WhatChanged(Result):
    """Changes, the newest first. That a finding began after a change does not say that the change caused it."""

    items: list[ChangedItem]
    more: bool  # older ones of that time are left out: `until` of the last item shows them
    as_of: str
    unknown: list[str]  # what may be missing: nothing keeps it, or its broker does not answer


@operation(
    "changes.list",
    effect=Effect.READ,
    at=Place.ANYWHERE,
    permission="audit:read",
    tool="what_changed",
    title="What changed",
    summary="List changes since a moment, each with its undo and the findings that began after it.",
    default_profile=True,
    examples=(
        Example({"since": "24h"}, "of a day"),
        Example({"since": "2h", "topic": "orders"}, "to one topic"),
    ),
)
async def list_changes(context: Context, request: WhatChangedRequest) -> WhatChanged:
    now_ms = context.now_ms()
    since_ms = parse_moment_ms(request.since, now_ms=now_ms, field="since")
    until_ms = now_ms + CLOCK_AHEAD_MS
    if request.until is not None:
        until_ms = parse_moment_ms(request.until, now_ms=now_ms, field="until")
        check_period(since_ms, until_ms, given=request.until, field="until", begin="since")
    records, more = await _records(context, request, until_ms)
    kept: dict[str, tuple[ChangeRecord, int] | None] = {}
    unknown = [
        f"changes that broker {broker_id} recorded: {why}"
        for broker_id, why in sorted(unseen_whys().items())
        if request.broker_id in (None, broker_id)
    ]
    try:
        for each in records:
            kept[each.call_id] = await context.executor.changes.get(each.call_id)
    except MetadataUnavailable:  # the audit has the changes all the same
        unknown.append("how the changes are taken back: the metadata store does not answer")
    items = [_of_record(each, kept.get(each.call_id), now_ms) for each in records]
    past = await past_events(context, since_ms, until_ms)
    if request.topic is None and request.by is None:
        live = await _of_brokers(context, now_ms)
        items += [
            each
            for each in of_events(past.events, live)
            if since_ms <= _ms(each.at) < until_ms and request.broker_id in (None, each.broker_id)
        ]
    items.sort(key=lambda each: each.at, reverse=True)
    shown = items[: request.most]
    opened, closed = await context.port.alerts()
    alerts = with_past([*opened, *closed], past)
    placed = await _placed(context, alerts) if any(_state(each) in LOSE_NONE for each in shown) else {}
    found = with_findings(shown, alerts, until_ms, placed, await _loss_noted_ms(context))
    if request.limit is None:
        found = _fitting(found)
    return WhatChanged(
        items=found,
        more=more or len(items) > len(found),
        as_of=format_time(now_ms),
        unknown=[*past.unknown, *unknown],
    )


async def _records(
    context: Context, request: WhatChangedRequest, until_ms: int
) -> tuple[list[AuditRecord], bool]:
    """Return the changes that took effect, newest first, and whether there are older ones."""
    asked = QueryAuditRequest(
        since=request.since, topic=request.topic, principal=request.by, effect="change", limit=1000
    )
    found: list[AuditRecord] = []
    before: dict[str, dict[str, Any] | None] = {}  # by call, of those whose outcome was on an earlier page
    ended: set[str] = set()  # calls whose outcome was seen, which is newer than the call
    looked_at, older = 0, True
    while older and len(found) <= request.most and looked_at < MOST_LOOKED_AT:
        page = await query_audit(context, asked)
        looked_at += len(page.items)
        before |= {each.call_id: each.before for each in page.items if each.phase == "call"}
        ended |= {each.call_id for each in page.items if each.phase == "outcome"}
        found += [
            each
            for each in page.items
            if (each.phase == "outcome" or each.call_id not in ended)
            and each.operation not in ONLY_PLANNED
            and each.decision in MADE
            and _ms(each.time) < until_ms
            and request.broker_id in (None, each.broker_id)
        ]
        older = page.next_page is not None
        asked = asked.model_copy(update={"page": page.next_page})
    found.sort(key=lambda each: each.time, reverse=True)  # the records of a chain are only nearly by time
    shown = found[: request.most]
    return (
        [each.model_copy(update={"before": each.before or before.get(each.call_id)}) for each in shown],
        older or len(found) > len(shown),
    )


def _of_record(record: AuditRecord, kept: tuple[ChangeRecord, int] | None, now_ms: int) -> ChangedItem:
    undo = None
    if kept is not None and kept[0].state == APPLIED and kept[0].undo_until_ms > now_ms:
        undo = {
            "until": format_time(kept[0].undo_until_ms),
            "call": _call("changes.undo", {"call_id": record.call_id}),
        }
    return ChangedItem(
        at=record.time,
        kind="client" if record.face == DATA else "operator",
        state="under_way" if record.phase == "call" else MADE[record.decision],
        operation=record.operation,
        subject=_subject(record.arguments) or next(iter(sorted(topics_of_record(dict(record)))), "cluster"),
        broker_id=record.broker_id,
        by=record.principal,
        before=_short(unlike(record.before, record.after)),
        after=_short(unlike(record.after, record.before)),
        call_id=record.call_id,
        undo=undo,
        findings_after=[],
        untrusted=record.untrusted,
    )


def _call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a complete call, without the reason that `next` gives: the field's name says it."""
    return {key: value for key, value in next_call(name, arguments, "").items() if key != "why"}


def _subject(arguments: Mapping[str, Any]) -> str:
    """Return what a call was about, from its arguments. Empty if they do not say so."""
    words = [str(arguments[name]) for name in SUBJECTS if isinstance(arguments.get(name), str)]
    if isinstance(arguments.get("topic"), str):
        with suppress(InvalidName):  # of a refused call that named none; the audit has it as it came
            words[0] = str(TopicName.parse(words[0]))
    return " ".join(words)


def _ms(time: str) -> int:
    return parse_time_ms(time, field="time")


def unlike(state: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the fields of a state that the other state lacks or has with another value."""
    if state is None or other is None:
        return state
    return {name: value for name, value in state.items() if name not in other or other[name] != value}


def _short(state: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if state is None:
        return None
    size = len(json.dumps(state))
    return dict(state) if size <= MOST_STATE_CHARS else {"omitted_chars": size}


async def _of_brokers(context: Context, now_ms: int) -> list[ChangedItem]:
    """Return the last start of each broker that answers, and the losses that this broker saw."""
    items = [
        _of_broker(each.broker_id, now_ms - round(each.uptime_s * 1000), {"state": "started", "version": each.version})
        for each in await context.port.statuses()
    ]  # fmt: skip
    for broker_id in await context.port.missed():
        gone_ms = context.port.gone_since_ms(broker_id)
        if gone_ms is not None:
            items.append(_of_broker(broker_id, gone_ms, {"state": "gone"}))
    return items


def _of_broker(broker_id: str, at_ms: int, after: dict[str, Any]) -> ChangedItem:
    return ChangedItem(
        at=format_time(at_ms),
        kind="cluster",
        operation=None,
        subject=f"broker {broker_id}",
        broker_id=broker_id,
        by=None,
        before=None,
        after=after,
        call_id=None,
        undo=None,
        findings_after=[],
    )


def of_events(events: Sequence[EventFacts], live: Sequence[ChangedItem]) -> list[ChangedItem]:
    """Return starts, stops, joins and losses of brokers: of the events, and those of `live` that the events lack.

    A start replaces the join of the same broker, and a stop its loss. The state before a start is that of the start before it.
    """
    started: dict[str, dict[str, Any]] = {}  # broker → version and settings of its newest start so far
    found: list[ChangedItem] = []
    for event in reversed(events):
        state, broker_id = STATES.get(event.kind), str(event.subject.get("broker_id"))
        if state is None:
            continue
        known = {"version": event.version, "settings": event.settings}
        facts = {name: value for name, value in known.items() if value is not None}
        item = _of_broker(broker_id, event.at_ms, {"state": state, **facts})
        if state == "started":
            item = item.model_copy(update={"before": started.get(broker_id)})
            started[broker_id] = facts
        found.append(item)
    better = {"joined": "started", "gone": "stopped"}
    times = _Times(found)
    kept = [each for each in found if not times.has(each, state=better.get(_state(each)))]
    times = _Times(kept)
    for each in live:
        if not any(times.has(each, state=state) for state in (_state(each), better.get(_state(each)))):
            kept.append(each)
            times.add(each)
    return kept


def _state(item: ChangedItem) -> str:
    return str((item.after or {}).get("state"))


class _Times:
    """When brokers came into which state. A look-up costs O(log items)."""

    def __init__(self, items: Sequence[ChangedItem]) -> None:
        self._times: defaultdict[tuple[str | None, str | None], list[int]] = defaultdict(list)
        for each in items:
            self.add(each)

    def add(self, item: ChangedItem) -> None:
        insort(self._times[item.broker_id, _state(item)], _ms(item.at))

    def has(self, item: ChangedItem, *, state: str | None) -> bool:
        """Return whether the broker of an item came into this state at about the same time."""
        times = self._times.get((item.broker_id, state), [])
        first = bisect_left(times, _ms(item.at) - SAME_MS)
        return first < len(times) and times[first] <= _ms(item.at) + SAME_MS


def _fitting(items: list[ChangedItem]) -> list[ChangedItem]:
    """Return the newest items that fit into an answer, at least one."""
    room = MOST_BYTES
    for count, item in enumerate(items):
        room -= len(item.model_dump_json(by_alias=True).encode()) + 1
        if room < 0:
            return items[: max(1, count)]
    return items


async def _placed(context: Context, alerts: Sequence[Alert]) -> dict[str, set[str]]:
    """Return topic → ids of the brokers that own it or its partitions now, for the topics of the newest alerts."""
    newest = sorted(alerts, key=lambda each: each.opened_at_ms, reverse=True)
    topics = dict.fromkeys(str(each.subject["topic"]) for each in newest if "topic" in each.subject)
    found: dict[str, set[str]] = {}
    for topic in islice(topics, MOST_PLACED):
        with suppress(InvalidName):
            found[topic] = {each.broker_id for each in await context.port.owners(topic) if each is not None}
    return found


def _broker_of(item: ChangedItem) -> str | None:
    """Return the id of the broker that a change is about, if it is about one."""
    if item.kind == "cluster":
        return item.broker_id
    return item.subject if (item.operation or "").startswith("brokers.") else None


def _is_about(alert: Alert, item: ChangedItem, broker_id: str, placed: Mapping[str, Set[str]]) -> bool:
    """Return whether an alert may follow from a change of a broker: it is about that broker, a topic, or neither.

    After a change that gives the broker topics, only alerts of its present topics are. After a loss or drain, its
    topics belong to other brokers.
    """
    if "broker_id" in alert.subject:
        return bool(alert.subject["broker_id"] == broker_id)
    if "topic" not in alert.subject or _state(item) not in LOSE_NONE:
        return True
    return broker_id in placed.get(str(alert.subject["topic"]), ())


def _began_ms(item: ChangedItem) -> int:
    """Return when a change began: the id of its call has that time."""
    at_ms = _ms(item.at)
    with suppress(ValueError):
        return min(at_ms, time_of(item.call_id or ""))
    return at_ms


async def _loss_noted_ms(context: Context) -> int:
    values = {each.name: each.value for each in await context.port.settings()}
    return round(LOSS_NOTED_ROUNDS * parse_duration_s(values[_INTERVAL], field=_INTERVAL) * 1000)


def _windows(items: Sequence[ChangedItem], until_ms: int, loss_noted_ms: int) -> list[tuple[int, int]]:
    """Return the first and the end time of each change's findings: until the next change of its subject.

    Findings notice a broker's loss before its record, so they begin `loss_noted_ms` earlier, but not before the
    previous change of that broker.
    """
    began = [_began_ms(item) for item in items]
    order = sorted(range(len(items)), key=began.__getitem__)
    firsts = list(began)
    previous: dict[str, int] = {}  # by subject
    for n in order:
        if _state(items[n]) == "gone":
            firsts[n] = max(began[n] - loss_noted_ms, previous.get(items[n].subject, 0))
        previous[items[n].subject] = began[n]
    windows = [(first, until_ms) for first in firsts]
    ends: dict[str, int] = {}  # by subject: when the findings of its next change begin
    for n in reversed(order):
        windows[n] = firsts[n], ends.get(items[n].subject, until_ms)
        ends[items[n].subject] = firsts[n]
    return windows


def with_findings(
    items: Sequence[ChangedItem],
    alerts: Sequence[Alert],
    until_ms: int,
    placed: Mapping[str, Set[str]] | None = None,
    loss_noted_ms: int = 0,
) -> list[ChangedItem]:
    """Add to each change the alerts of its topic or of its broker, or any if it names neither.

    Args:
        placed: topic → ids of the brokers that own it, for starts of brokers.
        loss_noted_ms: between a broker's loss and its record, at most.
    """
    by_topic: defaultdict[str | None, list[Alert]] = defaultdict(list)
    for each in sorted(alerts, key=lambda each: (-each.severity, each.opened_at_ms)):
        by_topic[None].append(each)
        if "topic" in each.subject:
            by_topic[_base(str(each.subject["topic"]))].append(each)
    found = list(items)
    for n, (item, (first_ms, end_ms)) in enumerate(
        zip(items, _windows(items, until_ms, loss_noted_ms), strict=True)
    ):
        first, broker_id = item.subject.split(" ", 1)[0], _broker_of(item)
        own = by_topic.get(_base(first) if first.startswith("/") else None, ())
        after = islice(
            (
                each
                for each in own
                if first_ms <= each.opened_at_ms < end_ms
                and (broker_id is None or _is_about(each, item, broker_id, placed or {}))
            ),
            MOST_FINDINGS,
        )
        shown = [
            FindingAfter(rule=each.rule, subject=dict(each.subject), opened_at=format_time(each.opened_at_ms))
            for each in after
        ]
        found[n] = item.model_copy(update={"findings_after": shown})
    return found


def _base(topic: str) -> str:
    with suppress(InvalidName):
        return str(TopicName.parse(topic).base)
    return topic
