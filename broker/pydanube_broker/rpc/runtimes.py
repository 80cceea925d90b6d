"""Which server stands in front of the handlers: the setting `server.grpc_runtime`."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from pydanube_broker.rpc.hot import Route


class GrpcServer(Protocol):
    """A gRPC server on one address; it listens when it is made."""

    port: int

    async def start(self) -> None: ...

    async def stop(self, grace_s: float | None) -> None:
        """Take nothing new, give what is under way so long, end the rest as retryable. May be called again."""
        ...


def make_server(
    runtime: str,
    *,
    host: str,
    port: int,
    flag: str,
    route: Route,
    calls: Counter[tuple[str, str, str]],
    closed: Counter[str],
    connections: int,
) -> GrpcServer:
    """The server of this runtime; only that one is imported.

    Args:
        runtime: `own` or `grpcio`.
        calls: counts calls that ended: service, method, name of the status.
        closed: counts connections that were closed for what their peer did, by reason.
        connections: as many at once; the own server closes an idle one for a new one.
    """
    if runtime == "own":
        from pydanube_broker.rpc.own_server import OwnServer, Times

        times = Times(connections=connections)
        return OwnServer(
            host=host, port=port, flag=flag, route=route, calls=calls, closed=closed, times=times
        )
    from pydanube_broker.rpc.grpcio_server import GrpcioServer

    def ended(path: str, status: str) -> None:
        service, _, method = path.strip("/").partition("/")
        calls[service, method, status] += 1

    return GrpcioServer(host=host, port=port, flag=flag, route=route, ended=ended)
