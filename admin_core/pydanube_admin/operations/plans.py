"""Make, show, apply and discard plans, undo changes, and list and cancel long operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field
from pydanube_core.errors import (
    ClusterError,
    Conflict,
    InvalidArgument,
    PermissionDenied,
    PlanExpired,
    PlanNotFound,
    PlanUsed,
    TopicNotFound,
)
from pydanube_core.kill_steps import reached
from pydanube_core.security.permissions import TAKE_BACK
from pydanube_core.spelling import shown
from pydanube_core.units import format_time

from pydanube_admin.engine.change_records import UNDOING, UNDONE, ChangeRecord, ChangeStep
from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Done, Forecast, Undo, entry
from pydanube_admin.engine.many_plans import MEMBERS, apply_many, plan_many, topics_named
from pydanube_admin.engine.models import Change, Effect, Page, Place, Request, Result, SortedListRequest
from pydanube_admin.engine.operation import DECLARED, Call, known, next_call, operation
from pydanube_admin.engine.paging import Listing, glob, page_of
from pydanube_admin.engine.permission import Sight
from pydanube_admin.engine.plan_records import AppliedPlan, Plan, PlanRecord, ShownPlan, no_plan, shown_plan
from pydanube_admin.engine.task_records import (
    RUNNING,
    Task,
    TaskItem,
    TaskRecord,
    broker_of,
    task_item,
    whole_task,
)

_ID: Final = "p019b0c1d2e3f4a5b6c7d8e9f"


PlanId = Annotated[str, Field(min_length=1, max_length=64, description="Id of the plan")]


class CreatePlanRequest(Request):
    operation: Annotated[str, Field(max_length=100, description="Name of a change, such as topics.delete")]
    arguments: Annotated[
        dict[str, Any] | None, Field(description="Of that change, by name, without plan_token. Default: none")
    ] = None
    topics: Annotated[
        str | None,
        Field(
            max_length=16_384,
            description="One plan for all topics of these globs, commas between. Default: of arguments",
        ),
    ] = None


class PlanRequest(Request):
    plan_id: PlanId


class ApplyPlanRequest(Request):
    plan_token: Annotated[
        str, Field(min_length=1, max_length=256, description="In plan_operation's answer. It works once")
    ]
    plan_id: Annotated[
        str | None, Field(max_length=64, description="Optional: refuse the token of another plan")
    ] = None


class PlanItem(Result):
    identity: ClassVar = ("plan_id",)

    plan_id: str
    operation: str
    principal: str
    effect: str
    reversible: bool
    state: str  # open | used | discarded | expired
    as_of: str  # when it was made
    expires_at: str


class DiscardedPlan(Result):
    plan_id: str
    operation: str
    state: str


@operation(
    "plans.create",
    at=Place.CALL,
    effect=Effect.CREATE,
    tool="plan_operation",
    title="Plan a change",
    summary="Show the exact effects of a change, and get the token that does it once. Nothing changes.",
    idempotent=False,
    plans_itself=True,
    default_profile=True,
    examples=(
        Example(
            {"operation": "topics.delete", "arguments": {"topic": "orders"}},
            "the loss by deleting a topic",
        ),
        Example(
            {"operation": "topics.delete", "topics": "test-*,old-*"},
            "the same of every topic of two globs, with one token",
        ),
    ),
)
async def create_plan(context: Context, request: CreatePlanRequest) -> Plan:
    _check_topics_place(request)
    if request.topics is not None:
        return await plan_many(context, await _for_each(context, request, request.topics))
    return await context.executor.plan(
        context, _plannable(context, request.operation, request.arguments or {})
    )


def _check_topics_place(request: CreatePlanRequest) -> None:
    """Raise `InvalidArgument` if the topics of a plan are given as an argument of the change of each of them."""
    change, arguments = DECLARED.get(request.operation), dict(request.arguments or {})
    given = arguments.pop("topics", None)
    if given is None or change is None or "topics" in change.request_names:
        return
    if "topic" not in change.request_names or "topic" in arguments:
        return
    error = InvalidArgument(
        f"{change.name}: arguments has no 'topics', because it is the change of one topic. topics is an argument of the plan, "
        "beside operation and arguments",
        field="arguments.topics",
        value=shown(given),
        did_you_mean=["topics"],
    )
    names = [given] if isinstance(given, str) else given
    if request.topics is None and isinstance(names, list) and all(isinstance(each, str) for each in names):
        meant: dict[str, Any] = {"operation": change.name, "topics": ",".join(names)[:16_384]}
        if arguments:
            meant["arguments"] = arguments
        error.followed_by(next_call("plans.create", meant, "one plan for all of these topics"))
    raise error


async def _for_each(context: Context, request: CreatePlanRequest, globs: str) -> list[Call]:
    """Return the change for each named topic."""
    arguments = request.arguments or {}
    if request.operation not in DECLARED:
        context.executor.parse(request.operation, arguments)  # raises: it names close operations
    if "topic" in arguments or "topic" not in known(request.operation).request_names:
        raise InvalidArgument(
            "topics: the change is planned for each of them, so it takes a topic, and arguments has none",
            field="topics",
            value=globs[:200],
        )
    names = await topics_named(context, globs, known(request.operation).permission)
    if not names:
        raise TopicNotFound(
            f"topics: no topic is named by {shown(globs)!r}", field="topics", value=shown(globs)
        )
    return [_plannable(context, request.operation, {**arguments, "topic": name}) for name in names]


def _plannable(context: Context, operation: str, arguments: Mapping[str, Any]) -> Call:
    call = context.executor.parse(operation, arguments)
    if not call.operation.planned or call.plan_token:
        raise InvalidArgument(
            f"{operation} cannot be planned: it is no change, or is itself about plans. Call it as it is",
            field="operation",
            value=operation,
        ).followed_by(call.operation.next_call(call.arguments, "does it"))
    return call


@operation(
    "plans.list",
    effect=Effect.READ,
    summary="List plans, the oldest first, with their outcomes.",
    examples=(Example({}, "every plan that is kept"),),
)
async def list_plans(context: Context, request: SortedListRequest) -> Page[PlanItem]:
    matches, sight = glob(request.filter), Sight(context.port, "plans:read")
    now = context.now_ms()
    plans = await context.executor.plans.list()
    found = [plan for plan in plans if matches(plan.operation) and sight.made_by(plan)]
    return await page_of(
        context,
        PlanItem,
        found,
        lambda plan: PlanItem.of(plan, **plan.standing(now)),
        key=lambda plan: (plan.plan_id,),
        request=request,
    )


async def _visible_plan(context: Context, request: PlanRequest, permission: str) -> PlanRecord:
    """Return the plan. Another caller's plan is unknown without the permission."""
    record, _ = await context.executor.plans.get(request.plan_id)
    if not Sight(context.port, permission).made_by(record):
        raise no_plan(request.plan_id)
    return record


