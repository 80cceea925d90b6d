"""Requests and results of the operations on tasks."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from pydanube_admin.models import Change, ListRequest, Request, Result

__all__ = ["CancelledTask", "ListTasksRequest", "TaskItem", "TaskRequest"]


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
    started_at: str
    ended_at: str | None
    code: str | None  # of the error
    work: list[dict[str, Any]]  # how far the broker's long work is, while it runs


class CancelledTask(Change):
    task_id: str
    operation: str
