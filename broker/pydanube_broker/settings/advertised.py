"""The address that clients connect to, which may differ from the one the broker listens on.

After a look-up every official client dials the address in the answer, not the one it was given. So it has a scheme
(Rust, Java) and no path (Go, Python), it is not "every interface of this machine", and its host has no underscore (Java
finds no host in such a name): docs/research/data-plane.md#41-url-rules.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Final
from urllib.parse import urlsplit

from pydanube_core.errors import InvalidArgument

# Documentation networks, which have no hosts. Connecting a datagram socket sends nothing. It looks up in the routing
# table from which of our addresses a packet would leave.
_ELSEWHERE: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


def advertised_url(given: str | None, host: str, port: int, *, secure: bool = False) -> str:
    """Return the address for clients: the setting, or the one that the broker listens on."""
    if given is not None:
        return check_advertised(given, secure=secure)
    return f"{_scheme(secure)}://{_bracketed(dialled_host(host))}:{port}"


def dialled_host(host: str) -> str:
    """Return a host that clients can dial: for "all interfaces" the address from which packets to others would leave.

    Without a route to another machine only this machine can dial. Then it is the loopback address.
    """
    if not _is_wildcard(host):
        return host.strip("[]")
    for family, elsewhere in sorted(_ELSEWHERE, reverse=":" in host):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((elsewhere, 9))
                found = str(probe.getsockname()[0])
        except OSError:
            continue
        if not _is_wildcard(found):
            return found
    return "::1" if ":" in host else "127.0.0.1"


def check_advertised(url: str, *, secure: bool = False, field: str = "server.advertised_url") -> str:
    """Check the URL for clients of a port: TLS (`secure`) or plain text has to match the port.

    Raises `InvalidArgument`: some official client could not dial it.
    """

    def wrong(why: str) -> InvalidArgument:
        return InvalidArgument(
            f"{field} {url!r}: {why}. Give an address for clients, like "
            f"{_scheme(secure)}://broker.example.org:6650",
            field=field,
            value=url,
        )

    text = url.strip().rstrip("/")
    parts = urlsplit(text if "://" in text else f"{_scheme(secure)}://{text}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise wrong(str(error)) from error
    if parts.scheme not in ("http", "https"):
        raise wrong(f"the scheme {parts.scheme!r} is neither http nor https")
    if parts.scheme != _scheme(secure):
        spoken = "TLS" if secure else "no TLS"
        raise wrong(f"this broker speaks {spoken} (tls.cert), and Rust's client believes the scheme")
    if not host or parts.path or parts.query or parts.fragment or parts.username:
        raise wrong("a scheme, a host and a port are all it has")
    if port is None:
        raise wrong("the port is missing")
    if _is_wildcard(host):
        raise wrong("clients cannot dial 'every interface'")
    if "_" in host:
        raise wrong("Java finds no host in a name with an underscore")
    return f"{parts.scheme}://{_bracketed(host)}:{port}"


def _scheme(secure: bool) -> str:
    return "https" if secure else "http"


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
