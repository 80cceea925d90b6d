"""An MCP client that takes tasks (SEP-2663), on the SDK's client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import anyio
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.types import CallToolResult, Request, RequestParams, Result
from pydantic import ConfigDict

__all__ = ["TASKS", "TakesTasks", "ask_task", "ended"]

TASKS = "io.modelcontextprotocol/tasks"
OVER = ("completed", "failed", "cancelled")


class CreatedTask(Result):
    result_type: Literal["task"] = "task"
    task_id: str
    status: str
    ttl_ms: int


class TakesTasks(ClientExtension):
    """A task is the result of its call: `structured_content["taskId"]`."""

    identifier = TASKS

    def claims(self) -> Sequence[ResultClaim[Any]]:
        async def keep(created: CreatedTask, context: ClaimContext) -> CallToolResult:
            found = {"taskId": created.task_id, "status": created.status, "ttlMs": created.ttl_ms}
            return CallToolResult(content=[], structured_content=found)

        return [ResultClaim(result_type="task", model=CreatedTask, resolve=keep)]


class TaskParams(RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class TaskRequest(Request[TaskParams, Any]):
    method: str
    params: TaskParams
    name_param = "taskId"


class Anything(Result):
    model_config = ConfigDict(extra="allow")


async def ask_task(client: Client, verb: str, task_id: str, **more: Any) -> dict[str, Any]:
    """Send `tasks/get`, `tasks/update` or `tasks/cancel`."""
    request = TaskRequest(method=f"tasks/{verb}", params=TaskParams(task_id=task_id, **more))
    result = await client.session.send_request(request, Anything)
    return result.model_dump(mode="json", by_alias=True)


async def ended(client: Client, task_id: str, *, timeout_s: float = 60) -> dict[str, Any]:
    """The task once it is over, asked after again and again, as clients do."""
    with anyio.fail_after(timeout_s):
        while (task := await ask_task(client, "get", task_id))["status"] not in OVER:  # noqa: ASYNC110
            await anyio.sleep(0.05)
    return task
