"""The tasks that this server answers for: the admin core's, and plans that wait for consent.

The id of a task under way is the admin core's (`t…`). The id of a waiting one is the token of its plan
(`p….…`), followed by `.apply` if it was called as `apply_plan`. Once the plan is applied, that id stands for
the task that this made. With several clusters the cluster's name and a colon come first.

For a client that takes no tasks, the call waits and reports its progress. Before the deadline of the client
passes, the call is answered with the task, and the model polls that: nothing is lost and nothing is in doubt.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import anyio
from mcp import MCPError
from mcp.server.mcpserver import Context
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS, CallToolResult, ElicitRequest, ElicitRequestFormParams
from pydanube_admin.engine.operation import APPLY
from pydanube_admin.registry import OPERATIONS
from pydanube_admin.remote import OpsClient
from pydanube_core.calling_program import current_program
from pydanube_core.errors import ClusterError, InvalidArgument, LimitReached, PlanNotFound
from pydanube_core.units import parse_time_ms

from pydanube_mcp.charts import named
from pydanube_mcp.clusters import Clusters
from pydanube_mcp.consent import CONSENT, Answer, Question
from pydanube_mcp.fencing import fenced
from pydanube_mcp.presenting import Asked, error_result, ok_result
from pydanube_mcp.profiles import Profile
from pydanube_mcp.tasks import Request, TaskView, principal_of, program_of

APPLIED: Final = ".apply"
_RUNNING: Final = re.compile(r"t[0-9a-f]{24}\Z")
_WAITING: Final = re.compile(r"p[0-9a-f]{24}\.[A-Za-z0-9_-]{1,64}(\.apply)?\Z")
KEPT_MS: Final = 86_400_000  # as the admin core keeps a task
END_S: Final = 5.0  # maximum time for a cancelled task to stop
POLL_S: Final = 0.05


def is_task(result: Mapping[str, Any]) -> bool:
    """Return whether the answer to a detached call is its task."""
    return "task_id" in result and "of_call" in result


def _full_id(cluster: str | None, own: str) -> str:
    return own if cluster is None else f"{cluster}:{own}"


def came_to(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a task that is done, in the form of the call's.

    Raises:
        LimitReached: it was too long to be kept.
    """
    result = task["result"]
    if result is None:
        raise LimitReached(
            f"it is done, but {task['result_reason']}", task_id=task["task_id"], retryable=False
        )
    match task["via"]:
        case "operations.read":
            return {"operation": task["operation"], "result": result}
        case "plans.apply":
            about = {name: result.get(name) for name in ("call_id", "plan_id", "undo_until")}
            return {"operation": task["operation"], "result": result, **about}
    return dict(result)


def running_view(task: Mapping[str, Any], cluster: str | None) -> TaskView:
    """Return the view of an admin core's task that has just begun."""
    return TaskView(
        task_id=_full_id(cluster, task["task_id"]),
        status="working",
        created_at=task["started_at"],
        updated_at=task["ended_at"] or task["started_at"],
        ttl_ms=KEPT_MS,
        message=progress_of(task),
    )


def waiting_view(question: Question, token: str, *, applied: bool) -> TaskView:
    """Return the view of a plan that waits for consent."""
    plan = question.plan
    created_ms, expires_ms = (parse_time_ms(plan[name], field=name) for name in ("as_of", "expires_at"))
    request = ElicitRequest(
        params=ElicitRequestFormParams(message=question.text, requested_schema=question.schema)
    )
    return TaskView(
        task_id=_full_id(question.cluster, token + (APPLIED if applied else "")),
        status="input_required",
        created_at=plan["as_of"],
        updated_at=plan["as_of"],
        ttl_ms=max(0, expires_ms - created_ms),
        message="waits for a person's consent",
        input_requests={CONSENT: request.model_dump(mode="json", by_alias=True, exclude_none=True)},
    )


