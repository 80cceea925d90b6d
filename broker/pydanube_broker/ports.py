"""The ports of a broker, and their common parts: connection limits, counters, memory, certificates, authentication."""

from __future__ import annotations

import logging
import os
from typing import Any, Final

from pydanube_core.http_hosts import is_loopback
from pydanube_core.security.identity import current_identity

from pydanube_broker.parts import BrokerParts
from pydanube_broker.rpc.hot import Route
from pydanube_broker.rpc.http_port import HttpPort
from pydanube_broker.rpc.listening import listen
from pydanube_broker.rpc.own_server import OwnServer, Times
from pydanube_broker.rpc.places import Places
from pydanube_broker.security.http_identity import IdentifiedApp
from pydanube_broker.status.http_status import PAGES, PROBES, Shown, status_app

log = logging.getLogger("pydanube.broker")

LONGEST_SOCKET_PATH: Final = 100  # sockaddr_un has 108 bytes on Linux, 104 elsewhere


def grpc_port(broker: BrokerParts, route: Route, room: Places) -> OwnServer:
    """Make the server for producers and consumers."""
    return OwnServer(
        port=broker.settings.server.grpc_port,
        flag="grpc-port",
        route=route,
        connections=broker.metrics.connections,
        times=Times(connections=room.grpc, of_address=room.of_address),
        **_shared(broker),
    )


def admin_port(broker: BrokerParts, route: Route, room: Places) -> OwnServer:
    """Make the server for administration, with a socket for the operator on this machine."""
    shared = _shared(broker)
    if not broker.settings.tls.admin:
        shared["tls"] = None
    return OwnServer(
        port=broker.settings.server.admin_port,
        flag="admin-port",
        route=route,
        times=Times(connections=room.other, of_address=room.of_address),
        unix_path=_socket_path(broker),
        **shared,
    )


def status_port(broker: BrokerParts, shown: Shown, room: Places) -> HttpPort:
    """Make the server for metrics and probes."""
    server, locks, tls = broker.settings.server, broker.locks, broker.tls
    locked = locks is not None and locks.required
    # With tokens or at a public address, callers may use any name of this host.
    only_here = is_loopback(server.host) and not locked
    pages = status_app(shown, reasons_to=current_identity.get if locked else None, only_here=only_here)
    return HttpPort(
        pages if locks is None else IdentifiedApp(pages, locks, needs=PAGES, open=PROBES),
        listen(server.host, server.metrics_port, flag="metrics-port"),
        tls=None if tls is None else tls.http,
        connections=room.other,
        of_address=room.of_address,
        memory=broker.peer_memory,
        closed=broker.metrics.connections_closed,
    )


def _shared(broker: BrokerParts) -> dict[str, Any]:
    return {
        "host": broker.settings.server.host,
        "calls": broker.metrics.grpc_calls,
        "closed": broker.metrics.connections_closed,
        "memory": broker.peer_memory,
        "tls": None if broker.tls is None else broker.tls.grpc,
        "keeper": None if broker.locks is None else broker.locks.authenticator,
    }


def _socket_path(broker: BrokerParts) -> str | None:
    """Return the path of the operator's socket, which needs no token: in the data directory, for its owner alone."""
    if broker.locks is None or broker.data_dir.memory:
        return None
    path = broker.data_dir.path.absolute() / "admin.sock"
    path.unlink(missing_ok=True)  # of an earlier life: the directory is locked
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
        log.warning("no_admin_socket", extra={"path": str(path)})
        return None
    return str(path)
