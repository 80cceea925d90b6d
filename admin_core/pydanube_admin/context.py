"""What an operation may use: the broker's port, and the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pydanube_core.cluster_port import ClusterPort

__all__ = ["Context", "NowMs", "system_now_ms"]

NowMs = Callable[[], int]  # milliseconds since 1970, by the clock that stamps append times


def system_now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    port: ClusterPort
    now_ms: NowMs
    face: str = ""  # where the call was made
