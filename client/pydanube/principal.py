"""Who acts, where nobody says: a claim until there is authentication. Loads nothing that a key press would wait for."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping


def named_principal(principal: str | None, *, shows_identity: bool) -> str:
    """Whom a call names: who was asked for, here or in DANUBE_PRINCIPAL; else nobody, where what is shown says it."""
    if principal or not shows_identity:
        return principal or default_principal()
    return os.environ.get("DANUBE_PRINCIPAL", "")


def default_principal(environment: Mapping[str, str] = os.environ) -> str:
    """Return `DANUBE_PRINCIPAL`, else `<user>@<host>`."""
    claimed = environment.get("DANUBE_PRINCIPAL")
    if claimed:
        return claimed
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without an entry for its uid
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
