"""Calls of `danube.ops/Call` to one admin port, by the typed client and every face of the operations."""

from __future__ import annotations

from typing import Final

from pydanube_core.errors import ClusterError
from pydanube_core.generated.danube_ops_pb2 import CallRequest, CallResponse
from pydanube_core.ops_call import call_failed, call_result, call_target

from pydanube.wire.bearer import TokenSource, token_from_environment
from pydanube.wire.endpoint import UNIX, Tls
from pydanube.wire.http2_transport import Http2Transport
from pydanube.wire.tls import tls_from_environment
from pydanube.wire.transport import Transport

OPS_CALL: Final = "/danube.ops.Ops/Call"


class OpsChannel:
    """A connection to an admin port, made with the first call, in that call's loop, and again after a loss.

    Args:
        url: `http://host:port`, or `https://host:port` with TLS.
        field: the argument that the error for an invalid address names.
        token, tls: as for `pydanube.connect`.
        transport: an existing connection, which its owner closes.
    """

    def __init__(
        self,
        url: str,
        *,
        field: str = "admin",
        token: TokenSource | None = None,
        tls: Tls | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.url = url
        target, secure = call_target(url, field=field)
        token = token_from_environment() if token is None else token
        tls = tls_from_environment() if tls is None and secure else tls
        #: the broker authenticates the caller by its credential, so no principal needs to be sent
        self.shows_identity = (
            token is not None or target.startswith(UNIX) or (tls is not None and tls.cert is not None)
        )
        self._transport = transport or Http2Transport(
            target if target.startswith(UNIX) else f"{'https' if secure else 'http'}://{target}",
            token=token,
            tls=tls,
        )

    async def call(self, request: CallRequest, *, timeout_s: float, reads: bool = False) -> bytes:
        """Carry out one operation and return its result as JSON.

        If it is cancelled, or after DEADLINE_EXCEEDED, a change may have been made or not. With `reads` the
        operation changes nothing, and that error does not warn of it.

        Raises:
            ClusterError: the operation's error. `Unavailable` if nothing listens at the address, `DeadlineExceeded`
                after `timeout_s`.
        """
        data = request.SerializeToString()
        return await self.carry(OPS_CALL, data, operation=request.operation, timeout_s=timeout_s, reads=reads)

    async def carry(
        self, path: str, data: bytes, *, operation: str, timeout_s: float, reads: bool = False
    ) -> bytes:
        """As `call`, with an encoded request, for a method that answers like `danube.ops/Call`."""
        try:
            answer = await self._transport.call(path, data, timeout_s=timeout_s)
        except ClusterError as error:
            if error.details.get("broker") != self._transport.url:  # the broker's own error
                raise
            raise call_failed(
                error, url=self.url, operation=operation, timeout_s=timeout_s, reads=reads
            ) from error
        return call_result(CallResponse.FromString(answer))

    async def aclose(self) -> None:
        """Close the connection. May be called again."""
        await self._transport.aclose()
