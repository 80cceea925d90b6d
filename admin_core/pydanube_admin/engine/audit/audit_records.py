"""Audit records of calls: `call` before the effect, `outcome` after it. Also runs calls that need no plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydanube_core.calling_program import MAX_NAME_CHARS, UNNAMED, CallingProgram, current_program
from pydanube_core.errors import ClusterError, Internal
from pydanube_core.facts import DataChange
from pydanube_core.security.identity import Identity, current_identity, relayed_by
from pydanube_core.units import format_time

from pydanube_admin.engine.audit.audit_chain import Head, redacted, shortened
from pydanube_admin.engine.audit.audit_log import AuditLog
from pydanube_admin.engine.context import Context
from pydanube_admin.engine.forecast import Forecast
from pydanube_admin.engine.models import Effect, Result
from pydanube_admin.engine.operation import Call

DATA: Final = "data"  # the face of changes that clients made without an operation


@dataclass(slots=True, kw_only=True)
class Entry:
    """One call, as its records describe it.

    `time_ms` is the time of its next record. `is_recorded`: its `call` is on stable storage.
    """

    call_id: str
    principal: str
    face: str
    operation: str
    arguments: Mapping[str, Any]
    time_ms: int
    plan_id: str | None = None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    authenticated: bool = False  # the principal was proven by a credential
    actor: str | None = None  # the principal that acted for `principal`, if another
    relayed_by: str | None = None  # the broker that received it, if not this one
    program: CallingProgram = UNNAMED
    why: str = ""
    is_recorded: bool = field(default=False)

    @classmethod
    def of(cls, context: Context, operation: str, arguments: Mapping[str, Any]) -> Entry:
        return cls(
            call_id=context.call_id,
            principal=context.principal,
            face=context.face,
            operation=operation,
            arguments=arguments,
            time_ms=context.now_ms(),
            authenticated=_is_proven(identity := current_identity.get()),
            actor=None if identity is None or identity.actor is None else str(identity.actor.principal),
            relayed_by=relayed_by.get() or None,
            program=current_program.get() or UNNAMED,
            why=context.why,
        )

    @classmethod
    def again(cls, call: Mapping[str, Any], time_ms: int) -> Entry:
        """Return the entry of a `call` record that an earlier start left without its outcome."""
        return cls(
            call_id=call["call_id"],
            principal=call["principal"],
            face=call["face"],
            operation=call["operation"],
            arguments=call["arguments"],
            time_ms=time_ms,
            plan_id=call["plan_id"],
            authenticated=call["authenticated"],
            actor=call.get("actor"),
            relayed_by=call.get("relayed_by"),
            program=CallingProgram(**(call.get("client") or {}), by=call.get("by") or ""),
            why=(call.get("untrusted") or {}).get("why", ""),
            is_recorded=True,
        )

    def ended(self, *, made: bool) -> Mapping[str, Any]:
        """Return the outcome of an interrupted call: done, if only the record is missing, or unknown."""
        if made:
            return self.outcome(decision="allowed")
        cut_off = Internal("the broker ended while this change was made, so its effect is unknown")
        return self.outcome(decision="interrupted", error=cut_off)

    def planned(self, plan_id: str, forecast: Forecast, why: str) -> None:
        """Note the call's plan, its changes, and the plan's reason if the call has none."""
        self.why = self.why or why
        self.plan_id = plan_id
        self.before = shortened({each["path"]: each["before"] for each in forecast.diff})
        self.after = shortened({each["path"]: each["after"] for each in forecast.diff})

    def mark_recorded(self) -> None:
        self.is_recorded = True

    def ended_at(self, time_ms: int) -> Entry:
        """Return the entry for the outcome of a call that may have taken long."""
        return replace(self, time_ms=time_ms)

    def call(self) -> Mapping[str, Any]:
        return self._record("call", "allowed", None)

    def outcome(
        self, *, decision: str, error: ClusterError | None = None, plan_id: str | None = None
    ) -> Mapping[str, Any]:
        record = self._record("outcome", decision, None if error is None else error.code)
        return record if plan_id is None else {**record, "plan_id": plan_id}

    def refused(self, error: ClusterError) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return both records of a call that was refused before it changed anything."""
        plan = error.details.get("plan")
        plan_id = plan.get("plan_id") if isinstance(plan, Mapping) else self.plan_id
        records = [self._record(phase, "refused", error.code) for phase in ("call", "outcome")]
        return {**records[0], "plan_id": plan_id}, {**records[1], "plan_id": plan_id}

    def _record(self, phase: str, decision: str, code: str | None) -> dict[str, Any]:
        return {
            "call_id": self.call_id,
            "phase": phase,
            "time": format_time(self.time_ms),
            "principal": _named(self.principal, 256),
            "authenticated": self.authenticated,
            "actor": self.actor,
            "relayed_by": self.relayed_by,
            "face": _named(self.face, 32),
            "client": _shown_program(self.program),
            "by": self.program.by or None,
            "operation": _named(self.operation, 100),
            "arguments": redacted(self.arguments),
            "plan_id": self.plan_id,
            "decision": decision,
            "code": code,
            "before": self.before if phase == "call" else None,
            "after": self.after if phase == "outcome" else None,
            "untrusted": {"why": redacted(self.why)} if self.why else None,
        }


