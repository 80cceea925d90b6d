"""After a crash: detached tasks that come to the same end when begun again are, the others are said to be cut off.

Each is taken up a few times at most: one whose work ends the broker must not end it for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import ClusterError

from pydanube_admin.engine.audit.audit_log import AuditLog
from pydanube_admin.engine.audit.audit_records import Entry
from pydanube_admin.engine.call import Call
from pydanube_admin.engine.context import Context, NowMs, PlanDesk
from pydanube_admin.engine.effect import Effect
from pydanube_admin.engine.models import Result
from pydanube_admin.engine.recorded_calls import run_recorded
from pydanube_admin.engine.task_records import TaskRecord, cut_off
from pydanube_admin.engine.tasks import Tasks

_log = logging.getLogger("pydanube.admin")

MAX_BEGUN_AGAIN: Final = 3


# Carries out once more a change that was recorded and begun under a plan.
Again = Callable[[Context, Call, str], Coroutine[Any, Any, Result]]


class Resumption:
    """Looks once, when the broker has begun, at what an earlier life left running."""

    def __init__(
        self, desk: PlanDesk, tasks: Tasks, again: Again, *, audit: AuditLog, port: ClusterPort, now_ms: NowMs
    ) -> None:
        self._desk = desk
        self._tasks = tasks
        self._again = again
        self._audit = audit
        self._port = port
        self._now_ms = now_ms

    async def run(self) -> None:
        for record in await self._tasks.left_running():
            call = self._call(record)
            if call is None:
                await self._say(record)
                continue
            what = {"task_id": record.task_id, "operation": record.operation}
            try:
                await self._begin_again(record, call)
            except ClusterError as failure:  # is in its record, where it got as far as that
                _log.warning("admin.task_not_begun_again", extra={"error": str(failure)} | what)
            else:
                _log.info("admin.task_begun_again", extra=what)

    async def _say(self, record: TaskRecord) -> None:
        """That it was cut off, in the audit and in its record."""
        cut = cut_off(record)
        await self._audit.write(self._entry(record).outcome(decision="interrupted", error=cut))
        await self._tasks.interrupted(record, cut)

    def _call(self, record: TaskRecord) -> Call | None:
        """The call to make once more; None where that would not come to the same end."""
        if not record.detached or record.given is None or record.begun_again >= MAX_BEGUN_AGAIN:
            return None
        try:
            call = self._desk.parse(record.operation, record.given)
        except ClusterError:  # another version took its place, and knows it no more
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
            desk=self._desk,
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
