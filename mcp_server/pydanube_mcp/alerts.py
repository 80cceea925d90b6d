"""Alerts pushed to clients: `danube://alerts`, by `subscriptions/listen` or `resources/subscribe`.

The first is of the 2026 protocol, the second of 2025. The server pushes a notification without the alerts:
the client reads the resource. The clusters are polled once a second, and only while a client listens. A
notification is sent when the set of open alerts has changed. A caller that may not list alerts cannot
subscribe. One poll serves all listeners: beside a broker it is made as the broker itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final
from weakref import WeakKeyDictionary

import anyio
from mcp import MCPError
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.subscriptions import ResourceUpdated, ServerEvent
from mcp.types import (
    INVALID_PARAMS,
    EmptyResult,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    UnsubscribeRequestParams,
)
from pydanube_admin.registry import OPERATIONS
from pydanube_core.errors import ClusterError, PermissionDenied, Unauthenticated
from pydanube_core.security.identity import OPERATOR, current_identity

from pydanube_mcp.clusters import Clusters
from pydanube_mcp.fencing import fenced
from pydanube_mcp.narrowing import current_narrowing
from pydanube_mcp.stdio import not_counted

ALERTS_URI: Final = "danube://alerts"
PAUSE_S: Final = 1.0
TELL_S: Final = 0.5  # for a client to take a notification
MAX_LISTENERS: Final = 128  # streams of the 2026 protocol: each holds a connection, and a port has 512
MAX_CUES: Final = 64  # that a stream may be behind: a longer backlog ends it, and its client begins again
MAX_SUBSCRIBERS: Final = 256  # sessions of the 2025 protocol, as many as HTTP keeps


class _Bus(InMemorySubscriptionBus):
    """A bus that counts its listeners."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners = 0

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        leave = super().subscribe(listener)
        self.listeners += 1
        left = False

        def unsubscribe() -> None:
            nonlocal left
            if not left:
                left = True
                self.listeners -= 1
            leave()

        return unsubscribe


class AlertWatch:
    """Watches the alerts of all clusters while a client listens. Run `watch` in a task of its own."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self.bus = _Bus()
        self.subscribable = {ALERTS_URI}
        self.sessions: WeakKeyDictionary[Connection, set[str]] = WeakKeyDictionary()
        self._listening = ListenHandler(
            self.bus, max_subscriptions=MAX_LISTENERS, max_buffered_events=MAX_CUES
        )

    async def listen(
        self, context: ServerRequestContext[Any, Any], params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """Handle `subscriptions/listen` of the 2026 protocol."""
        await self._check(map(str, params.notifications.resource_subscriptions or ()))
        with not_counted():  # it lasts until the client ends it, and `MAX_LISTENERS` bounds it
            return await self._listening(context, params)

    async def _check(self, uris: Iterable[str]) -> None:
        """Raise if the caller may not read the resource that it subscribes to."""
        if ALERTS_URI not in uris:
            return
        for name in self._clusters.names:
            try:
                current_narrowing.get().check(OPERATIONS["alerts.list"], {})
                await self._clusters.named(name).call("alerts.list", {"limit": 1})
            except (PermissionDenied, Unauthenticated) as error:
                raise MCPError(
                    code=INVALID_PARAMS, message=error.message, data=fenced({"error": error.to_dict()})
                ) from None
            except ClusterError:  # it does not answer now, but may later
                continue

    async def subscribe(
        self, context: ServerRequestContext[Any, Any], params: SubscribeRequestParams
    ) -> EmptyResult:
        """Handle `resources/subscribe` of the 2025 protocol."""
        uri = str(params.uri)
        if uri not in self.subscribable:
            raise MCPError(
                code=INVALID_PARAMS,
                message=f"only {', '.join(sorted(self.subscribable))} can be subscribed to",
                data=fenced({"uri": uri[:200]}),
            )
        await self._check((uri,))
        # The session object belongs to this request. Later notifications use the connection, which lives as
        # long as the session.
        connection: Connection = context.session._connection
        if connection not in self.sessions and len(self.sessions) >= MAX_SUBSCRIBERS:
            raise MCPError(code=INVALID_PARAMS, message=f"{MAX_SUBSCRIBERS} sessions are subscribed already")
        self.sessions.setdefault(connection, set()).add(uri)
        return EmptyResult()

    async def unsubscribe(
        self, context: ServerRequestContext[Any, Any], params: UnsubscribeRequestParams
    ) -> EmptyResult:
        """Handle `resources/unsubscribe`, also for something not subscribed."""
        connection: Connection = context.session._connection
        uris = self.sessions.get(connection, set())
        uris.discard(str(params.uri))
        if not uris:
            self.sessions.pop(connection, None)
        return EmptyResult()

    async def watch(self) -> None:
        current_identity.set(OPERATOR)  # of this task: beside a broker that authenticates callers
        before: frozenset[tuple[str, str]] | None = None
        while True:
            if self.bus.listeners or self.sessions:
                now = await self.open_stream()
                if now is not None and before is not None and now != before:
                    await self.notify()
                before = before if now is None else now
            else:
                before = None
            await anyio.sleep(PAUSE_S)

    async def open_stream(self) -> frozenset[tuple[str, str]] | None:
        """Return the open alerts, or None if a cluster does not answer, which is no change of its alerts."""
        found = set()
        try:
            for name in self._clusters.names:
                answer = await self._clusters.named(name).call("alerts.list", {"limit": 1000})
                found |= {(name, str(item["alert_id"])) for item in answer["items"]}
        except ClusterError:
            return None
        return frozenset(found)

    async def notify(self) -> None:
        await self.bus.publish(ResourceUpdated(uri=ALERTS_URI))
        async with anyio.create_task_group() as group:
            for connection, uris in list(self.sessions.items()):
                if ALERTS_URI in uris:
                    group.start_soon(self._notify_one, connection)

    async def _notify_one(self, connection: Connection) -> None:
        """Notify one session. One that does not take it in time is dropped, and delays no other."""
        taken = False
        with anyio.move_on_after(TELL_S):
            try:
                await connection.send_resource_updated(ALERTS_URI)
                taken = True
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, MCPError, RuntimeError):
                pass
        if not taken:
            self.sessions.pop(connection, None)
