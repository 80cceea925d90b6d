"""A listening socket, or the error that names port and flag."""

from __future__ import annotations

import errno
import socket

from pydanube_core.errors import InvalidArgument, PortInUse

__all__ = ["listen"]


def listen(host: str, port: int, *, flag: str) -> socket.socket:
    """Bind and listen.

    Raises:
        PortInUse: another process has the port.
        InvalidArgument: this machine has no such address, or the port is not ours to take.
    """
    bare = host.strip("[]")
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((bare, port))
        listener.listen(512)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        where = f"cannot listen on {host}:{port}: {error.strerror or error}"
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"{where}; choose another port with {flag} or --port-offset",
                field=flag.lstrip("-").replace("-", "_"),
                value=port,
                port=port,
                flag=flag,
            ) from None
        raise InvalidArgument(where, field="host", value=host) from None
    return listener
