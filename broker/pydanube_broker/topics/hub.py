"""All topics of a broker on its one journal. The hub notifies topics of durable records.

The hub owns the log states between recovery and the catalog. A state without a topic in the catalog belongs to a topic
that was deleted while the broker died, and is dropped.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from pydanube_core.errors import ClusterError, Fenced

from pydanube_broker.journal import Journal, RecordHeader, RecordKind
from pydanube_broker.status.health import ended
from pydanube_broker.topics.list_changes import ListChanges
from pydanube_broker.topics.log_state import (
    LogState,
    decode_head,
    encode_head,
    encode_trim_body,
    replay_record,
)
from pydanube_broker.topics.topic import ColdReader, Topic


class Hub:
    """The topics of one journal, and its `JournalOwner`."""

    def __init__(self) -> None:
        self.journal: Journal = None  # type: ignore[assignment]  # set when the journal is opened, before its use
        self.cold: ColdReader | None = None  # reads from the cold tier, once it is there
        self.tiering = False  # whether messages go to the cold tier before the journal deletes them
        self.connections: Iterator[int] = iter(())  # ids of connections, set with the registration
        self.changes = ListChanges()  # of listed values of the topics that are served here
        self.flush_first: set[int] = set()  # topics of which the journal should keep less
        self.states: dict[int, LogState] = {}
        self.topics: dict[int, Topic] = {}
        self.leaving: dict[int, Topic] = {}  # detached with records that were not safe yet
        self.failure: ClusterError | None = None
        self.trimmed_lsn = 0  # the newest record by which a topic deleted its oldest messages
        self.on_failure: Callable[[ClusterError], None] = lambda error: None
        self.on_fenced: Callable[[Fenced], None] = lambda error: None
        self.on_drop: Callable[[int], None] = lambda topic_id: None  # a topic was deleted
        # (durable at lsn, topic), of every record under way
        self._pending: deque[tuple[int, Topic]] = deque()
        # The same of topics that wait for the object store instead of the disk
        self._unstored: deque[tuple[int, Topic]] = deque()
        # The same of system topics, which are never taken over: the disk is always sufficient
        self._own: deque[tuple[int, Topic]] = deque()
        self._durable = self._stored = 0
        # Whether a record in the store counts as safe. It does once no start can succeed without the chain
        self.stores: Callable[[], bool] = lambda: False
        # Whether records must also be in the store, because other brokers may be taking topics over (`tier.lease_guard`)
        self.needs_store: Callable[[], bool] = lambda: False

    # -- JournalOwner ----------------------------------------------------------------------------------------

    def restore(self, head: memoryview) -> None:
        self.states = decode_head(head)

    def replay(self, header: RecordHeader, body: memoryview) -> None:
        replay_record(self.states, header, body)

    def encode_head(self) -> Sequence[bytes]:
        for topic in self.topics.values():
            for subscription in topic.subscriptions.values():
                subscription.store_snapshot()
        return encode_head(self.states.values())

    def durable(self, lsn: int) -> None:
        self._durable = lsn
        _reach(self._own, lsn)
        self.notify_pending()

    def stored(self, lsn: int) -> None:
        """Notify topics that wait for the object store: it has everything below `lsn`."""
        if self.failure is None:
            self._stored = lsn
            if self.stores():
                _reach(self._unstored, lsn)
            self.notify_pending()

    def await_store(self, lsn: int) -> None:
        """Have stored topics wait for the object store: a start without it has recovered everything below `lsn`."""
        for topic in self.topics.values():
            if topic.in_store:
                topic.await_store(lsn)
        self.stored(self._stored)  # the store may have caught up in the meantime

    def notify_pending(self) -> None:
        """Notify topics that wait for the disk, or while `needs_store` for the object store too."""
        if self._pending:
            _reach(self._pending, min(self._durable, self._stored) if self.needs_store() else self._durable)

    def fenced(self, error: Fenced) -> None:
        """Stop acknowledging and end: another process has the journal's chain."""
        self.journal.refuse(ended(error))
        self.on_fenced(error)

    def failed(self, error: ClusterError) -> None:
        self.failure = error
        for waiting in (self._pending, self._unstored, self._own):
            waiting.clear()
        for topic in (*self.topics.values(), *self.leaving.values()):
            topic.fail(error)
        self.on_failure(error)

    def begins(self) -> Mapping[int, int]:
        """Return topic → the address from which its batches are its own, for topics that came from another broker."""
        return {state.topic_id: state.since_lsn for state in self.states.values() if state.since_lsn}

    # -- for topics ------------------------------------------------------------------------------------------

    def appended(self, lsn: int, topic: Topic) -> None:
        waiting = self._unstored if topic.in_store else self._own if topic.is_system else self._pending
        waiting.append((lsn, topic))

    def set_stored(self, topic: Topic, *, in_store: bool) -> None:
        """Have a topic's records count once the object store has them, or once the disk has them."""
        former, other = self._pending, self._unstored
        if not in_store:
            former, other = other, former
        mine = [each for each in former if each[1] is topic]
        rest = [each for each in former if each[1] is not topic]
        former.clear()
        former.extend(rest)
        under_way = sorted([*other, *mine], key=lambda each: each[0])
        other.clear()
        other.extend(under_way)
        topic.in_store, topic.durability = in_store, "stored" if in_store else "fsynced"
        topic.changes.note(topic.name)
        self.notify_pending()

    async def settled(self) -> None:
        """Wait until everything that topics have appended so far is safe. Raises the error that prevents it."""
        waiting = (*self._pending, *self._unstored, *self._own)
        for topic in dict.fromkeys(topic for _, topic in waiting):
            await topic.settled()

    def add(self, topic: Topic) -> None:
        self.states[topic.topic_id] = topic.state
        self.topics[topic.topic_id] = topic

    def take_state(self, topic_id: int) -> LogState:
        """Return the state of a topic that the journal recovered, or a new one."""
        state = self.states.setdefault(topic_id, LogState(topic_id))
        state.fold_replayed()
        return state

    def fold_replayed(self) -> None:
        """After the replay, update the cursors, and topics that were opened before it.

        A topic that had just moved here from another broker may have arrived in the replayed tail, with its own state.
        """
        for state in self.states.values():
            state.fold_replayed()
        for topic_id, topic in self.topics.items():
            former, topic.state = topic.state, self.states.get(topic_id, topic.state)
            for (
                number,
                cursor,
            ) in former.cursors.items():  # of subscriptions that have none in the journal yet
                topic.state.cursors.setdefault(number, cursor)

    def forget_unknown(self, kept: Callable[[int], bool] = lambda topic_id: False) -> list[int]:
        """Drop states without a topic, except those kept for a restoration. Return their ids."""
        gone = [topic_id for topic_id in self.states if topic_id not in self.topics and not kept(topic_id)]
        for topic_id in gone:
            self.drop(topic_id)
        return gone

    def detach(self, topic_id: int) -> None:
        """Stop serving a topic. Its state and batches stay, so that it can be restored or opened again."""
        topic = self.topics.pop(topic_id, None)
        if topic is None or topic.position <= topic.safe:
            return

        def safe(error: ClusterError | None) -> None:
            if error is None:
                self.leaving.pop(topic_id, None)

        self.leaving[topic_id] = topic
        topic.when_safe(topic.position, safe)

    def drop(self, topic_id: int) -> None:
        """Note the deletion of a topic in the journal, and forget where its batches are."""
        state = self.states.pop(topic_id, None)
        self.topics.pop(topic_id, None)
        self.leaving.pop(topic_id, None)
        if state is not None and state.opened:
            # Without room for it, the next start drops the topic again, because the catalog does not have its id.
            with contextlib.suppress(ClusterError):
                self.journal.append(RecordKind.TOPIC_CLOSE, topic_id, [])
        self.journal.drop_topic(topic_id)
        self.on_drop(topic_id)

    def forget(self, topic_id: int) -> None:
        """Forget a topic whose batches in the journal no longer belong to it."""
        self.states.pop(topic_id, None)
        self.topics.pop(topic_id, None)
        self.journal.drop_topic(topic_id)

    def give_up(self, topic_id: int, offset: int) -> None:
        """Let the journal delete everything below an offset, or with a cold tier once the tier has it.

        A deleted topic that can be restored is treated like an existing one.
        """
        state = self.states.get(topic_id)
        if state is None or state.needed_offset >= offset:
            return
        if self.tiering:
            self.flush_first.add(topic_id)
        elif (topic := self.topics.get(topic_id)) is not None:
            topic.trim(offset)
        elif state.opened:
            self.trimmed_lsn = self.journal.append(
                RecordKind.TRIM_PREFIX, topic_id, [encode_trim_body(offset)]
            )
            state.start_offset = offset

    def collect(self) -> int:
        """Delete journal segments that no topic needs, but none while the record that permits it is not durable."""
        # Record and segments are on one disk, and only its recovery uses both, so durability on the disk is sufficient.
        if self.trimmed_lsn > self.journal.durable_lsn:
            return 0  # the next call is seconds away
        return self.journal.collect(
            lambda topic_id: self.states[topic_id].needed_offset if topic_id in self.states else None
        )


def _reach(pending: deque[tuple[int, Topic]], lsn: int) -> None:
    """Advance the topics of the records below an address, which are as durable as promised."""
    reached: dict[Topic, None] = {}
    while pending and pending[0][0] <= lsn:
        reached[pending.popleft()[1]] = None
    for topic in reached:
        topic.advance(lsn)
