"""No test reaches a default port, to listen or to dial: `make test` runs beside the `make run` of the README.

Commands and clients without an address go to `CLOSED`, by the environment of the tests and of every process that they
start. What this process dials or binds all the same is noted by `watch`. Not seen: connections of uvloop and of grpcio,
which leave Python's socket module out.
"""

from __future__ import annotations

import sys
from typing import Final

__all__ = ["ADDRESSES", "CLOSED", "DEFAULT_PORTS", "watch"]

#: port 1 of this machine, where nothing listens
CLOSED: Final = "http://127.0.0.1:1"
#: `DANUBE_BROKER_URL` stands in for a missing admin address, too (pydanube/addresses.py)
ADDRESSES: Final = {"DANUBE_BROKER_URL": CLOSED}
#: docs/interface.md, chapter 2
DEFAULT_PORTS: Final = frozenset({6650, 50051, 9040, 8765, 8766})


def watch() -> list[str]:
    """Return a list to which each use of a default port in this process is added from now on."""
    seen: list[str] = []

    def look(event: str, arguments: tuple[object, ...]) -> None:
        if event not in ("socket.connect", "socket.bind"):
            return
        address = arguments[1]
        if isinstance(address, tuple) and len(address) > 1 and address[1] in DEFAULT_PORTS:
            seen.append(f"{event} {address[0]}:{address[1]}")

    sys.addaudithook(look)
    return seen
