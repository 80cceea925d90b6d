"""The operations on tasks."""

from __future__ import annotations

from typing import Final

from pydanube_admin.effect import Effect
from pydanube_admin.models import Page
from pydanube_admin.operation import Example, Operation
from pydanube_admin.tasks.handlers import cancel_task, forecast_cancel, get_task, list_tasks
from pydanube_admin.tasks.models import CancelledTask, ListTasksRequest, Task, TaskItem, TaskRequest

_ID: Final = "t019b0c1d2e3f4a5b6c7d8e9f"

TASK_OPERATIONS: Final = (
    Operation(
        name="tasks.list",
        tool="list_tasks",
        title="List tasks",
        effect=Effect.READ,
        permission="tasks:read",
        reversible=None,
        summary="List calls of long operations: those that run, and those of the last day.",
        request=ListTasksRequest,
        result=Page[TaskItem],
        handler=list_tasks,
        examples=(Example(arguments={}, note="with what became of them"),),
        default_profile=False,
    ),
    Operation(
        name="tasks.get",
        tool="get_task",
        title="Show a task",
        effect=Effect.READ,
        permission="tasks:read",
        reversible=None,
        summary="Show one long operation: how far it is, or what it came to.",
        request=TaskRequest,
        result=Task,
        handler=get_task,
        examples=(Example(arguments={"task_id": _ID}, note="by its id in tasks.list"),),
        default_profile=False,
    ),
    Operation(
        name="tasks.cancel",
        tool="cancel_task",
        title="Cancel a task",
        effect=Effect.CHANGE,
        permission="tasks:cancel",
        reversible=False,
        summary="Stop a long operation at its next step; what it has done stays done.",
        request=TaskRequest,
        result=CancelledTask,
        handler=cancel_task,
        forecast=forecast_cancel,
        examples=(Example(arguments={"task_id": _ID}, note="whoever waits for it is told"),),
        default_profile=False,
    ),
)
