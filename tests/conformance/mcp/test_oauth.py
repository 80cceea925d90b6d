"""OAuth for MCP over HTTP: the SDK's own client signs in at a real authorization server, and steps up where a scope is missing."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import httpx2
import jwt
import pytest
from mcp.client import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, TokenStorage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from tests.cli.test_locks_live import give, locked_broker
from tests.cli.test_tls_live import certificates
from tests.conformance.mcp.authorization_server import BACK, authorization_server, signed_in
from tests.support.broker_process import free_ports

pytestmark = pytest.mark.anyio


class Kept(TokenStorage):
    """What a client keeps; it is registered already."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.scopes: list[str | None] = []

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens
        self.scopes.append(tokens.scope)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return OAuthClientInformationFull(
            client_id="assistant", redirect_uris=[AnyUrl(BACK)], token_endpoint_auth_method="none"
        )

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None: ...


@pytest.mark.timeout(400)  # the first one fetches the server
async def test_the_sdks_client_signs_in_and_asks_for_one_more_scope_where_it_needs_it(tmp_path: Path) -> None:
    folder = certificates(tmp_path / "c")
    trusted = ssl.create_default_context(cafile=str(folder.file("ca.crt")))
    (port,) = free_ports(1)
    resource = f"http://127.0.0.1:{port}/mcp"
    with authorization_server(folder.path) as issuer:
        more = {
            "server.http_port": port, "auth.issuer": issuer, "auth.audience": resource,
            "auth.jwks_url": f"{issuer}/jwks", "auth.jwks_ca": str(folder.file("ca.crt")),
        }  # fmt: skip
        async with (
            locked_broker(tmp_path, **more) as locked,
            httpx.AsyncClient(verify=trusted, trust_env=False) as web,
        ):
            await give(locked, "ann", "admin")
            asked: list[str] = []

            async def sign_in(url: str) -> None:
                asked.append(url)

            async def back() -> AuthorizationCodeResult:
                return AuthorizationCodeResult.model_validate(await signed_in(asked[-1], "ann", web))

            kept = Kept()
            metadata = OAuthClientMetadata(redirect_uris=[AnyUrl(BACK)], token_endpoint_auth_method="none")
            oauth = OAuthClientProvider(resource, metadata, kept, sign_in, back)
            async with (
                httpx2.AsyncClient(auth=oauth, verify=trusted, timeout=60, trust_env=False) as signed,
                Client(streamable_http_client(resource, http_client=signed)) as client,
            ):
                assert {"list_topics", "create_topic"} <= {
                    tool.name for tool in (await client.list_tools()).tools
                }
                assert not (await client.call_tool("list_topics", {})).is_error
                assert len(asked) == 1
                made = await client.call_tool(
                    "create_topic", {"topic": "orders"}
                )  # danube:write is asked for by the way
                assert not made.is_error, made
                assert (len(asked), kept.scopes[-1]) == (2, "danube:read danube:write")
            found = (await locked.call("ann", "audit.query", operation="topics.create"))["items"]
            assert {(each["principal"], each["authenticated"], each["decision"]) for each in found} == {
                ("ann", True, "allowed")
            }
            # the token is the broker's only, and says so
            assert kept.tokens is not None
            claims = jwt.decode(kept.tokens.access_token, options={"verify_signature": False})
            assert (claims["aud"], claims["iss"]) == (resource, issuer)
