"""Long operations: which there are, how far they are, and stopping one."""

from __future__ import annotations

from pydanube_core.errors import Conflict, InvalidArgument
from pydanube_core.units import format_time

from pydanube_admin.context import Context
from pydanube_admin.forecast import Forecast, blast_radius, entry
from pydanube_admin.models import Page
from pydanube_admin.next_calls import next_call
from pydanube_admin.paging import cut, glob
from pydanube_admin.tasks.models import CancelledTask, ListTasksRequest, Task, TaskItem, TaskRequest
from pydanube_admin.tasks.records import RUNNING, TaskRecord
from pydanube_admin.tasks.telling import task_item, whole_task


async def list_tasks(context: Context, request: ListTasksRequest) -> Page[TaskItem]:
    matches = glob(request.filter)
    found = [record for record in await context.desk.tasks.kept() if matches(record.operation)]
    page = cut(found, key=lambda record: (record.task_id,), operation="tasks.list", request=request)
    tasks = context.desk.tasks
    return Page[TaskItem](
        items=[
            task_item(record, await tasks.work_of(record) if record.state == RUNNING else [])
            for record in page.items
        ],
        next_page=page.next_page,
        total=page.total,
        as_of=format_time(context.now_ms()),
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


async def get_task(context: Context, request: TaskRequest) -> Task:
    record = await _task(context, request)
    work = await context.desk.tasks.work_of(record) if record.state == RUNNING else []
    return whole_task(record, work)


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
