"""Revoked web tokens and certificates, which would still be valid otherwise. Pure.

A web token is revoked by its `jti`, or together with all others issued to its principal before a moment. A certificate
is revoked by its serial number. API tokens need no revocation: their record is deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pydanube_core.security.identity import Identity
from pydanube_core.security.permissions import Principal

_DIGITS: Final = re.compile(r"[0-9a-f]{1,64}", re.ASCII)


class RevocationKind(StrEnum):
    JTI = "jti"
    SUBJECT = "subject"
    CERTIFICATE = "certificate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """One revocation.

    Attributes:
        value: a `jti`, a principal's name, or a serial number in hexadecimal digits, as certificates show it.
        principal_type: of a subject. Empty otherwise.
        created_ms: unix milliseconds. For a subject, tokens issued before it are invalid.
        until_ms: time after which everything it covers has expired, and it is dropped. None: never.
    """

    kind: RevocationKind
    value: str
    principal_type: str = ""
    created_ms: int
    until_ms: int | None = None

    @property
    def id(self) -> str:
        middle = f"{self.principal_type}:" if self.kind is RevocationKind.SUBJECT else ""
        return f"{self.kind}:{middle}{self.value}"

    def is_over(self, now_ms: int) -> bool:
        return self.until_ms is not None and now_ms >= self.until_ms


@dataclass(frozen=True, slots=True)
class Revocations:
    """All revocations, searched by the credential of a call."""

    jtis: frozenset[str] = frozenset()
    serials: frozenset[str] = frozenset()
    issued_before_s: dict[Principal, float] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Iterable[Revocation]) -> Revocations:
        by_kind: dict[RevocationKind, list[Revocation]] = {kind: [] for kind in RevocationKind}
        for each in found:
            by_kind[each.kind].append(each)
        return cls(
            frozenset(each.value for each in by_kind[RevocationKind.JTI]),
            frozenset(each.value for each in by_kind[RevocationKind.CERTIFICATE]),
            {
                Principal(each.value, each.principal_type): each.created_ms / 1000
                for each in by_kind[RevocationKind.SUBJECT]
            },
        )

    def cover(self, identity: Identity) -> bool:
        """Return whether a credential is revoked. A token without an issue time counts as old."""
        match identity.method:
            case "jwt":
                before_s = self.issued_before_s.get(identity.principal)
                issued_s = identity.issued_at_s
                return identity.credential in self.jtis or (
                    before_s is not None and (issued_s is None or issued_s < before_s)
                )
            case "certificate":
                return identity.credential in self.serials
            case _:
                return False


def serial_number(text: str) -> str:
    """Return a serial number in Python's form from that of openssl and browsers: `0a:1b`, `0x0A1B`, `0A1B`.

    Raises `ValueError` if it is not one.
    """
    digits = text.strip().lower().removeprefix("0x").replace(":", "").replace(" ", "")
    if not _DIGITS.fullmatch(digits):
        raise ValueError("a serial number has 1 to 64 hexadecimal digits")
    written = f"{int(digits, 16):X}"
    return written if len(written) % 2 == 0 else f"0{written}"
