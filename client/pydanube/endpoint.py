"""Where a broker answers, and what a connection to it needs: its address, certificates, who calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from pydanube_core.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Paths of PEM files: the authority to trust (None: the system's), and the client's own certificate."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None


def with_scheme(url: str) -> str:
    """The address as a url: `127.0.0.1:6650` is `http://127.0.0.1:6650`."""
    known = not isinstance(url, str) or "://" in url or url.startswith(UNIX)
    return url if known else f"http://{url}"


UNIX: Final = "unix:"
#: scheme → whether it means TLS
SCHEMES: Final = {"http": False, "https": True, "danube": False, "danubes": True}


def parse_url(url: str) -> tuple[str, bool]:
    """`host:port` and whether to use TLS, from `http://host:port` or `https://host:port` (or danube, danubes).

    `unix:/path` is a socket on this machine; its target is the whole of it.
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
            f"url {url!r}: write http://host:port or https://host:port", field="url", value=url if isinstance(url, str) else repr(url)[:200],
        )  # fmt: skip
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}", SCHEMES[parts.scheme]
