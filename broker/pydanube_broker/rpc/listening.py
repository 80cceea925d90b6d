"""Listening sockets, and the errors for those that cannot be opened."""

from __future__ import annotations

import errno
import socket

from pydanube_core.errors import InvalidArgument, PortInUse


def port_in_use(host: str, port: int, *, flag: str, why: str) -> PortInUse:
    """Return the error that names the port and the flag that moves it (`grpc-port`)."""
    return PortInUse(
        f"port {port} on {host} cannot be listened on ({why}): choose another with --{flag} or --port-offset",
        field=flag.replace("-", "_"),
        value=port,
        port=port,
        flag=f"--{flag}",
    )


def listen(host: str, port: int, *, flag: str) -> socket.socket:
    """Return a listening socket. Port 0 takes any free one.

    Raises:
        PortInUse: another process has the port. Names it and the flag that moves it.
        InvalidArgument: this machine has no such address, or this process may not use the port.
    """
    bare = host.strip("[]")
    listener = socket.socket(socket.AF_INET6 if ":" in bare else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((bare, port))
        listener.listen(512)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        why = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            raise port_in_use(host, port, flag=flag, why=why) from None
        if error.errno in (errno.EACCES, errno.EPERM):
            remedy = f"choose a port above 1023 with --{flag}"
            raise InvalidArgument(
                f"cannot listen on {host}:{port} ({why}): {remedy}", field=flag.replace("-", "_"), value=port
            ) from None
        raise InvalidArgument(
            f"cannot listen on {host}:{port} ({why}): choose an address of this machine with --host",
            field="host",
            value=host,
        ) from None
    return listener
