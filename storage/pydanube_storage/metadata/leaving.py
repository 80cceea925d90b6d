"""Exit a context that owns tasks."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import anyio


async def leave(stack: AsyncExitStack, *failure: Any) -> bool | None:
    """Close a stack that has a task group. `failure` are the arguments of `__aexit__`.

    A cancellation is passed to the group, which may have caused it. Another error of the block is not passed, because the
    group would wrap it in an ExceptionGroup.
    """
    if isinstance(failure[1], anyio.get_cancelled_exc_class()):
        return await stack.__aexit__(*failure)
    await stack.aclose()
    return None
