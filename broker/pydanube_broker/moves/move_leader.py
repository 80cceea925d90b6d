"""The leader's part in moves: cancel moves without progress, and reassign topics that are not opened."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import anyio
from pydanube_core.errors import ClusterError
from pydanube_storage.metadata import GuardFailed, MetadataStore, Revision

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.election import Leadership
from pydanube_broker.cluster.epochs import epoch_counter
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation, TopicId
from pydanube_broker.cluster.move_record import Stage
from pydanube_broker.moves.move import LeaderView, Preconditions, leaders_change, transaction

log = logging.getLogger("pydanube.cluster")

_AT_ONCE: Final = 16  # topics whose steps are taken concurrently


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """The members as the leader needs them.

    alive: brokers that may be given a topic, least loaded first.
    copying: brokers that can rebuild a topic from the store and copy one from its owner, all but those of the previous
        release.
    inheriting: brokers that can rebuild a topic from the chain of its lost owner.
    copied: bytes that each broker has copied since its start, as last reported.
    progress: by target and topic, a value that changes while the topic is copied. A topic that waits for its turn has
        none, and `copied` of its target counts instead.
    """

    alive: Mapping[BrokerId, Incarnation]
    copying: Collection[BrokerId]
    inheriting: Collection[BrokerId] = ()
    copied: Mapping[BrokerId, int]
    progress: Mapping[tuple[BrokerId, TopicId], object] = field(default_factory=dict)


class MoveLeader:
    """One for each term of a leader. `now_ms`: a clock that never goes back."""

    def __init__(self, store: MetadataStore, leadership: Leadership, *, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._leadership = leadership
        self._now_ms = now_ms
        # The broker of each assigned topic that was not open yet when the leader last looked.
        self._unopened: dict[TopicId, BrokerId] = {}
        # How many of these topics each broker has opened since. It rebuilds a part of them at once, and the others wait.
        self._opened: Counter[BrokerId] = Counter()
        # Per topic: the assignment and its target's progress, and when both were first seen.
        self._since: dict[TopicId, tuple[object, int]] = {}

    async def look_after(self, places: Iterable[Assignment], brokers: Brokers) -> None:
        """Take the leader's step for each of these moving topics for which one is due.

        Args:
            places: the assignments that were last seen at another stage than `serving`.

        Raises:
            Conflict: the leadership has ended.
            StoreUnavailable: the remaining topics wait for the next call.
        """
        places = list(places)
        # A topic that went to another broker, or came to this one, is no progress of this one.
        moving = {place.topic_id for place in places}
        self._opened.update(at for topic_id, at in self._unopened.items() if topic_id not in moving)
        self._unopened = {each.topic_id: each.broker_id for each in places if each.stage is Stage.ASSIGNED}
        since = {place.topic_id: self._since.get(place.topic_id) for place in places}
        self._since = {topic_id: found for topic_id, found in since.items() if found is not None}
        for place in places:
            # The watched assignment is checked first, so that progressing moves cost the store nothing.
            if leaders_change(place, Revision(0), self._view(place, brokers, place.epoch)) is not None:
                await self.take_step(place.topic_id, brokers)

    async def take_steps(self, topics: Iterable[TopicId], brokers: Brokers) -> None:
        """Take the step of each of these topics, some concurrently. Raises as `look_after`."""
        errors: list[ClusterError] = []
        limiter = anyio.CapacityLimiter(_AT_ONCE)

        async def take(topic_id: TopicId) -> None:
            async with limiter:
                try:
                    if not errors:
                        await self.take_step(topic_id, brokers)
                except ClusterError as error:
                    errors.append(error)

        async with anyio.create_task_group() as group:
            for topic_id in topics:
                group.start_soon(take, topic_id)
        if errors:
            raise errors[0]

    async def take_step(self, topic_id: TopicId, brokers: Brokers) -> None:
        """Read one topic's assignment, and take the leader's step for it if one is due."""
        item = await self._store.get(keys.assignment_key(topic_id))
        if item is None:
            return
        now = Assignment.of(item.key, item.value)
        counter = await epoch_counter(self._store, now.topic)
        change = leaders_change(now, item.mod_revision, self._view(now, brokers, counter.epoch))
        if change is None:
            return
        writes, guards = transaction(change, Preconditions(leadership=self._leadership, counter=counter))
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

    def _view(self, now: Assignment, brokers: Brokers, last_epoch: Epoch) -> LeaderView:
        target = now.next_owner
        copied = brokers.progress.get((target, now.topic_id), brokers.copied.get(target, 0))
        progress = now, copied, self._opened[target] if now.stage is Stage.ASSIGNED else None
        since = self._since.get(now.topic_id)
        if since is None or since[0] != progress:
            since = self._since[now.topic_id] = (progress, self._now_ms())
        alive = brokers.alive
        if now.move is not None and now.move.from_store:
            able = brokers.copying if now.move.chain is None else brokers.inheriting
            alive = {broker: life for broker, life in alive.items() if broker in able}
        return LeaderView(alive=alive, waited_ms=self._now_ms() - since[1], last_epoch=last_epoch)
