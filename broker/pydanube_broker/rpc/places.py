"""How many connections fit into the process's limit of descriptors.

All ports and the files share the descriptors. Each port has its part of them, so that idle connections to one port leave
enough for the others and for the disk. Apart from the ports, because `danube doctor` loads it.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace
from typing import Final

MOST: Final = 10_000
_MOST_HTTP: Final = 512
_KEPT_FOR_FILES: Final = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """How many connections a port accepts."""

    grpc: int
    other: int  # each of the three other ports
    of_address: int = MOST  # of these, from one address


def raise_limit() -> None:
    """Raise the process's limit of descriptors to the hard limit. The usual soft one of 1 024 is made for `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def places(of_address: int | None = None) -> Places:
    """Return how many connections fit into the process's limit of descriptors. `of_address` is the setting."""
    found = places_within(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return replace(found, of_address=of_address or MOST)


def places_within(soft: int) -> Places:
    """Return how many connections fit into a limit of `soft` descriptors."""
    if soft == resource.RLIM_INFINITY:
        return Places(grpc=MOST, other=_MOST_HTTP)
    other = max(2, min(_MOST_HTTP, soft // 16))
    files = max(_KEPT_FOR_FILES, min(soft // 4, 1024))
    return Places(grpc=max(4, min(MOST, soft - files - 3 * other)), other=other)
