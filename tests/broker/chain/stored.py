"""Waiting for the chain of a broker's journal."""

from __future__ import annotations

from pydanube_broker.broker import Broker

from tests.support.waiting import until


async def all_stored(broker: Broker) -> None:
    """Wait until the store has all durable records of the journal."""

    def is_stored() -> bool:
        found = broker.chain.statistics()
        return found is not None and found.stored_lsn >= broker.journal.durable_lsn

    await until(is_stored)
