"""Roles, bindings, tokens and revocations of the cluster, read from the metadata store, and the grants built from them."""

from __future__ import annotations

import asyncio
from typing import Final

from pydanube_core.security.permissions import Grants
from pydanube_core.security.records import (
    BINDINGS,
    REVOCATIONS,
    ROLES,
    TOKENS,
    VERSION,
    TokenRecord,
    decode_binding,
    decode_revocation,
    decode_role,
    decode_token,
)
from pydanube_core.security.revocations import Revocations

from pydanube_broker.admin_state import AdminState

_DAMAGED: Final = "security_record_damaged"  # it gives nobody anything


class SecurityBook:
    """See the module. Read again when something was changed, and every few seconds for what other brokers change."""

    def __init__(self, state: AdminState) -> None:
        self._state = state
        self.grants = Grants.of((), ())
        self.tokens: dict[str, TokenRecord] = {}
        self.used: set[str] = set()  # ids of tokens that were shown since it was written down last
        self.revocations = Revocations()
        self.changed = asyncio.Event()  # set whenever it is read anew; whoever waits for it clears it
        self._version: bytes | None = b"never read"

    async def look(self) -> None:
        """Read everything again if something was changed; one key shows whether."""
        if await self._version_there() != self._version:
            await self.load()

    async def _version_there(self) -> bytes | None:
        found = await self._state.read(VERSION)
        return None if found is None else found.value

    async def load(self) -> None:
        """Read everything; if that fails, what was read before stays in force."""
        version = await self._version_there()  # before the rest: what changes meanwhile is read again
        roles = await self._state.read_all(ROLES, decode_role, damaged=_DAMAGED)
        bindings = await self._state.read_all(BINDINGS, decode_binding, damaged=_DAMAGED)
        tokens = await self._state.read_all(TOKENS, decode_token, damaged=_DAMAGED)
        revocations = await self._state.read_all(REVOCATIONS, decode_revocation, damaged=_DAMAGED)
        self.grants = Grants.of(roles, bindings)
        self.tokens = {token.token_id: token for token in tokens}
        self.revocations = Revocations.of(revocations)
        self._version = version
        self.changed.set()
