"""The authenticated caller of a call, passed along with the call."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from pydanube_core.security.permissions import Principal


@dataclass(frozen=True, slots=True)
class Maker:
    """The maker of a token, and its scopes: the token never gives more than its makers may do.

    A principal that may do everything is no maker, since it could have given all of it.
    """

    principal: Principal
    scopes: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A proven identity.

    Attributes:
        method: `token`, `jwt`, `certificate`, `socket`, or `none` without a credential.
        credential: a token's id, a JWT's `jti`, or a certificate's serial. Never the secret.
        expires_at_s: unix time at which the credential expires. None: never.
        actor: the caller that acts for this principal, with `act_for`. None: the principal itself.
        proof: the means by which the broker verified it, if that can be revoked: the key that signed a token.
        issued_at_s: unix time at which a web token was issued. None: it has no such claim.
        scopes: scopes of a web token. None: everything that its principal may do.
        everything: it has all permissions: the operator on the machine.
        makers: the ceiling of an API token: each of them must have the permission for which it is used.
    """

    principal: Principal
    method: str
    credential: str = ""
    expires_at_s: float | None = None
    issued_at_s: float | None = None
    scopes: frozenset[str] | None = None
    everything: bool = False
    actor: Identity | None = None
    makers: tuple[Maker, ...] = ()
    proof: object = field(default=None, compare=False, repr=False)


ANONYMOUS: Final = Identity(principal=Principal("anonymous", "anonymous"), method="none")

#: the user of the machine, and the broker itself when it continues an operation that was permitted before
OPERATOR: Final = Identity(principal=Principal("operator", "local"), method="socket", everything=True)

#: the `proof` of an identity that another broker of the cluster vouches for
RELAYED_PROOF: Final = object()

#: of the call that is carried out. None if authentication is off
current_identity: ContextVar[Identity | None] = ContextVar("current_identity", default=None)

#: the id of the broker that forwarded the call. Empty: the client called this broker
relayed_by: ContextVar[str] = ContextVar("relayed_by", default="")