def _shown_program(program: CallingProgram) -> dict[str, str] | None:
    if not program.name:
        return None
    return {"name": _named(program.name, MAX_NAME_CHARS), "version": program.version}


def _is_proven(identity: Identity | None) -> bool:
    return identity is not None and identity.method != "none"


def data_records(
    named: Sequence[tuple[str, DataChange]], left_out: int, new_id: Callable[[], str]
) -> Iterator[Mapping[str, Any]]:
    """Make audit records of clients' data calls, like those of operations. Their face is `data`."""
    for call_id, change in named:
        given = {
            "topic": change.topic,
            "partition": change.partition,
            "subscription": change.subscription,
            "client": change.client,
            "address": change.address,
            "times": change.times if change.times > 1 else None,
        }
        entry = Entry(
            call_id=call_id,
            principal=change.principal or change.client or change.address,
            face=DATA,
            operation=change.operation,
            arguments={name: value for name, value in given.items() if value not in (None, "")},
            time_ms=change.at_ms,
            before=change.before,
            after=change.after,
            authenticated=change.principal is not None,
        )
        yield entry.call()
        yield entry.outcome(decision="allowed")
    if left_out:
        yield _left_out(DATA, "data.changes", left_out, new_id(), named[-1][1].at_ms)


def note_read(audit: AuditLog, entry: Entry) -> None:
    """Record a read soon, if one of its kind is due. Raises as `AuditLog.check_room`: a read is not without a record."""
    if audit.reads.takes(entry.principal, entry.face, entry.operation, entry.time_ms):
        audit.check_room()
        audit.note(entry.outcome(decision="allowed"))


def _named(text: str, most: int) -> str:
    """Return a name from a call without parts that look like secrets: a caller may have put a token there."""
    return str(redacted(text))[:most]


def note_refusal(audit: AuditLog, entry: Entry, *records: Mapping[str, Any]) -> None:
    """Record a refusal soon. Above the limit per second, record only their number."""
    if not audit.refusals.takes(entry.time_ms):
        return
    if left_out := audit.refusals.left_out():
        audit.note(_left_out("", "refusals", left_out, entry.call_id, entry.time_ms))
    audit.note(*records)


def _left_out(face: str, operation: str, count: int, call_id: str, time_ms: int) -> Mapping[str, Any]:
    more = Entry(
        call_id=call_id,
        principal="",
        face=face,
        operation=operation,
        arguments={"left_out": count},
        time_ms=time_ms,
    )
    return more.outcome(decision="allowed")


def head_value(head: Head | None) -> Iterator[bytes]:
    """Return the chain's head as it is stored, or nothing if it is unknown."""
    if head is not None:
        yield json.dumps({"seq": head.seq, "hash": head.hash}).encode()


async def run_recorded(context: Context, call: Call) -> Result:
    """Run a call with its audit records: of a read the outcome, of others also the beginning.

    The broker that was called records a read. Brokers that answer a part of it record nothing.

    Raises `AuditUnavailable` or `Draining`: nothing was done.
    """
    entry = Entry.of(context, call.operation.name, call.arguments)
    if call.operation.effect is not Effect.READ:
        await context.audit.write(entry.call())
    elif context.is_part:
        return await context.executor.run(context, call)
    try:
        result = await context.executor.run(context, call)
    except BaseException as error:
        known = error if isinstance(error, ClusterError) else Internal("the call was cut off")
        if not context.executor.tasks.goes_on_later(context.call_id):
            entry = entry.ended_at(context.now_ms())
            note_refusal(context.audit, entry, entry.outcome(decision="refused", error=known))
        raise
    entry = entry.ended_at(context.now_ms())
    if call.operation.effect is Effect.READ:
        note_read(context.audit, entry)
    else:
        context.audit.note(entry.outcome(decision="allowed"))
    return result