@operation(
    "plans.show",
    effect=Effect.READ,
    title="Show a plan",
    summary="Show the changes of a plan, without its token.",
    examples=(Example({"plan_id": _ID}, "as it was made"),),
)
async def show_plan(context: Context, request: PlanRequest) -> ShownPlan:
    record = await _visible_plan(context, request, "plans:read")
    return shown_plan(record, context.now_ms())


@operation(
    "plans.apply",
    at=Place.PLAN,
    effect=Effect.DESTROY,
    title="Apply a plan",
    summary="Apply a plan, once. Refused if its basis has changed.",
    plans_itself=True,
    default_profile=True,
    examples=(Example({"plan_token": f"{_ID}.secret"}, "the token of plans.create"),),
)
async def apply_plan(context: Context, request: ApplyPlanRequest) -> AppliedPlan:
    many = await context.executor.plans.many(request.plan_token)
    if many is not None and request.plan_id in (None, many[0].plan_id):
        return await apply_many(context, *many, request.plan_token)
    return await context.executor.apply(context, request.plan_token, request.plan_id)


@operation(
    "plans.discard",
    effect=Effect.CHANGE,
    ends=True,
    title="Discard a plan",
    summary="Take a plan out of use before its time.",
    plans_itself=True,
    examples=(Example({"plan_id": _ID}, "it can no longer be applied"),),
)
async def discard_plan(context: Context, request: PlanRequest) -> DiscardedPlan:
    await _visible_plan(context, request, "plans:discard")
    record = await context.executor.discard(context, request.plan_id)
    return DiscardedPlan(plan_id=record.plan_id, operation=record.operation, state=record.state)


