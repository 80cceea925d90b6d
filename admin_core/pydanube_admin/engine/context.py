"""The context of an operation: the broker's port, the time, and what is known of its call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

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


NowMs = Callable[[], int]  # milliseconds since 1970, by the clock that stamps append times


def system_now_ms() -> int:
    return time.time_ns() // 1_000_000


class TaskBook(Protocol):
    """The part of the long operations' book (`pydanube_admin.engine.tasks`) that operations may ask."""

    async def get(self, task_id: str) -> TaskRecord | None:
        """Return a task that is kept; None where there is none of that id."""

    async def kept(self) -> list[TaskRecord]:
        """Every one that is kept, the newest first."""

    async def work_of(self, record: TaskRecord) -> list[dict[str, Any]]:
        """How far a running one is."""

    def goes_on_later(self, call_id: str) -> bool:
        """Whether the next life of the broker takes this call up again."""

    def cancel(self, task_id: str) -> bool:
        """Ask a running one of this process to stop; whether it runs here."""

    def tell(self, call_id: str, work: Mapping[str, Any]) -> None:
        """Say how far a call is whose work the broker does not count."""


class PlanDesk(Protocol):
    """The part of the desk (`pydanube_admin.engine.desk`) that operations may ask; the desk itself calls operations."""

    plans: Plans
    changes: Changes
    balancer: Balancer

    @property
    def tasks(self) -> TaskBook:
        """The book of long operations."""

    def parse(self, operation: str, arguments: Mapping[str, Any], /) -> Call:
        """Check a call by its name and arguments."""

    async def plan(self, context: Context, call: Call) -> Plan:
        """Work out what a call would do, and keep it as a plan."""

    async def apply(self, context: Context, token: str, plan_id: str | None) -> AppliedPlan:
        """Make the change of a plan."""

    async def discard(self, context: Context, plan_id: str) -> PlanRecord:
        """Take a plan out of use."""

    async def run(self, context: Context, call: Call) -> Result:
        """Carry out a call that needs no plan; a long one as a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One call. `grace` is there while a change that can be undone is made: what it deletes stays that long."""

    port: ClusterPort
    now_ms: NowMs
    face: str  # where the call was made: cli, mcp, jsonrpc …
    principal: str  # who asks; a claim unless its type is known
    call_id: str
    operation: str = ""  # that is being carried out
    desk: PlanDesk
    audit: AuditLog
    lists: ListMemory = field(default_factory=ListMemory)
    grace: Grace | None = None
    principal_type: str = ""  # what kind of thing has the name, by its credential; empty: a claim
    detached: Detachment | None = None  # nobody waits for the call: its task is the answer

    @property
    def owner(self) -> dict[str, Any]:
        """Whose plans, tasks and changes this call makes: fields of their records."""
        return {"principal": self.principal, "principal_type": self.principal_type}
