"""Administrative calls that another broker relays here (`danube.relay.Administration/Call`) for a caller.

The permissions of the caller decide, never those of the relaying broker (`membership.Seals`). Roles, bindings and
tokens are reloaded first, so that a grant or revocation made at the other broker a moment ago applies here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pydanube_core.errors import PermissionDenied, Unauthenticated
from pydanube_core.security.identity import Identity, current_identity, relayed_by

from pydanube_broker.relay.membership import not_a_member
from pydanube_broker.relay.relay import Relay
from pydanube_broker.rpc.caller import COLD_CALL
from pydanube_broker.security.locks import Locks
from pydanube_broker.topics.topic import now_ms


class CarriedCalls:
    """Carries out relayed calls, at the receiving broker. Single user: the loop.

    Args:
        relay: None for a lone broker.
        locks: None if they are off.
        serve: the handler of `danube.ops/Call`.
    """

    def __init__(
        self, relay: Relay | None, locks: Locks | None, serve: Callable[[bytes], Awaitable[bytes]]
    ) -> None:
        self._relay = relay
        self._locks = locks
        self._serve = serve

    async def call(self, sealed: bytes) -> bytes:
        """
        Raises:
            PermissionDenied: no broker of this cluster sealed it.
            Unauthenticated: the relaying broker did not authenticate the caller, or the caller's credential is no
                longer valid.
        """
        if self._relay is None or self._relay.membership is None:
            raise not_a_member()
        try:
            envelope = self._relay.membership.seals.open(sealed, now_ms())
        except PermissionDenied:
            await self._refused()
            raise
        if self._locks is not None:
            await self._locks.reload()
            self._check(self._locks, envelope.caller)
        current_identity.set(envelope.caller)
        relayed_by.set(envelope.sender)
        return await self._serve(envelope.request)

    @staticmethod
    def _check(locks: Locks, caller: Identity | None) -> None:
        if not locks.required:
            return
        if caller is None or caller.method == "none":
            raise Unauthenticated(
                "this broker requires authentication, and the one that you called does not (auth.mode there): call this one"
            )
        locks.authenticator.check(caller.actor or caller)

    async def _refused(self) -> None:
        """Count and delay the call of a false broker, like wrong credentials."""
        if self._locks is not None:
            keeper, peer = self._locks.authenticator, COLD_CALL.caller.peer
            keeper.note_failure("not_a_member", peer)
            await asyncio.sleep(keeper.wait_s(peer))
