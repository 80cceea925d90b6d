"""Audit records written at a start: of calls that the process' end cut off, and of principals let in.

A call that was cut off has a `call` in the audit and no `outcome`. `danube security init` and `recover` let a
principal in while the broker is stopped.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from pydanube_core.cluster_port import ClusterPort
from pydanube_core.security.records import LET_IN

from pydanube_admin.engine.audit.audit_chain import NO_RECORD
from pydanube_admin.engine.audit.audit_log import AuditLog
from pydanube_admin.engine.audit.audit_records import Entry
from pydanube_admin.engine.guards import Guards
from pydanube_admin.engine.stored_records import CALL, new_id

# Records from the end: changes are made one at a time, so the one cut off is among the last
LOOKED_AT: Final = 2_000


async def calls_cut_off(port: ClusterPort, guards: Guards) -> list[Mapping[str, Any]]:
    """Return the audit's calls without an outcome that no broker is carrying out, by age."""
    if not (found := await _calls_without_outcome(port)):
        return []
    under_way = await guards.calls()
    # Read again: a call that released its guard in between has written its outcome before that.
    still = {call["call_id"] for call in await _calls_without_outcome(port)}
    return [call for call in found if call["call_id"] in still - under_way]


async def calls_with_outcome(port: ClusterPort) -> set[str]:
    """Return the ids of calls whose outcome is among the newest records."""
    return {
        str(record.get("call_id"))
        async for record in _newest_records(port)
        if record.get("phase") == "outcome"
    }


async def _calls_without_outcome(port: ClusterPort) -> list[Mapping[str, Any]]:
    """Return `call` records without an `outcome`, by age."""
    open_calls: dict[str, Mapping[str, Any]] = {}
    async for record in _newest_records(port):
        call_id = str(record.get("call_id"))
        if record.get("phase") == "call":
            open_calls[call_id] = record
        elif record.get("phase") == "outcome":
            open_calls.pop(call_id, None)
    return list(open_calls.values())


async def _newest_records(port: ClusterPort) -> AsyncIterator[Mapping[str, Any]]:
    """Return the last `LOOKED_AT` records of the audit, oldest first."""
    end, _ = await port.open_audit()
    start = max(0, end - LOOKED_AT)
    while start < end:
        _, found = await port.read_audit(start=start, max_messages=min(500, end - start))
        if not found:
            break
        for _, payload in found:
            yield _record(payload)
        start = found[-1][0] + 1


def _record(payload: bytes) -> Mapping[str, Any]:
    """Parse a record, empty for a damaged one, which `audit.verify` reports."""
    try:
        body = json.loads(payload)
    except NO_RECORD:
        return {}
    return body if isinstance(body, dict) else {}


FACE: Final = "cli"
MOST: Final = 100  # at one start. The next start records the others


async def record_let_in(port: ClusterPort, audit: AuditLog) -> None:
    """Record each principal let in, then delete the note. If it is already recorded, only delete the note.

    Raises `ClusterError`: the audit or the metadata cannot be written. The next start records the remaining
    ones.
    """
    if not (notes := await port.list_state(LET_IN, after=None, limit=MOST)):
        return
    there = {_let_in(record) async for record in _newest_records(port)}
    for item in notes:
        found = json.loads(item.value)
        if (found["operation"], found["token_id"]) not in there:
            entry = Entry(
                call_id=new_id(CALL, found["time_ms"]),
                principal=found["by"],
                face=FACE,
                operation=found["operation"],
                arguments={"principal": found["principal"], "token_id": found["token_id"]},
                time_ms=found["time_ms"],
            )
            await audit.write(entry.call(), entry.outcome(decision="allowed"))
        await port.write_state({item.key: None})


def _let_in(record: Mapping[str, Any]) -> tuple[object, object]:
    arguments = record.get("arguments")
    return record.get("operation"), arguments.get("token_id") if isinstance(arguments, dict) else None
