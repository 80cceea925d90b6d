"""Long operations: which there are, how far they are, and stopping one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field
from pydanube_core.errors import Conflict, InvalidArgument

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.effect import Effect
from pydanube_admin.engine.forecast import Forecast, entry
from pydanube_admin.engine.models import Change, Page, Request, SortedListRequest
from pydanube_admin.engine.next_calls import next_call
from pydanube_admin.engine.operation import Example, operation
from pydanube_admin.engine.paging import Listing, glob
from pydanube_admin.engine.permission import Sight
from pydanube_admin.engine.shown_task import Task, TaskItem, task_item, whole_task
from pydanube_admin.engine.task_records import RUNNING, TaskRecord

_ID: Final = "t019b0c1d2e3f4a5b6c7d8e9f"


class TaskRequest(Request):
    task_id: Annotated[str, Field(min_length=1, max_length=64, description="Id of the task")]


class CancelledTask(Change):
    task_id: str
    operation: str


@operation(
    "tasks.list",
    effect=Effect.READ,
    summary="List calls of long operations: those that run, and those of the last day.",
    examples=(Example({}, "with what became of them"),),
)
async def list_tasks(context: Context, request: SortedListRequest) -> Page[TaskItem]:
    matches, sight = glob(request.filter), Sight(context.port, "tasks:read")
    kept = await context.desk.tasks.kept()
    found = [record for record in kept if matches(record.operation) and sight.made_by(record)]
    tasks = context.desk.tasks

    async def made(some: Sequence[TaskRecord]) -> list[TaskItem]:
        return [
            task_item(record, await tasks.work_of(record) if record.state == RUNNING else [])
            for record in some
        ]

    def key(record: TaskRecord) -> tuple[str]:
        return (record.task_id,)

    listing = Listing(context, TaskItem, made, key, key=key, operation="tasks.list", request=request)
    return await listing.page(found)


async def _task(context: Context, request: TaskRequest, permission: str) -> TaskRecord:
    """The task; of others only with the permission, and what is hidden is said not to be there."""
    record = await context.desk.tasks.get(request.task_id)
    if record is None or not Sight(context.port, permission).made_by(record):
        raise InvalidArgument(
            f"there is no task {request.task_id!r}: it never was, or ended more than a day ago",
            field="task_id",
            value=request.task_id,
        ).followed_by(next_call("tasks.list", {}, "shows the tasks there are"))
    return record


@operation(
    "tasks.get",
    effect=Effect.READ,
    title="Show a task",
    summary="Show one long operation: how far it is, or what it came to.",
    examples=(Example({"task_id": _ID}, "by its id in tasks.list"),),
)
async def get_task(context: Context, request: TaskRequest) -> Task:
    record = await _task(context, request, "tasks:read")
    work = await context.desk.tasks.work_of(record) if record.state == RUNNING else []
    return whole_task(record, work)


async def _running(context: Context, request: TaskRequest) -> TaskRecord:
    record = await _task(context, request, "tasks:cancel")
    if record.state != RUNNING:
        raise Conflict(
            f"the task {record.task_id} is {record.state}; there is nothing to cancel",
            retryable=False,
            field="task_id",
            value=record.task_id,
        )
    return record


async def forecast_cancel(context: Context, request: TaskRequest) -> Forecast:
    record = await _running(context, request)
    return Forecast(diff=[entry(f"tasks/{record.task_id}/state", record.state, "cancelled")])


@operation(
    "tasks.cancel",
    effect=Effect.CHANGE,
    title="Cancel a task",
    summary="Stop a long operation at its next step; what it has done stays done.",
    forecast=forecast_cancel,
    examples=(Example({"task_id": _ID}, "whoever waits for it is told"),),
)
async def cancel_task(context: Context, request: TaskRequest) -> CancelledTask:
    """Stop a task at its next step; what it has done so far stays done."""
    record = await _running(context, request)
    if not context.desk.tasks.cancel(record.task_id) and record.life != context.port.life:
        broker_id = record.life.partition("/")[0]
        raise Conflict(
            f"the task {record.task_id} runs at the broker {broker_id}: ask that one to cancel it",
            retryable=False,
            field="task_id",
            value=record.task_id,
            broker_id=broker_id,
        )
    return CancelledTask(task_id=record.task_id, operation=record.operation)
