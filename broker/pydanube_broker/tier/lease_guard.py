"""Acknowledge only stored records while this broker's lease is over, if other brokers may take its topics over.

With `cluster.on_loss = take_over` the leader takes over a lost broker's topics from its chain when its lease ends. The
broker may still run then: it stood still, or is cut off from the metadata. After the end of its lease, records count as
safe only if the chain has them too, so that every acknowledged message reaches the next owner. This ends when the broker
is registered again and its journal record is open. If other brokers fence the chain first, it never has these records.

The lease is checked against the clock whenever records become durable, so that a process that stood still holds back
before anything else of it has run.
"""

from __future__ import annotations

import logging
from typing import Final

import anyio
from pydanube_core.errors import ClusterError

from pydanube_broker.cluster.membership import Membership, Registration
from pydanube_broker.tier.chain_record import ChainRecord
from pydanube_broker.topics.hub import Hub

log = logging.getLogger("pydanube.chain")

_LOOK_S: Final = 1.0


class LeaseGuard:
    """See the module. `run` as a task. Single user: the loop.

    Args:
        confirmed: a registration under which the journal record was seen open.
    """

    def __init__(
        self, hub: Hub, membership: Membership, record: ChainRecord, confirmed: Registration
    ) -> None:
        self._hub = hub
        self._membership = membership
        self._record = record
        self._confirmed = confirmed
        hub.needs_store = self.needs_store

    def needs_store(self) -> bool:
        """Return whether records have to be in the chain before they count as safe."""
        is_confirmed = self._confirmed is self._membership.registration and self._confirmed.is_held
        return not is_confirmed or self._membership.is_overdue

    async def run(self) -> None:
        """Follow the registrations of this broker, until cancelled."""
        while True:
            registration = self._membership.registration
            if registration is not self._confirmed:
                try:
                    is_open = await self._record.is_open()
                except ClusterError:
                    is_open = False
                if not is_open:
                    await anyio.sleep(_LOOK_S)
                    continue
                self._confirmed = registration
                log.info("acknowledges_from_disk_again")
                self._hub.notify_pending()
            await registration.lost.wait()
            log.warning("acknowledges_only_stored_records")
            await self._membership.renewed_after(registration)
