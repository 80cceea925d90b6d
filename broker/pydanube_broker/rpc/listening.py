"""Listening sockets, and the error when another process has the port."""

from __future__ import annotations

import socket

from pydanube_core.errors import PortInUse

__all__ = ["listen", "port_in_use"]


def port_in_use(host: str, port: int, *, flag: str, why: str) -> PortInUse:
    """The error that names the port and the flag that moves it (`grpc-port`)."""
    return PortInUse(
        f"port {port} on {host} cannot be listened on ({why}): choose another with --{flag} or --port-offset",
        field=flag.replace("-", "_"),
        value=port,
        port=port,
        flag=f"--{flag}",
    )


def listen(host: str, port: int, *, flag: str) -> socket.socket:
    """A listening socket; port 0 takes any free one.

    Raises:
        PortInUse: naming the port and the flag that moves it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
        listener.listen(512)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise port_in_use(host, port, flag=flag, why=error.strerror or str(error)) from None
    return listener
