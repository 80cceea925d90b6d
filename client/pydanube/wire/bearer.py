"""A client's token: a text, or a function that is called for each call or stream.

It goes over TLS, or to this machine itself, because it permits anyone to act as its owner.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from typing import Final

from pydanube_core.errors import InvalidArgument, Unauthenticated

from pydanube.wire.endpoint import UNIX

TokenSource = str | Callable[[], str]
MOST_CHARS: Final = 8192


def token_from_environment() -> TokenSource | None:
    """Return `DANUBE_TOKEN`, or a function that reads `DANUBE_TOKEN_FILE` for each call. None without either."""
    if token := os.environ.get("DANUBE_TOKEN"):
        return token
    if file := os.environ.get("DANUBE_TOKEN_FILE"):
        return lambda: read_token(file)
    return None


def read_token(file: str) -> str:
    """Read a token from a file. Raises `InvalidArgument` if there is none in it."""
    from pathlib import Path  # with `urllib` 3 ms of the client's import

    try:
        token = Path(file).expanduser().read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise InvalidArgument(
            f"the token's file {file} cannot be read: {why}", field="token_file", value=file
        ) from None
    if not token:
        raise InvalidArgument(f"the token's file {file} is empty", field="token_file", value=file)
    return token


def check_channel(url: str, host: str, *, secure: bool) -> None:
    """Refuse to send a token unencrypted over a network.

    Raises:
        InvalidArgument: the address is none of this machine, and there is no TLS.
    """
    if not secure and not _is_here(host):
        raise InvalidArgument(
            f"a token is not sent to {url} without TLS: write https://, or give no token (DANUBE_TOKEN)",
            field="token",
            value=None,
            url=url,
        )


def bearer(token: TokenSource) -> tuple[str, str]:
    """Return the metadata of one call with the token.

    Unauthenticated: the function did not return a token. Its own exceptions pass through.
        Unauthenticated: the function gave what is no token. Its own exceptions pass through.
    """
    text = token if isinstance(token, str) else token()
    if (
        not isinstance(text, str)
        or not text.isascii()
        or not text.isprintable()
        or not 0 < len(text) <= MOST_CHARS
    ):
        raise Unauthenticated("the token is no text of printable ASCII characters. Look where it comes from")
    return "authorization", f"Bearer {text}"


def _is_here(host: str) -> bool:
    if host.lower() == "localhost" or host.startswith(UNIX):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
