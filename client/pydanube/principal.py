"""Who acts, where nobody says: a claim until there is authentication. Loads nothing that a key press would wait for."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping


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
