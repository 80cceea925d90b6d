"""The chain's part of the record `/journals/<broker>`: the term it is written under, and the piece at which reading begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pydanube_core.errors import Unavailable
from pydanube_storage.metadata import MetadataStore, ModRevision, Put
from pydanube_storage.metadata.errors import GuardFailed

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.cluster.journal_record import JournalRecord, JournalState


class ChainRecord:
    """The record of one of several brokers, which its registration has made. A lone broker has none.

    Args:
        take_over: others take all topics over when this broker's lease ends (`lease_guard`).
    """

    def __init__(
        self, metadata: MetadataStore, broker_id: BrokerId, journal: int, *, take_over: bool = False
    ) -> None:
        self._on_loss = "take_over" if take_over else ""
        self._metadata = metadata
        self._key = keys.journal_key(broker_id)
        self._journal = journal

    async def copied(self, from_piece: int) -> int | None:
        """Record that this journal is copied. Return the term of its chain, or None while other brokers take it over.

        `from_piece`: the piece at which reading begins. A lone broker that joins a cluster brings it along.
        """
        record = await self._change(
            lambda found: replace(
                found, copies=True, on_loss=self._on_loss, from_piece=max(found.from_piece, from_piece)
            )
        )
        return record.term if record.state is JournalState.OPEN else None

    async def waits(self) -> None:
        """Record that the topics of this broker wait for it, because its chain lacks records that its disk has."""
        await self._change(lambda found: replace(found, on_loss=""))

    async def leaves(self) -> None:
        """Record that this broker stops, and that its chain has all that it has acknowledged."""
        await self._change(lambda found: replace(found, is_whole=True))

    async def is_open(self) -> bool:
        """Return whether no other broker takes topics over from this journal."""
        return (await self._change(lambda found: found)).state is JournalState.OPEN

    async def begins_at(self, number: int) -> None:
        """Record the piece at which reading begins. Raises `Unavailable` while the journal is taken over."""
        record = await self._change(lambda found: replace(found, from_piece=max(found.from_piece, number)))
        if record.state is not JournalState.OPEN:
            raise Unavailable("other brokers read the chain of this journal: nothing of it is deleted now")

    async def _change(self, change: Callable[[JournalRecord], JournalRecord]) -> JournalRecord:
        """Change the record while it is open and of this journal. Return the result. Raises `MetadataUnavailable`."""
        while True:
            item = await self._metadata.get(self._key)
            if item is None:
                raise Unavailable(f"this broker has no record {self._key} yet")
            found = JournalRecord.from_json(item.value, key=self._key)
            if found.journal != self._journal:
                raise Unavailable(f"{self._key} names another journal of this broker")
            if found.state is not JournalState.OPEN:
                return found
            after = change(found)
            if after == found:
                return found
            try:
                await self._metadata.transact(
                    [Put(self._key, after.to_json())], guards=[ModRevision(self._key, item.mod_revision)]
                )
            except GuardFailed:
                continue
            return after
