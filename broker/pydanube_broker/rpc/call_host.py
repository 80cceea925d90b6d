"""Protocols for a call's view of its connection, method and head, and for a connection's view of its server.

With them each of these modules depends only on modules below it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping
from contextvars import Context
from typing import Any, Protocol

from pydanube_core.grpc_wire import Headers, Unpacker
from pydanube_core.http2 import Limits, ServerConnection
from pydanube_core.security.identity import Identity

from pydanube_broker.rpc.caller import Keeper, Peer
from pydanube_broker.rpc.hot import CallRelay


class CallConnection(Protocol):
    http: ServerConnection
    now: float
    corked: bool
    peer: Peer
    deadlines: Any
    message_bytes: int
    unpack: Unpacker
    loop: asyncio.AbstractEventLoop

    def wake(self) -> None: ...

    def wake_later(self) -> None: ...

    def hold(self, count: int) -> None: ...

    def release(self, count: int) -> None: ...

    def start(self, work: Coroutine[Any, Any, None], context: Context) -> asyncio.Task[None]: ...


class CarriedCall(Protocol):
    def over(self) -> None:
        """Give up all work for the call, because it has ended."""


class CalledMethod(Protocol):
    path: str
    handler: Any
    elsewhere: CallRelay | None

    def ended(self, status: int) -> None: ...


class HeadOfCall(Protocol):
    gzip: bool
    refusal: Headers
    body: bytes | None
    identity: Identity | None

    @property
    def metadata(self) -> tuple[tuple[str, str | bytes], ...]: ...


class ConnectionServer(Protocol):
    loop: asyncio.AbstractEventLoop
    limits: Limits
    times: Any
    deadlines: Any
    methods: Mapping[bytes, Any]
    nothing: Any
    keeper: Keeper | None
    closed: Counter[str]
    memory: Any
    lost_connections: Any

    def admit(self, connection: Any) -> bool: ...

    def lost(self, connection: Any) -> None: ...

    def wake(self, connection: Any) -> None: ...

    def flush_later(self, connection: Any, wait_s: float) -> None: ...
