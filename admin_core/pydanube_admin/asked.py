"""Which permission a request over HTTP asks for, read from its body before anything is carried out."""

from __future__ import annotations

import json
from typing import Final

from pydanube_admin.engine.permission import NO_QUESTION
from pydanube_admin.registry import OPERATIONS

_TOOL_CALL: Final = "tools/call"
_BY_TOOL: Final = {operation.tool: operation for operation in OPERATIONS.values()}


def asked_permission(body: bytes) -> str | None:
    """The permission of the operation that JSON-RPC or an MCP tool calls; None: another request, or it asks for none."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(request, dict):
        return None
    method, params = request.get("method"), request.get("params")
    if method == _TOOL_CALL:
        name = params.get("name") if isinstance(params, dict) else None
        operation = _BY_TOOL.get(name) if isinstance(name, str) else None
    else:
        operation = OPERATIONS.get(method) if isinstance(method, str) else None
    return None if operation is None or operation.name in NO_QUESTION else operation.permission