class ClusterTasks:
    """The `Keeper` (`pydanube_mcp.tasks`) of the admin core's tasks. Holds no state."""

    def __init__(self, clusters: Clusters, *, profile: Profile) -> None:
        self._clusters = clusters
        self._profile = profile

    def _where(self, task_id: str) -> tuple[OpsClient, str | None, str] | None:
        """Return the cluster of a task, its name if there are several, and the task's own id."""
        cluster: str | None = None
        own = task_id
        if self._clusters.several:
            cluster, _, own = task_id.partition(":")
            if cluster not in self._clusters.names:
                return None
        return self._clusters.named(cluster or self._clusters.names[0]), cluster, own

    async def get(self, task_id: str, request: Request) -> TaskView | None:
        where = self._where(task_id)
        if where is None:
            return None
        client, cluster, own = where
        principal = _caller(request, client)
        try:
            if _RUNNING.match(own):
                found = await self._running(client, cluster, own, principal)
            elif _WAITING.match(own):
                found = await self._waiting(client, cluster, own, principal)
            else:
                return None
        except ClusterError as error:
            raise _as_protocol_error(error) from error
        return None if found is None else replace(found, task_id=task_id)

    # -- under way, and ended --------------------------------------------------------------------------------

    async def _running(
        self, client: OpsClient, cluster: str | None, task_id: str, principal: str
    ) -> TaskView | None:
        try:
            task = await client.call("tasks.get", {"task_id": task_id}, principal=principal)
        except InvalidArgument:
            return None
        if principal and task["principal"] != principal:  # without a principal the broker decides
            return None
        view = running_view(task, cluster)
        match task["state"]:
            case "running":
                return view
            case "done":
                return replace(view, status="completed", message=None, result=self._result(task, cluster))
            case "cancelled":
                return replace(view, status="cancelled", message="cancelled. Its finished steps stay done")
            case "interrupted":
                error = task["error"] or {"message": "the broker ended while it was under way"}
                error = fenced(error)
                said = {"code": INTERNAL_ERROR, "message": error["message"], "data": error}
                return replace(view, status="failed", message=error["message"], error=said)
        raised = ClusterError.from_dict(task["error"] or {"code": "INTERNAL", "message": "it failed"})
        return replace(
            view,
            status="completed",
            message=fenced(raised.to_dict())["message"],
            result=_dumped(error_result(raised, self._asked(cluster))),
        )

    def _result(self, task: Mapping[str, Any], cluster: str | None) -> dict[str, Any]:
        try:
            return _dumped(ok_result(came_to(task), self._asked(cluster)))
        except LimitReached as lost:
            return _dumped(error_result(lost, self._asked(cluster)))

    def _asked(self, cluster: str | None) -> Asked:
        """Return the terms of an answer. It is cut to a result's size. get_task has all of it, in parts."""
        return Asked(operation=None, arguments={}, profile=self._profile, cluster=cluster)

    # -- waiting for consent ---------------------------------------------------------------------------------

    async def _waiting(
        self, client: OpsClient, cluster: str | None, own: str, principal: str
    ) -> TaskView | None:
        token, applied = own.removesuffix(APPLIED), own.endswith(APPLIED)
        try:
            plan = await client.call("plans.show", {"plan_id": token.partition(".")[0]}, principal=principal)
        except PlanNotFound:
            return None
        if (principal and plan["principal"] != principal) or not OPERATIONS[plan["operation"]].long_running:
            return None
        view = waiting_view(Question(plan=plan, cluster=cluster), token, applied=applied)
        over = replace(view, input_requests=None)
        match plan["state"]:
            case "open":
                return view
            case "discarded":
                return replace(over, status="cancelled", message="the plan was refused. Nothing was changed")
            case "used":
                made = await self._running(client, cluster, "t" + plan["call_id"][1:], principal)
                if made is not None:
                    return replace(made, created_at=view.created_at)
                why = "the broker ended before it was begun. Nothing was changed"
            case _:
                why = "no person agreed in time. Nothing was changed"
        error = {"code": INTERNAL_ERROR, "message": why}
        return replace(over, status="failed", message=why, error=error)

    async def answer(self, task_id: str, responses: Mapping[str, Any], request: Request) -> None:
        """Take a person's answer. Ignore one that the task does not wait for.

        Raises:
            MCPError: a person agreed, but the change was refused.
        """
        where = self._where(task_id)
        view = await self.get(task_id, request)
        given = responses.get(CONSENT)
        if where is None or view is None or view.status != "input_required" or not isinstance(given, Mapping):
            return
        client, cluster, own = where
        principal = _caller(request, client)
        token, applied = own.removesuffix(APPLIED), own.endswith(APPLIED)
        plan_id = token.partition(".")[0]
        try:
            plan = await client.call("plans.show", {"plan_id": plan_id}, principal=principal)
            content = given.get("content")
            answer = Question(plan=plan, cluster=cluster).judge(
                str(given.get("action")), content if isinstance(content, Mapping) else None
            )
            if answer is not Answer.YES:
                await client.call("plans.discard", {"plan_id": plan_id}, principal=principal)
                return
            operation = APPLY if applied else plan["operation"]
            arguments = {} if applied else plan["arguments"]
            call = {**arguments, "plan_token": token, "detach": True}
            await client.call(operation, call, principal=principal)
        except ClusterError as error:
            if not _may_pass(error) and error.code != "PLAN_USED":
                await self._discard(client, plan_id, principal)
            raise _as_protocol_error(error) from error

    async def _discard(self, client: OpsClient, plan_id: str, principal: str) -> None:
        """Discard a plan that was agreed to but cannot be applied, so that it is not shown for consent again."""
        try:
            await client.call("plans.discard", {"plan_id": plan_id}, principal=principal)
        except ClusterError:
            return  # it is used or deleted by now

    async def cancel(self, task_id: str, request: Request) -> None:
        """Cancel a task and wait until it has stopped. One that has ended stays as it is."""
        where = self._where(task_id)
        view = await self.get(task_id, request)
        if where is None or view is None or view.status not in ("working", "input_required"):
            return
        client, _, own = where
        principal = _caller(request, client)
        plan_id = own.partition(".")[0]
        try:
            if view.status == "input_required":
                await client.call("plans.discard", {"plan_id": plan_id}, principal=principal)
                return
            if own.startswith("p"):
                plan = await client.call("plans.show", {"plan_id": plan_id}, principal=principal)
                own = "t" + plan["call_id"][1:]
            await client.call("tasks.cancel", {"task_id": own}, principal=principal)
        except ClusterError as error:
            after = await self.get(task_id, request)
            if after is not None and after.status in ("working", "input_required"):
                raise _as_protocol_error(error) from error
            return
        end = time.monotonic() + END_S
        while time.monotonic() < end:
            now = await self.get(task_id, request)
            if now is None or now.status != "working":
                return
            await anyio.sleep(POLL_S)


