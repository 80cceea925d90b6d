"""The tools of a list that its caller may use: a broker with its locks on says what he holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import anyio
from mcp.types import Tool
from pydanube_admin.engine.permission import FREE, OF_ANOTHER, OWN
from pydanube_admin.registry import TOOLS
from pydanube_core.errors import ClusterError
from pydanube_core.security.permissions import holds

from pydanube_mcp.clusters import Clusters

PATIENCE_S: Final = 2.0  # for all clusters together: the list comes also while no broker answers

# Nobody is refused these; what is inside a call is looked at, and who may do nothing has nothing to plan.
_WITHOUT: Final = FREE | OWN


async def offered_tools(tools: Sequence[Tool], clusters: Clusters) -> list[Tool]:
    """Those with which the caller can do something at one of the clusters; all, while nobody says what he may."""
    held = await _permissions(clusters)
    return [tool for tool in tools if _may_use(tool.name, held)]


async def _permissions(clusters: Clusters) -> frozenset[str]:
    found: set[str] = set()
    with anyio.move_on_after(PATIENCE_S) as scope:
        for name in clusters.names:
            try:
                found |= set((await clusters.named(name).call("security.whoami")).get("permissions", "*"))
            except ClusterError:
                return frozenset({"*"})
    return frozenset({"*"}) if scope.cancelled_caught else frozenset(found)


def _may_use(tool: str, held: frozenset[str]) -> bool:
    operation = TOOLS[tool]
    if operation.name in _WITHOUT:
        return True
    if operation.name in OF_ANOTHER:
        return bool(held)
    return holds(held, operation.permission)
