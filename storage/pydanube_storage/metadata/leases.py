"""Deadlines of leases, for every adapter that keeps its leases itself. Pure.

A lease is an id and a time to live. Each renewal moves its deadline to now + ttl. It has expired if `deadline <= now`.
Deadlines are not durable: a store that is opened again gives every lease its full time, as etcd does after a change of
leader, because no holder could renew in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydanube_core.errors import InvalidArgument

from pydanube_storage.metadata.errors import LeaseLost
from pydanube_storage.metadata.model import LeaseId

MAX_TTL_MS: Final = 24 * 3600 * 1000


def check_ttl(ttl_ms: int) -> None:
    """Raise `InvalidArgument` unless `1 <= ttl_ms <= MAX_TTL_MS`. etcd rounds up to seconds."""
    if not 1 <= ttl_ms <= MAX_TTL_MS:
        raise InvalidArgument(
            f"a lease lives 1 ms to {MAX_TTL_MS} ms, not {ttl_ms}", field="ttl_ms", value=ttl_ms
        )


@dataclass(slots=True)
class _Lease:
    ttl_ms: int
    deadline_ms: int


class LeaseTable:
    """The live leases of a store."""

    def __init__(self, ttls_ms: Mapping[LeaseId, int] | None = None, *, now_ms: int = 0) -> None:
        self._leases = {
            lease_id: _Lease(ttl_ms, now_ms + ttl_ms) for lease_id, ttl_ms in (ttls_ms or {}).items()
        }

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, lease_id: LeaseId, ttl_ms: int, now_ms: int) -> None:
        assert lease_id not in self._leases, "lease ids are never reused"
        self._leases[lease_id] = _Lease(ttl_ms, now_ms + ttl_ms)

    def check(self, lease_id: LeaseId) -> None:
        """Raise `LeaseLost` if the lease is not live."""
        if lease_id not in self._leases:
            raise LeaseLost(lease_id)

    def renew(self, lease_id: LeaseId, now_ms: int) -> int:
        """Move the deadline to now + ttl and return the ttl in ms. Raises `LeaseLost` if it is not live."""
        self.check(lease_id)
        lease = self._leases[lease_id]
        lease.deadline_ms = now_ms + lease.ttl_ms
        return lease.ttl_ms

    def remove(self, lease_id: LeaseId) -> None:
        """Remove a lease. Raises `LeaseLost` if it is not live."""
        self.check(lease_id)
        del self._leases[lease_id]

    def due(self, now_ms: int) -> list[LeaseId]:
        """Return the expired leases by id. O(leases), of which each broker has a few."""
        return sorted(lease_id for lease_id, lease in self._leases.items() if lease.deadline_ms <= now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return the deadline of the next lease to expire, None without leases."""
        return min((lease.deadline_ms for lease in self._leases.values()), default=None)
