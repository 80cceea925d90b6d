"""The executor plans changes and makes them: one at a time for each target, recorded before and after.

The order of a change: forecast it, refuse it or require a plan, write the audit's `call` durably, store the
record for its undo and end the plan in one transaction, make the change, store the result, write the audit's
`outcome`. A crash at any point leaves a change whose undo works, whether the change is done, half done or not
begun.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import (
    AuditUnavailable,
    ClusterError,
    Conflict,
    Draining,
    Internal,
    PlanMismatch,
    PlanRequired,
    PlanStale,
)
from pydanube_core.facts import Grace
from pydanube_core.kill_steps import reached
from pydanube_core.security.identity import relayed_by
from pydanube_core.units import format_time

from pydanube_admin.engine.audit.audit_cut_off import calls_cut_off
from pydanube_admin.engine.audit.audit_log import HEAD_KEY, AuditLog
from pydanube_admin.engine.audit.audit_records import Entry, head_value
from pydanube_admin.engine.balancer import Balancer
from pydanube_admin.engine.change_records import (
    APPLIED,
    INTERRUPTED,
    UNDO,
    UNDO_PATH,
    ChangeRecord,
    Changes,
    ChangeStep,
    MovesByClients,
    as_promised,
)
from pydanube_admin.engine.context import AdminOptions, Context, NowMs
from pydanube_admin.engine.forecast import Forecast, bounded, is_stale, made_again
from pydanube_admin.engine.guards import Guards, target_of
from pydanube_admin.engine.models import Change, Place, Result
from pydanube_admin.engine.operation import APPLY, Call, known
from pydanube_admin.engine.permission import calling
from pydanube_admin.engine.plan_records import (
    DISCARDED,
    PREFIX,
    USED,
    AppliedPlan,
    Plan,
    PlanRecord,
    Plans,
    refusal_of,
    shown_plan,
)
from pydanube_admin.engine.stored_records import CALL, PLAN, new_id
from pydanube_admin.engine.task_records import DONE, RUNNING, broker_of, cancelled, task_id_of
from pydanube_admin.engine.tasks import Resumption, Tasks
from pydanube_admin.wording.radius import loss_text

_log = logging.getLogger("pydanube.admin")

#: Changes that quotas do not count: they stop other callers, or undo a change.
UNCOUNTED: Final = frozenset({"faces.freeze", "faces.thaw", "changes.undo"})
MAX_RESULT_CHARS: Final = 16_384  # of a result that is stored for the undo

T = TypeVar("T")
Parser = Callable[[str, Mapping[str, Any]], Call]


class ChangeExecutor:
    """See the module. Single user: the loop.

    Args:
        parse: checks a call by its name and arguments. A parameter, because it imports every operation.
    """

    balancer: Balancer  # set by the code that creates the executor

    def __init__(
        self, port: ClusterPort, audit: AuditLog, options: AdminOptions, now_ms: NowMs, parse: Parser
    ) -> None:
        self._port = port
        self._audit = audit
        self._options = options
        self._now_ms = now_ms
        self.parse = parse
        self.plans = Plans(port)
        self.changes = Changes(port)
        self.moves = MovesByClients(port, self.changes, options.undo_grace_ms)
        self.tasks = Tasks(port, now_ms)
        self.guards = Guards(port)
        self._one_at_a_time = asyncio.Lock()  # within this process. Between brokers the guards do it
        self._running: set[asyncio.Task[Any]] = set()

    # -- plans -----------------------------------------------------------------------------------------------

    async def plan(self, context: Context, call: Call) -> Plan:
        """Forecast a call and store the forecast as a plan, which the caller can apply once."""
        forecast = await self._forecast(context, call)
        return await self._store_plan(context, call, forecast)

    async def _forecast(self, context: Context, call: Call) -> Forecast:
        await self.moves.settled()
        forecast = call.operation.forecast
        assert forecast is not None, "only changes are planned"
        found = await forecast(context, call.request)
        found = replace(found, diff=bounded(found.diff))
        if not call.operation.can_undo(found) or not self._options.undo_grace_ms:
            return replace(found, reversible=False)
        await self.changes.sweep(self._now_ms())
        return await as_promised(self._port, self.changes, found, destroys=call.operation.destroys(found))

    async def _store_plan(self, context: Context, call: Call, forecast: Forecast) -> Plan:
        now = self._now_ms()
        record = PlanRecord(
            plan_id=new_id(PLAN, now),
            operation=call.operation.name,
            arguments=call.arguments,
            **context.owner,
            effect=(forecast.effect or call.operation.effect).value,
            reversible=call.operation.can_undo(forecast),
            diff=[dict(each) for each in forecast.diff],
            blast_radius=dict(forecast.blast_radius),
            revision=forecast.revision,
            later=forecast.later,
            pinned=forecast.pinned,
            was_live=forecast.was_live,
            why=context.why,
            created_ms=now,
            expires_ms=now + self._options.plan_ttl_ms,
            secret="",
        )
        return Plan(**shown_plan(record, now).model_dump(), plan_token=await self.plans.add(record))

    async def discard(self, context: Context, plan_id: str) -> PlanRecord:
        """Discard a plan. Raises `PlanNotFound`, `PlanUsed`, `PlanMismatch` (another principal's plan)."""
        record, revision = await self.plans.get(plan_id)
        self._check_owner(context, record)
        if record.state == USED:
            self._check_open(record)
        return await self.plans.end(record, revision, DISCARDED)

    # -- making changes --------------------------------------------------------------------------------------

    async def change(self, context: Context, call: Call, *, one_step: bool = False) -> Result:
        """Make a change, or raise the step that must come before it.

        Args:
            one_step: for a face that cannot show a plan: a destructive change is planned, recorded and made
                in one call.

        Raises:
            PlanRequired: it destroys. The plan is in `details`.
            PlanNotFound, PlanMismatch, PlanUsed, PlanExpired, PlanStale: by `call.plan_token`.
            AuditUnavailable, Draining: nothing was changed.
        """
        entry = Entry.of(context, call.operation.name, call.arguments)
        if call.plan_only:
            return await self._refusable(entry, self._only_plan(context, call, entry))
        work = self._refusable(entry, self._change(context, call, entry, one_step))
        return await (work if call.operation.long_running else self._to_the_end(work))

    async def apply(self, context: Context, token: str, plan_id: str | None) -> AppliedPlan:
        """Apply a plan. Raises the errors of `change`."""
        entry = Entry.of(context, APPLY, {"plan_id": plan_id})
        record, _ = await self._refusable(entry, self.plans.of_token(token))
        if plan_id is not None and plan_id != record.plan_id:
            mismatch = PlanMismatch(
                f"plan_token is that of the plan {record.plan_id}, not of {plan_id}",
                field="plan_id",
                value=plan_id,
            )
            await self._audit.write(*entry.refused(mismatch))
            raise mismatch
        call = replace(self.parse(record.operation, record.arguments), plan_token=token)
        result = await self.change(context, call)
        assert isinstance(result, Change), "every planned operation returns a Change"
        return AppliedPlan(
            operation=record.operation,
            result=result.model_dump(mode="json", by_alias=True),
            call_id=result.call_id,
            plan_id=result.plan_id,
            undo_until=result.undo_until,
        )

    async def _only_plan(self, context: Context, call: Call, entry: Entry) -> Plan:
        plan = await self.plan(context, call)
        self._audit.note(entry.outcome(decision="planned", plan_id=plan.plan_id))
        return plan

    async def _refusable(self, entry: Entry, work: Coroutine[Any, Any, T]) -> T:
        """Run work that may raise before anything is changed, and record the refusal in the audit."""
        try:
            return await work
        except ClusterError as error:
            if not entry.is_recorded:
                try:
                    await self._audit.write(*entry.refused(error))
                except (AuditUnavailable, Draining):
                    _log.warning("audit.refusal_not_recorded")
            raise

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a change to its end, even if the caller stops waiting."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _change(self, context: Context, call: Call, entry: Entry, one_step: bool) -> Result:
        if not call.operation.long_running:
            async with self.guards.held(await self._target(call), context.call_id), self._one_at_a_time:
                return await self._carry_out(await self._prepare(context, call, entry, one_step))
        # Its own lock shows other brokers that the call is under way
        async with self.guards.held(context.call_id, context.call_id):
            async with self.guards.held(await self._target(call), context.call_id), self._one_at_a_time:
                prepared = await self._prepare(context, call, entry, one_step)
            return await self._carry_out(prepared)

    async def _target(self, call: Call) -> str:
        """Return the target that the call changes. For an undo this is the target of the undone change."""
        arguments = call.arguments
        if call.operation.name == UNDO:
            found = await self.changes.get(str(arguments["call_id"]))
            if found is not None:
                return target_of(known(found[0].operation).group, found[0].arguments)
        return target_of(call.operation.group, arguments)

    async def _prepare(self, context: Context, call: Call, entry: Entry, one_step: bool) -> _Prepared:
        """Do everything before the effect. On return the change is recorded, and must be carried out."""
        held: tuple[PlanRecord, int] | None = None
        if call.plan_token:
            held = await self._check_token(context, call)
            context = replace(context, pinned=held[0].pinned)
        forecast = await self._forecast(context, call)
        now = self._now_ms()
        if held is not None:
            broken_promise = held[0].reversible and not call.operation.can_undo(forecast)
            if is_stale(held[0].revision, forecast) or broken_promise:
                raise await self._stale(replace(context, pinned=None), call, held[0], forecast)
        elif call.operation.destroys(forecast):
            if not one_step:
                raise await self._required(context, call, forecast)
            if not self._options.compat_destructive:
                raise PlanRequired(
                    f"{call.operation.name} destroys, and admin.compat_destructive is false: make the plan on the "
                    "command line, over MCP or over JSON-RPC",
                    operation=call.operation.name,
                )
        if call.operation.name not in UNCOUNTED:
            lost = forecast.blast_radius["messages"] if call.operation.destroys(forecast) else 0
            self._port.quotas.change(calling(), lost)
        plan_id = new_id(PLAN, now) if held is None else held[0].plan_id
        record = self._record_of(context, call, forecast, plan_id, now)
        entry.planned(plan_id, forecast, "" if held is None else held[0].why)
        reached(ChangeStep.CHECKED)
        await self._audit.write(entry.call())
        entry.mark_recorded()
        reached(ChangeStep.RECORDED)
        try:
            record = await self._begin(record, held, context.call_id)
        except ClusterError as error:
            await self._audit.write(entry.outcome(decision="refused", error=error))
            raise
        reached(ChangeStep.BEGUN)
        grace = None if record is None else Grace(call_id=context.call_id, until_ms=record.undo_until_ms)
        return _Prepared(
            context=replace(context, grace=grace, pinned=forecast.pinned),
            call=call,
            entry=entry,
            plan_id=plan_id,
            record=record,
        )

    def _record_of(
        self, context: Context, call: Call, forecast: Forecast, plan_id: str, now: int
    ) -> ChangeRecord | None:
        """Return the record kept for the undo, or None if the change cannot be undone."""
        if not call.operation.can_undo(forecast):
            return None
        return ChangeRecord(
            call_id=context.call_id,
            plan_id=plan_id,
            operation=call.operation.name,
            arguments=call.arguments,
            **context.owner,
            at_ms=now,
            undo_until_ms=now + self._options.undo_grace_ms,
            diff=[dict(each) for each in forecast.diff if each["path"] != UNDO_PATH],
            image=dict(forecast.image or {}),
            destroys=call.operation.destroys(forecast),
            life=self._port.life,
        )

    async def _begin(
        self, record: ChangeRecord | None, held: tuple[PlanRecord, int] | None, call_id: str
    ) -> ChangeRecord | None:
        writes: dict[str, bytes | None] = {}
        expected: dict[str, int | None] = {}
        if record is not None:
            record = await self.changes.keep_image(record)
            reached(ChangeStep.IMAGE_KEPT)
            writes["changes/" + record.call_id] = record.to_bytes()
        if held is not None:
            plan, revision = held
            key = PREFIX + plan.plan_id
            writes[key] = replace(plan, state=USED, call_id=call_id).to_bytes()
            expected[key] = revision
        if not writes:
            return None
        try:
            await self._port.write_state(writes, expected=expected)
        except Conflict:
            assert held is not None, "only a plan is guarded"
            self._check_open(replace(held[0], state=USED))
            raise
        if record is not None:
            self.changes.added(record)
        return record

    async def _carry_out(self, prepared: _Prepared) -> Result:
        entry, record = prepared.entry, prepared.record
        try:
            result = await self.run(prepared.context, prepared.call, plan_id=prepared.plan_id)
        except BaseException as error:
            failure = error if isinstance(error, ClusterError) else Internal("the change was cut off")
            failure.details.setdefault("call_id", prepared.context.call_id)
            if record is not None:  # the change may be half done, so the undo stays possible
                await self._store_result(replace(record, state=INTERRUPTED))
            if not (self.tasks.goes_on_later(entry.call_id) or self.tasks.leaves_outcome(entry)):
                await self._outcome(entry, decision="failed", error=failure)
            raise
        reached(ChangeStep.MADE)
        until = None if record is None else format_time(record.undo_until_ms)
        assert isinstance(result, Change), "every planned operation returns a Change"
        done = result.model_copy(
            update={"call_id": prepared.context.call_id, "plan_id": prepared.plan_id, "undo_until": until}
        )
        if record is not None:
            body = done.model_dump_json(by_alias=True)
            kept = done.model_dump(mode="json", by_alias=True) if len(body) <= MAX_RESULT_CHARS else None
            await self._store_result(replace(record, state=APPLIED, result=kept))
        reached(ChangeStep.KEPT)
        if not self.tasks.leaves_outcome(entry):
            await self._outcome(entry, decision="allowed")
        reached(ChangeStep.TOLD)
        return done

    async def run(self, context: Context, call: Call, *, plan_id: str | None = None) -> Result:
        """Call the handler. A long-running one becomes a task, which can be listed and cancelled.

        Raises `Conflict`: it was cancelled by `tasks.cancel`.
        """
        context = replace(context, operation=call.operation.name)
        # A relayed call of a `Place.ANYWHERE` operation is a part of another broker's task, so it gets none of its own
        is_part = call.operation.at is Place.ANYWHERE and relayed_by.get()
        if not call.operation.long_running or is_part:
            return await call.operation.handler(context, call.request)
        task = await self.tasks.begin(context, call, plan_id=plan_id, now_ms=self._now_ms())
        failed: BaseException | None = None
        result: Result | None = None
        try:
            result = await call.operation.handler(context, call.request)
            return result
        except asyncio.CancelledError as error:
            failed = error
            if not self.tasks.is_cancelled(task):
                raise  # the caller has disconnected
            raise cancelled(task) from error
        except BaseException as error:
            failed = error
            raise
        finally:
            await self.tasks.end(task, failed, result, self._now_ms())

    async def _store_result(self, record: ChangeRecord) -> None:
        """Store the result of a change. If that fails, the change and its earlier record stay."""
        try:
            await self.changes.put(record, *((HEAD_KEY, value) for value in head_value(self._audit.head)))
        except ClusterError as error:
            _log.warning("admin.change_not_noted", extra={"error": str(error)})

    async def _outcome(self, entry: Entry, *, decision: str, error: ClusterError | None = None) -> None:
        """Record the outcome. The change is made, so if the audit fails, the record is retried without an error."""
        record = entry.ended_at(self._now_ms()).outcome(decision=decision, error=error)
        try:
            await self._audit.write(record)
        except (AuditUnavailable, Draining):
            self._audit.note(record)

    # -- refusals --------------------------------------------------------------------------------------------

    async def _check_token(self, context: Context, call: Call) -> tuple[PlanRecord, int]:
        record, revision = await self.plans.of_token(call.plan_token)
        self._check_owner(context, record)
        planned = self.parse(record.operation, record.arguments)
        if (
            planned.operation is not call.operation
            or planned.request.model_dump() != call.request.model_dump()
        ):
            raise PlanMismatch(
                f"the plan {record.plan_id} is for {record.operation} with other arguments: pass the arguments of the "
                "plan, or make a plan for these",
                field="plan_token",
                plan=shown_plan(record, self._now_ms()).model_dump(mode="json"),
            ).followed_by(call.operation.next_call({**call.arguments, "plan_only": True}, "makes a plan"))
        self._check_open(record)
        return record, revision

    def _check_open(self, record: PlanRecord) -> None:
        refusal = refusal_of(record, self._now_ms())
        if refusal is not None:
            raise refusal.followed_by(self._new_plan_step(record))

    def _check_owner(self, context: Context, record: PlanRecord) -> None:
        if (record.principal, record.principal_type) != (context.principal, context.principal_type):
            raise PlanMismatch(
                f"the plan {record.plan_id} was made by another principal: only that principal applies it. Make one "
                "of your own",
                field="principal",
                value=context.principal,
                plan_id=record.plan_id,
            ).followed_by(self._new_plan_step(record))

    async def _stale(self, context: Context, call: Call, record: PlanRecord, forecast: Forecast) -> PlanStale:
        """Return the refusal of a stale plan, with a new plan if one can be made. `forecast` is for the planned objects."""
        before = {each["path"]: each for each in record.diff}
        changed = [
            {
                "path": each["path"],
                "planned": before.get(each["path"], {}).get("before"),
                "now": each["before"],
            }
            for each in forecast.diff
            if before.get(each["path"], {}).get("before") != each["before"]
        ]
        changed += made_again(record.pinned, forecast.pinned)
        by = await self._changed_by(call, record)
        details = [{**each, "call_id": by} for each in changed] or [{"path": None, "call_id": by}]
        stale = (
            f"the values behind the plan {record.plan_id} have changed since it was made, so its effects would not be those "
            "shown. Nothing was changed."
        )
        try:
            plan = await self._store_plan(context, call, await self._forecast(context, call))
        except ClusterError as error:
            return PlanStale(
                f"{stale} No new plan can be made: {error.message}",
                stale_plan_id=record.plan_id,
                changed=details,
            ).followed_by(self._new_plan_step(record))
        return PlanStale(
            f"{stale} The plan in details shows the effects that it would have now",
            plan=plan.model_dump(mode="json"),
            stale_plan_id=record.plan_id,
            changed=details,
        ).followed_by(
            call.operation.apply_call(call.arguments, plan.plan_token, "applies the new plan, once")
        )

    async def _changed_by(self, call: Call, record: PlanRecord) -> str | None:
        """Return the call id of the last recorded change of the same target since a plan was made."""
        target, found = await self._target(call), None
        async for each in self.changes.since(CALL + record.plan_id[1:]):
            if target_of(known(each.operation).group, each.arguments) == target:
                found = each.call_id
        return found

    async def _required(self, context: Context, call: Call, forecast: Forecast) -> PlanRequired:
        plan = await self._store_plan(context, call, forecast)
        return PlanRequired(
            f"{call.operation.name} destroys: {loss_text(forecast.blast_radius, forecast.later)}. Nothing was changed. "
            "Show the plan in details to the person who decides, then make the call in next",
            plan=plan.model_dump(mode="json"),
        ).followed_by(call.operation.apply_call(call.arguments, plan.plan_token, "applies the plan, once"))

    def _new_plan_step(self, record: PlanRecord) -> dict[str, Any]:
        operation = self.parse(record.operation, record.arguments).operation
        step = operation.next_call({**record.arguments, "plan_only": True}, "makes a new plan")
        return step | {"command": f"{operation.command_line(record.arguments)} --dry-run"}

    # -- after a crash ---------------------------------------------------------------------------------------

    async def carry_out_again(self, context: Context, call: Call, plan_id: str) -> Result:
        """Carry out again a change that an earlier start of the broker recorded and began."""
        entry = Entry.of(context, call.operation.name, call.arguments)
        entry.plan_id = plan_id
        entry.mark_recorded()
        return await self._carry_out(
            _Prepared(context=context, call=call, entry=entry, plan_id=plan_id, record=None)
        )

    async def tidy_up(self) -> None:
        """Record interrupted changes and tasks as interrupted, once after a start."""
        await Resumption(
            self, self.tasks, self.carry_out_again, audit=self._audit, port=self._port, now_ms=self._now_ms
        ).run()
        for call in await calls_cut_off(self._port, self.guards):
            task = await self.tasks.get(task_id_of(call["call_id"]))
            if task is not None and (
                task.state == RUNNING or broker_of(task.life) != broker_of(self._port.life)
            ):
                continue  # the broker that runs the task records its outcome when it ends
            if task is not None:  # another broker may have recorded its interruption
                made = task.state == DONE
            else:
                made = await self.changes.was_made(call["call_id"], call["operation"], call["arguments"])
            await self._audit.write(Entry.again(call, self._now_ms()).ended(made=made))
        for record in await self.changes.cut_off():
            if await self._port.is_over(record.life):
                await self.changes.put(replace(record, state=INTERRUPTED))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A change that is recorded and about to be made."""

    context: Context
    call: Call
    entry: Entry
    plan_id: str
    record: ChangeRecord | None
