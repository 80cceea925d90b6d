"""Decide which brokers count as lost, without a storm of take-overs. Pure.

A broker whose registration ended is lost, but its topics are taken over only if the leader has a calm view:

* A leader reports no broker as lost during its first lease. Brokers that lost their leases in the outage that made it
  the leader may be registering again.
* It reports none within a lease after its own connection to the metadata store was broken.
* If more than half of the members disappear between two looks, the network or the store has more likely failed than
  all of them. The leader waits for another lease.
"""

from __future__ import annotations

from collections.abc import Collection

from pydanube_broker.cluster.ids import BrokerId


class LossWatch:
    """One for each term of a leader.

    Args:
        begun_ms: when this broker began to lead.
        lease_ms: lease of a registration.
    """

    def __init__(self, begun_ms: int, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._calm_at_ms = begun_ms + lease_ms
        self._members: frozenset[BrokerId] = frozenset()

    def look(
        self, now_ms: int, *, members: Collection[BrokerId], owners: Collection[BrokerId], connected: bool
    ) -> set[BrokerId]:
        """Return the owners that are lost and may be taken over now, none while the view is not calm.

        Args:
            now_ms: monotonic milliseconds, never smaller than in the previous call.
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
