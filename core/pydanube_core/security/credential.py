"""When a certificate or a token expires, as brokers report it and the diagnosis judges it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """Something that opens doors until its time is over."""

    kind: str  # certificate, client_ca or token
    name: str  # the file, or the id of the token
    from_ms: int
    until_ms: int
