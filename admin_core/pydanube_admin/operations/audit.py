"""Query the audit, and check its chain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from pydanube_core.audit_begin import BEGIN_KEY, AuditBegin
from pydanube_core.errors import ClusterError, InvalidArgument
from pydanube_core.names import TopicName
from pydanube_core.spelling import close_names, either, shown
from pydanube_core.units import format_time, parse_moment_ms

from pydanube_admin.engine.audit.audit_chain import (
    FIRST,
    KEYS_KEY,
    NO_RECORD,
    Break,
    ChainCheck,
    Head,
    KeyTerms,
    head_of,
)
from pydanube_admin.engine.audit.audit_index import STRETCH, AuditQuestion, topics_of
from pydanube_admin.engine.audit.audit_log import HEAD_KEY
from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Forecast, entry
from pydanube_admin.engine.models import (
    SINCE_DESCRIPTION,
    Change,
    Effect,
    ListRequest,
    OptionalTopic,
    Page,
    Request,
    Result,
)
from pydanube_admin.engine.operation import every, next_call, operation
from pydanube_admin.engine.page_tokens import begin_of, next_token
from pydanube_admin.engine.paging import glob, none_because
from pydanube_admin.engine.permission import sits_at_the_broker

# Records a page that has items; it may hold fewer than were asked for, and go on
MAX_LOOKED_AT: Final = 20_000
PASSED: Final = 500  # stretches that the index passes over in a turn of the loop: milliseconds
MAX_EXPORTED: Final = 100_000
DAMAGE: Final = ("CORRUPT_JOURNAL", "CORRUPT_OBJECT", "OBJECT_MISSING", "CHECKSUM_MISMATCH")


class QueryAuditRequest(ListRequest):
    principal: Annotated[str | None, Field(max_length=256, description="Only of this principal")] = None
    operation: Annotated[str | None, Field(max_length=100, description="Only of this operation")] = None
    topic: OptionalTopic = None
    since: Annotated[str | None, Field(max_length=64, description=SINCE_DESCRIPTION)] = None
    call_id: Annotated[str | None, Field(max_length=64, description="Only of this call")] = None
    client: Annotated[
        str | None, Field(max_length=64, description="Only of this program, by the name that it gives itself")
    ] = None
    by: Annotated[Literal["person", "agent"] | None, Field(description="Only of persons, or of agents")] = (
        None
    )


class AuditRecord(Result):
    """One record, as it is stored. What earlier versions did not write yet has a default."""

    seq: int
    call_id: str
    phase: str  # call | outcome
    time: str
    principal: str
    authenticated: bool
    actor: str | None = None  # who made it for the principal, with act_for
    relayed_by: str | None = None  # the broker that it came to, and that had it carried here
    face: str
    client: dict[str, Any] | None = None  # the program, as it names itself: name, version
    by: str | None = None  # person | agent; null: not known
    operation: str
    arguments: dict[str, Any]
    plan_id: str | None
    decision: str  # allowed | refused | planned | failed | interrupted
    code: str | None  # of the error
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    untrusted: dict[str, Any] | None = None  # why: in the caller's words
    prev_hash: str
    hash: str
    # Of the hash, by the key of `key_id`; none of a record from before there were MACs
    mac: str | None = None
    key_id: str | None = None


_REQUIRED: Final = {name for name, field in AuditRecord.model_fields.items() if field.is_required()}


class ExportAuditRequest(Request):
    to: Annotated[
        str | None,
        Field(
            max_length=4096,
            description="File in exports/ of the broker's data directory; an earlier export goes on. The command "
            "line writes a path of its own machine itself",
        ),
    ] = None
    into: Annotated[str | None, Field(max_length=300, description="Or this topic, a message a record")] = None
    from_seq: Annotated[
        int | None, Field(ge=0, description="First record; without: what the file has not yet, or the oldest")
    ] = None
    limit: Annotated[int, Field(ge=1, le=MAX_EXPORTED, description="Records at the most")] = 10_000


class ExportedAudit(Change):
    to: str | None  # the file; beside it, with .head, where the chain stands at its end
    into: str | None
    records: int
    next_seq: int  # from_seq of the next export
    complete: bool  # nothing is left by now


class VerifiedAudit(Result):
    records: int  # that are sound, before the first that is not
    intact: bool
    first_bad_seq: int | None
    reason: str | None  # why that one is not what was written; none while it is intact
    verified: int  # whose MAC is right: a broker with this one's key wrote them
    chain_only: int  # in the chain, but without a MAC, or by a key that this broker has not
    forged: int  # altered, or written by nobody who has the key; whatever follows was looked at all the same
    first_seq: int  # older ones were deleted by the retention of the audit
    as_of: str


@operation(
    "audit.query",
    effect=Effect.READ,
    title="Ask the audit",
    summary="List audit records, the newest first: who called what, when, by which face, and what came of it.",
    default_profile=True,
    examples=(
        Example({"topic": "orders"}, "what was done to a topic"),
        Example({"operation": "topics.delete", "since": "24h"}, "who deleted what"),
    ),
)
async def query_audit(context: Context, request: QueryAuditRequest) -> Page[AuditRecord]:
    """Return the records that match, the newest first."""
    await context.audit.settled()
    wanted = _Filter(context, request)
    next_offset, _ = await context.port.open_audit()
    begin = begin_of("audit.query", request, numbers=1)
    end = next_offset if begin is None else min(begin[0], next_offset)
    items: list[AuditRecord] = []
    looked_at = passed = 0
    first = 0
    while end > first and len(items) < request.limit and not (items and looked_at >= MAX_LOOKED_AT):
        stretch = (end - 1) // STRETCH * STRETCH
        if not context.audit.index.may_hold(stretch // STRETCH, wanted.asked):
            end, passed = stretch, passed + 1
            if passed % PASSED == 0:
                await asyncio.sleep(0)
            continue
        await asyncio.sleep(0)  # what is in memory is read without waiting
        first, found = await context.port.read_audit(start=stretch, max_messages=end - stretch)
        looked_at += STRETCH
        for offset, payload in reversed(found):
            if offset >= end or not wanted.may_hold(payload) or (record := _record(payload)) is None:
                continue
            if wanted.is_too_old(record):
                end = first
                break
            end = offset
            if wanted.holds(record):
                items.append(AuditRecord(**record))
                if len(items) == request.limit:
                    break
        else:
            end = stretch
    return Page[AuditRecord](
        items=items,
        items_reason=none_because(request) if not items and end <= first and begin is None else None,
        next_page=next_token((end,), "audit.query", request) if end > first else None,
        total=None,
        as_of=format_time(context.now_ms()),
    )


def _record(payload: bytes) -> dict[str, Any] | None:
    """Parse a record; None for a damaged one, which `audit.verify` reports."""
    try:
        body = json.loads(payload)
    except NO_RECORD:
        return None
    if not isinstance(body, dict) or not _REQUIRED <= body.keys() <= AuditRecord.model_fields.keys():
        return None
    return body


def _operation_named(name: str) -> str:
    """Return the operation with that name, or that tool's name.

    Raises `InvalidArgument`: there is none; says which are close.
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
        self._matches = glob(request.filter)
        self._operation = None if request.operation is None else _operation_named(request.operation)
        self._topic = None if request.topic is None else str(TopicName.parse(request.topic))
        asked = (self._operation, request.principal, request.call_id, request.client, request.by)
        self.asked = AuditQuestion(
            operation=self._operation,
            principal=request.principal,
            topic=self._topic,
            call_id=request.call_id,
            matches=self._matches if request.filter else None,
        )
        # Where a time is asked for, each record says whether what follows is older.
        words = [json.dumps(one).encode() for one in asked if one is not None]
        if self._topic is not None:
            words.append(self._topic.rpartition("/")[2].encode())  # a bare name is the topic, too
        self._words = [] if request.since else words
        self._since: str | None = None
        if request.since is not None:
            self._since = format_time(parse_moment_ms(request.since, now_ms=context.now_ms(), field="since"))

    def may_hold(self, payload: bytes) -> bool:
        """Return whether a stored record has the words searched for: most are skipped without being parsed."""
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
            and (self._topic is None or self._topic in topics_of(record["arguments"]))
        )


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
    effect=Effect.CREATE,
    title="Export the audit",
    summary="Append audit records as JSON lines to a file on the broker's machine, or to a topic; again, it goes on where it ended.",
    forecast=forecast_export_audit,
    idempotent=False,
    examples=(
        Example({"to": "audit.jsonl"}, "what the file has not yet"),
        Example({"into": "/ops/audit", "from_seq": 0}, "to a topic"),
    ),
)
async def export_audit(context: Context, request: ExportAuditRequest) -> ExportedAudit:
    _check_one(request)
    await context.audit.settled()
    into = None if request.into is None else str(TopicName.parse(request.into, field="into"))
    said = await context.port.export_audit(
        start=request.from_seq,
        most=request.limit,
        file=request.to,
        any_folder=sits_at_the_broker(),
        into=into,
    )
    return ExportedAudit(
        to=said["path"],
        into=into,
        records=said["records"],
        next_seq=said["next_seq"],
        complete=said["next_seq"] >= said["end_seq"],
    )


