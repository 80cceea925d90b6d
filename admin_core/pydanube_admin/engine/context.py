"""The context of an operation: the broker's port, the time, and facts about its call."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pydanube_core.cluster_port import ClusterPort
from pydanube_core.facts import Grace

from pydanube_admin.engine.audit.audit_log import AuditLog, AuditReads
from pydanube_admin.engine.balancer import Balancer
from pydanube_admin.engine.change_records import Changes
from pydanube_admin.engine.list_memory import ListMemory
from pydanube_admin.engine.models import Result
from pydanube_admin.engine.operation import Call
from pydanube_admin.engine.plan_records import AppliedPlan, Plan, PlanRecord, Plans
from pydanube_admin.engine.task_records import Detachment, TaskRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminOptions:
    """The section `[admin]` of the settings."""

    plan_ttl_ms: int = 600_000
    undo_grace_ms: int = 86_400_000
    compat_destructive: bool = True
    audit_reads: AuditReads = AuditReads.SAMPLED


COMPAT: Final = "danube_admin"  # the face of the original's tools, which can show no plan

NowMs = Callable[[], int]  # milliseconds since 1970, by the clock that stamps append times


def system_now_ms() -> int:
    return time.time_ns() // 1_000_000


class TaskControl(Protocol):
    """The tasks (`pydanube_admin.engine.tasks`), as operations use them."""

    async def get(self, task_id: str) -> TaskRecord | None:
        """Return the task with that id, or None."""

    async def all(self) -> list[TaskRecord]:
        """Return all kept tasks, newest first."""

    async def work_of(self, record: TaskRecord) -> list[dict[str, Any]]:
        """Return the progress of a running task."""

    def goes_on_later(self, call_id: str) -> bool:
        """Return whether the next start of the broker takes this call up again."""

    def cancel(self, task_id: str) -> bool:
        """Request a running task of this process to stop. Return whether it runs here."""

    def check_follow(self) -> None:
        """Raise `LimitReached` if too many tasks follow moves."""

    async def follow(
        self, context: Context, arguments: Mapping[str, Any], work: Coroutine[Any, Any, Result]
    ) -> str:
        """Run work that waits for moves which a call began, as a task of that call. Return the task's id."""

    def report_progress(self, call_id: str, *work: Mapping[str, Any]) -> None:
        """Set the progress of a call, for work that is not in the broker's status."""


class PlanExecutor(Protocol):
    """The interface of `pydanube_admin.engine.change_executor` for operations, which the executor itself calls."""

    plans: Plans
    changes: Changes
    balancer: Balancer

    @property
    def tasks(self) -> TaskControl:
        """The long operations, running and kept."""

    def parse(self, operation: str, arguments: Mapping[str, Any], /) -> Call:
        """Check a call by its name and arguments."""

    async def plan(self, context: Context, call: Call) -> Plan:
        """Forecast a call, and keep that as a plan."""

    async def apply(self, context: Context, token: str, plan_id: str | None) -> AppliedPlan:
        """Apply a plan by its token."""

    async def discard(self, context: Context, plan_id: str) -> PlanRecord:
        """Discard a plan, so that it cannot be applied any more."""

    async def run(self, context: Context, call: Call) -> Result:
        """Run a call that needs no plan, a long one as a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One call. `grace`: how long an undoable change keeps the things that it deletes, else None."""

    port: ClusterPort
    now_ms: NowMs
    face: str  # where the call was made: cli, mcp, jsonrpc …
    principal: str  # the caller's name, unverified unless its type is set
    call_id: str
    operation: str = ""  # that is being carried out
    executor: PlanExecutor
    audit: AuditLog
    lists: ListMemory = field(default_factory=ListMemory)
    grace: Grace | None = None
    principal_type: str = ""  # type of the principal, from its credential. Empty: the name is unverified
    # JSON values that this call's forecast has pinned: the meaning of the request then. None during the first
    # forecast
    pinned: Mapping[str, Any] | None = None
    why: str = ""  # of a change, in the caller's words
    is_part: bool = False  # of a call at another broker, which records the whole
    detached: Detachment | None = None  # no caller waits: the call's task is the answer

    @property
    def owner(self) -> dict[str, Any]:
        """Return the fields that name this call's principal as the owner of plans, tasks and changes."""
        return {"principal": self.principal, "principal_type": self.principal_type}
