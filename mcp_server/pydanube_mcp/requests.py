"""The caller of a request, as the request tells it."""

from __future__ import annotations

from typing import Any

from mcp.server.context import ServerRequestContext


def principal_of(request: ServerRequestContext[Any, Any]) -> str | None:
    """Whom an HTTP request claims to be for; the guard in front has checked its form. None over stdio."""
    headers = getattr(request.request, "headers", None)
    found = headers.get("danube-principal") if headers else None
    return None if found is None else str(found)
