"""Scopes of web tokens (OAuth): they narrow what a principal's bindings permit, and never add to it. Pure.

A token that names scopes is limited to those of ours among them. A token without the claim has everything that its
principal may do, like the original's tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydanube_core.security.permissions import CONSUME, LOOK_UP, PRODUCE

READ: Final = "danube:read"  # everything that only reads
DATA: Final = "danube:data"  # produce and consume
WRITE: Final = "danube:write"  # everything that changes something
ADMIN: Final = "danube:admin"  # permissions, and the brokers themselves
SCOPES: Final = (READ, DATA, WRITE, ADMIN)

_LOOKS: Final = frozenset({LOOK_UP, "journal:describe", "objects:list", "objects:verify", "reports:run"})
_RIGHTS: Final = frozenset(
    {"security", "roles", "bindings", "tokens", "revocations", "quotas", "brokers", "cluster", "faces"}
)


def scope_of(permission: str) -> str:
    """Return the token scope that a permission needs."""
    area, _, verb = permission.partition(":")
    if verb == "read" or permission in _LOOKS:
        return READ
    if permission in (PRODUCE, CONSUME):
        return DATA
    return ADMIN if area in _RIGHTS else WRITE


def scopes_of(permissions: Iterable[str]) -> frozenset[str]:
    """Return the token scopes that all of these permissions need, which may have stars."""
    found: set[str] = set()
    for each in permissions:
        area, _, verb = each.partition(":")
        if area == "*":  # of every area
            return frozenset(SCOPES)
        if verb == "*":
            found |= {
                READ,
                *map(scope_of, (f"{area}:change", PRODUCE) if area == "data" else (f"{area}:change",)),
            }
        else:
            found.add(scope_of(each))
    return frozenset(found)


def named_scopes(claims: Mapping[str, Any]) -> frozenset[str] | None:
    """Return our scopes that a token names, in `scope` (separated by spaces) or `scp`. None if it has neither claim.

    Raises `ValueError` if one of them is neither text nor a list of texts.
    """
    found = [claims[name] for name in ("scope", "scp") if name in claims]
    words: list[str] = []
    for each in found:
        if isinstance(each, str):
            words += each.split()
        elif isinstance(each, list) and all(isinstance(word, str) for word in each):
            words += each
        else:
            raise ValueError("scope is a text, scp a text or a list of texts")
    return frozenset(words).intersection(SCOPES) if found else None
