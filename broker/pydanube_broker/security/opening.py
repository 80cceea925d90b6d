"""The locks of a broker, from `[auth]` and from what the metadata store holds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from pydanube_core.errors import InvalidArgument
from pydanube_core.security.identity import Identity

from pydanube_broker.admin_state import AdminState
from pydanube_broker.security.authenticator import Authenticator
from pydanube_broker.security.book import SecurityBook
from pydanube_broker.security.failed_logins import FailedLogins
from pydanube_broker.security.jwt_keys import JwtRules, JwtVerifier, need_extra, read_keys
from pydanube_broker.security.last_used import LastUsed
from pydanube_broker.security.locks import Locks
from pydanube_broker.security.published_keys import KeySource, PublishedKeys

if TYPE_CHECKING:
    from pathlib import Path

    from pydanube_broker.settings_security import Auth


async def open_locks(
    settings: Auth,
    state: AdminState,
    refused: Counter[str],
    connections: Callable[[Identity], Callable[[], None]],
) -> Locks | None:
    """None: they are off.

    Args:
        refused, connections: see `Authenticator`.

    Raises:
        InvalidArgument: the keys of tokens cannot be used.
    """
    if settings.mode == "off":
        return None
    jwt = web_tokens(settings)
    book = SecurityBook(state)
    await book.load()
    keeper = Authenticator(
        book,
        jwt,
        required=settings.mode == "required",
        refused=refused,
        failed=FailedLogins(settings.failure_delay),
        connections=connections,
    )
    published = None
    if jwt is not None and settings.jwks_url is not None:
        source = KeySource(url=settings.jwks_url, ca=settings.jwks_ca, refresh_s=settings.jwks_refresh)
        published = PublishedKeys(source, jwt, book.changed)
        await published.read()  # a start does not depend on it
    return Locks(book, keeper, LastUsed(state, book, time.time), published)


def web_tokens(settings: Auth) -> JwtVerifier | None:
    """None: there are none. Raises `InvalidArgument` where their keys cannot be used."""
    if settings.mode == "off" or (settings.jwt_keys is None and settings.jwks_url is None):
        return None
    need_extra()
    if settings.jwks_ca is not None:
        _read(settings.jwks_ca, "auth.jwks_ca")
    own = (
        ()
        if settings.jwt_keys is None
        else read_keys(_read(settings.jwt_keys, "auth.jwt_keys"), where="auth.jwt_keys")
    )
    rules = JwtRules(issuer=settings.issuer, audience=settings.audience, leeway_s=settings.leeway)
    return JwtVerifier(own, rules)


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(
            f"{name}: cannot read {path}: {error.strerror}", field=name, value=str(path)
        ) from None
