"""Deleted topics that can be restored: their last messages are tiered like any others.

Messages of such a topic that only the journal has keep all later records there, for the grace period of the deletion.
They are flushed by the same rules as before, so that they hold up the journal for `tier.flush_age` and not for a day.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, cast

from pydanube_core.errors import ClusterError, TopicNotFound
from pydanube_storage.catalog import ObjectCatalog

from pydanube_broker.cluster.deleting.tombstone_records import TopicTombstone
from pydanube_broker.cluster.records import TopicSpec
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.log_state import LogState
from pydanube_broker.topics.topic import Topic

_SLICE: Final = 1000
_AT_ONCE: Final = 50  # new topics per look, each with a read of the catalog


@dataclass(frozen=True, slots=True)
class _Options:
    """The settings of a topic that its objects record."""

    spec: TopicSpec

    @property
    def settings(self) -> Any:
        return self.spec.settings


class _Deleted:
    """A deleted topic in the form that the flusher takes."""

    subscriptions: MappingProxyType[str, Any] = MappingProxyType({})

    def __init__(self, hub: Hub, tombstone: TopicTombstone, state: LogState, epoch: int) -> None:
        self.topic_id = tombstone.topic_id
        self.name = tombstone.name
        self.options = _Options(tombstone.spec)
        self.state = state
        self.assigned_epoch = epoch
        self._hub = hub

    @property
    def start_offset(self) -> int:
        return self.state.start_offset

    @property
    def commit(self) -> int:
        """The commit offset. Messages under way at the deletion count once they are safe."""
        leaving = self._hub.leaving.get(self.topic_id)
        return self.state.next_offset if leaving is None else leaving.commit

    @property
    def closed(self) -> ClusterError | None:
        if self.topic_id in self._hub.states and self.topic_id not in self._hub.topics:
            return None
        return TopicNotFound(f"topic {self.name} was deleted", field="topic", value=self.name)

    def raise_tiered_offset(self, offset: int) -> None:
        self.state.tiered_offset = max(self.state.tiered_offset, offset)


class DeletedTopics:
    """Deleted topics whose last messages still go to the tier. Single user: the loop."""

    def __init__(
        self, hub: Hub, catalog: ObjectCatalog, tombstones: Callable[[], Iterable[TopicTombstone]]
    ) -> None:
        self._hub = hub
        self._catalog = catalog
        self._tombstones = tombstones
        self._known: dict[int, _Deleted] = {}

    async def look(self) -> list[Topic]:
        """Return the deleted topics with messages that only the journal has."""
        waiting = []
        for i, each in enumerate(list(self._tombstones())):
            if i % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            if self._waits(each.topic_id):
                waiting.append(each)
        self._known = {
            each.topic_id: self._known[each.topic_id] for each in waiting if each.topic_id in self._known
        }
        for tombstone in [each for each in waiting if each.topic_id not in self._known][:_AT_ONCE]:
            held = await self._catalog.head(tombstone.topic_id)
            if not self._waits(tombstone.topic_id):
                continue
            state = self._hub.states[tombstone.topic_id]
            epoch = state.epoch
            if held is not None:  # after a restart nothing else sets these
                epoch = max(epoch, held.head.epoch)
                state.tiered_offset = max(state.tiered_offset, held.head.tiered_offset)
                state.start_offset = max(state.start_offset, held.head.start_offset)
            if self._waits(tombstone.topic_id):
                self._known[tombstone.topic_id] = _Deleted(self._hub, tombstone, state, epoch)
        # `_Deleted` has only the part of a topic that a flush uses.
        return [cast("Topic", each) for each in self._known.values()]

    def _waits(self, topic_id: int) -> bool:
        state = self._hub.states.get(topic_id)
        return (
            state is not None and topic_id not in self._hub.topics and state.needed_offset < state.next_offset
        )
