"""`danube.AuthService`: called by Java clients with an API key, before anything else and every hour.

With authorization off, every caller is anonymous and credentials are ignored: any key is answered with a token that
adds no rights. The call exists so that a Java client with a key can be created. With authorization on, a valid key is
its own token, so it can be revoked immediately and does not outlive the key.
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
    """Answers with the caller's own token. `keeper` authenticates callers. It is None if authorization is off."""

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
                await asyncio.sleep(self._keeper.wait_s(peer))  # the same delay as a call with that key
                raise
            return pb.AuthResponse(token=request.api_key).SerializeToString()
        return pb.AuthResponse(token=ANONYMOUS).SerializeToString()
