"""On whose behalf a call is made: with the locks on, the credential's principal, or another that he may act for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from pydanube_core.cluster_port import ClusterPort
from pydanube_core.security.identity import Identity, current_identity
from pydanube_core.security.permissions import ACT_FOR, CLUSTER, Principal

MOST_CHARS: Final = 256
_SERVICE: Final = "service_account"


@contextmanager
def acting_for(port: ClusterPort | None, claimed: str) -> Iterator[None]:
    """Within it the call is looked at as the one whom it names; `check_acting` still says whether it may be.

    Args:
        claimed: whom the call names (`--as`, `Danube-Principal`; `service_account:NAME`); empty: nobody.
    """
    identity = current_identity.get()
    if port is None or port.locks is None or identity is None or identity.method == "none":
        yield
        return
    before = current_identity.set(_acting(identity, claimed))
    try:
        yield
    finally:
        current_identity.reset(before)


def calling() -> Identity | None:
    """Who makes the call that is under way, be it for himself or for another."""
    identity = current_identity.get()
    return identity if identity is None or identity.actor is None else identity.actor


def check_acting(port: ClusterPort) -> None:
    """Raises `PermissionDenied` where the caller names another, and may not act for others."""
    identity = current_identity.get()
    if port.locks is not None and identity is not None and identity.actor is not None:
        port.locks.check(identity.actor, ACT_FOR, CLUSTER)


def _acting(identity: Identity, claimed: str) -> Identity:
    kind, _, name = claimed.partition(":")
    named = Principal(name, _SERVICE) if kind == _SERVICE and name else Principal(claimed[:MOST_CHARS])
    if not claimed or named == identity.principal or claimed == str(identity.principal):
        return identity
    return replace(identity, principal=named, everything=False, actor=identity)
