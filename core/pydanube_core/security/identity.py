"""The authenticated caller of a call, passed along with the call."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from pydanube_core.security.permissions import Principal


@dataclass(frozen=True, slots=True)
class Maker:
    """Who made a token, and with which scopes: the token never gives more than its makers may do.

    A principal that may do everything is none, since it could have given all of it.
    """

    principal: Principal
    scopes: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A proven identity.

    Attributes:
        method: `token`, `jwt`, `certificate`, `socket`, or `none` for whoever showed nothing.
        credential: what was shown: a token's id, a JWT's `jti`, a certificate's serial; never the secret.
        expires_at_s: unix time after which it proves nothing any more; None: never.
        actor: who makes the call for this principal, with `act_for`; None: he himself.
        proof: what the broker knew it by, where that can be taken back: the key that signed a token.
        issued_at_s: unix time at which a web token says that it was issued; None: it does not say.
        scopes: what a web token was issued for; None: for all that its principal may do.
        everything: it may do everything: the operator on the machine.
        makers: the ceiling of an API token: each of them must hold what it is used for.
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

#: whoever sits at the machine, and the broker itself where it goes on with what was allowed before
OPERATOR: Final = Identity(principal=Principal("operator", "local"), method="socket", everything=True)

#: the `proof` of an identity that another broker of the cluster vouches for
RELAYED_PROOF: Final = object()

#: of the call that is carried out; None where nobody asks who calls
current_identity: ContextVar[Identity | None] = ContextVar("current_identity", default=None)

#: the id of the broker that had the call carried here; empty: its client called this one
relayed_by: ContextVar[str] = ContextVar("relayed_by", default="")
