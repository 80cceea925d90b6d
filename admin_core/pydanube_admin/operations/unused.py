"""Whether clients use a topic, and deletions that are right only while they do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import ClusterError
from pydanube_core.facts import TopicFacts, UnusedFacts

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.forecast import is_live

_RELEASE_S: Final = 5.0  # an owner that is not reached reopens it after a timeout


@asynccontextmanager
async def held_unused(
    port: ClusterPort,
    topic: str,
    subscription: str | None = None,
    *,
    starts: Mapping[str, int] | None = None,
    from_partition: int | None = None,
) -> AsyncIterator[Sequence[UnusedFacts]]:
    """Context in which the owners keep an unused topic or subscription closed to clients. Raises as `hold_unused`."""
    try:
        yield await port.hold_unused(topic, subscription, starts=starts, from_partition=from_partition)
    except BaseException:
        with anyio.move_on_after(_RELEASE_S, shield=True), suppress(ClusterError):
            await port.release_unused(topic, subscription)
        raise


async def was_live(context: Context, topics: Sequence[TopicFacts]) -> bool:
    """Return whether any client published to or read from these topics within the last `forecast.LIVE_MS`."""
    now_ms = context.now_ms()
    if is_live(now_ms, *(facts.last_published_ms for facts in topics)):
        return True
    for facts in topics:
        found = await context.port.subscriptions(facts.topic, None)
        if is_live(now_ms, *(each.last_consumed_ms for each in found)):
            return True
        await asyncio.sleep(0)
    return False
