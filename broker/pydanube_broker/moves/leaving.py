"""Choose the topics that a draining broker hands over next.

The topics wait in two queues. The owner of a quiet topic stops immediately, so few quiet topics move concurrently. The
other topics are copied first. Both queues are filled again once they are empty, which finds new topics and those whose
move failed. Such a topic is chosen again after 1 s, doubled with each failure up to `LONGEST_PAUSE_S`.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, TopicId
from pydanube_broker.cluster.records import DispatchStrategy, TopicRecord
from pydanube_broker.moves.mover import STOPPED_AT_ONCE, Mover
from pydanube_broker.serving.registry import Registry
from pydanube_broker.slices import Slices
from pydanube_broker.topics.hub import Hub

# Maximum of concurrent moves.
CONCURRENT: Final = 200
# Maximum size in bytes of a quiet topic without its older messages. Its copy takes a moment.
QUIET_BYTES: Final = 256 << 10
LONGEST_PAUSE_S: Final = 60.0
# Minimum time in seconds between two fillings of the queues, which look at every topic.
_FILL_S: Final = 0.2


class Leaving:
    """See the module. Single user: the loop."""

    def __init__(self, registry: Registry, hub: Hub, mover: Mover) -> None:
        self._registry = registry
        self._hub = hub
        self._mover = mover
        self._quiet: deque[TopicRecord] = deque()
        self._others: deque[TopicRecord] = deque()
        self._left = 0
        self._filled_s = 0.0
        # By topic: begin of its newest failed move, number of failures, earliest time of the next move
        self._failed: dict[TopicId, tuple[int, int, float]] = {}

    @property
    def is_empty(self) -> bool:
        """Return whether the newest filling of the queues found no topic at this broker."""
        return not self._left

    def reset(self) -> None:
        """Forget failures and queues, because the drain has ended."""
        self._quiet.clear()
        self._others.clear()
        self._failed.clear()
        self._filled_s = 0.0

    async def next(self) -> tuple[list[TopicRecord], set[TopicId]]:
        """Return the topics whose moves are to begin now, and which of them are quiet."""
        now_s = time.monotonic()
        if not (self._quiet or self._others) and now_s >= self._filled_s + _FILL_S:
            await self._fill()
        chosen: list[TopicRecord] = []
        quiet: set[TopicId] = set()
        room = STOPPED_AT_ONCE - self._mover.stopped()
        while self._quiet and room > 0:
            record = self._quiet.popleft()
            if not self._may_leave(record, now_s):
                continue
            if not self._is_quiet(record):
                self._others.append(record)
                continue
            room -= 1
            chosen.append(record)
            quiet.add(record.topic_id)
        room = CONCURRENT - len(self._mover.participants) - len(chosen)
        while self._others and room > 0:
            record = self._others.popleft()
            if self._may_leave(record, now_s):
                room -= 1
                chosen.append(record)
        return chosen, quiet

    def avoid(self, records: list[TopicRecord]) -> dict[TopicId, BrokerId]:
        """Return the brokers to which topics could not be moved the last time."""
        found = {}
        for record in records:
            place = self._place(record)
            if place is not None and place.failed is not None:
                found[record.topic_id] = BrokerId(int(place.failed.target))
        return found

    async def _fill(self) -> None:
        slices, self._left = Slices(), 0
        served = [topic.options for topic in self._registry.topics if not topic.options.topic.is_audit]
        for record in [*served, *self._restorable()]:
            await slices()
            self._left += 1
            if not self._registry.ownership.is_moving(record.topic_id):
                (self._quiet if self._is_quiet(record) else self._others).append(record)
        self._filled_s = time.monotonic()

    def _restorable(self) -> list[TopicRecord]:
        """Return the restorable topics whose data is at this broker."""
        catalog, coordinator = self._registry.catalog, self._registry.ownership.coordinator
        found = [
            catalog.restorable.record(topic_id)
            for topic_id in catalog.restorable.topics
            if topic_id in coordinator.assignments
        ]
        return [
            record
            for record in found
            if record is not None and record.dispatch_strategy is not DispatchStrategy.NON_RELIABLE
        ]

    def _place(self, record: TopicRecord) -> Assignment | None:
        return self._registry.ownership.coordinator.place(record.topic_id)

    def _may_leave(self, record: TopicRecord, now_s: float) -> bool:
        """Return whether a topic is still here, does not move, and its pause since a failure is over."""
        ownership, place = self._registry.ownership, self._place(record)
        if place is None or str(place.broker_id) != ownership.me.broker_id:
            return False
        if ownership.is_moving(record.topic_id):
            return False
        if place.failed is None:
            return True
        begun_at_ms, failures, again_s = self._failed.get(record.topic_id, (0, 0, 0.0))
        if begun_at_ms != place.failed.begun_at_ms:
            again_s = now_s + min(LONGEST_PAUSE_S, 2.0**failures)
            self._failed[record.topic_id] = place.failed.begun_at_ms, failures + 1, again_s
        return now_s >= again_s

    def _is_quiet(self, record: TopicRecord) -> bool:
        state = self._hub.states.get(record.topic_id)
        if state is None:
            return True
        return self._hub.journal.stored_bytes(record.topic_id, state.needed_offset) <= QUIET_BYTES