def _check_one(request: ExportAuditRequest) -> None:
    if (request.to is None) == (request.into is None):
        raise InvalidArgument("say where to: a file (to), or a topic (into)", field="to", value=request.to)


def _before(begin: AuditBegin | None, start: int) -> Head | None:
    """Return the chain's head before its first stored record; None if it is unknown."""
    if start == 0:
        return FIRST
    return Head(seq=start - 1, hash=begin.prev_hash) if begin is not None and begin.seq == start else None


@operation(
    "audit.verify",
    effect=Effect.READ,
    title="Verify the audit",
    summary="Check the hash chain and the MACs of the audit: how many records are verified, known by the chain only, or "
    "forged, and the first of these.",
    examples=(Example({}, "the whole chain"),),
)
async def verify_audit(context: Context, request: Request) -> VerifiedAudit:
    """Check every record from the oldest on, and that none is missing at the end."""
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
            Break(seq=start, reason="the metadata store's begin of the audit is none: somebody altered it")
        )
    while start < end:
        await asyncio.sleep(0)
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
            Break(seq=end, reason="the chain's head in the metadata store is none: somebody altered it")
        )
    return VerifiedAudit(
        records=check.sound,
        intact=check.bad is None,
        first_bad_seq=None if check.bad is None else check.bad.seq,
        reason=None if check.bad is None else check.bad.reason,
        verified=check.verified,
        chain_only=check.chain_only,
        forged=check.forged,
        first_seq=first_seq,
        as_of=format_time(context.now_ms()),
    )
