"""Tasks as everybody may see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydanube_core.units import format_time

from pydanube_admin.engine.models import Result
from pydanube_admin.engine.task_records import DONE, KEPT_MS, MAX_RESULT_BYTES, RUNNING, TaskRecord


class TaskItem(Result):
    identity: ClassVar = ("task_id",)

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


def task_item(record: TaskRecord, work: Sequence[Mapping[str, Any]]) -> TaskItem:
    """One of a list: without its result."""
    return TaskItem(**_item(record, work))


def whole_task(record: TaskRecord, work: Sequence[Mapping[str, Any]]) -> Task:
    """One with its result, or with why there is none."""
    return Task(
        **_item(record, work),
        via=record.via or record.operation,
        plan_id=record.plan_id,
        result=None if record.result is None else dict(record.result),
        result_reason=None if record.result is not None else _why_no_result(record),
        error=None if record.error is None else dict(record.error),
        kept_until=format_time(record.started_ms + KEPT_MS),
    )


def _item(record: TaskRecord, work: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "task_id": record.task_id,
        "of_call": record.call_id,
        "operation": record.operation,
        "arguments": dict(record.arguments),
        "principal": record.principal,
        "state": record.state,
        "detached": record.detached,
        "begun_again": record.begun_again,
        "started_at": format_time(record.started_ms),
        "ended_at": None if record.ended_ms is None else format_time(record.ended_ms),
        "code": record.code,
        "work": [dict(each) for each in (work if record.state == RUNNING else record.work)],
    }


def _why_no_result(record: TaskRecord) -> str:
    if record.result_bytes is not None:
        return (
            f"the result has {record.result_bytes} bytes, of which {MAX_RESULT_BYTES} are kept: ask for less"
        )
    if record.state == DONE:
        return "whoever made the call had it as the answer"
    return f"the task is {record.state}"
