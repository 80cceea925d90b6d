"""The suite's long tools, as tasks that are kept in this process: they do nothing, so there is nothing to keep longer.

A tool says when it turns out to be long (`promote`), or asks (`ask`); one that ends before is a plain result. What
answers `tasks/get` and the others is the same as for ours.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final

import anyio
from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer, require_client_extension
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import (
    INTERNAL_ERROR,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    TextContent,
)

from pydanube_mcp.tasks import TASKS, TaskView, takes_tasks

TTL_MS: Final = 600_000
MAX_JOBS: Final = 1_000
OPTIONAL: Final = frozenset({"slow_compute", "confirm_delete", "multi_input", "protocol_error_job"})
REQUIRED: Final = frozenset({"failing_job", "test_tool_with_task"})

_current: ContextVar[_Job | None] = ContextVar("job", default=None)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Job:
    def __init__(self) -> None:
        self.id = secrets.token_urlsafe(24)
        self.created = self.updated = _now()
        self.status = "working"
        self.message: str | None = None
        self.result: Mapping[str, Any] | None = None
        self.error: Mapping[str, Any] | None = None
        self.asked: dict[str, tuple[ElicitRequest, asyncio.Future[Any]]] = {}
        self.questions = 0
        self.task: asyncio.Task[None] | None = None
        self.is_long = asyncio.Event()
        self.raised: Exception | None = None
        self.answer: HandlerResult = None

    def turn(self, status: str, message: str | None = None) -> None:
        self.status, self.message, self.updated = status, message, _now()

    def view(self) -> TaskView:
        asked = {
            key: request.model_dump(mode="json", by_alias=True, exclude_none=True)
            for key, (request, _) in self.asked.items()
        }
        return TaskView(
            task_id=self.id,
            status=self.status,
            created_at=self.created,
            updated_at=self.updated,
            ttl_ms=TTL_MS,
            poll_ms=500,
            message=self.message,
            result=self.result if self.status == "completed" else None,
            error=self.error if self.status == "failed" else None,
            input_requests=asked,
        )


async def promote(message: str) -> None:
    """Say that it takes long: the caller gets its task now."""
    job = _current.get()
    if job is not None:
        job.message = message
        job.is_long.set()
        await anyio.lowlevel.checkpoint()


async def ask(*requests: ElicitRequest) -> list[Any]:
    """Ask the client from within a task, all at once."""
    job = _current.get()
    assert job is not None, "only tasks ask"
    loop = asyncio.get_running_loop()
    waiting = []
    for request in requests:
        job.questions += 1
        future: asyncio.Future[Any] = loop.create_future()
        job.asked[f"q{job.questions}"] = (request, future)
        waiting.append(future)
    job.turn("input_required")
    job.is_long.set()
    return list(await asyncio.gather(*waiting))


def _form(message: str, **properties: Any) -> ElicitRequest:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def _text(text: str, *, is_error: bool = False) -> CallToolResult:
    return CallToolResult(is_error=is_error, content=[TextContent(type="text", text=text)])


Request = ServerRequestContext[Any, Any]


class Jobs:
    """`OtherTools` of `pydanube_mcp.tasks`."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}

    def has(self, tool: str) -> bool:
        return tool in OPTIONAL or tool in REQUIRED

    async def call(
        self, params: CallToolRequestParams, request: Request, call_next: CallNext
    ) -> HandlerResult:
        if not takes_tasks(request):
            if params.name in REQUIRED:
                require_client_extension(request, TASKS)
            return await call_next(request)
        job = _Job()
        job.task = asyncio.get_running_loop().create_task(self._run(job, request, call_next))
        await job.is_long.wait()
        if job.raised is not None:
            raise job.raised
        if job.answer is not None:
            return job.answer
        while len(self._jobs) >= MAX_JOBS:
            del self._jobs[next(iter(self._jobs))]
        self._jobs[job.id] = job
        return {"resultType": "task", **job.view().short()}

    async def _run(self, job: _Job, request: Request, call_next: CallNext) -> None:
        _current.set(job)
        try:
            result = await call_next(request)
            if not job.is_long.is_set() or isinstance(result, InputRequiredResult):
                job.answer = result
            else:
                assert isinstance(result, CallToolResult)
                job.result = result.model_dump(mode="json", by_alias=True, exclude_none=True)
                job.turn("completed")
        except asyncio.CancelledError:
            job.turn("cancelled")
        except Exception as error:
            if not job.is_long.is_set():
                job.raised = error
            said = error.message if isinstance(error, MCPError) else "Internal server error"
            code = error.code if isinstance(error, MCPError) else INTERNAL_ERROR
            job.error = {"code": code, "message": said}
            job.turn("failed", said)
        finally:
            job.asked.clear()
            job.is_long.set()

    async def get(self, task_id: str, request: Request) -> TaskView | None:
        job = self._jobs.get(task_id)
        return None if job is None else job.view()

    async def answer(self, task_id: str, responses: Mapping[str, Any], request: Request) -> None:
        job = self._jobs[task_id]
        for key, value in responses.items():
            if key in job.asked:
                _, future = job.asked.pop(key)
                future.set_result(value)
        if not job.asked and job.status == "input_required":
            job.turn("working")

    async def cancel(self, task_id: str, request: Request) -> None:
        job = self._jobs[task_id]
        assert job.task is not None
        if not job.task.done():
            job.task.cancel()
            await asyncio.wait([job.task])

    def mount(self, server: MCPServer[Any]) -> None:
        """Register the tools."""

        @server.tool(name="greet", description="Greets at once")
        def greet(name: str) -> CallToolResult:
            return _text(f"Hello, {name}!")

        @server.tool(name="slow_compute", description="Sleeps, then answers")
        async def slow(seconds: float, label: str = "") -> CallToolResult:
            if seconds > 0:
                await promote(f"computing {label}")
                await anyio.sleep(seconds)
            return _text(f"computed {label} in {seconds} s")

        @server.tool(name="failing_job", description="Fails after a second")
        async def failing() -> CallToolResult:
            await promote("about to fail")
            await anyio.sleep(1)
            raise ToolError("this job fails")

        @server.tool(name="protocol_error_job", description="Ends with an error of the protocol")
        async def protocol_error() -> CallToolResult:
            await promote("about to fail")
            await anyio.sleep(0.2)
            raise MCPError(code=INTERNAL_ERROR, message="this job ends with a protocol error")

        @server.tool(name="confirm_delete", description="Asks before it deletes nothing")
        async def confirm(filename: str) -> CallToolResult:
            (said,) = await ask(_form(f"Delete {filename}?", confirm={"type": "boolean"}))
            agreed = said.get("action") == "accept" and (said.get("content") or {}).get("confirm")
            return _text(f"{'deleted' if agreed else 'kept'} {filename}")

        @server.tool(name="multi_input", description="Asks two things at once")
        async def multi() -> CallToolResult:
            said = await ask(
                _form("What is your name?", name={"type": "string"}),
                _form("Go on?", confirm={"type": "boolean"}),
            )
            return _text(f"{len(said)} answers")

        @server.tool(name="test_tool_with_task", description="Asks first, then becomes a task")
        async def asks_first(ctx: Context[Any, Any]) -> CallToolResult | InputRequiredResult:
            said = (ctx.input_responses or {}).get("user_name")
            if said is None:
                form = _form("What is your name?", name={"type": "string"})
                return InputRequiredResult(input_requests={"user_name": form}, request_state="asked")
            await promote("greeting")
            await anyio.sleep(0.2)
            content = getattr(said, "content", None) or {}
            return _text(f"Hello, {content.get('name') or content.get('user_name')}!")
