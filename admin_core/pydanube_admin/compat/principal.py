"""Who calls `danube_admin`, as far as the call's metadata says: a claim, like every principal until there is authentication.

The original's tool sends a token (`authorization: Bearer <jwt>`), whose claims name the principal; it is read here and
not checked, and records say `authenticated: false`. `danube-principal` is the header that our HTTP face has.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from typing import Final

from pydanube_core.security.identity import Identity

ANONYMOUS: Final = "anonymous"
HEADER: Final = "danube-principal"
BROKER: Final = "x-danube-internal-broker"
MAX_TOKEN_CHARS: Final = 8192
MAX_NAME_CHARS: Final = 256


def principal_of(metadata: Iterable[tuple[str, str | bytes]], proven: Identity | None = None) -> str:
    """The name that the metadata claims, else `anonymous`; of a proven caller whom he acts for, else nobody."""
    texts = {key: value for key, value in metadata if isinstance(value, str)}
    if proven is not None and proven.method != "none":
        # How brokers of the original know each other: here it is a claim like others
        broker = texts.get(BROKER)
        return texts.get(HEADER, "") if broker is None else f"broker_internal:{broker}"
    name = texts.get(HEADER) or _named_by(texts.get("authorization", ""))
    return name[:MAX_NAME_CHARS] if name and name.isprintable() else ANONYMOUS


def _named_by(authorization: str) -> str | None:
    scheme, _, token = authorization.partition(" ")
    parts = token.strip().split(".")
    if scheme.lower() != "bearer" or len(parts) != 3 or len(token) > MAX_TOKEN_CHARS:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return None
    if not isinstance(claims, dict):
        return None
    name = claims.get("principal_name") or claims.get("sub")
    return name if isinstance(name, str) else None