def _caller(request: Request, client: OpsClient) -> str:
    """Return the principal of a request, and let its calls carry the name of its program."""
    current_program.set(program_of(request.session))
    return principal_of(request) or client.principal


def _dumped(result: CallToolResult) -> dict[str, Any]:
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)


def progress_of(task: Mapping[str, Any]) -> str:
    """Return the progress of a task, as a sentence for a model. It omits a name that may be a sentence."""
    parts = []
    for work in task["work"]:
        of = "" if work.get("total") is None else f" of {work['total']:,}"
        where = f" ({named(work['topic'], 'a topic')})" if work.get("topic") else ""
        doing = f", {work['doing']}" if work.get("doing") else ""
        parts.append(f"{work['done']:,}{of} {work['unit']}{where}{doing}")
    again = ", begun again after a restart of the broker" if task["begun_again"] else ""
    return f"{task['operation']}{again}" + (f": {'; '.join(parts)}" if parts else "")


def _may_pass(error: ClusterError) -> bool:
    """Return whether the call was not refused: a retry may help, or the change may have been made."""
    return error.retryable or error.details.get("outcome") == "unknown"


def _as_protocol_error(error: ClusterError) -> MCPError:
    code = INTERNAL_ERROR if _may_pass(error) else INVALID_PARAMS
    body = fenced(error.to_dict())
    return MCPError(code=code, message=body["message"], data=body)


SHARE: Final = 0.8  # of a call's deadline that the server waits
FIRST_S: Final = 0.05  # until the first poll, doubled each time
MOST_S: Final = 1.0  # longest pause: every poll is a call, and is recorded in the audit
CANCEL_S: Final = 2.0  # for cancelling the cluster's task after the caller has left


async def waited(
    client: OpsClient, task: Mapping[str, Any], *, principal: str | None, context: Context[Any, Any] | None
) -> dict[str, Any]:
    """Wait for a call that became a task. Return its result, or the task after `SHARE` of the deadline.

    With the task comes the call that reads it. A cancelled wait stops the task, because its caller has left.

    Raises:
        ClusterError: the call failed.
        LimitReached: its result is too long to be kept.
    """
    begun, pause = time.monotonic(), FIRST_S
    ask = {"task_id": task["task_id"]}
    try:
        while True:
            now = await client.call("tasks.get", ask, principal=principal)
            if now["state"] != "running":
                return _ended(now)
            passed = time.monotonic() - begun
            if passed >= SHARE * client.timeout_s:
                step = OPERATIONS["tasks.get"].next_call(
                    ask, "shows how far it is, and its result once it is done"
                )
                return {**task, "work": now["work"], "next": [step]}
            if context is not None:
                await context.report_progress(round(passed, 3), None, progress_of(now))
            await anyio.sleep(min(pause, SHARE * client.timeout_s - passed))
            pause = min(2 * pause, MOST_S)
    except anyio.get_cancelled_exc_class():
        with anyio.move_on_after(CANCEL_S, shield=True):
            await client.call("tasks.cancel", ask, principal=principal)
        raise


def _ended(task: Mapping[str, Any]) -> dict[str, Any]:
    if task["state"] != "done":
        raise ClusterError.from_dict(
            task["error"] or {"code": "INTERNAL", "message": f"the task ended as {task['state']}"}
        )
    return came_to(task)
