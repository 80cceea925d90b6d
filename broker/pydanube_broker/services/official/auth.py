"""`danube.AuthService`: called by Java clients with an API key, before anything else and every hour.

Where the locks are off every caller is anonymous, and credentials are ignored wherever they come: any key is answered
with a token that grants nothing which its bearer would not have without it. Without this call a Java client that was
given a key could not be built. Where they are on, a key that is good is its own token: it can be revoked at once, and
lives no longer than it would as a key.
"""

from __future__ import annotations

import asyncio
from typing import Final

from pydanube_core.errors import InvalidArgument, Unauthenticated
from pydanube_core.generated import danube_pb2 as pb

from pydanube_broker.rpc.caller import COLD_CALL, Keeper
from pydanube_broker.services.official.requests import parse

ANONYMOUS: Final = "anonymous"


class AuthService:
    """Answers with the caller's own token. `keeper`: authenticates callers; None: authorization is off."""

    def __init__(self, keeper: Keeper | None) -> None:
        self._keeper = keeper

    async def authenticate(self, data: bytes) -> bytes:
        request = parse(pb.AuthRequest, data)
        if not request.api_key:
            raise InvalidArgument("api_key is empty", field="api_key", value="")
        if self._keeper is not None:
            peer = COLD_CALL.caller.peer
            try:
                self._keeper.identify(f"Bearer {request.api_key}", peer)
            except Unauthenticated:
                await asyncio.sleep(self._keeper.wait_s(peer))  # as long as a call with that key would
                raise
            return pb.AuthResponse(token=request.api_key).SerializeToString()
        return pb.AuthResponse(token=ANONYMOUS).SerializeToString()
