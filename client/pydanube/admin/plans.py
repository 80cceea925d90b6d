"""A change as a plan: its effects, and a way to apply exactly those, once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic

from pydanube.admin.calling import OperationCaller
from pydanube.admin.generated.results import DiscardedPlan, PlanDocument
from pydanube.admin.values import ResultT
from pydanube.blocking.loop import Loop


class _Shown:
    """The fields of a plan for display. `document` has all."""

    document: PlanDocument

    @property
    def plan_id(self) -> str:
        return self.document.plan_id

    @property
    def operation(self) -> str:
        return self.document.operation

    @property
    def diff(self) -> list[dict[str, Any]]:
        """`{path, before, after}` of everything that would change."""
        return self.document.diff

    @property
    def blast_radius(self) -> dict[str, int | None]:
        """How many topics, subscriptions, consumers, messages and bytes it touches."""
        return self.document.blast_radius

    @property
    def reversible(self) -> bool:
        return self.document.reversible

    @property
    def expires_at(self) -> str:
        return self.document.expires_at

    def __repr__(self) -> str:
        return f"<plan {self.plan_id} of {self.operation}, {len(self.diff)} differences>"


class Plan(_Shown, Generic[ResultT]):
    """A plan of a change, made by the `plan_…` methods."""

    def __init__(
        self,
        caller: OperationCaller,
        document: PlanDocument,
        kind: type[ResultT],
        *,
        long_running: bool = False,
    ) -> None:
        self._caller = caller
        self._kind = kind
        self._long_running = long_running
        self.document = document

    async def apply(self) -> ResultT:
        """Apply the plan and return the result of its operation.

        Raises:
            PlanStale, PlanUsed, PlanExpired: it is no longer valid. Make a new one.
        """
        arguments = {**self.document.arguments, "plan_token": self.document.plan_token}
        return await self._caller.call(self.operation, arguments, self._kind, long_running=self._long_running)

    async def discard(self) -> None:
        """Discard the plan, so that it cannot be applied any more."""
        await self._caller.call("plans.discard", {"plan_id": self.plan_id}, DiscardedPlan)


async def planned(
    caller: OperationCaller,
    operation: str,
    arguments: Mapping[str, Any],
    kind: type[ResultT],
    *,
    long_running: bool = False,
) -> Plan[ResultT]:
    """Return the plan of an operation. Arguments as for `OperationCaller.call`."""
    document = await caller.call(operation, {**arguments, "plan_only": True}, PlanDocument)
    return Plan(caller, document, kind, long_running=long_running)


class SyncPlan(_Shown, Generic[ResultT]):
    """A plan for programs without await."""

    def __init__(self, loop: Loop, plan: Plan[ResultT]) -> None:
        self._loop = loop
        self._plan = plan
        self.document = plan.document

    def apply(self) -> ResultT:
        """Apply the plan, and block until its operation returns. Errors as for `pydanube.admin.Plan.apply`."""
        return self._loop.call(self._plan.apply())

    def discard(self) -> None:
        """Discard the plan, so that it cannot be applied any more."""
        self._loop.call(self._plan.discard())
