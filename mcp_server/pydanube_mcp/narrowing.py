"""Narrower servers by address: `/mcp/read` only reads, and `?toolsets=topics,schemas` has only these sets of tools.

One broker then serves several assistants with different tasks. An address narrows the caller's permissions,
and never widens them. It holds for every road to an operation: the clients of a request to
`/mcp/read` are such that the admin core refuses changes, and the general tools refuse operations of other sets.
"""

from __future__ import annotations

import json
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs

from pydanube_admin.engine.operation import APPLY, READ_ANY, Operation
from pydanube_admin.http import MCP, MCP_READ, AsgiApp, Receive, Scope, Send
from pydanube_admin.registry import OPERATIONS
from pydanube_core.errors import ClusterError, InvalidArgument, PermissionDenied
from pydanube_core.spelling import shown

from pydanube_mcp.profiles import parse_toolsets

TOOLSETS_IN_ADDRESS: Final = "toolsets"
# Of every set: they find, read, plan and apply the operations of the others
_GENERAL: Final = frozenset({"operations.find", READ_ANY, "plans.create", APPLY})
_OF_ANOTHER: Final = frozenset({READ_ANY, "plans.create"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """The operations that the address of a request allows.

    Attributes:
        read_only: nothing but reads.
        groups: only operations of these groups. None: of all.
    """

    read_only: bool = False
    groups: frozenset[str] | None = None

    def has(self, operation: Operation) -> bool:
        """Return whether an operation belongs to the sets of the address."""
        return self.groups is None or operation.group in self.groups or operation.name in _GENERAL

    def check(self, operation: Operation, arguments: dict[str, Any]) -> None:
        """Check a call, and the operation that it names for a general tool. Of a plan see `check_plan`.

        Raises:
            PermissionDenied: it is outside of the sets of the address.
        """
        inner = OPERATIONS.get(str(arguments.get("operation"))) if operation.name in _OF_ANOTHER else None
        for each in (operation, inner):
            if each is not None and not self.has(each):
                raise self._outside(each.name)

    def check_plan(self, planned: str) -> None:
        """Check the operation of a plan that is to be applied. Raises `PermissionDenied`."""
        known = OPERATIONS.get(planned)
        if self.groups is not None and (known is None or known.group not in self.groups):
            raise self._outside(planned)

    def _outside(self, name: str) -> PermissionDenied:
        return PermissionDenied(
            f"{name} is in none of the sets that this address has. Connect to /mcp for all",
            field=TOOLSETS_IN_ADDRESS,
            value=shown(name),
        )


EVERYTHING: Final = Narrowing()

#: of the request that is being answered
current_narrowing: ContextVar[Narrowing] = ContextVar("current_narrowing", default=EVERYTHING)


def parse_address(path: str, query: str) -> Narrowing:
    """Return the narrowing of an address.

    Raises:
        InvalidArgument: an unknown set, an empty list of sets, or a parameter of another name, which is most often
            `toolsets` misspelt and would give the caller everything.
    """
    parameters = parse_qs(query, keep_blank_values=True)
    for name in parameters.keys() - {TOOLSETS_IN_ADDRESS}:
        raise InvalidArgument(
            f"the address has the parameter {shown(name)!r}. It takes only {TOOLSETS_IN_ADDRESS}, as in "
            f"{path}?{TOOLSETS_IN_ADDRESS}=topics,subscriptions",
            field=TOOLSETS_IN_ADDRESS,
            value=shown(name),
        )
    given = parameters.get(TOOLSETS_IN_ADDRESS)
    if given is None:
        return Narrowing(read_only=path == MCP_READ)
    groups = parse_toolsets(",".join(given), field=TOOLSETS_IN_ADDRESS)
    if not groups:
        raise InvalidArgument("toolsets: name at least one set, or leave it out", field=TOOLSETS_IN_ADDRESS)
    return Narrowing(read_only=path == MCP_READ, groups=groups)


class Narrowed:
    """An ASGI application in front of the MCP one: sets `current_narrowing` from the address of each request."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            narrowing = parse_address(scope["path"], scope.get("query_string", b"").decode("latin-1"))
        except ClusterError as error:
            body = json.dumps({"error": error.to_dict()}).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
            await send({"type": "http.response.start", "status": 400, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        before = current_narrowing.set(narrowing)
        try:
            await self._app({**scope, "path": MCP, "raw_path": MCP.encode()}, receive, send)
        finally:
            current_narrowing.reset(before)
