"""`danube.AuthService`: what Java asks when it has an API key, before anything else and every hour.

This broker has no authentication yet: as in the original's mode `none` every caller is anonymous, and credentials are
ignored wherever they come (`authorization` is never looked at). So any key is answered with a token that grants nothing
which its bearer would not have without it. Without this call a Java client that was given a key could not be built.
"""

from __future__ import annotations

from typing import Final

from pydanube_core.errors import InvalidArgument
from pydanube_core.generated import danube_pb2 as pb

from pydanube_broker.services.official.requests import parse

ANONYMOUS: Final = "anonymous"


class AuthService:
    async def authenticate(self, data: bytes) -> bytes:
        request = parse(pb.AuthRequest, data)
        if not request.api_key:
            raise InvalidArgument("api_key is empty", field="api_key", value="")
        return pb.AuthResponse(token=ANONYMOUS).SerializeToString()
