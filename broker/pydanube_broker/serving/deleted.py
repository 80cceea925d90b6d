"""Deleted topics that can be restored, as long as their grace lasts and the disk has room for them."""

from __future__ import annotations

import logging
from collections.abc import Container
from typing import Final

from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.topic import now_ms

log = logging.getLogger("pydanube.topics")

NEVER_MS: Final = 1 << 62


class Deleted:
    """Ends the grace of deletions. `given_up`: deletions that a full disk made final → end of the undoable undo.

    Args:
        several: whether other brokers keep some of them.
    """

    def __init__(self, catalog: TopicCatalog, hub: Hub, *, several: bool = False) -> None:
        self._several = several
        self._catalog = catalog
        self._hub = hub
        self.given_up: dict[str, int] = {}

    def place_cursors(self) -> None:
        """At the start, store cursors that never moved. The journal has none for them, yet they hold back retention."""
        for number, tombstone in self._catalog.restorable.subscriptions.items():
            state = self._hub.states.get(tombstone.topic_id)
            if state is not None:
                state.fold_replayed()
                state.cursors.setdefault(number, CursorSnapshot(floor=tombstone.spec.start_offset))

    async def forget(
        self, now_ms: int, longest_ms: int = NEVER_MS, *, among: Container[int] | None = None
    ) -> None:
        """Delete items whose grace has ended. `longest_ms`: the latest end of any grace. `among`: only these topics."""
        await self._catalog.tombstones.shorten(longest_ms)
        for topic_id in await self._catalog.forget_topics(now_ms, among):
            self._hub.drop(topic_id)
        for topic_id, subscription_id in await self._catalog.tombstones.forget_subscriptions(now_ms, among):
            if (state := self._hub.states.get(topic_id)) is not None:
                state.cursors.pop(subscription_id, None)

    def drop(self, topic_id: TopicId) -> None:
        """Delete the stored data of a topic whose grace another broker has ended, unless it was restored."""
        if (
            not self._catalog.restorable.keeps_data(topic_id)
            and self._catalog.index.topic_by_id(topic_id) is None
        ):
            self._hub.drop(topic_id)

    async def give_up(self) -> None:
        """Delete everything restorable that this broker keeps, to free the disk. Record which undos are lost."""
        now = now_ms()
        before = self._catalog.restorable.undoable(now)
        # a copy of epoch 0 is of a topic that another broker still keeps
        here = frozenset(topic_id for topic_id, state in self._hub.states.items() if state.epoch)
        await self.forget(NEVER_MS, among=here if self._several else None)
        gone = before.keys() - self._catalog.restorable.undoable(now).keys()
        self.given_up = {call_id: until for call_id, until in self.given_up.items() if until > now}
        self.given_up |= {call_id: before[call_id] for call_id in gone}
        if gone:
            log.warning("undo_given_up", extra={"call_ids": sorted(gone)[:10]})
