"""One tool call: a read passes directly, a destructive change only with consent.

A long operation runs as a task. `pydanube_mcp.cluster_tasks` describes clients that take none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcp.server.mcpserver import Context
from mcp.types import InputRequiredResult
from pydanube_admin.engine.models import Effect
from pydanube_admin.engine.operation import APPLY, READ_ANY, Operation
from pydanube_admin.registry import OPERATIONS
from pydanube_admin.remote import OpsClient
from pydanube_core.errors import ClusterError, InvalidArgument, PermissionDenied, PlanRequired, ReadOnly

from pydanube_mcp.cluster_tasks import is_task, running_view, waited, waiting_view
from pydanube_mcp.consent import (
    Answer,
    Confirm,
    Question,
    ask_now,
    can_ask,
    question_result,
    refusal,
    said,
    waits,
)
from pydanube_mcp.fencing import fenced
from pydanube_mcp.narrowing import current_narrowing
from pydanube_mcp.sizing import READ_BYTES, fewer, size_of
from pydanube_mcp.tasks import TaskView, takes_tasks

Outcome = dict[str, Any] | InputRequiredResult | TaskView


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCaller:
    """Makes calls on one cluster for one caller, with a person's consent if that is needed."""

    client: OpsClient
    cluster: str | None
    principal: str | None
    confirm: Confirm
    context: Context[Any, Any] | None

    async def call(self, operation: Operation, arguments: Mapping[str, Any]) -> Outcome:
        """Carry an operation out, or answer with the question that comes first.

        Raises:
            ClusterError: the operation's own, or PlanRequired and PermissionDenied without consent.
        """
        if operation.effect is Effect.READ and not _takes_long(operation, arguments):
            return await self._read(operation, arguments)
        if not operation.planned and operation.name != APPLY:
            return await self._do(operation, arguments)
        if operation.name == APPLY and current_narrowing.get().groups is not None:
            await self._check_plan(arguments)
        again = said(self.context) if self.context is not None else None
        if again is not None:
            question, token, answer = again
            return await self._agreed(operation, arguments, question, token, answer)
        given = arguments.get("plan_token")
        if arguments.get("plan_only") or not (given is None or isinstance(given, str)):
            return await self._send(operation.name, arguments)
        if given:
            open_plan = await self._plan_to_ask_about(given)
            if open_plan is None:
                return await self._do(operation, arguments)
            return await self._ask(operation, arguments, open_plan, given)
        try:
            return await self._do(operation, arguments)
        except PlanRequired as error:
            plan = error.details.get("plan")
            if not isinstance(plan, dict) or not (can_ask(self.context) or self.confirm is Confirm.HUMAN):
                raise
            token = str(plan.pop("plan_token", ""))
            return await self._ask(operation, arguments, plan, token)

    async def _check_plan(self, arguments: Mapping[str, Any]) -> None:
        """Refuse to apply a plan of an operation outside of the sets that the address of this request has."""
        given = str(arguments.get("plan_token") or arguments.get("plan_id") or "")
        plan = await self._send("plans.show", {"plan_id": given.partition(".")[0]})
        current_narrowing.get().check_plan(str(plan["operation"]))

    async def refused(self, operation: Operation, arguments: Mapping[str, Any]) -> Outcome:
        """Have the admin core refuse a change at a read-only server, so that the refusal is recorded.

        Raises:
            ReadOnly: always, even if the admin core cannot be reached to record it.
        """
        try:
            return await self._send(operation.name, arguments)
        except ReadOnly:
            raise
        except ClusterError as error:
            raise ReadOnly(
                f"{operation.tool} is no read, and this MCP server was started to read only. Start it without, or use the "
                "command line",
                field="operation",
                value=operation.name,
            ) from error

    async def _plan_to_ask_about(self, token: str) -> dict[str, Any] | None:
        """Return the plan of a token that needs a person's consent, or None if the admin core decides alone.

        It decides alone about every token that cannot apply a destructive change: it refuses the bad ones.
        """
        if not can_ask(self.context) and self.confirm is Confirm.AUTO:
            return None
        try:
            plan = await self._send("plans.show", {"plan_id": token.partition(".")[0]})
        except InvalidArgument:
            return None
        except ClusterError as error:
            if error.code == "PLAN_NOT_FOUND":
                return None
            raise
        return plan if plan["state"] == "open" and plan["effect"] == Effect.DESTROY.value else None

    async def _ask(
        self, operation: Operation, arguments: Mapping[str, Any], plan: Mapping[str, Any], token: str
    ) -> Outcome:
        question = Question(plan=plan, cluster=self.cluster)
        if self.context is None or not can_ask(self.context):
            raise self._for_a_person(plan)
        if self._takes_tasks() and OPERATIONS[plan["operation"]].long_running:
            return waiting_view(question, token, applied=operation.name == APPLY)
        if not waits(self.context):
            return question_result(question, token)
        answer = await ask_now(question, self.context)
        return await self._agreed(operation, arguments, question, token, answer)

    async def _agreed(
        self,
        operation: Operation,
        arguments: Mapping[str, Any],
        question: Question,
        token: str,
        answer: Answer,
    ) -> Outcome:
        if answer is not Answer.YES:
            raise refusal(question, answer, by_a_person(question.plan))
        own = {key: value for key, value in arguments.items() if key != "plan_token"}
        return await self._do(operation, own | {"plan_token": token})

    async def _do(self, operation: Operation, arguments: Mapping[str, Any]) -> Outcome:
        """Carry the call out. A long one becomes a task: clients with tasks get it, others wait for it."""
        if not operation.detachable or "detach" in arguments:
            return await self._send(operation.name, arguments)
        result = await self._send(operation.name, {**arguments, "detach": True})
        if not is_task(result):
            return result
        if self._takes_tasks():
            return running_view(result, self.cluster)
        return await waited(self.client, result, principal=self.principal, context=self.context)

    def _takes_tasks(self) -> bool:
        if self.context is None:
            return False
        try:
            return takes_tasks(self.context.request_context)
        except ValueError:  # a context outside a request
            return False

    async def _read(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Read. A page that is too long for a result is read again with fewer items, so that it has a next page."""
        result = await self._send(operation.name, arguments)
        page, listed = result, arguments
        if operation.name == READ_ANY:  # the page is within the result, its arguments within the arguments
            page, listed = result["result"], arguments.get("arguments") or {}
        if (
            not isinstance(page.get("items"), list)
            or "next_page" not in page
            or listed.get("top") is not None
        ):
            return result  # `top` has no pages, and counts more than a limit
        shown = fenced(result)  # as the model gets it, which is longer
        whole = size_of(shown)
        if whole <= READ_BYTES:
            return result
        items = (shown["result"] if operation.name == READ_ANY else shown)["items"]
        count = fewer(items, whole, len(items))
        if count is None:
            return result
        shorter: dict[str, Any] = {**listed, "limit": count}
        if operation.name == READ_ANY:
            shorter = {**arguments, "arguments": shorter}
        return await self._send(operation.name, shorter)

    async def _send(self, operation: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return await self.client.call(operation, arguments, principal=self.principal)

    def _for_a_person(self, plan: Mapping[str, Any]) -> PermissionDenied:
        """With --confirm human and a client without forms: return the command for a person to run."""
        return PermissionDenied(
            f"{plan['operation']} destroys, and this server was started with --confirm human: your client cannot show a "
            "person, so nothing was changed. Show the plan in details to your user, who can run the command in next on a "
            "terminal, or do it in the console. Both show the plan and wait for a yes",
            plan=dict(plan),
            next=[by_a_person(plan)],
        )


def _takes_long(operation: Operation, arguments: Mapping[str, Any]) -> bool:
    if operation.name == READ_ANY:
        meant = OPERATIONS.get(str(arguments.get("operation")))
        return meant is not None and meant.long_running
    return operation.long_running


def by_a_person(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the next step for a person: the command that makes and shows the same plan on a terminal.

    It holds no token: it runs with the rights of the person who runs it.
    """
    operation = OPERATIONS[plan["operation"]]
    step = operation.next_call(plan["arguments"], "a person runs this on a terminal, where its plan is shown")
    return step | {"tool": None}
