"""Tasks (SEP-2663): a long operation is answered with a task, which the client polls, answers and cancels.

No state of a task is kept here. A task under way is one of the admin core, kept in the cluster. A task that
waits for consent is the plan to consent to. So any process of this server, even one started after the first
was killed, answers for the same id. For a client that does not declare the extension, the call waits.

Only the 2026 protocol has extensions. Source: SEP-2663 (`io.modelcontextprotocol/tasks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol

from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import require_client_extension
from mcp.server.session import ServerSession
from mcp.types import INVALID_PARAMS, CallToolRequestParams, RequestParams
from mcp_types import HEADER_MISMATCH
from pydantic import Field
from pydanube_core.calling_program import AGENT, CallingProgram

from pydanube_mcp.fencing import fenced

TASKS: Final = "io.modelcontextprotocol/tasks"
MODERN: Final = frozenset({"2026-07-28"})
POLL_MS: Final = 1000

_begun: ContextVar[list[TaskView] | None] = ContextVar("task_of_this_call", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """A task in the protocol's form."""

    task_id: str
    status: str  # working | input_required | completed | failed | cancelled
    created_at: str
    updated_at: str
    ttl_ms: int
    poll_ms: int = POLL_MS
    message: str | None = None
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    input_requests: Mapping[str, Any] | None = None

    def short(self) -> dict[str, Any]:
        """Return the view without the result."""
        body: dict[str, Any] = {
            "taskId": self.task_id,
            "status": self.status,
            "createdAt": self.created_at,
            "lastUpdatedAt": self.updated_at,
            "ttlMs": self.ttl_ms,
            "pollIntervalMs": self.poll_ms,
        }
        return body if self.message is None else body | {"statusMessage": self.message}

    def whole(self) -> dict[str, Any]:
        more = {"result": self.result, "error": self.error, "inputRequests": self.input_requests}
        return self.short() | {name: value for name, value in more.items() if value}


class TaskParams(RequestParams):
    task_id: str


class UpdateParams(TaskParams):
    input_responses: dict[str, Any] = Field(default_factory=dict)


Request = ServerRequestContext[Any, Any]


class Keeper(Protocol):
    """Answers for tasks. To a caller, those of other principals do not exist."""

    async def get(self, task_id: str, request: Request) -> TaskView | None: ...

    async def answer(self, task_id: str, responses: Mapping[str, Any], request: Request) -> None: ...

    async def cancel(self, task_id: str, request: Request) -> None: ...


class OtherTools(Keeper, Protocol):
    """Tools that make tasks in their own way: those of the conformance suite."""

    def has(self, tool: str) -> bool: ...

    async def call(
        self, params: CallToolRequestParams, request: Request, call_next: CallNext
    ) -> HandlerResult: ...


def takes_tasks(request: Request) -> bool:
    """Return whether the client declared the extension with this request."""
    capabilities = request.session.client_capabilities
    extensions = capabilities.extensions if capabilities else None
    return request.protocol_version in MODERN and TASKS in (extensions or {})


def hand_over(view: TaskView) -> bool:
    """Answer the tool call under way with a task. Return whether that is possible."""
    slot = _begun.get()
    if slot is None:
        return False
    slot.append(view)
    return True


class Tasks(Extension):
    """The extension: `tasks/get`, `tasks/update`, `tasks/cancel`, and tool calls whose answer is a task."""

    identifier = TASKS

    def __init__(self, keeper: Keeper, others: OtherTools | None = None) -> None:
        self._keepers: tuple[Keeper, ...] = (keeper,) if others is None else (others, keeper)
        self._others = others

    def methods(self) -> Sequence[MethodBinding]:
        return [
            MethodBinding("tasks/get", TaskParams, self._get, MODERN),
            MethodBinding("tasks/update", UpdateParams, self._update, MODERN),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, MODERN),
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Request, call_next: CallNext
    ) -> HandlerResult:
        if self._others is not None and self._others.has(params.name):
            return await self._others.call(params, ctx, call_next)
        if not takes_tasks(ctx):
            return await call_next(ctx)
        slot: list[TaskView] = []
        token = _begun.set(slot)
        try:
            result = await call_next(ctx)
        finally:
            _begun.reset(token)
        return {"resultType": "task", **slot[0].short()} if slot else result

    async def _found(self, ctx: Request, task_id: str) -> tuple[Keeper, TaskView]:
        require_client_extension(ctx, TASKS)
        header = getattr(ctx.request, "headers", {}).get("mcp-name") if ctx.request is not None else None
        if header is not None and header != task_id:
            raise MCPError(code=HEADER_MISMATCH, message="Mcp-Name is not the taskId of the parameters")
        for keeper in self._keepers:
            view = await keeper.get(task_id, ctx)
            if view is not None:
                return keeper, view
        raise MCPError(
            code=INVALID_PARAMS,
            message="Unknown task",
            data=fenced({"taskId": task_id[:200], "why": "it never was, or its time is over"}),
        )

    async def _get(self, ctx: Request, params: TaskParams) -> HandlerResult:
        return (await self._found(ctx, params.task_id))[1].whole()

    async def _update(self, ctx: Request, params: UpdateParams) -> HandlerResult:
        keeper, _ = await self._found(ctx, params.task_id)
        await keeper.answer(params.task_id, params.input_responses, ctx)
        return {}

    async def _cancel(self, ctx: Request, params: TaskParams) -> HandlerResult:
        keeper, _ = await self._found(ctx, params.task_id)
        await keeper.cancel(params.task_id, ctx)
        return {}


def program_of(session: ServerSession) -> CallingProgram:
    """Return the client's program as it names itself when it connects, or with each request of the 2026 protocol."""
    params = session.client_params
    if params is None:
        return CallingProgram(by=AGENT)
    return CallingProgram(name=params.client_info.name, version=params.client_info.version, by=AGENT)


def principal_of(request: ServerRequestContext[Any, Any]) -> str | None:
    """Return the principal that an HTTP request claims, in checked form. None over stdio."""
    headers = getattr(request.request, "headers", None)
    found = headers.get("danube-principal") if headers else None
    return None if found is None else str(found)
