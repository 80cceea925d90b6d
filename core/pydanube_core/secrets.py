"""Remove secrets from texts before they are kept or shown: known values, and texts in the form of a secret.

Pure. A secret is recognised by the name of its holder (`is_secret_name`), by its form (a password in a URL, an access
key, a bearer token, a name like those and a value behind it), or as a value of this process's own environment
(`known_secrets`). No list of forms is complete. Therefore texts that may hold a secret are avoided in the first place,
and this is the second line of defence.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final

REDACTED: Final = "redacted"
_MARK_BYTES: Final = 4
_ROUNDS: Final = 5_000
MIN_KNOWN_CHARS: Final = 8  # a shorter value would match innocent text

_WORDS: Final = (
    "secret", "password", "passwd", "token", "credential", "access_key", "accesskey", "private_key",
    "api_key", "apikey",
)  # fmt: skip
# A password may have / and @ in it, as people write them. A port and a path are no password.
_IN_A_URL: Final = re.compile(r"(?<=://)[^\s/@\"':]{0,256}(?::(?!\d{1,5}(?:[/,;?)\]]|$))[^\s\"']{0,256})?@")
# Every repetition is bounded, or begins at a rare place: the cost must stay linear in the length of foreign texts.
_FORMS: Final = re.compile(
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"  # access keys of AWS
    r"|\bdanube_[0-9a-f]{16}_[\w-]{43}"  # our own API tokens
    r"|\beyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]*"  # JSON web tokens
    r"|(?<=\bBearer )[\w.~+/=-]{8,}|(?<=\bBasic )[\w.~+/=-]{8,}"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]*(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
)
# `password=x`, `"api_key": "x"`, `aws_secret_access_key = x`
_NAMED: Final = re.compile(
    r"(?i)(?P<name>(?:secret|passw(?:or)?d|token|credential|access_?key|private_?key|api_?key)[\w-]{0,40}"
    r"[\"']?\s{0,4}[=:]\s{0,4}[\"']?)(?P<value>[^\s\"',;&}\]]{3,4096})"
)


def is_secret_name(name: str) -> bool:
    """Return whether a value of this name is a secret."""
    lowered = name.lower().replace("-", "_")
    return lowered != "token_id" and any(word in lowered for word in _WORDS)


def secret_mark(name: str, value: str | bytes) -> str:
    """Return a text by which two secrets of one name can be compared, and that gives neither away.

    32 bits of a slow hash: enough to see that two differ, and not enough to confirm a guess. About 5 ms.
    """
    plain = value.encode() if isinstance(value, str) else value
    hashed = hashlib.pbkdf2_hmac("sha256", plain, f"danube {name}".encode(), _ROUNDS, _MARK_BYTES)
    return f"{REDACTED}:{hashed.hex()}"


def known_secrets(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of an environment whose names mark them as secrets, longest first."""
    found = {
        value for name, value in environment.items() if is_secret_name(name) and len(value) >= MIN_KNOWN_CHARS
    }
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def without_passwords(text: str) -> str:
    """Return the text, which may be JSON, with everything before the @ of a URL replaced."""
    return _IN_A_URL.sub(f"{REDACTED}@", text) if "://" in text else text


def without_secrets(text: str, known: Iterable[str] = ()) -> str:
    """Return the text with known and apparent secrets replaced."""
    for secret in known:
        text = text.replace(secret, REDACTED)
    text = _FORMS.sub(REDACTED, without_passwords(text))
    return _NAMED.sub(lambda match: match["name"] + REDACTED, text)
