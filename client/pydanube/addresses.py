"""Default addresses of a broker, for clients and for operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

DEFAULT_BROKER_URL: Final = "http://127.0.0.1:6650"
DEFAULT_ADMIN_URL: Final = "http://127.0.0.1:50051"


def admin_address(admin: str | None, broker: str | None, environment: Mapping[str, str]) -> str:
    """Return the address for operations: an admin port if one is given, else the clients' port, which takes them, too.

    Arguments precede the environment, and that precedes this machine's admin port.
    """
    endpoint, url = environment.get("DANUBE_ADMIN_ENDPOINT"), environment.get("DANUBE_BROKER_URL")
    return admin or broker or endpoint or url or DEFAULT_ADMIN_URL
