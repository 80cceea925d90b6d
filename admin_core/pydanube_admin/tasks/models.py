"""Requests and results of the operations on tasks."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from pydanube_admin.models import Change, ListRequest, Request, Result


class ListTasksRequest(ListRequest):
    pass


class TaskRequest(Request):
    task_id: Annotated[str, Field(min_length=1, max_length=64, description="Id of the task")]


class TaskItem(Result):
    """A call of an operation that may take minutes."""

    task_id: str
    of_call: str  # call_id of the call that it is
    operation: str
    arguments: dict[str, Any]
    principal: str
    state: str  # running | done | failed | cancelled | interrupted
    detached: bool  # nobody waits for it: its result is kept
    begun_again: int  # how often a restart of the broker took it up
    started_at: str
    ended_at: str | None
    code: str | None  # of the error
    work: list[dict[str, Any]]  # how far it is, or was when it ended early


class Task(TaskItem):
    """A task with what it came to."""

    via: str  # the operation that was called: itself, or one that carries out others
    plan_id: str | None
    result: dict[str, Any] | None
    result_reason: str | None = None
    error: dict[str, Any] | None
    kept_until: str


class CancelledTask(Change):
    task_id: str
    operation: str
