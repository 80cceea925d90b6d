"""Port 9040: `/metrics`, `/healthz`, `/readyz`, `/status`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from pydanube_core.errors import PermissionDenied
from pydanube_core.facts import BrokerFacts, Reason
from pydanube_core.http_hosts import host_name, is_loopback
from pydanube_core.security.identity import Identity
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route


class Shown(Protocol):
    """The content of the status pages."""

    def not_ready(self) -> tuple[Reason, ...]: ...

    def degraded(self) -> tuple[Reason, ...]:
        """Return problems that do not keep the broker from serving its clients."""

    async def status(self) -> BrokerFacts: ...

    async def metrics(self) -> bytes: ...


class _PrettyJson(JSONResponse):
    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, indent=2, default=str).encode() + b"\n"


#: Pages without authentication, and the permissions for the others.
PROBES: Final = frozenset({"/healthz", "/readyz"})
PAGES: Final = {"/status": "brokers:read", "/metrics": "brokers:read"}


def status_app(
    shown: Shown, *, reasons_to: Callable[[], Identity | None] | None = None, only_here: bool = False
) -> Starlette:
    """Return the application with the pages.

    Args:
        reasons_to: returns the caller. An unauthenticated caller gets no reasons, only whether the broker is ready.
        only_here: refuse requests whose Host is not this machine. It stops web pages that reach this port by another name.
    """

    async def healthz(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        reasons = shown.not_ready()
        shown_reasons = [dataclasses.asdict(reason) for reason in (*reasons, *shown.degraded())]
        if reasons_to is not None and reasons_to() is None:
            shown_reasons = []
        return _PrettyJson(
            {"ready": not reasons, "reasons": shown_reasons}, status_code=503 if reasons else 200
        )

    async def status(request: Request) -> Response:
        facts = dataclasses.asdict(await shown.status())
        # As in `brokers.status`: a reason is only present beside an absent value.
        if facts["data_dir_reason"] is None:
            del facts["data_dir_reason"]
        return _PrettyJson(facts)

    async def metrics(request: Request) -> Response:
        return Response(await shown.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    pages: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/healthz": healthz,
        "/readyz": readyz,
        "/status": status,
        "/metrics": metrics,
    }
    routes = [
        Route(path, _called_here(page) if only_here else page, methods=["GET"])
        for path, page in pages.items()
    ]
    application = Starlette(routes=routes)
    application.router.redirect_slashes = False  # a redirect would go to any host that the caller names
    return application


def _called_here(page: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def guarded(request: Request) -> Response:
        host = request.headers.get("host", "")
        name = host_name(f"//{host}")
        if name is not None and is_loopback(name):
            return await page(request)
        error = PermissionDenied(
            f"Host {host[:100]!r} is not this machine. Use http://127.0.0.1 or http://localhost",
            field="host",
            value=host[:100],
        )
        return _PrettyJson({"error": error.to_dict()}, status_code=403)

    return guarded
