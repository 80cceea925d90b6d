"""Revoked web tokens and certificates, which are still valid by themselves. Pure.

A web token is known by its `jti`, or with all others that its principal was issued before a moment; a certificate by its
serial number. API tokens need none of this: one that is revoked is not there any more.
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
        principal_type: of a subject; empty otherwise.
        created_ms: unix milliseconds; of a subject what was issued before is good for nothing.
        until_ms: from then on nothing that it is about can be good anyway, and it is forgotten; None: never.
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

    Raises `ValueError`: it is none.
    """
    digits = text.strip().lower().removeprefix("0x").replace(":", "").replace(" ", "")
    if not _DIGITS.fullmatch(digits):
        raise ValueError("a serial number has 1 to 64 hexadecimal digits")
    written = f"{int(digits, 16):X}"
    return written if len(written) % 2 == 0 else f"0{written}"
