"""The permission checks, for the admin core."""

from __future__ import annotations

from typing import Protocol

from pydanube_core.security.identity import Identity
from pydanube_core.security.permissions import Resource


class LocksPort(Protocol):
    """The permissions in effect, as the admin core checks them."""

    required: bool  # False: refusals are only counted, and every call is allowed

    def check(self, identity: Identity | None, permission: str, resource: Resource) -> None:
        """Raise `Unauthenticated` without an identity, `PermissionDenied` without the permission."""

    def allows(self, identity: Identity | None, permission: str, resource: Resource) -> bool:
        """Return whether the identity may see it. Nothing is counted."""

    def allows_part(self, identity: Identity | None, permission: str, whole: Resource) -> bool:
        """Return whether the caller may see some part of `whole`, perhaps all. A list is then cut to it."""

    async def reload(self) -> None:
        """Read roles, bindings and tokens again."""
