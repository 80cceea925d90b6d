"""Long calls of clients that take no tasks: waited for while the client hears how far they are, and answered with the task
before anybody's deadline passes. A model asks for it again; nothing is lost and nothing is in doubt.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import anyio
from mcp.server.mcpserver import Context
from pydanube_admin.registry import OPERATIONS
from pydanube_admin.remote import OpsClient
from pydanube_core.errors import ClusterError, LimitReached

from pydanube_mcp.cluster_tasks import came_to, progress_of

SHARE: Final = 0.8  # of a call's deadline that is waited
FIRST_S: Final = 0.05  # until it is looked at again, and twice as long each time
MOST_S: Final = 1.0  # every look is a call, and stands in the audit
CANCEL_S: Final = 2.0  # for telling the cluster that nobody waits any more


async def waited(
    client: OpsClient, task: Mapping[str, Any], *, principal: str | None, context: Context[Any, Any] | None
) -> dict[str, Any]:
    """The result of a call that became a task, or, after most of the deadline, the task and how to ask for it.

    Cancelled, it stops the task: who made the call has left.

    Raises:
        ClusterError: what the call came to; LimitReached: its result is too long to be kept.
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
    result = came_to(task)
    if result is None:
        raise LimitReached(
            f"it is done, but {task['result_reason']}", task_id=task["task_id"], retryable=False
        )
    return result
