"""Long operations under way: stored, watched and cancelled, with or without a waiting caller.

A detached call is answered with its task as soon as the task is stored. Its result or error is kept in the
task for a day. If the broker stops, a resumable task stays `running`, so that the next life resumes it
(`Resumption`). It is resumed a few times at most, because its work may be the cause of the broker's end.
Other tasks are recorded as cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import AuditUnavailable, ClusterError, Conflict, Draining, LimitReached
from pydanube_core.facts import StateItem
from pydanube_core.names import TopicName

from pydanube_admin.engine.audit.audit_chain import redacted
from pydanube_admin.engine.audit.audit_cut_off import calls_with_outcome
from pydanube_admin.engine.audit.audit_log import AuditLog
from pydanube_admin.engine.audit.audit_records import Entry, run_recorded
from pydanube_admin.engine.context import Context, NowMs, PlanExecutor
from pydanube_admin.engine.models import Change, Effect, Result
from pydanube_admin.engine.operation import Call, known, next_call
from pydanube_admin.engine.stored_records import is_id, readable
from pydanube_admin.engine.task_records import (
    CANCELLED,
    DONE,
    FAILED,
    INTERRUPTED,
    KEPT_MS,
    MAX_RESULT_BYTES,
    PREFIX,
    RUNNING,
    Detachment,
    TaskRecord,
    broker_of,
    cancelled,
    cut_off,
    task_id_of,
    task_item,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

_log = logging.getLogger("pydanube.admin")

MAX_TASKS: Final = 500
MAX_DETACHED: Final = 16  # running concurrently
MAX_FOLLOWED: Final = 200  # concurrent tasks that follow moves
NOTED_S: Final = 2.0  # between two notes of a task's progress
STOP_S: Final = 5.0


class Tasks:
    """The long operations of the cluster. Those of this process can be cancelled. Single user: the loop."""

    def __init__(self, port: ClusterPort, now_ms: NowMs) -> None:
        self._port = port
        self._now_ms = now_ms
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._records: dict[str, TaskRecord] = {}  # of those that run here
        self._watchers: dict[str, asyncio.Task[None]] = {}  # of those that their callers wait for
        self._cancelled: set[str] = set()
        self._detached: set[asyncio.Task[Any]] = set()
        self._following: set[asyncio.Task[Any]] = set()
        self._entries: dict[str, asyncio.Future[Entry]] = {}  # by call: whose outcome a task records
        self._progress: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._stopping = False
        self._left_open: dict[str, TaskRecord] = {}  # by call: those that the next life takes up

    # -- detached calls --------------------------------------------------------------------------------------

    async def detached(
        self,
        context: Context,
        via: str,
        work: Callable[[Context], Coroutine[Any, Any, BaseModel]],
        *,
        before: TaskRecord | None = None,
    ) -> BaseModel:
        """Start a call that continues when its caller is gone.

        Returns:
            The task, or the call's own result if it turns out not to be long.

        Raises:
            LimitReached: too many already run.
            ClusterError: the call failed before it was a task.
        """
        if not self.has_room:
            raise LimitReached(
                f"{MAX_DETACHED} detached tasks are running: wait for one, or cancel one",
                field="detach",
                limit=MAX_DETACHED,
                retry_after_ms=5000,
            ).followed_by(next_call("tasks.list", {}, "shows the tasks there are"))
        loop = asyncio.get_running_loop()
        detachment = Detachment(via=via, begun=loop.create_future(), before=before)
        task = loop.create_task(work(replace(context, detached=detachment)))
        self._detached.add(task)
        task.add_done_callback(self._left)
        watcher = loop.create_task(self._note_work(task, detachment.begun))
        task.add_done_callback(lambda _: watcher.cancel())
        either: list[asyncio.Future[Any]] = [task, detachment.begun]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if detachment.begun.done():
            return task_item(detachment.begun.result(), [])
        return task.result()

    def check_follow(self) -> None:
        """Raise `LimitReached` if too many tasks follow moves."""
        if len(self._following) >= MAX_FOLLOWED:
            raise LimitReached(
                f"{MAX_FOLLOWED} tasks follow moves: wait until one has ended, or cancel one",
                field="topic",
                limit=MAX_FOLLOWED,
                retry_after_ms=5000,
            ).followed_by(next_call("tasks.list", {}, "shows the tasks there are"))

    async def follow(
        self, context: Context, arguments: Mapping[str, Any], work: Coroutine[Any, Any, Result]
    ) -> str:
        """Run work that waits for moves which a call began, as a task of that call. Return the task's id.

        The audit gets one outcome of the call, when the task has ended (`leaves_outcome`). Call `check_follow`
        before anything is begun.
        """
        record = TaskRecord(
            task_id=task_id_of(context.call_id),
            call_id=context.call_id,
            operation=context.operation,
            arguments=redacted(arguments),
            **context.owner,
            started_ms=self._now_ms(),
            face=context.face,
            detached=True,
            life=self._port.life,
        )
        try:
            await self.sweep(record.started_ms)
            await self._put(record)
        except BaseException:
            work.close()
            raise
        loop = asyncio.get_running_loop()
        begun: asyncio.Future[TaskRecord] = loop.create_future()
        begun.set_result(record)
        entry = self._entries[record.call_id] = loop.create_future()
        task = loop.create_task(self._followed(context, record, work, entry))
        self._running[record.task_id], self._records[record.task_id] = task, record
        self._following.add(task)
        watcher = loop.create_task(self._note_work(task, begun))
        task.add_done_callback(lambda _: watcher.cancel())
        task.add_done_callback(self._left)
        return record.task_id

    def leaves_outcome(self, entry: Entry) -> bool:
        """Return whether a task follows the answered call, and records its outcome when it has ended."""
        answered = self._entries.pop(entry.call_id, None)
        if answered is not None and not answered.done():
            answered.set_result(entry)
        return answered is not None

    async def _followed(
        self,
        context: Context,
        record: TaskRecord,
        work: Coroutine[Any, Any, Result],
        answered: asyncio.Future[Entry],
    ) -> None:
        failed: BaseException | None = None
        result: Result | None = None
        try:
            result = await work
        except ClusterError as error:
            failed = error
        except BaseException as error:
            failed = error
            raise
        finally:
            end = asyncio.get_running_loop().create_task(
                self._end_followed(context.audit, record, answered, failed, result)
            )
            while not end.done():
                # The work is over, so only the recording of its end is left
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([end])
            await end

    async def _end_followed(
        self,
        audit: AuditLog,
        record: TaskRecord,
        answered: asyncio.Future[Entry],
        failed: BaseException | None,
        result: Result | None,
    ) -> None:
        """Record the outcome once the call is answered, then the end of the task."""
        entry, ended_ms = await answered, self._now_ms()
        outcome = self._outcome(record, entry.ended_at(ended_ms), failed)
        try:
            await audit.write(outcome)
        except (AuditUnavailable, Draining):
            audit.note(outcome)
        await self.end(record, failed, result, ended_ms)

    def _outcome(self, record: TaskRecord, entry: Entry, failed: BaseException | None) -> Mapping[str, Any]:
        """Return the audit's outcome of a call that a task followed."""
        if failed is None:
            return entry.outcome(decision="allowed")
        if isinstance(failed, ClusterError):
            return entry.outcome(decision="failed", error=failed)
        if record.task_id in self._cancelled:
            return entry.outcome(decision="failed", error=cancelled(record))
        return entry.outcome(decision="interrupted", error=cut_off(record))

    def _left(self, task: asyncio.Task[Any]) -> None:
        self._detached.discard(task)
        self._following.discard(task)
        if not task.cancelled():
            task.exception()  # is in the task's record, or raised to its caller

    async def _note_work(self, task: asyncio.Task[Any], begun: asyncio.Future[TaskRecord]) -> None:
        """Store its progress, for a later start of the broker."""
        await asyncio.wait([begun])  # a plain await would cancel it with the watcher
        record = begun.result()
        while not task.done():
            await asyncio.sleep(NOTED_S)
            current = self._records.get(record.task_id)
            if current is None:
                return
            with contextlib.suppress(ClusterError):
                found = await self.work_of(current)
                if found and record.task_id in self._records and not task.done():
                    current = replace(current, work=found)
                    self._records[record.task_id] = current
                    await self._put(current)

    async def aclose(self) -> None:
        """Stop tasks without a waiting caller. Resumable ones are left for the next start."""
        self._stopping = True
        waiting = [*self._detached, *self._following]
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting, timeout=STOP_S)

    def goes_on_later(self, call_id: str) -> bool:
        """Return whether the broker stops and the next start takes this call up, so that nothing is recorded now."""
        record = self._records.get(task_id_of(call_id)) or self._left_open.get(call_id)
        return record is not None and self._is_left_open(record)

    def _is_left_open(self, record: TaskRecord) -> bool:
        return self._stopping and record.detached and known(record.operation).resumable

    # -- one call --------------------------------------------------------------------------------------------

    async def begin(self, context: Context, call: Call, *, plan_id: str | None, now_ms: int) -> TaskRecord:
        """Record that the current asyncio task carries the call out. `end` must follow."""
        detachment = context.detached
        if detachment is not None and detachment.before is not None:
            record = detachment.before
        else:
            record = TaskRecord(
                task_id=task_id_of(context.call_id),
                call_id=context.call_id,
                operation=call.operation.name,
                arguments=redacted(call.arguments),
                **context.owner,
                started_ms=now_ms,
                face=context.face,
                via=detachment.via if detachment is not None else "",
                plan_id=plan_id,
                detached=detachment is not None,
                given=dict(call.arguments) if detachment is not None else None,
                life=self._port.life,
            )
        try:
            if detachment is None or detachment.before is None:
                await self.sweep(now_ms)
            await self._put(record)
        except ClusterError as error:
            if not _goes_on_unkept(record):
                raise
            _log.warning("admin.task_not_kept", extra={"error": str(error)})
        task = asyncio.current_task()
        assert task is not None, "calls run in tasks"
        self._running[record.task_id] = task
        self._records[record.task_id] = record
        if detachment is None:
            begun: asyncio.Future[TaskRecord] = asyncio.get_running_loop().create_future()
            begun.set_result(record)
            watcher = asyncio.get_running_loop().create_task(self._note_work(task, begun))
            self._watchers[record.task_id] = watcher
        elif not detachment.begun.done():
            detachment.begun.set_result(record)
        return record

    def is_cancelled(self, record: TaskRecord) -> bool:
        """Return whether its asyncio task ends because of `tasks.cancel`."""
        return record.task_id in self._cancelled

    async def end(
        self, record: TaskRecord, error: BaseException | None, result: Result | None, now_ms: int
    ) -> None:
        """Store the outcome of the task's call."""
        self._running.pop(record.task_id, None)
        if (watcher := self._watchers.pop(record.task_id, None)) is not None:
            watcher.cancel()
        record = self._records.pop(record.task_id, record)
        was_cancelled = record.task_id in self._cancelled
        self._cancelled.discard(record.task_id)
        if isinstance(error, asyncio.CancelledError) and not was_cancelled and self._is_left_open(record):
            self._left_open[record.call_id] = record
            return
        self._progress.pop(record.task_id, None)
        # The broker no longer has its progress. For a call that ended early, the last noted progress is kept.
        ended = replace(record, state=DONE, ended_ms=now_ms, work=() if error is None else record.work)
        if isinstance(error, ClusterError):
            ended = replace(ended, state=FAILED, code=error.code, error=error.to_dict())
        elif isinstance(error, asyncio.CancelledError):
            ended = replace(ended, state=INTERRUPTED if self._stopping and not was_cancelled else CANCELLED)
        elif error is not None:
            ended = replace(ended, state=CANCELLED if was_cancelled else FAILED, code="INTERNAL")
        elif record.detached and result is not None:
            ended = _with_result(ended, result)
        try:
            await self._put(ended)
        except ClusterError:
            if not _goes_on_unkept(record):
                raise

    def cancel(self, task_id: str) -> bool:
        """Request a running task of this process to stop. Return whether it runs here."""
        task = self._running.get(task_id)
        if task is None:
            return False
        self._cancelled.add(task_id)
        task.cancel()
        return True

    def report_progress(self, call_id: str, *work: Mapping[str, Any]) -> None:
        """Set the progress of a call, for work that is not in the broker's status."""
        if task_id_of(call_id) in self._records:
            self._progress[task_id_of(call_id)] = work

    async def work_of(self, record: TaskRecord) -> list[dict[str, Any]]:
        """Return the progress of a running task. For another broker's task, the progress in its record."""
        if record.task_id not in self._records:
            return [dict(each) for each in record.work]
        reported = self._progress.get(record.task_id)
        if reported is not None:
            return [dict(each) for each in reported]
        found = (await self._port.status()).tier.get("work", ())
        return [dict(each) for each in found if isinstance(each, Mapping) and _is_of(each, record)]

    @property
    def has_room(self) -> bool:
        """Return whether another detached task may run here."""
        return len(self._detached) < MAX_DETACHED

    # -- stored tasks ----------------------------------------------------------------------------------------

    async def _put(self, record: TaskRecord) -> None:
        await self._port.write_state({PREFIX + record.task_id: record.to_bytes()})

    async def take_up(self, record: TaskRecord, revision: int) -> TaskRecord:
        """Make a task that an ended start left running this start's. Return its record.

        Raises `Conflict`: another broker was first.
        """
        taken = replace(record, begun_again=record.begun_again + 1, life=self._port.life)
        await self._put_at(taken, revision)
        return taken

    async def interrupted(self, record: TaskRecord, revision: int, error: ClusterError) -> None:
        """Record that an ended start left it unfinished, and that it is not taken up.

        Raises `Conflict`: another broker was first.
        """
        ended = replace(
            record, state=INTERRUPTED, ended_ms=self._now_ms(), code=error.code, error=error.to_dict()
        )
        await self._put_at(ended, revision)

    async def _put_at(self, record: TaskRecord, revision: int) -> None:
        key = PREFIX + record.task_id
        await self._port.write_state({key: record.to_bytes()}, expected={key: revision})

    async def get(self, task_id: str) -> TaskRecord | None:
        item = await self._port.read_state(PREFIX + task_id) if is_id(task_id) else None
        return None if item is None else TaskRecord.from_bytes(item.value)

    async def all(self) -> list[TaskRecord]:
        """Return all kept tasks, newest first."""
        return [record for _, record in await self._stored()]

    async def _stored(self) -> list[tuple[StateItem, TaskRecord]]:
        items = await self._port.list_state(PREFIX, descending=True)
        return list(readable(items, TaskRecord.from_bytes))

    async def left_running(self) -> list[tuple[TaskRecord, int]]:
        """Return the tasks that an ended start of any broker left running, each with its revision."""
        running = [each for each in await self._stored() if each[1].state == RUNNING]
        return [(record, item.revision) for item, record in running if await self._port.is_over(record.life)]

    async def sweep(self, now_ms: int) -> None:
        records = await self.all()
        now_ms -= self._port.clock_apart_ms()[0]
        old = [
            record
            for number, record in enumerate(records)
            if record.state != RUNNING and (number >= MAX_TASKS or record.started_ms + KEPT_MS <= now_ms)
        ]
        for start in range(0, len(old), 90):
            await self._port.write_state({PREFIX + each.task_id: None for each in old[start : start + 90]})


