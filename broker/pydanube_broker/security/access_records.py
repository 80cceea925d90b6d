"""Roles, bindings, tokens and revocations of the cluster, and the grants built from them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pydanube_core.security.permissions import Grants
from pydanube_core.security.records import (
    BINDINGS,
    REVOCATIONS,
    ROLES,
    TOKENS,
    TokenRecord,
    decode_binding,
    decode_revocation,
    decode_role,
    decode_token,
)
from pydanube_core.security.revocations import Revocations

from pydanube_broker.admin_state import SECURITY_VERSION, AdminState, admin_table, version_table
from pydanube_broker.records import Quarantine, Records


class AccessRecords:
    """Follows the records. An unreadable one grants nothing.

    Each change of them writes the version last, so grants are built once for each change.
    """

    def __init__(self, state: AdminState, quarantine: Quarantine | None = None) -> None:
        self.grants = Grants.of((), ())
        self.tokens: dict[str, TokenRecord] = {}
        self.used: set[str] = set()  # ids of tokens used since the last write of their use
        self.revocations = Revocations()
        self.changed = asyncio.Event()  # set after each change, cleared by the task that waits for it
        self._roles = admin_table(ROLES, decode_role)
        self._bindings = admin_table(BINDINGS, decode_binding)
        self._revocations = admin_table(REVOCATIONS, decode_revocation)
        tokens = admin_table(TOKENS, decode_token, self._token)
        tables = (self._roles, self._bindings, tokens, self._revocations, version_table())
        self.records = Records(state.store, tables, changed=self._build, quarantine=quarantine)

    async def look(self) -> None:
        """Read all changes made so far. Raises `StoreUnavailable`: the grants before stay in effect."""
        await self.records.refresh(SECURITY_VERSION)

    def _token(self, key: str, before: TokenRecord | None, after: TokenRecord | None) -> None:
        if before is not None:
            self.tokens.pop(before.token_id, None)
        if after is not None:
            self.tokens[after.token_id] = after

    def _build(self, keys: Sequence[str]) -> None:
        if SECURITY_VERSION not in keys and len(keys) == 1:
            return  # the version follows, or it is the record of a token's last use
        self.grants = Grants.of(self._roles, self._bindings)
        self.revocations = Revocations.of(self._revocations)
        self.changed.set()
