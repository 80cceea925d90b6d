"""Long operations: which there are, how far they are, and stopping one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydanube_core.errors import Conflict, InvalidArgument
from pydanube_core.units import format_time

from pydanube_admin.context import Context
from pydanube_admin.forecast import Forecast, blast_radius, entry
from pydanube_admin.models import Page
from pydanube_admin.next_calls import next_call
from pydanube_admin.paging import cut, glob
from pydanube_admin.tasks.models import CancelledTask, ListTasksRequest, TaskItem, TaskRequest
from pydanube_admin.tasks.records import RUNNING, TaskRecord

__all__ = ["cancel_task", "forecast_cancel", "get_task", "list_tasks"]


async def list_tasks(context: Context, request: ListTasksRequest) -> Page[TaskItem]:
    matches = glob(request.filter)
    found = [record for record in await context.desk.tasks.list() if matches(record.operation)]
    page = cut(found, key=lambda record: (record.task_id,), operation="tasks.list", request=request)
    work = await _work(context)
    return Page[TaskItem](
        items=[_item(record, work) for record in page.items],
        next_page=page.next_page,
        total=page.total,
        as_of=format_time(context.now_ms()),
    )


async def _work(context: Context) -> list[dict[str, Any]]:
    found = (await context.port.status()).tier.get("work", ())
    return [dict(each) for each in found if isinstance(each, Mapping)]


def _item(record: TaskRecord, work: list[dict[str, Any]]) -> TaskItem:
    return TaskItem(
        task_id=record.task_id,
        of_call=record.call_id,
        operation=record.operation,
        arguments=dict(record.arguments),
        principal=record.principal,
        state=record.state,
        started_at=format_time(record.started_ms),
        ended_at=None if record.ended_ms is None else format_time(record.ended_ms),
        code=record.code,
        work=[each for each in work if each.get("operation") == record.operation]
        if record.state == RUNNING
        else [],
    )


async def _task(context: Context, request: TaskRequest) -> TaskRecord:
    record = await context.desk.tasks.get(request.task_id)
    if record is None:
        raise InvalidArgument(
            f"there is no task {request.task_id!r}: it never was, or ended more than a day ago",
            field="task_id",
            value=request.task_id,
        ).followed_by(next_call("tasks.list", {}, "shows the tasks there are"))
    return record


async def get_task(context: Context, request: TaskRequest) -> TaskItem:
    return _item(await _task(context, request), await _work(context))


async def _running(context: Context, request: TaskRequest) -> TaskRecord:
    record = await _task(context, request)
    if record.state != RUNNING:
        raise Conflict(
            f"the task {record.task_id} is {record.state}; there is nothing to cancel",
            field="task_id",
            value=record.task_id,
        )
    return record


async def forecast_cancel(context: Context, request: TaskRequest) -> Forecast:
    record = await _running(context, request)
    return Forecast(
        diff=[entry(f"tasks/{record.task_id}/state", record.state, "cancelled")], blast_radius=blast_radius()
    )


async def cancel_task(context: Context, request: TaskRequest) -> CancelledTask:
    """What it has done so far stays done; it ends at the next step."""
    record = await _running(context, request)
    context.desk.tasks.cancel(record.task_id)
    return CancelledTask(task_id=record.task_id, operation=record.operation)
