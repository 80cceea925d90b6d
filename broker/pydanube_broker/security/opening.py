"""The locks of a broker, from `[auth]` and from what the metadata store holds."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pydanube_core.errors import InvalidArgument

from pydanube_broker.admin_state import AdminState
from pydanube_broker.security.authenticator import Authenticator
from pydanube_broker.security.book import SecurityBook
from pydanube_broker.security.failed_logins import FailedLogins
from pydanube_broker.security.jwt_keys import JwtRules, JwtVerifier, read_keys
from pydanube_broker.security.locks import Locks

if TYPE_CHECKING:
    from pathlib import Path

    from pydanube_broker.settings import Auth


async def open_locks(settings: Auth, state: AdminState, refused: Counter[str]) -> Locks | None:
    """None: they are off. `refused` counts. Raises `InvalidArgument` where the keys of tokens cannot be used."""
    if settings.mode == "off":
        return None
    jwt = web_tokens(settings)
    book = SecurityBook(state)
    await book.load()
    failed = FailedLogins(settings.failure_delay)
    return Locks(
        book, Authenticator(book, jwt, required=settings.mode == "required", refused=refused, failed=failed)
    )


def web_tokens(settings: Auth) -> JwtVerifier | None:
    """None: there are none. Raises `InvalidArgument` where their keys cannot be used."""
    if settings.mode == "off" or settings.jwt_keys is None:
        return None
    rules = JwtRules(issuer=settings.issuer, audience=settings.audience, leeway_s=settings.leeway)
    return JwtVerifier(read_keys(_read(settings.jwt_keys), where="auth.jwt_keys"), rules)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(
            f"auth.jwt_keys: cannot read {path}: {error.strerror}", field="auth.jwt_keys", value=str(path)
        ) from None