def _goes_on_unkept(record: TaskRecord) -> bool:
    """Return whether the call needs no record: a read whose caller waits. It works while the metadata store takes no writes."""
    return known(record.operation).effect is Effect.READ and not record.detached


def _with_result(record: TaskRecord, result: Result) -> TaskRecord:
    if isinstance(result, Change):  # as a waiting caller would receive it
        result = result.model_copy(update={"call_id": record.call_id, "plan_id": record.plan_id or ""})
    size = len(result.model_dump_json(by_alias=True).encode())
    if size > MAX_RESULT_BYTES:
        return replace(record, result_bytes=size)
    return replace(record, result=result.model_dump(mode="json", by_alias=True))


def _is_of(work: Mapping[str, Any], record: TaskRecord) -> bool:
    if work.get("operation") != record.operation:
        return False
    given, shown = record.arguments.get("topic"), work.get("topic")
    if not isinstance(given, str) or not isinstance(shown, str):
        return True
    try:
        return str(TopicName.parse(given)) in (shown, str(TopicName.parse(shown).base))
    except ClusterError:
        return True


MAX_BEGUN_AGAIN: Final = 3


# Carries out once more a change that was recorded and started under a plan.
Again = Callable[[Context, Call, str], Coroutine[Any, Any, Result]]


