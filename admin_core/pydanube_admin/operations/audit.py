"""Query the audit, and check its chain."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, Final, Literal, Self

import anyio
from pydantic import Field
from pydanube_core.audit_begin import BEGIN_KEY, AuditBegin
from pydanube_core.errors import ClusterError, InvalidArgument
from pydanube_core.names import TopicName
from pydanube_core.security.identity import relayed_by
from pydanube_core.spelling import close_names, either, shown
from pydanube_core.units import format_time, parse_moment_ms

from pydanube_admin.cluster_wide_port import ClusterWidePort
from pydanube_admin.engine.audit.audit_chain import (
    DAMAGE,
    FIRST,
    KEYS_KEY,
    NO_RECORD,
    Break,
    ChainCheck,
    Head,
    KeyTerms,
    head_of,
)
from pydanube_admin.engine.audit.audit_index import STRETCH, AuditSearch, topics_of_record
from pydanube_admin.engine.audit.audit_log import HEAD_KEY
from pydanube_admin.engine.broker_names import BROKER, MAX_CHARS
from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Forecast, entry
from pydanube_admin.engine.models import (
    SINCE_DESCRIPTION,
    Change,
    Effect,
    ListRequest,
    NotSeen,
    OptionalTopic,
    Page,
    Place,
    Request,
    Result,
)
from pydanube_admin.engine.operation import every, is_known, known, next_call, operation
from pydanube_admin.engine.page_tokens import begin_of, invalid_page, next_token, opened, scope_of, seal
from pydanube_admin.engine.paging import glob, none_because
from pydanube_admin.engine.permission import sits_at_the_broker
from pydanube_admin.engine.task_records import broker_of
from pydanube_admin.operations.brokers import this_broker
from pydanube_admin.peers import FORWARD_S, not_seen, unseen

# Maximum records read for a page. After these the page ends, even with fewer items than its limit, and has a next one
MAX_LOOKED_AT: Final = 20_000
JOINED_WITHIN: Final = 500  # records between the end of a page and a call whose outcome the page has
PASSED: Final = 500  # stretches skipped by the index in one turn of the loop, which takes milliseconds
MAX_EXPORTED: Final = 100_000
GLOB: Final = frozenset("*?[")  # an operation with one of these is a pattern


class QueryAuditRequest(ListRequest):
    principal: Annotated[str | None, Field(max_length=256, description="Only of this principal")] = None
    operation: Annotated[
        str | None, Field(max_length=100, description="Only of this operation, or of a glob: topics.*")
    ] = None
    effect: Annotated[
        Literal["any", "read", "change"], Field(description="Only calls that read, or change")
    ] = "any"
    topic: OptionalTopic = None
    since: Annotated[str | None, Field(max_length=64, description=SINCE_DESCRIPTION)] = None
    call_id: Annotated[str | None, Field(max_length=64, description="Only of this call")] = None
    client: Annotated[str | None, Field(max_length=64, description="Only of this program")] = None
    by: Annotated[Literal["person", "agent"] | None, Field(description="Only of persons, or of agents")] = (
        None
    )
    hashes: Annotated[bool, Field(description="Also the hashes and MACs of the chain")] = False


class AuditRecord(Result):
    """One record, as it is stored. Fields that earlier versions did not write have a default."""

    broker_id: str | None = None  # broker of the chain that has the record
    seq: int
    call_id: str
    phase: str  # call | outcome
    time: str  # begin of the call, in an outcome its end
    principal: str
    authenticated: bool
    actor: str | None = None  # principal that made the call for this one, with the permission act_for
    relayed_by: str | None = None  # broker that received the call and forwarded it to this one
    face: str
    client: dict[str, Any] | None = None  # the program, as it names itself: name, version
    by: str | None = None  # person | agent; null if unknown
    operation: str
    arguments: dict[str, Any]
    plan_id: str | None
    decision: str  # allowed | refused | planned | failed | interrupted
    code: str | None  # code of the error
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    untrusted: dict[str, Any] | None = None  # why: in the caller's words
    # Of the chain, with `hashes`
    prev_hash: str | None = Field(default=None, exclude_if=lambda value: value is None)
    hash: str | None = Field(default=None, exclude_if=lambda value: value is None)
    # Of the hash, by the key of `key_id`. None for a record from before there were MACs
    mac: str | None = Field(default=None, exclude_if=lambda value: value is None)
    key_id: str | None = Field(default=None, exclude_if=lambda value: value is None)


_OF_THE_CHAIN: Final = ("prev_hash", "hash", "mac", "key_id")
_REQUIRED: Final = {
    "prev_hash",
    "hash",
    *(name for name, field in AuditRecord.model_fields.items() if field.is_required()),
}


class ExportAuditRequest(Request):
    broker_id: Annotated[
        str | None,
        Field(max_length=MAX_CHARS, description="Broker of the chain. Default: the one that answers"),
        BROKER,
    ] = None
    to: Annotated[
        str | None,
        Field(
            max_length=4096,
            description="In place of into: file in exports/ of the broker's data directory, goes on. The command "
            "line writes a path of its own machine itself",
        ),
    ] = None
    into: Annotated[
        str | None, Field(max_length=300, description="In place of to: a topic, a message a record")
    ] = None
    from_seq: Annotated[
        int | None, Field(ge=0, description="First sequence number. Default: where the file ends")
    ] = None
    limit: Annotated[int, Field(ge=1, le=MAX_EXPORTED, description="Most records")] = 10_000


class ExportedAudit(Change):
    broker_id: str | None = None  # broker of the exported chain
    other_brokers: list[str] = Field(default_factory=list)  # brokers whose chains are not exported
    to: str | None  # the file. FILE.head beside it has the state of the chain at its end
    into: str | None
    records: int
    next_seq: int  # from_seq of the next export
    complete: bool  # nothing is left by now


class VerifiedChain(Result):
    """The chain of one broker."""

    broker_id: str
    records: int  # sound records before the first unsound one
    intact: bool
    first_bad_seq: int | None
    reason: str | None  # why that record is unsound. Null while the chain is intact
    verified: int  # records with a valid MAC, written by a broker with this broker's key
    chain_only: int  # records that are linked, but have no MAC, or one by a key that this broker lacks
    forged: int  # records that were altered, or written without the key. The check continues after them
    first_seq: int  # first stored record. The retention of the audit has deleted earlier ones


class VerifiedAudit(Result):
    """The chains of all brokers that answer, and their sums. Each broker has a chain of its own."""

    records: int
    intact: bool  # whether all of these chains are
    first_bad_seq: int | None  # sequence number in the first chain that is not intact
    reason: str | None
    verified: int
    chain_only: int
    forged: int
    first_seq: int  # the lowest of the chains
    chains: list[VerifiedChain]
    # Brokers that did not answer: their chains are not verified
    not_seen: list[NotSeen] | None = Field(default=None, exclude_if=lambda value: value is None)
    as_of: str


@operation(
    "audit.query",
    at=Place.ANYWHERE,
    effect=Effect.READ,
    title="Ask the audit",
    summary="List audit records, the newest first: caller, operation, time, face and outcome.",
    default_profile=True,
    examples=(
        Example({"topic": "orders"}, "changes of a topic"),
        Example({"operation": "topics.delete", "since": "24h"}, "who deleted what"),
    ),
)
async def query_audit(context: Context, request: QueryAuditRequest) -> Page[AuditRecord]:
    """Return the records of all brokers that match, the newest first, and within a chain by sequence.

    A change is one item, its outcome with the state before. Its call is an item while it is under way, and where its outcome
    is on an earlier page. With `hashes`, both records are items, as they are in the chain.
    """
    port = context.port
    if not isinstance(port, ClusterWidePort) or relayed_by.get():
        return await _of_one_chain(context, request)
    own, scope = _own_id(context), scope_of("audit.query", request)
    places = {} if request.page is None else _places_in(request.page, scope)
    asked = {
        broker: {} if place is None else {"page": seal((place,), scope)}
        for broker, place in ((each.broker_id, places.get(each.broker_id)) for each in await port.members())
        if place != DONE and broker != own
    }
    # Without defaults: a broker of an earlier version takes no argument that it does not know.
    given = request.model_dump(mode="json", exclude={"page"}, exclude_defaults=True)

    def read(broker: str, answer: Mapping[str, Any]) -> _ChainPage:
        records = [AuditRecord(**each) for each in answer["items"][: request.limit]]
        return _ChainPage.of(broker, records, answer.get("next_page"), places, scope)

    answers = await port.call_others(
        "audit.query",
        {broker: {**given, **page} for broker, page in asked.items()},
        read,
        principal=context.principal,
        face=context.face,
    )
    chains = list(answers.values())
    if (place := places.get(own)) != DONE:
        page = None if place is None else seal((place,), scope)
        mine = await _of_one_chain(context, request.model_copy(update={"page": page}))
        chains.append(_ChainPage.of(own, mine.items, mine.next_page, places, scope))
    items = _merged(chains, request.limit)
    places = places | {each.broker_id: each.place for each in chains}
    more = any(each.place != DONE for each in chains)
    return Page[AuditRecord](
        items=items,
        items_reason=None if items or more or request.page else none_because(request),
        next_page=seal(tuple(chain.from_iterable(places.items())), scope) if more else None,
        total=None,
        as_of=format_time(context.now_ms()),
    )


DONE: Final = 0  # place of a chain without further records


@dataclass(slots=True, kw_only=True)
class _ChainPage:
    """A page of one broker's chain. `place`: records below this sequence number are not shown yet."""

    broker_id: str
    items: deque[AuditRecord]
    place: int
    after: int  # the place after all items

    @classmethod
    def of(
        cls,
        broker_id: str,
        records: Sequence[AuditRecord],
        next_page: str | None,
        places: Mapping[str, int],
        scope: bytes,
    ) -> Self:
        items = deque(each.model_copy(update={"broker_id": broker_id}) for each in records)
        after = DONE if next_page is None else int(opened(next_page, scope)[0])
        newest = items[0].seq + 1 if items else after
        return cls(broker_id=broker_id, items=items, place=places.get(broker_id, newest), after=after)

    def take(self) -> AuditRecord:
        record = self.items.popleft()
        # An altered record may have any number. Each page continues below the one before in any case.
        self.place = max(DONE, min(record.seq, self.place - 1)) if self.items else self.after
        return record


