"""Leave a block that owns tasks."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import anyio


async def leave(stack: AsyncExitStack, *failure: Any) -> bool | None:
    """Close a stack that has a task group; `failure`: the arguments of `__aexit__`.

    The group gets to see a cancellation, which may be its own. An error of the block is not its business, and would come
    back wrapped in an ExceptionGroup.
    """
    if isinstance(failure[1], anyio.get_cancelled_exc_class()):
        return await stack.__aexit__(*failure)
    await stack.aclose()
    return None
