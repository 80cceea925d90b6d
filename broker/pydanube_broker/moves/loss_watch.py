"""Decide which brokers count as lost, without a storm of take-overs. Pure.

A broker whose registration ended is lost, but its topics are taken over only if the leader has a calm view:

* A leader decides nothing in its first lease. Brokers that lost their leases in the outage that made it the leader may be
  registering again.
* Nothing is decided within a lease after the leader's own connection to the metadata store was broken.
* If more than half of the members go in one look, the cause is more likely the network, or the store, than all of them.
  Another lease is waited.
"""

from __future__ import annotations

from collections.abc import Collection

from pydanube_broker.cluster.ids import BrokerId


class LossWatch:
    """One for each time in office.

    Args:
        begun_ms: when this broker began to lead.
        lease_ms: of a registration.
    """

    def __init__(self, begun_ms: int, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._calm_at_ms = begun_ms + lease_ms
        self._members: frozenset[BrokerId] = frozenset()

    def look(
        self, now_ms: int, *, members: Collection[BrokerId], owners: Collection[BrokerId], connected: bool
    ) -> set[BrokerId]:
        """Return the owners that are lost and may be taken over now; none while the view is not calm.

        Args:
            now_ms: monotonic milliseconds; never smaller than in the look before.
            members: brokers that are registered.
            owners: brokers that own topics.
            connected: whether the metadata store answers this broker.
        """
        gone = self._members - frozenset(members)
        is_storm = 2 * len(gone) > len(self._members)
        self._members = frozenset(members)
        if not connected or is_storm:
            self._calm_at_ms = max(self._calm_at_ms, now_ms + self._lease_ms)
        return set(owners) - self._members if now_ms >= self._calm_at_ms else set()