def _merged(chains: Sequence[_ChainPage], limit: int) -> list[AuditRecord]:
    """Take the newest records of all chains. Stop where the next records of a chain have not been read."""
    found: list[AuditRecord] = []
    for each in chains:
        if not each.items:
            each.place = each.after
    while len(found) < limit and (left := [each for each in chains if each.items]):
        newest = max(left, key=lambda each: (each.items[0].time, each.broker_id))
        found.append(newest.take())
        if not newest.items and newest.after != DONE:
            break
    return found


def _places_in(page: str, scope: bytes) -> dict[str, int]:
    """Return the place in each broker's chain. Raises `PageInvalid`."""
    key = opened(page, scope)
    places = dict(zip(key[::2], key[1::2], strict=False))
    if len(key) % 2 or not all(
        isinstance(broker, str) and isinstance(place, int) and place >= DONE
        for broker, place in places.items()
    ):
        raise invalid_page(page)
    return {str(broker): int(place) for broker, place in places.items()}


def _own_id(context: Context) -> str:
    return broker_of(context.port.life)


async def _of_one_chain(context: Context, request: QueryAuditRequest) -> Page[AuditRecord]:
    await context.audit.settled()
    own = _own_id(context)
    wanted = _Filter(context, request)
    next_offset, _ = await context.port.open_audit()
    begin = begin_of("audit.query", request, numbers=1)
    end = next_offset if begin is None else min(begin[0], next_offset)
    records: list[dict[str, Any]] = []
    calls = _Calls(apart=request.hashes)
    if begin is not None:
        for last in await _records(context, end, end + 1):  # of the page before
            calls.note(last)
    looked_at = passed = 0
    first = 0
    while end > first and len(records) < request.limit and not (records and looked_at >= MAX_LOOKED_AT):
        stretch = (end - 1) // STRETCH * STRETCH
        if not context.audit.index.may_hold(stretch // STRETCH, wanted.search):
            end, passed = stretch, passed + 1
            if passed % PASSED == 0:
                await asyncio.sleep(0)
            continue
        await asyncio.sleep(0)  # records in memory are read without a wait
        first, found = await context.port.read_audit(start=stretch, max_messages=end - stretch)
        looked_at += STRETCH
        for offset, payload in reversed(found):
            if offset >= end or not wanted.may_hold(payload) or (record := _record(payload)) is None:
                continue
            is_too_old = wanted.is_too_old(record)
            # Earlier versions wrote the time of the call into an outcome, which is much older than its neighbours'.
            if is_too_old and (record["phase"] != "outcome" or _reads(record["operation"])):
                end = first
                break
            joined = calls.joins(record)
            if not joined and len(records) == request.limit:
                break
            end = offset
            if not joined and not is_too_old and wanted.holds(record):
                records.append(record)
                calls.note(record)
        else:
            end = stretch
    if calls.begun_before:
        for record in reversed(await _records(context, max(0, end - JOINED_WITHIN), end)):
            calls.joins(record)
    left_out = () if request.hashes else _OF_THE_CHAIN
    items = [
        AuditRecord(
            **{name: value for name, value in record.items() if name not in left_out} | {"broker_id": own}
        )
        for record in records
    ]
    return Page[AuditRecord](
        items=items,
        items_reason=none_because(request) if not items and end <= first and begin is None else None,
        next_page=next_token((end,), "audit.query", request) if end > first else None,
        total=None,
        as_of=format_time(context.now_ms()),
    )


class _Calls:
    """Joins the `call` of a change with its `outcome`, which is shown for both. Records are read newest first.

    Args:
        apart: join none.
    """

    def __init__(self, *, apart: bool) -> None:
        self._apart = apart
        self._outcomes: dict[str, dict[str, Any]] = {}  # whose call has not come yet

    def note(self, record: dict[str, Any]) -> None:
        """Note an item of the page."""
        if not self._apart and record["phase"] == "outcome":
            self._outcomes[record["call_id"]] = record

    def joins(self, record: Mapping[str, Any]) -> bool:
        """Return whether the outcome of this call is an item of the page, which gets the state before from it."""
        if record["phase"] != "call" or (outcome := self._outcomes.pop(record["call_id"], None)) is None:
            return False
        outcome["before"] = outcome["before"] or record["before"]
        return True

    @property
    def begun_before(self) -> bool:
        """Return whether the calls of some outcomes may be older than the records seen. Most reads have no call."""
        return any(not _reads(each["operation"]) for each in self._outcomes.values())


async def _records(context: Context, start: int, end: int) -> list[dict[str, Any]]:
    """Return the sound records of the chain in `[start, end)`, oldest first."""
    if start >= end:
        return []
    _, found = await context.port.read_audit(start=start, max_messages=end - start)
    parsed = (_record(payload) for offset, payload in found if offset < end)
    return [record for record in parsed if record is not None]


def _record(payload: bytes) -> dict[str, Any] | None:
    """Parse a record. Return None for a damaged one, which `audit.verify` reports."""
    try:
        body = json.loads(payload)
    except NO_RECORD:
        return None
    if not isinstance(body, dict) or not _REQUIRED <= body.keys() <= AuditRecord.model_fields.keys():
        return None
    return body


def _operation_named(name: str) -> str:
    """Return the operation with that name, or that tool's name.

    Raises `InvalidArgument`: there is none. The error names similar ones.
    """
    named = {operation.tool: operation.name for operation in every()}
    if name in named.values():
        return name
    if name in named:
        return named[name]
    close = close_names(name.replace("_", ".", 1), named.values())
    raise InvalidArgument(
        f"there is no operation {shown(name)!r}; "
        + (f"did you mean {either(close)}?" if close else "filter takes a glob over the names in the audit"),
        field="operation",
        value=shown(name),
        did_you_mean=close,
        next=[
            next_call("audit.query", {"operation": other}, "an operation spelled alike") for other in close
        ],
    )


class _Filter:
    """The filter of an `audit.query`."""

    def __init__(self, context: Context, request: QueryAuditRequest) -> None:
        self._request = request
        named = request.operation
        patterns: list[Callable[[str], bool]] = [glob(request.filter)]
        if named is not None and GLOB.intersection(named):
            patterns.append(glob(named))
            named = None
        if request.effect != "any":
            patterns.append(_reads if request.effect == "read" else _changes)
        self._matches: Callable[[str], bool] = lambda name: all(matches(name) for matches in patterns)
        self._operation = None if named is None else _operation_named(named)
        self._topic = None if request.topic is None else str(TopicName.parse(request.topic))
        asked = (self._operation, request.principal, request.call_id, request.client, request.by)
        self.search = AuditSearch(
            operation=self._operation,
            principal=request.principal,
            topic=self._topic,
            call_id=request.call_id,
            matches=self._matches if len(patterns) > 1 or request.filter else None,
        )
        # With a time in the request, each record shows whether older ones follow.
        words = [json.dumps(one).encode() for one in asked if one is not None]
        if self._topic is not None:
            words.append(self._topic.rpartition("/")[2].encode())  # a bare name is the topic, too
        self._words = [] if request.since else words
        self._since: str | None = None
        if request.since is not None:
            self._since = format_time(parse_moment_ms(request.since, now_ms=context.now_ms(), field="since"))

    def may_hold(self, payload: bytes) -> bool:
        """Return whether a stored record contains the words searched for, so that most are skipped unparsed."""
        return all(word in payload for word in self._words)

    def is_too_old(self, record: Mapping[str, Any]) -> bool:
        return self._since is not None and str(record["time"]) < self._since

    def holds(self, record: Mapping[str, Any]) -> bool:
        request = self._request
        return (
            request.principal in (None, record["principal"])
            and self._operation in (None, record["operation"])
            and request.call_id in (None, record["call_id"])
            and request.client in (None, (record.get("client") or {}).get("name"))
            and request.by in (None, record.get("by"))
            and self._matches(record["operation"])
            and (self._topic is None or self._topic in topics_of_record(record))
        )


def _reads(name: str) -> bool:
    """Return whether an operation only reads. An operation unknown to this version may have changed something."""
    return is_known(name) and known(name).effect is Effect.READ


def _changes(name: str) -> bool:
    return not _reads(name)


async def forecast_export_audit(context: Context, request: ExportAuditRequest) -> Forecast:
    _check_one(request)
    return Forecast(
        diff=[
            entry(
                str(request.to or request.into), None, {"from_seq": request.from_seq, "limit": request.limit}
            )
        ]
    )


@operation(
    "audit.export",
    at=Place.BROKER,
    effect=Effect.CREATE,
    title="Export the audit",
    summary="Append one broker's audit records as JSON lines to a file on its machine, or to a topic. Repeated, it continues where it "
    "ended.",
    forecast=forecast_export_audit,
    idempotent=False,
    examples=(
        Example({"to": "audit.jsonl"}, "records that the file does not have yet"),
        Example({"into": "/ops/audit", "from_seq": 0}, "to a topic"),
    ),
)
async def export_audit(context: Context, request: ExportAuditRequest) -> ExportedAudit:
    _check_one(request)
    await context.audit.settled()
    own = (await this_broker(context, request.broker_id)).broker_id
    into = None if request.into is None else str(TopicName.parse(request.into, field="into"))
    exported = await context.port.export_audit(
        start=request.from_seq,
        most=request.limit,
        file=request.to,
        any_folder=sits_at_the_broker(),
        into=into,
    )
    members = [each.broker_id for each in await context.port.members()]
    return ExportedAudit(
        broker_id=own,
        other_brokers=sorted({*members, *await context.port.missed()} - {own}),
        to=exported["path"],
        into=into,
        records=exported["records"],
        next_seq=exported["next_seq"],
        complete=exported["next_seq"] >= exported["end_seq"],
    )


def _check_one(request: ExportAuditRequest) -> None:
    if (request.to is None) == (request.into is None):
        raise InvalidArgument("name the target: a file (to), or a topic (into)", field="to", value=request.to)


def _before(begin: AuditBegin | None, start: int) -> Head | None:
    """Return the chain's head before its first stored record, or None if it is unknown."""
    if start == 0:
        return FIRST
    return Head(seq=start - 1, hash=begin.prev_hash) if begin is not None and begin.seq == start else None


@operation(
    "audit.verify",
    at=Place.ANYWHERE,
    effect=Effect.READ,
    title="Verify the audit",
    summary="Check the hash chain and the MACs of the audit: how many records are verified, in the chain only, or "
    "forged, and the first of these.",
    long_running=True,
    examples=(Example({}, "all chains, whole"),),
)
async def verify_audit(context: Context, request: Request) -> VerifiedAudit:
    """Verify the chains of all brokers."""
    port = context.port
    chains: list[VerifiedChain] = []
    async with anyio.create_task_group() as group:

        async def own() -> None:
            chains.append(await _verified(context))

        group.start_soon(own)
        if isinstance(port, ClusterWidePort) and not relayed_by.get():
            own_id = _own_id(context)
            others: dict[str, dict[str, Any]] = {
                each.broker_id: {} for each in await port.members() if each.broker_id != own_id
            }
            answers = await port.call_others(
                "audit.verify",
                others,
                lambda broker_id, answer: VerifiedChain(
                    # An older release has no chains. Each broker answers for its own chain alone
                    **{**(answer.get("chains") or [answer])[0], "broker_id": broker_id}
                ),
                principal=context.principal,
                face=context.face,
                timeout_s=FORWARD_S,
            )
            chains += answers.values()
    chains.sort(key=lambda each: each.broker_id)
    bad = next((each for each in chains if not each.intact), None)
    return VerifiedAudit(
        records=sum(each.records for each in chains),
        intact=bad is None,
        first_bad_seq=None if bad is None else bad.first_bad_seq,
        reason=None if bad is None else bad.reason,
        verified=sum(each.verified for each in chains),
        chain_only=sum(each.chain_only for each in chains),
        forged=sum(each.forged for each in chains),
        first_seq=min(each.first_seq for each in chains),
        chains=chains,
        not_seen=not_seen(unseen()),
        as_of=format_time(context.now_ms()),
    )


async def _verified(context: Context) -> VerifiedChain:
    """Check every record of this broker from the oldest on, and that none is missing at the end."""
    await context.audit.settled()
    port = context.port
    end, _ = await port.open_audit()
    start, _ = await port.read_audit(start=0, max_messages=1)
    first_seq = start
    kept, keys = await port.read_state(HEAD_KEY), await port.read_state(KEYS_KEY)
    known = None if kept is None else head_of(kept.value)
    key = await port.audit_key()
    kept_begin = await port.read_state(BEGIN_KEY)
    begin = None if kept_begin is None else AuditBegin.from_json(kept_begin.value, key)
    # Once this broker has written, the terms are by its key.
    terms = KeyTerms.from_json(
        None if keys is None else keys.value, key, of_others=context.audit.head is None
    )
    check = ChainCheck(_before(begin, start), key, terms)
    if begin is not None and begin.seq < start:
        check.found(Break(seq=begin.seq, reason=f"records {begin.seq} to {start - 1} are missing"))
    if kept_begin is not None and begin is None:
        check.found(
            Break(seq=start, reason="the metadata store's begin of the audit is invalid: it was altered")
        )
    while start < end:
        await asyncio.sleep(0)
        context.executor.tasks.report_progress(context.call_id, _progress(start - first_seq, end - first_seq))
        try:
            _, found = await port.read_audit(start=start, max_messages=min(STRETCH, end - start))
        except ClusterError as error:
            if error.code not in DAMAGE:
                raise
            check.found(Break(seq=int(error.details.get("offset", start)), reason=error.message))
            break
        if not found or found[0][0] != start:
            check.found(Break(seq=start, reason="it is missing"))
            break
        for offset, payload in found:
            check.take(offset, payload)
            if known is not None and offset == known.seq and head_of(payload) != known:
                check.found(Break(seq=offset, reason="the chain's head in the metadata store is another"))
        start = found[-1][0] + 1
    if known is not None and known.seq >= end:
        check.found(Break(seq=end, reason=f"records up to {known.seq} were written and are missing"))
    if kept is not None and known is None:
        check.found(
            Break(seq=end, reason="the chain's head in the metadata store is invalid: it was altered")
        )
    return VerifiedChain(
        broker_id=_own_id(context),
        records=check.sound,
        intact=check.bad is None,
        first_bad_seq=None if check.bad is None else check.bad.seq,
        reason=None if check.bad is None else check.bad.reason,
        verified=check.verified,
        chain_only=check.chain_only,
        forged=check.forged,
        first_seq=first_seq,
    )


def _progress(done: int, total: int) -> dict[str, Any]:
    """Return the progress of a verification, in the form of the broker's long work."""
    return {"operation": "audit.verify", "topic": None, "unit": "records", "done": done, "total": total}
