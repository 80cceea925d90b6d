"""What an operation may use: the broker's port, the time, and what is known of its call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydanube_core.cluster_port import ClusterPort
from pydanube_core.facts import Grace

if TYPE_CHECKING:
    from pydanube_admin.audit.log import AuditLog
    from pydanube_admin.plans.desk import Desk

__all__ = ["Context", "NowMs", "system_now_ms"]

NowMs = Callable[[], int]  # milliseconds since 1970, by the clock that stamps append times


def system_now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One call. `grace` is there while a change that can be undone is made: what it deletes stays that long."""

    port: ClusterPort
    now_ms: NowMs
    face: str  # where the call was made: cli, mcp, jsonrpc …
    principal: str  # who asks; a claim until there is authentication
    call_id: str
    desk: Desk
    audit: AuditLog
    grace: Grace | None = None
