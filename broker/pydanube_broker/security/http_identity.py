"""Authenticate calls of an HTTP port by the bearer token of each request, before the application sees it.

The application handles a request with its identity (`current_identity`). A session of MCP belongs to the principal that
opened it. Its number is no credential, and useless to another principal. Clients find the issuer of tokens as in OAuth:
a refusal names a page (RFC 9728), and the page names the server (`auth.issuer`) where MCP clients sign in.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from pydanube_core.errors import ClusterError, PermissionDenied, Unauthenticated
from pydanube_core.security.identity import Identity, current_identity
from pydanube_core.security.permissions import Principal
from pydanube_core.security.scopes import READ, SCOPES

from pydanube_broker.rpc.caller import Peer, address_of
from pydanube_broker.security.locks import Locks

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

SESSION: Final = b"mcp-session-id"
MOST_SESSIONS: Final = 1024
#: Bytes of a body that are searched for its operation. For a larger one the operation itself is refused. A port has
#: 512 connections, and these bytes belong to no budget, so they are as few as `pydanube_admin.http` always has room for.
MOST_LOOKED_AT: Final = 64 << 10
OAUTH_PAGE: Final = "/.well-known/oauth-protected-resource"
MCP_PATH: Final = "/mcp"
_NOT_OF_A_HOST: Final = re.compile(r"[^\w.:\[\]-]", re.ASCII)


class IdentifiedApp:
    """See the module.

    Args:
        needs: path → permission on the cluster, of pages that check no permission themselves.
        open: paths that need no authentication. A token shown there still identifies its caller.
        issuer: the authorization server, by its URL. None: tokens are not issued by signing in.
        audience: the audience of its tokens. The page names the server so, if that is a URL.
        asked: the body of a request → the permission that its operation needs. None: none, or the operation is not
            found.
    """

    def __init__(
        self,
        app: App,
        locks: Locks,
        *,
        needs: Mapping[str, str] | None = None,
        open: frozenset[str] = frozenset(),
        issuer: str | None = None,
        audience: str | None = None,
        asked: Callable[[bytes], str | None] = lambda body: None,
    ) -> None:
        self._app = app
        self._locks = locks
        self._needs = needs or {}
        self._open = open
        self._issuer = issuer if issuer is not None and issuer.startswith("https://") else None
        self._resource = audience if audience is not None and "://" in audience else None
        self._asked = asked
        self._sessions: dict[bytes, Principal] = {}  # of MCP, the oldest first

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._issuer is not None and scope["path"] in (OAUTH_PAGE, OAUTH_PAGE + MCP_PATH):
            page = {
                "resource": self._resource or _address(scope) + MCP_PATH,
                "authorization_servers": [self._issuer],
                "scopes_supported": list(SCOPES),
                "bearer_methods_supported": ["header"],
            }
            await _send(send, 200, json.dumps(page).encode())
            return
        identity = None
        try:
            identity = self._admit(scope)
            if identity is not None and identity.scopes is not None:
                body, receive = await _looked_at(receive)
                if (permission := self._asked(body)) is not None:
                    self._locks.check_scope(identity, permission)
        except ClusterError as error:
            if isinstance(error, Unauthenticated):
                await asyncio.sleep(self._locks.authenticator.wait_s(_peer(scope)))
            await _refuse(send, error, asked_for=self._challenge(scope, error, identity))
            return
        before = current_identity.set(identity)
        try:
            await self._app(scope, receive, send if identity is None else self._noting(send, identity))
        finally:
            current_identity.reset(before)

    def _challenge(self, scope: Mapping[str, Any], error: ClusterError, identity: Identity | None) -> str:
        """Return the `WWW-Authenticate` challenge (RFC 6750, 9728). Empty if another token would not help."""
        facts: dict[str, str] = {}
        needed = error.details.get("scope")
        if isinstance(error, Unauthenticated):
            if any(name == b"authorization" for name, _ in scope["headers"]):
                facts["error"] = "invalid_token"
            facts["scope"] = READ
        elif needed is not None and identity is not None:
            facts |= {
                "error": "insufficient_scope",
                "scope": " ".join(sorted({*(identity.scopes or ()), needed})),
            }
        else:
            return ""
        if self._issuer is None:
            return "Bearer"
        facts["resource_metadata"] = f"{_address(scope)}{OAUTH_PAGE}{MCP_PATH}"
        return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in facts.items())

    def _admit(self, scope: Mapping[str, Any]) -> Identity | None:
        """Return the identity of an HTTP request. None for an open path. Raises `Unauthenticated`, `PermissionDenied`."""
        path, headers = scope["path"], scope["headers"]
        shown = [value for name, value in headers if name == b"authorization"]
        if path in self._open and not shown:
            return None
        if len(shown) > 1:
            raise Unauthenticated("authorization stands there twice")
        identity = self._locks.authenticator.identify(
            shown[0].decode("latin-1") if shown else None, _peer(scope)
        )
        if (permission := self._needs.get(path)) is not None:
            self._locks.check(identity, permission)
        session = next((value for name, value in headers if name == SESSION), None)
        if session is not None and self._locks.required and self._sessions.get(session) != identity.principal:
            raise PermissionDenied("this session is not yours, or is over: open one of your own")
        return identity

    def _noting(self, send: Send, identity: Identity) -> Send:
        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                for name, value in message.get("headers", ()):
                    if name.lower() == SESSION and value not in self._sessions:
                        self._note_session(value, identity.principal)
            await send(message)

        return noting

    def _note_session(self, session: bytes, owner: Principal) -> None:
        """Record the owner of a session. Beyond the limit, forget the oldest session of the principal with the most.

        So no principal can end the sessions of others.
        """
        self._sessions[session] = owner
        if len(self._sessions) > MOST_SESSIONS:
            of = Counter(self._sessions.values())
            del self._sessions[max(self._sessions, key=lambda each: of[self._sessions[each]])]


async def _looked_at(receive: Receive) -> tuple[bytes, Receive]:
    """Read a request's body up to `MOST_LOOKED_AT` and one more piece. Return it, and a `receive` that yields it again."""
    messages: deque[Message] = deque()
    size, more = 0, True
    while more and size <= MOST_LOOKED_AT:
        message = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)
    body = b"".join(each.get("body", b"") for each in messages)

    async def again() -> Message:
        return messages.popleft() if messages else await receive()

    return body, again


def _address(scope: Mapping[str, Any]) -> str:
    """Return the address that the client used, perhaps through a proxy. Without quotes, because it goes into a header."""
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "localhost")
    return f"{scope['scheme']}://{_NOT_OF_A_HOST.sub('', host)}"


def _peer(scope: Mapping[str, Any]) -> Peer:
    return Peer(address=address_of(scope.get("client")))


async def _refuse(send: Send, error: ClusterError, *, asked_for: str) -> None:
    body = b'{"error": %s}\n' % error.to_json().encode()
    status = 401 if isinstance(error, Unauthenticated) else 403
    await _send(send, status, body, *([(b"www-authenticate", asked_for.encode())] if asked_for else []))


async def _send(send: Send, status: int, body: bytes, *more: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
