"""Operations that take changes back."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Annotated

from pydantic import Field
from pydanube_core.errors import ClusterError, PermissionDenied, PlanExpired, PlanNotFound, PlanUsed
from pydanube_core.security.permissions import TAKE_BACK
from pydanube_core.units import format_time

from pydanube_admin.engine.change_records import UNDOING, UNDONE, ChangeRecord
from pydanube_admin.engine.context import Context
from pydanube_admin.engine.effect import Effect
from pydanube_admin.engine.forecast import Done, Forecast, Undo, entry
from pydanube_admin.engine.models import Change, Request
from pydanube_admin.engine.next_calls import known, next_call
from pydanube_admin.engine.operation import Example, operation
from pydanube_admin.engine.permission import Sight
from pydanube_admin.engine.steps import Step, reached


class UndoChangeRequest(Request):
    call_id: Annotated[
        str, Field(min_length=1, max_length=64, description="call_id in the result of the change")
    ]


class UndoneChange(Change):
    undone_call_id: str
    operation: str  # that was taken back


async def _undoable(context: Context, call_id: str) -> ChangeRecord:
    found = await context.desk.changes.get(call_id)
    look = next_call("audit.query", {"call_id": call_id}, "shows what that call did")
    if found is None:
        raise PlanNotFound(
            f"there is no change {call_id!r} that could be undone: it is unknown, of a kind that cannot be undone, or "
            "too old",
            field="call_id",
            value=call_id,
        ).followed_by(look)
    record, _ = found
    context.desk.parse(record.operation, record.arguments)  # whoever may not make it may not take it back
    if not Sight(context.port, TAKE_BACK).made_by(record):
        raise PermissionDenied(
            f"the change {call_id} was made by another principal: who made it takes it back, or whoever has {TAKE_BACK} "
            "on the cluster",
            permission=TAKE_BACK,
        )
    if record.state == UNDONE:
        raise PlanUsed(
            f"the change {call_id} was undone already, by the call {record.undone_by}",
            field="call_id",
            value=call_id,
            undone_by=record.undone_by,
        ).followed_by(look)
    if context.now_ms() >= record.undo_until_ms:
        raise PlanExpired(
            f"the change {call_id} could be undone until {format_time(record.undo_until_ms)}",
            field="call_id",
            value=call_id,
        ).followed_by(look)
    return record


async def _undo(context: Context, record: ChangeRecord) -> Undo:
    operation = known(record.operation)
    assert operation.undo is not None, "a change is only kept if it can be undone"
    planned = operation.request.model_validate(dict(record.arguments))
    # Cut off between the effect and its note, the next undo meets the state of before, as one of a change that was cut off.
    done = Done(image=record.image, result=None if record.state == UNDOING else record.result)
    return await operation.undo(context, planned, done)


async def forecast_undo(context: Context, request: UndoChangeRequest) -> Forecast:
    """Of the state as it is now: what has come since the change may make its undo destroy, or impossible."""
    record = await _undoable(context, request.call_id)
    forecast = (await _undo(context, record)).forecast or Forecast(
        diff=[entry(each["path"], each["after"], each["before"]) for each in record.diff]
    )
    return replace(forecast, image=None, basis=[record.call_id, forecast.ground])


@operation(
    "changes.undo",
    effect=Effect.CHANGE,
    may_destroy=True,
    title="Undo a change",
    summary="Take a change back, until its undo_until: a deleted topic comes back with messages and cursors.",
    forecast=forecast_undo,
    default_profile=True,
    examples=(Example({"call_id": "c019b0c1d2e3f4a5b6c7d8e9f"}, "the call_id of its result"),),
)
async def undo_change(context: Context, request: UndoChangeRequest) -> UndoneChange:
    record = await _undoable(context, request.call_id)
    undo = await _undo(context, record)
    await context.desk.changes.put(replace(record, state=UNDOING))
    try:
        await undo.act()
    except ClusterError:
        with suppress(ClusterError):
            await context.desk.changes.put(record)  # it was refused, and may be tried again
        raise
    reached(Step.TAKEN_BACK)
    await context.desk.changes.put(replace(record, state=UNDONE, undone_by=context.call_id))
    return UndoneChange(undone_call_id=record.call_id, operation=record.operation)