class Resumption:
    """Resumes once, at the broker's start, the tasks that ended starts left running.

    Those of other brokers, too: a removed one does not start again. Of brokers that start together, one takes a
    task up, or records its interruption.
    """

    def __init__(
        self,
        executor: PlanExecutor,
        tasks: Tasks,
        again: Again,
        *,
        audit: AuditLog,
        port: ClusterPort,
        now_ms: NowMs,
    ) -> None:
        self._executor = executor
        self._tasks = tasks
        self._again = again
        self._audit = audit
        self._port = port
        self._now_ms = now_ms

    async def run(self) -> None:
        left = [(*each, self._call(each[0])) for each in await self._tasks.left_running()]
        over: set[str] = set()
        if any(call is None and self._is_own(record) for record, _, call in left):
            over = await calls_with_outcome(self._port)
        for record, revision, call in left:
            if call is None:
                await self._say(record, revision, has_outcome=record.call_id in over)
                continue
            what = {"task_id": record.task_id, "operation": record.operation}
            if not self._tasks.has_room:
                # The record stays as it is, for the start of another broker or the next one
                _log.warning("admin.task_not_begun_again", extra={"error": "too many tasks run"} | what)
                continue
            try:
                await self._begin_again(await self._tasks.take_up(record, revision), call)
            except ClusterError as failure:  # is in its record, if it got that far
                _log.warning("admin.task_not_begun_again", extra={"error": str(failure)} | what)
            else:
                _log.info("admin.task_begun_again", extra=what)

    def _is_own(self, record: TaskRecord) -> bool:
        """Return whether this broker's audit has the task's call."""
        return broker_of(record.life) == broker_of(self._port.life)

    async def _say(self, record: TaskRecord, revision: int, *, has_outcome: bool) -> None:
        """Record the interruption in the task's record, and in this broker's audit if the outcome belongs there."""
        cut = cut_off(record)
        if self._is_own(record) and not has_outcome:
            await self._audit.write(self._entry(record).outcome(decision="interrupted", error=cut))
        with contextlib.suppress(Conflict):  # another broker was first
            await self._tasks.interrupted(record, revision, cut)

    def _call(self, record: TaskRecord) -> Call | None:
        """Return the call to make once more, or None if its result could differ."""
        if not record.detached or record.given is None or record.begun_again >= MAX_BEGUN_AGAIN:
            return None
        try:
            call = self._executor.parse(record.operation, record.given)
        except ClusterError:  # a build of another version does not have the operation
            return None
        return call if call.operation.resumable else None

    async def _begin_again(self, record: TaskRecord, call: Call) -> None:
        context = Context(
            port=self._port,
            now_ms=self._now_ms,
            face=record.face,
            principal=record.principal,
            principal_type=record.principal_type,
            call_id=record.call_id,
            executor=self._executor,
            audit=self._audit,
        )

        async def work(own: Context) -> Result:
            if call.operation.effect is Effect.READ:
                return await run_recorded(own, call)
            return await self._again(own, call, record.plan_id or "")

        await self._tasks.detached(context, record.via, work, before=record)

    def _entry(self, record: TaskRecord) -> Entry:
        return Entry(
            call_id=record.call_id,
            principal=record.principal,
            face=record.face,
            operation=record.operation,
            arguments=record.arguments,
            time_ms=self._now_ms(),
            plan_id=record.plan_id,
        )
