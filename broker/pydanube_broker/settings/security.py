"""Settings of TLS and authentication: `[tls]` and `[auth]`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pydanube_broker.settings.values import (
    Duration,
    FilePath,
    HttpsUrl,
    Section,
    ShortDuration,
    Switch,
    Text,
    choice,
)

ClientAuth = Annotated[str, *choice("none", "optional", "required")]
AuthMode = Annotated[str, *choice("off", "optional", "required")]


class Tls(Section):
    """TLS on all ports. Files are read again when they change."""

    cert: FilePath | None = Field(
        default=None, description="PEM file with the server's certificate chain. Plain text if unset"
    )
    key: FilePath | None = Field(default=None, description="PEM file with its private key")
    client_ca: FilePath | None = Field(
        default=None,
        description="PEM file with the authority of clients' certificates. None are requested if unset",
    )
    client_auth: ClientAuth = Field(
        default="required",
        description="with client_ca: whether clients of the gRPC ports must show a certificate. HTTP ports request none",
    )
    admin: Switch = Field(
        default=True,
        description="on the admin port too. Off is for a loopback address (Danube's `admin_tls: false`)",
    )


class Auth(Section):
    """Authentication: modes and trusted issuers (docs/security.md)."""

    mode: AuthMode = Field(
        default="off",
        description="off: no authentication. optional: calls that would fail are counted, not refused. required: they are refused",
    )
    jwt_keys: FilePath | None = Field(
        default=None, description="file with the keys of JSON web tokens: a JWK set, or one public key in PEM"
    )
    jwks_url: HttpsUrl | None = Field(
        default=None,
        description="https URL of their public keys (a JWK set), beside the file's. Redirects are not followed",
    )
    jwks_ca: FilePath | None = Field(
        default=None, description="PEM file with the authority of that URL's server. The system's if unset"
    )
    jwks_refresh: ShortDuration = Field(
        default=300.0,
        description="how often that URL is read. Sooner if a token names an unknown key, at most every 10s",
    )
    issuer: Text | None = Field(default=None, description="the `iss` of such tokens. Any if unset")
    audience: Text | None = Field(
        default=None,
        description="the `aud` that tokens must name. If unset, tokens with an `aud` are refused",
    )
    leeway: Duration = Field(default=60.0, description="how far the clocks of token makers may be from ours")
    failure_delay: Duration = Field(
        default=2.0,
        description="longest wait of a refusal, where wrong credentials keep coming from an address",
    )
