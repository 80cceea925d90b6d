"""The leader's part in moves: cancel those without progress, assign anew topics that are not opened."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from pydanube_storage.metadata import GuardFailed, MetadataStore, Revision

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment, epoch_counter
from pydanube_broker.cluster.election import Leadership
from pydanube_broker.cluster.ids import BrokerId, Incarnation, TopicId
from pydanube_broker.cluster.move import LeaderView, Witnesses, leaders_change, transaction

log = logging.getLogger("pydanube.cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """The members as the leader needs them.

    alive: brokers that may be given a topic, those with the least load first.
    copying: those of them that rebuild a topic from the store, and copy one from its owner; not brokers of the release
        before.
    copied: bytes that each has copied since its start, as it told last.
    """

    alive: Mapping[BrokerId, Incarnation]
    copying: Collection[BrokerId]
    copied: Mapping[BrokerId, int]


class MoveLeader:
    """One for each time in office. `now_ms`: a clock that never goes back."""

    def __init__(self, store: MetadataStore, leadership: Leadership, *, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._leadership = leadership
        self._now_ms = now_ms
        # Per topic: the assignment's revision and the bytes that its target had copied, and when both were first seen
        self._since: dict[TopicId, tuple[tuple[Revision, int], int]] = {}

    async def look_after(self, topics: Iterable[TopicId], brokers: Brokers) -> None:
        """Take the leader's step for each of these moving topics, where one is due.

        Args:
            topics: those whose assignment was last seen at another stage than `serving`.

        Raises:
            Conflict: the leadership has ended.
            StoreUnavailable: the others wait for the next look.
        """
        topics = list(topics)
        self._since = {topic_id: self._since[topic_id] for topic_id in topics if topic_id in self._since}
        for topic_id in topics:
            await self.take_step(topic_id, brokers)

    async def take_step(self, topic_id: TopicId, brokers: Brokers) -> None:
        """Take the leader's step for one topic that is known to have one due."""
        item = await self._store.get(keys.assignment_key(topic_id))
        if item is None:
            return
        now = Assignment.of(item.key, item.value)
        progress = (item.mod_revision, brokers.copied.get(now.next_owner, 0))
        since = self._since.get(topic_id)
        if since is None or since[0] != progress:
            since = (progress, self._now_ms())
        self._since[topic_id] = since
        alive = brokers.alive
        if now.move is not None and now.move.from_store:
            alive = {broker: life for broker, life in alive.items() if broker in brokers.copying}
        counter = await epoch_counter(self._store, now.topic)
        standing = LeaderView(alive=alive, waited_ms=self._now_ms() - since[1], last_epoch=counter.epoch)
        change = leaders_change(now, item.mod_revision, standing)
        if change is None:
            return
        writes, guards = transaction(change, Witnesses(leadership=self._leadership, counter=counter))
        try:
            await self._store.transact(writes, guards=guards)
        except GuardFailed as error:
            if error.guard.key == keys.LEADER:
                raise
            log.info(
                "move_overtaken",
                extra={"topic": str(now.topic), "by": error.guard.key},
            )
        else:
            to = {
                "topic": str(now.topic),
                "broker": str(change.after.broker_id),
                "epoch": change.after.epoch,
            }
            log.info("move_step", extra={"step": change.step.value, **to})
