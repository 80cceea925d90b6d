"""Long operations in the metadata store, while they run and for a day after, and as shown."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pydanube_core.errors import Conflict, Internal
from pydanube_core.stored_json import VersionedJson
from pydanube_core.units import format_time, known_time

from pydanube_admin.engine.models import Result

PREFIX: Final = "tasks/"
KEPT_MS: Final = 86_400_000
MAX_RESULT_BYTES: Final = 128 * 1024  # a value of the store holds 200 KiB
RUNNING, DONE, FAILED, CANCELLED, INTERRUPTED = "running", "done", "failed", "cancelled", "interrupted"


def broker_of(life: str) -> str:
    """Return the id of the broker whose start a life is."""
    return life.partition("/")[0]


def task_id_of(call_id: str) -> str:
    """Return the id of a call's task: the call's id with another letter."""
    return "t" + call_id[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord(VersionedJson):
    """One call of a long operation."""

    task_id: str
    call_id: str
    operation: str
    arguments: Mapping[str, Any]  # redacted, for readers
    principal: str
    started_ms: int
    state: str = RUNNING
    ended_ms: int | None = None
    code: str | None = None  # code of the error
    face: str = ""
    via: str = ""  # the operation that was called, if it was one that carries out others
    plan_id: str | None = None
    detached: bool = False  # no caller waits for it
    given: Mapping[str, Any] | None = None  # of a detached one: the complete arguments, for a resumption
    begun_again: int = 0  # how often a later life of the broker resumed it
    result: Mapping[str, Any] | None = None  # of a detached one
    result_bytes: int | None = None  # of a result that is too large to be kept
    error: Mapping[str, Any] | None = None
    life: str = ""  # of the broker that runs it
    work: Sequence[Mapping[str, Any]] = ()  # how far it was when that was last noted
    principal_type: str = ""  # as of its call


def cut_off(record: TaskRecord) -> Internal:
    """Return the error of a task that the end of its broker interrupted, with the last noted progress."""
    known = "; ".join(_done(each) for each in record.work)
    return Internal(
        f"the broker ended while {record.operation} was under way, and it was not begun again: "
        + (f"when that was last noted it had done {known}" if known else "its progress is unknown"),
        task_id=record.task_id,
        interrupted=True,
        work=[dict(each) for each in record.work],
    )


def cancelled(record: TaskRecord) -> Conflict:
    """Return the error of a task that `tasks.cancel` ended."""
    return Conflict(
        f"the task {record.task_id} was cancelled. Its finished steps stay",
        task_id=record.task_id,
        retryable=False,
    )


def _done(work: Mapping[str, Any]) -> str:
    of = "" if work.get("total") is None else f" of {work['total']}"
    return f"{work.get('done')}{of} {work.get('unit')}" + (f" ({work['topic']})" if work.get("topic") else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Detachment:
    """How a call becomes a task. `begun` gets the stored record. `before` is the taken record of a resumed task."""

    via: str
    begun: asyncio.Future[TaskRecord]
    before: TaskRecord | None = None


class TaskItem(Result):
    identity: ClassVar = ("task_id",)

    """A call of an operation that may take minutes."""

    task_id: str
    of_call: str  # call_id of the call that it is
    operation: str
    arguments: dict[str, Any]
    principal: str
    state: str  # running | done | failed | cancelled | interrupted
    detached: bool  # no caller waits for it: its result is kept
    begun_again: int  # number of times that a restarted broker resumed it
    started_at: str
    ended_at: str | None
    code: str | None  # code of the error
    work: list[dict[str, Any]]  # the progress, of a task that ended early its last


class Task(TaskItem):
    """A task with its result."""

    via: str  # the operation that was called: itself, or one that carries out others
    plan_id: str | None
    result: dict[str, Any] | None
    result_reason: str | None = None
    error: dict[str, Any] | None
    kept_until: str


def task_item(record: TaskRecord, work: Sequence[Mapping[str, Any]]) -> TaskItem:
    """Return a task for a list: without its result."""
    return TaskItem.of(record, **_derived_fields(record, work))


def whole_task(record: TaskRecord, work: Sequence[Mapping[str, Any]]) -> Task:
    """Return a task with its result, or with the reason why there is none."""
    return Task.of(
        record,
        **_derived_fields(record, work),
        via=record.via or record.operation,
        result_reason=None if record.result is not None else _why_no_result(record),
        kept_until=format_time(record.started_ms + KEPT_MS),
    )


def _derived_fields(record: TaskRecord, work: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of a task that its record stores in another form."""
    return {
        "of_call": record.call_id,
        "started_at": format_time(record.started_ms),
        "ended_at": known_time(record.ended_ms),
        "work": [dict(each) for each in (work if record.state == RUNNING else record.work)],
    }


def _why_no_result(record: TaskRecord) -> str:
    if record.result_bytes is not None:
        return (
            f"the result has {record.result_bytes} bytes, of which {MAX_RESULT_BYTES} are kept: request less"
        )
    if record.state == DONE:
        return "its caller had it as the answer"
    return f"the task is {record.state}"
