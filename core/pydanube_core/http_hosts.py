"""Host names by which a port is called: whether a Host or Origin header names this machine.

A web page in a browser may reach a port of its machine by a name of the page's own that leads there, and read the
port's answers. The name is in the headers, and no page can change it.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from urllib.parse import urlsplit


@lru_cache(256)
def host_name(url: str) -> str | None:
    """Return the host of `scheme://host:port` or `//host:port`. None if it has none, or more parts."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for a port that is none
    except ValueError:
        return None
    if parts.username is not None or parts.path or parts.query or parts.fragment or not parts.hostname:
        return None
    return parts.hostname.lower() if parts.scheme in ("", "http", "https") else None


@lru_cache(256)
def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address. An unknown name counts as public."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
