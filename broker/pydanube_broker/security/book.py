"""Roles, bindings, tokens and revocations of the cluster, read from the metadata store, and the grants built from them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeVar

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

log = logging.getLogger("pydanube.security")

PAGE: Final = 1000
T = TypeVar("T")


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
        roles = await self._read(ROLES, decode_role)
        bindings = await self._read(BINDINGS, decode_binding)
        tokens = await self._read(TOKENS, decode_token)
        revocations = await self._read(REVOCATIONS, decode_revocation)
        self.grants = Grants.of(roles, bindings)
        self.tokens = {token.token_id: token for token in tokens}
        self.revocations = Revocations.of(revocations)
        self._version = version
        self.changed.set()

    async def _read(self, prefix: str, decode: Callable[[bytes], T]) -> list[T]:
        found: list[T] = []
        after: str | None = None
        while True:
            page = await self._state.list(prefix, after=after, limit=PAGE, descending=False)
            for item in page:
                try:
                    found.append(decode(item.value))
                except (ValueError, KeyError, TypeError):  # a damaged record gives nobody anything
                    log.error("security_record_damaged", extra={"key": item.key})
            if len(page) < PAGE:
                return found
            after = page[-1].key