class UndoChangeRequest(Request):
    call_id: Annotated[
        str, Field(min_length=1, max_length=64, description="call_id in the result of the change")
    ]


class UndoneChange(Change):
    undone_call_id: str
    operation: str  # the undone one
    # Of a change of several topics: the call ids of the undone changes, and the others with their errors
    undone: list[str] | None = Field(default=None, exclude_if=lambda value: value is None)
    failed: list[dict[str, Any]] | None = Field(default=None, exclude_if=lambda value: value is None)


async def _undoable(context: Context, call_id: str) -> ChangeRecord:
    found = await context.executor.changes.get(call_id)
    look = next_call("audit.query", {"call_id": call_id}, "shows what that call did")
    unknown = PlanNotFound(
        f"there is no change {call_id!r} that could be undone: it is unknown, of a kind that cannot be undone, or "
        "too old",
        field="call_id",
        value=call_id,
    ).followed_by(look)
    if found is None:
        raise unknown
    record, _ = found
    own = Sight(context.port, TAKE_BACK).made_by(record)
    try:
        if MEMBERS not in record.image:
            # An undo needs the permission for the change
            context.executor.parse(record.operation, record.arguments)
    except PermissionDenied as denied:
        raise denied if own else unknown from None
    if not own and MEMBERS in record.image:
        raise unknown
    if not own:
        raise PermissionDenied(
            f"the change {call_id} was made by another principal: only that principal may undo it, or one with {TAKE_BACK} "
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
    if context.now_ms() - context.port.clock_apart_ms()[0] >= record.undo_until_ms:
        raise PlanExpired(
            f"the change {call_id} could be undone until {format_time(record.undo_until_ms)}",
            field="call_id",
            value=call_id,
        ).followed_by(look)
    return record


async def _undo_of(context: Context, record: ChangeRecord) -> Undo:
    operation = known(record.operation)
    assert operation.undo is not None, "a change is only kept if it can be undone"
    planned = operation.request.model_validate(dict(record.arguments))
    # An earlier undo that was cut off may have restored the former state already, so the result proves nothing.
    done = Done(image=record.image, result=None if record.state == UNDOING else record.result)
    return await operation.undo(context, planned, done)


async def forecast_undo(context: Context, request: UndoChangeRequest) -> Forecast:
    """Forecast the undo in the present state: later changes may make it destructive, or impossible."""
    record = await _undoable(context, request.call_id)
    if MEMBERS in record.image:
        return await _forecast_all(context, record)
    forecast = (await _undo_of(context, record)).forecast or Forecast(
        diff=[entry(each["path"], each["after"], each["before"]) for each in record.diff]
    )
    return replace(forecast, image=None, basis=[record.call_id, forecast.ground])


@operation(
    "changes.undo",
    at=Place.CHANGE,
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
    if MEMBERS in record.image:
        return await _undo_all(context, record)
    await _undo_one(context, record)
    return UndoneChange(undone_call_id=record.call_id, operation=record.operation)


async def _not_undone(context: Context, record: ChangeRecord) -> list[str]:
    """Return the call ids of the changes of a plan for many topics that are not undone yet, the last first."""
    found = [await context.executor.changes.get(call_id) for call_id in reversed(record.image[MEMBERS])]
    return [each[0].call_id for each in found if each is not None and each[0].state != UNDONE]


async def _forecast_all(context: Context, record: ChangeRecord) -> Forecast:
    """Forecast the undo of each change. An impossible one is shown with its error code, and the others are still undone."""
    diff: list[Mapping[str, Any]] = []
    grounds: list[Any] = []
    destroys = False
    for call_id in await _not_undone(context, record):
        try:
            found = await forecast_undo(context, UndoChangeRequest(call_id=call_id))
        except ClusterError as error:
            diff.append(entry(f"changes/{call_id}", error.code, error.code))
            continue
        diff += found.diff
        grounds.append(found.ground)
        destroys = destroys or found.effect is Effect.DESTROY
    return Forecast(diff=diff, effect=Effect.DESTROY if destroys else None, basis=[record.call_id, grounds])


async def _undo_all(context: Context, record: ChangeRecord) -> UndoneChange:
    """Undo the changes of a plan for many topics, the last first. Another call can undo those that failed."""
    undone: list[str] = []
    failed: list[dict[str, Any]] = []
    for call_id in await _not_undone(context, record):
        try:
            await _undo_one(context, await _undoable(context, call_id))
        except ClusterError as error:
            failed.append({"call_id": call_id, "error": error.to_dict()})
        else:
            undone.append(call_id)
    if not failed:
        await context.executor.changes.put(replace(record, state=UNDONE, undone_by=context.call_id))
    return UndoneChange(
        undone_call_id=record.call_id, operation=record.operation, undone=undone, failed=failed
    )


async def _undo_one(context: Context, record: ChangeRecord) -> None:
    undo = await _undo_of(context, record)
    await context.executor.changes.put(replace(record, state=UNDOING))
    try:
        await undo.act()
    except ClusterError:
        with suppress(ClusterError):
            await context.executor.changes.put(record)  # so that the undo can be tried again
        raise
    reached(ChangeStep.TAKEN_BACK)
    await context.executor.changes.put(replace(record, state=UNDONE, undone_by=context.call_id))


_TASK_ID: Final = "t019b0c1d2e3f4a5b6c7d8e9f"


class TaskRequest(Request):
    task_id: Annotated[str, Field(min_length=1, max_length=64, description="Id of the task")]


class CancelledTask(Change):
    task_id: str
    operation: str


@operation(
    "tasks.list",
    effect=Effect.READ,
    summary="List calls of long operations: those that run, and those of the last day.",
    examples=(Example({}, "with their outcome"),),
)
async def list_tasks(context: Context, request: SortedListRequest) -> Page[TaskItem]:
    matches, sight = glob(request.filter), Sight(context.port, "tasks:read")
    records = await context.executor.tasks.all()
    found = [record for record in records if matches(record.operation) and sight.made_by(record)]
    tasks = context.executor.tasks

    async def made(some: Sequence[TaskRecord]) -> list[TaskItem]:
        return [
            task_item(record, await tasks.work_of(record) if record.state == RUNNING else [])
            for record in some
        ]

    def key(record: TaskRecord) -> tuple[str]:
        return (record.task_id,)

    listing = Listing(context, TaskItem, made, key, key=key, request=request)
    return await listing.page(found)


async def _task(context: Context, request: TaskRequest, permission: str) -> TaskRecord:
    """Return the task. Another caller's task is unknown without the permission."""
    record = await context.executor.tasks.get(request.task_id)
    if record is None or not Sight(context.port, permission).made_by(record):
        raise InvalidArgument(
            f"there is no task {request.task_id!r}: it never existed, or ended more than a day ago",
            field="task_id",
            value=request.task_id,
        ).followed_by(next_call("tasks.list", {}, "shows the tasks there are"))
    return record


@operation(
    "tasks.get",
    at=Place.TASK,
    effect=Effect.READ,
    title="Show a task",
    summary="Show one long operation: its progress, or its result.",
    examples=(Example({"task_id": _TASK_ID}, "by its id in tasks.list"),),
)
async def get_task(context: Context, request: TaskRequest) -> Task:
    record = await _task(context, request, "tasks:read")
    work = await context.executor.tasks.work_of(record) if record.state == RUNNING else []
    return whole_task(record, work)


async def _running(context: Context, request: TaskRequest) -> TaskRecord:
    record = await _task(context, request, "tasks:cancel")
    if record.state != RUNNING:
        raise Conflict(
            f"the task {record.task_id} is {record.state}, so there is nothing to cancel",
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
    at=Place.TASK,
    effect=Effect.CHANGE,
    ends=True,
    title="Cancel a task",
    summary="Stop a long operation at its next step. Its finished steps stay.",
    forecast=forecast_cancel,
    examples=(Example({"task_id": _TASK_ID}, "a caller that waits for it gets the error"),),
)
async def cancel_task(context: Context, request: TaskRequest) -> CancelledTask:
    """Cancel a task at its next step. Its finished steps stay."""
    record = await _running(context, request)
    if not context.executor.tasks.cancel(record.task_id) and record.life != context.port.life:
        broker_id = broker_of(record.life)
        raise Conflict(
            f"the task {record.task_id} runs at the broker {broker_id}: cancel it there",
            retryable=False,
            field="task_id",
            value=record.task_id,
            broker_id=broker_id,
        )
    return CancelledTask(task_id=record.task_id, operation=record.operation)
