"""The principal of calls without authentication, which is only a claim. Imports nothing slow, for completion."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping


def named_principal(principal: str | None, *, shows_identity: bool) -> str:
    """Return the principal that a call sends. Empty if none was given, and a credential identifies the caller."""
    if principal or not shows_identity:
        return principal or default_principal()
    return os.environ.get("DANUBE_PRINCIPAL", "")


def default_principal(environment: Mapping[str, str] = os.environ) -> str:
    """Return the principal of calls without authentication: `DANUBE_PRINCIPAL`, else `<user>@<host>`."""
    claimed = environment.get("DANUBE_PRINCIPAL")
    if claimed:
        return claimed
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without an entry for its uid
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
