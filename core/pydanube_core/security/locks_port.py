"""The locks as the admin core asks them: who may do what, and that it changed."""

from __future__ import annotations

from typing import Protocol

from pydanube_core.security.identity import Identity
from pydanube_core.security.permissions import Resource


class LocksPort(Protocol):
    """Who may do what, as it is in force."""

    required: bool  # False: refusals are counted, and everybody may do everything

    def check(self, identity: Identity | None, permission: str, resource: Resource) -> None:
        """Raises `Unauthenticated`, `PermissionDenied`."""

    def allows(self, identity: Identity | None, permission: str, resource: Resource) -> bool:
        """Whether something is shown to him; nothing is counted."""

    def allows_part(self, identity: Identity | None, permission: str, whole: Resource) -> bool:
        """Whether a list of what is within `whole` is cut to what he may see: he may see some of it, perhaps all."""

    async def reload(self) -> None:
        """Read roles, bindings and tokens anew."""
