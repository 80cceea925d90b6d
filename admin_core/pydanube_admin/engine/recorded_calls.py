"""Calls that are made as they are asked for, without a plan: reads, and what is done to plans."""

from __future__ import annotations

from pydanube_core.errors import ClusterError, Internal

from pydanube_admin.engine.audit.audit_records import Entry, note_read, note_refusal
from pydanube_admin.engine.call import Call
from pydanube_admin.engine.context import Context
from pydanube_admin.engine.effect import Effect
from pydanube_admin.engine.models import Result


async def run_recorded(context: Context, call: Call) -> Result:
    """Run a call with its records in the audit: of a read the outcome, of others also that it begins.

    Raises `AuditUnavailable`: nothing was done.
    """
    entry = Entry.of(context, call.operation.name, call.arguments)
    if call.operation.effect is not Effect.READ:
        await context.audit.write(entry.call())
    try:
        result = await context.desk.run(context, call)
    except BaseException as error:
        known = error if isinstance(error, ClusterError) else Internal("the call was cut off")
        if not context.desk.tasks.goes_on_later(context.call_id):
            note_refusal(context.audit, entry, entry.outcome(decision="refused", error=known))
        raise
    if call.operation.effect is Effect.READ:
        note_read(context.audit, entry)
    else:
        context.audit.note(entry.outcome(decision="allowed"))
    return result
