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
        default=None, description="PEM file with the server's certificate chain; unset: plain text"
    )
    key: FilePath | None = Field(default=None, description="PEM file with its private key")
    client_ca: FilePath | None = Field(
        default=None,
        description="PEM file with the authority of clients' certificates; unset: none are asked for",
    )
    client_auth: ClientAuth = Field(
        default="required",
        description="with client_ca: whether clients of the gRPC ports must show a certificate; HTTP ports ask for none",
    )
    admin: Switch = Field(
        default=True,
        description="on the admin port too; off is for a loopback address (Danube's `admin_tls: false`)",
    )


class Auth(Section):
    """Who may do what (docs/security.md)."""

    mode: AuthMode = Field(
        default="off",
        description="off: everybody may do everything; optional: the same, and who would be refused is counted; required",
    )
    jwt_keys: FilePath | None = Field(
        default=None, description="file with the keys of JSON web tokens: a JWK set, or one public key in PEM"
    )
    jwks_url: HttpsUrl | None = Field(
        default=None,
        description="https URL of their public keys (a JWK set), beside the file's; redirects are not followed",
    )
    jwks_ca: FilePath | None = Field(
        default=None, description="PEM file with the authority of that URL's server; unset: the system's"
    )
    jwks_refresh: ShortDuration = Field(
        default=300.0,
        description="how often that URL is read; sooner where a token names a key that is not known, every 10s at most",
    )
    issuer: Text | None = Field(
        default=None, description="what `iss` of such a token must be; unset: anything"
    )
    audience: Text | None = Field(
        default=None, description="what `aud` must name; unset: a token that names anybody is refused"
    )
    leeway: Duration = Field(default=60.0, description="how far the clocks of token makers may be from ours")
    failure_delay: Duration = Field(
        default=2.0,
        description="longest wait of a refusal, where wrong credentials keep coming from an address",
    )
