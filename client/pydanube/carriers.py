"""What carries the SDK's bytes: HTTP/2 of our own, or grpcio. Both speak the same gRPC and pass the same tests."""

from __future__ import annotations

import os
from enum import StrEnum

from pydanube_core.errors import InvalidArgument

from pydanube.endpoint import Tls
from pydanube.transport import Transport, TransportFactory


class Carrier(StrEnum):
    OWN = "own"
    GRPCIO = "grpcio"


def chosen(name: str | None = None) -> Carrier:
    """The one that was asked for: by name, or by `DANUBE_TRANSPORT`; else our own.

    Raises:
        InvalidArgument: there is none of that name.
    """
    where = "transport"
    if name is None:
        name, where = os.environ.get("DANUBE_TRANSPORT") or Carrier.OWN, "DANUBE_TRANSPORT"
    try:
        return Carrier(name)
    except ValueError:
        raise InvalidArgument(
            f"{where} {name!r}: own or grpcio", field="transport", value=str(name)
        ) from None


def transports(
    carrier: Carrier, *, token: str | None = None, tls: Tls | None = None, principal: str | None = None
) -> TransportFactory:
    """Makes transports; what they are made of is loaded with the first one."""

    def transport(url: str, /) -> Transport:
        if carrier is Carrier.OWN:
            from pydanube.http2_transport import Http2Transport

            return Http2Transport(url, token=token, tls=tls, principal=principal)
        from pydanube.grpc_transport import GrpcTransport

        return GrpcTransport(url, token=token, tls=tls, principal=principal)

    return transport
