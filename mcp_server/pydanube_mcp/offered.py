"""The tools of a list that its caller may use: a broker with its locks on says what he holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import anyio
from mcp.types import Tool
from pydanube_admin.engine.permission import may_use
from pydanube_admin.registry import TOOLS
from pydanube_core.errors import ClusterError

from pydanube_mcp.clusters import Clusters

PATIENCE_S: Final = 2.0  # for all clusters together: the list comes also while no broker answers


async def offered_tools(tools: Sequence[Tool], clusters: Clusters) -> list[Tool]:
    """Those with which the caller can do something at one of the clusters; all, while nobody says what he may."""
    held = await _permissions(clusters)
    return [tool for tool in tools if may_use(TOOLS[tool.name], held)]


async def _permissions(clusters: Clusters) -> frozenset[str]:
    found: set[str] = set()
    with anyio.move_on_after(PATIENCE_S) as scope:
        for name in clusters.names:
            try:
                found |= set((await clusters.named(name).call("security.whoami")).get("permissions", "*"))
            except ClusterError:
                return frozenset({"*"})
    return frozenset({"*"}) if scope.cancelled_caught else frozenset(found)
