"""Deletions that are right only while the topic or the subscription is unused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import ClusterError
from pydanube_core.facts import UnusedFacts

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
