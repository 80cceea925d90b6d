"""`grpc.health.v1.Health/Check` on every gRPC port, for orchestrators' probes.

Its two messages have one field each, so they are encoded here, without another generated file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pydanube_broker.rpc.hot import HotHandler, UnaryReply

_SERVING: Final = bytes((0x08, 1))  # HealthCheckResponse.status = SERVING
_NOT_SERVING: Final = bytes((0x08, 2))


class HealthService:
    """Answers SERVING while `ready` returns True, for any service name."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready

    @property
    def hot(self) -> Mapping[str, HotHandler]:
        return {"/grpc.health.v1.Health/Check": self._check}

    def _check(self, request: bytes, reply: UnaryReply) -> None:
        reply.send(_SERVING if self._ready() else _NOT_SERVING)
