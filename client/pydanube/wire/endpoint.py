"""The address of a broker, and the certificates for a connection to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from pydanube_core.addresses import SCHEMES
from pydanube_core.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Paths of PEM files: the authority to trust (None: the system's), and the client's own certificate."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None


def with_scheme(url: str) -> str:
    """Return the address as a URL: `127.0.0.1:6650` is `http://127.0.0.1:6650`."""
    known = not isinstance(url, str) or "://" in url or url.startswith(UNIX)
    return url if known else f"http://{url}"


def each_address(url: str) -> list[str]:
    """Return the URLs in `danube://b1:6650,b2:6650`, or in several such separated by commas, or a single address.

    Raises:
        InvalidArgument: one is not an address, or they do not agree on TLS.
    """
    if not isinstance(url, str) or url.startswith(UNIX):
        return [with_scheme(url)]
    scheme, separator, _ = url.partition("://")
    found = [
        each if "://" in each or not separator else f"{scheme}://{each}"
        for each in (part.strip() for part in url.split(","))
    ]
    found = list(dict.fromkeys(map(with_scheme, found)))
    if len({parse_url(each)[1] for each in found}) > 1:
        raise InvalidArgument(
            f"url {url!r}: some addresses mean TLS and some do not. Write them with one scheme",
            field="url",
            value=url[:200],
        )
    return found


def each_cluster(url: str) -> list[list[str]]:
    """Return the URLs of each cluster in `danube://eu-1,eu-2|us-1,us-2`. The scheme of the first is that of all.

    A host without a port has that of brokers. Raises as `each_address`.
    """
    if not isinstance(url, str) or "|" not in url:
        return [each_address(url)]
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "http", url
    groups = [
        [_with_port(place.strip()) for place in group.replace(f"{scheme}://", "").split(",")]
        for group in rest.split("|")
    ]
    found = [each_address(f"{scheme}://{','.join(group)}") for group in groups]
    if len(found) > MOST_CLUSTERS:
        raise InvalidArgument(
            f"url {url!r}: {len(found)} clusters, at most {MOST_CLUSTERS} are taken",
            field="url",
            value=url[:200],
        )
    return found


def _with_port(place: str) -> str:
    if ":" in place.rpartition("]")[2]:
        return place
    from pydanube_core.links import BROKER_PORT  # most addresses have a port, and links are for operators

    return f"{place}:{BROKER_PORT}"


MOST_CLUSTERS: Final = 8
UNIX: Final = "unix:"


def parse_url(url: str) -> tuple[str, bool]:
    """Return `host:port`, and whether to use TLS, for `http://host:port` or `https://host:port` (or danube, danubes).

    `unix:/path` is a socket on this machine and returned whole.
    """
    if isinstance(url, str) and url.startswith(UNIX):
        return url, False
    try:
        parts = urlsplit(url)
        port = parts.port
    except (ValueError, AttributeError, TypeError):  # the latter two: it is no text at all
        parts, port = urlsplit(""), None
    if parts.scheme not in SCHEMES or not parts.hostname or port is None or parts.path.strip("/"):
        raise InvalidArgument(
            f"url {url!r}: write http://host:port or https://host:port",
            field="url",
            value=url if isinstance(url, str) else repr(url)[:200],
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}", SCHEMES[parts.scheme]
