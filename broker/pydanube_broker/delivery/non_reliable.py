"""Delivery of a non-reliable topic: from memory to connected consumers, without cursor or redelivery.

`LivePump` takes the place of a reliable topic's `SubscriptionPump`, with the same interface. A published
batch is offered to the consumers' queues immediately and never waits: messages that do not fit are dropped
and counted, for the consumer, the subscription and the topic. So a slow consumer loses messages without an
effect on others.

* exclusive, failover: all to the active consumer. When it leaves, its unsent messages go to the next.
* shared: the batch to the next consumer in turn with room for it, the rest to those after it. Message by
  message if all consumers take single messages.
* key-shared: by the key, see `live_routing`. Messages whose key no consumer accepts are dropped.

Acknowledgements have no effect and are accepted, so that the same consumer works on both kinds of topics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from pydanube_core.batch.select import key_slots
from pydanube_core.cursor_state import CursorState
from pydanube_core.errors import ClusterError, ConsumerBusy, InvalidArgument

from pydanube_broker.delivery.attendance import Attendance
from pydanube_broker.delivery.cursor_moves import CursorMoves
from pydanube_broker.delivery.dispatch_rate import DispatchRate
from pydanube_broker.delivery.engine import DeliveryEngine
from pydanube_broker.delivery.link import ConsumerLink
from pydanube_broker.delivery.reader_pump import FRAME_BYTES
from pydanube_broker.journal.tail_cache import CachedBatch
from pydanube_broker.outcome import OutcomeCallback
from pydanube_broker.subscription.batch_columns import BatchColumns, producer_bytes
from pydanube_broker.subscription.consumer import ConsumerStatistics, Standing
from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.subscription.live_queue import Indices, LiveQueue, all_of, array_of
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.policy import FailurePolicy
from pydanube_broker.subscription.ranges import Range
from pydanube_broker.subscription.routes.key_filters import key_pattern
from pydanube_broker.subscription.routes.live_routing import KeyOwners
from pydanube_broker.subscription.statistics import SubscriptionStatistics
from pydanube_broker.subscription.subscription_policy import SubscriptionPolicy
from pydanube_broker.subscription.terms import ConsumerTerms
from pydanube_broker.topics.memory_topic import MemoryTopic

QUEUE_FULL: Final = "queue_full"
NO_CONSUMER: Final = "no_consumer"
KEY_REFUSED: Final = "key_refused"
CONSUMER_GONE: Final = "consumer_gone"


class LiveConsumer:
    """One attached consumer: its queue, its credit, and how many messages it lost."""

    def __init__(self, link: ConsumerLink, name: str, session: int, terms: ConsumerTerms) -> None:
        self.link = link
        self.name = name
        self.session = session
        self.single = terms.single
        self.pattern = key_pattern(terms.key_filters) if terms.key_filters else None
        self.queue = LiveQueue()
        self.credit_messages = terms.credit_messages
        self.credit_bytes = terms.credit_bytes or 0
        # A client with a window grants nothing, and its acknowledgements are ignored: only its connection
        # limits it.
        self.unlimited = terms.window_messages is not None
        self.delivered = 0
        self.dropped = 0

    @property
    def ready(self) -> bool:
        """Return whether a frame can be sent."""
        has_credit = self.unlimited or (self.credit_messages > 0 and self.credit_bytes > 0)
        return bool(self.queue) and has_credit and self.link.writable

    def send(self, topic: MemoryTopic, at_most: int | None = None) -> int:
        """Send one frame of queued messages. Return how many. Call it only while `ready`."""
        frame = self.link.frame(self.session)
        left = self.queue.messages if at_most is None else at_most
        if not self.unlimited:
            left = min(left, self.credit_messages)
        while self.queue and left > 0 and frame.stored_bytes < FRAME_BYTES:
            if not self.unlimited and self.credit_bytes <= 0:
                break
            piece = self.queue.take(left)
            assert piece is not None
            batch, indices = piece
            cost = frame.add_selected(BatchColumns(batch), indices, 1)
            left -= len(indices)
            self.credit_messages -= len(indices)
            self.credit_bytes -= cost
        sent: int = frame.messages
        self.delivered += sent
        topic.sent(sent, frame.stored_bytes)
        self.link.deliver(frame)
        return sent


class LivePump:
    """One subscription of a non-reliable topic. Only its name and type, in the catalog, survive a restart."""

    attendance = Attendance()  # empty: consumers that come, go or answer leave no trace
    moves = CursorMoves()
    needs_keys = False

    def __init__(
        self,
        name: str,
        subscription_id: int,
        type: SubscriptionType,
        topic: MemoryTopic,
        engine: DeliveryEngine,
        *,
        created_at_ms: int,
    ) -> None:
        self.name = name
        self.subscription_id = subscription_id
        self.type = type
        self.topic = topic
        self.created_at_ms = created_at_ms
        self.policy = SubscriptionPolicy(failure=FailurePolicy())  # kept in case the topic becomes reliable
        self.queued = False
        self.closed: ClusterError | None = None
        self.delivered = 0
        self.dropped: Counter[str] = Counter()
        self.links: dict[int, ConsumerLink] = {}
        self._engine = engine
        self._consumers: list[LiveConsumer] = []  # by arrival
        self._turn = 0
        self._owners: KeyOwners | None = None
        self._rate = DispatchRate(topic, engine.deadlines)
        self.due_at_ms: int | None = None
        self._key = (topic.name, name)  # its key in lists
        topic.subscriptions[name] = self
        topic.changes.note(topic.name)

    # -- facts -----------------------------------------------------------------------------------------------

    @property
    def cursor(self) -> CursorSnapshot:
        """Return a cursor at the end of the topic: none is stored, and there is no lag."""
        return CursorSnapshot(floor=self.topic.commit)

    @property
    def floor(self) -> int:
        return self.topic.commit

    def store_snapshot(self) -> None:
        """Do nothing: a non-reliable topic stores nothing."""

    def session_of(self, consumer_id: int) -> int:
        return 0 if (found := self._find(consumer_id)) is None else found.session

    def cursor_state(self, now_ms: int) -> CursorState:
        """Return a state at the end of the topic. `in_flight` counts the queued messages."""
        head, queued = self.topic.commit, sum(one.queue.messages for one in self._consumers)
        return CursorState(now_ms, head, head, head, 0, queued, len(self.links), dropped=self.dropped.total())

    @property
    def stamp(self) -> Any:
        """Return a value for a sampler to compare with the last round's: it differs if anything happened."""
        return self.topic.commit, self.delivered, len(self.links)

    def resumed(self, consumer_id: int) -> bool:
        """Return False: messages in flight are gone."""
        return False

    def is_active(self, consumer_id: int) -> bool:
        return self.type is not SubscriptionType.FAILOVER or next(iter(self.links), None) == consumer_id

    def statistics(self) -> SubscriptionStatistics:
        """Return the same facts as for a reliable subscription. `in_flight` counts the queued messages."""
        queued = sum(consumer.queue.messages for consumer in self._consumers)
        return SubscriptionStatistics(
            floor=self.topic.commit,
            next_offset=self.topic.commit,
            end=self.topic.commit,
            generation=0,
            in_flight=queued,
            ready=0,
            pending_retries=0,
            redelivered=0,
            acknowledged=0,
            dead_lettered=0,
            dropped=self.dropped.total(),
            expired=0,
            stale_answers=0,
            unrouted=self.dropped[KEY_REFUSED],
            blocked_by=None,
            consumers=tuple(
                ConsumerStatistics(
                    consumer_id=consumer.link.consumer_id,
                    name=consumer.name,
                    session=consumer.session,
                    active=self.is_active(consumer.link.consumer_id),
                    credit_messages=consumer.credit_messages,
                    credit_bytes=consumer.credit_bytes,
                    in_flight=consumer.queue.messages,
                    delivered=consumer.delivered,
                    expired=0,
                    standing=Standing.ANSWERING,
                    standing_ms=None,
                    oldest_in_flight_age_ms=None,
                    slots=None,
                    dropped=consumer.dropped,
                )
                for consumer in self._consumers
            ),
        )

    def worst_failure(self) -> None:
        """Return None: nothing is delivered twice, so nothing fails."""

    def failing(self) -> int:
        """Return 0: nothing fails."""
        return 0

    def answered_late(self) -> int:
        """Return 0: nothing expires."""
        return 0

    def _find(self, consumer_id: int) -> LiveConsumer | None:
        return next((one for one in self._consumers if one.link.consumer_id == consumer_id), None)

    # -- consumers -------------------------------------------------------------------------------------------

    def join(self, link: ConsumerLink, name: str, terms: ConsumerTerms) -> int:
        """Attach a consumer. Return its session.

        Raises `ConsumerBusy`, `InvalidArgument`, `LimitReached`. Nothing has changed then.
        """
        if self.closed is not None:
            raise self.closed
        if terms.key_filters and self.type is not SubscriptionType.KEY_SHARED:
            raise InvalidArgument(
                f"key_filters: a {self.type.value} subscription has none. Subscribe as key-shared",
                field="key_filters",
                value=list(terms.key_filters),
            )
        place = next((i for i, one in enumerate(self._consumers) if one.name == name), None)
        if self.type is SubscriptionType.EXCLUSIVE and self._consumers and place is None:
            holder = self._consumers[0].name
            raise ConsumerBusy(
                f"the exclusive subscription is held by consumer {holder!r}. Disconnect it, use its name to take "
                "over, or subscribe as failover",
                field="consumer",
                value=name,
                holder=holder,
            )
        if place is None:
            self.topic.check_consumer(len(self._consumers))
        consumer = LiveConsumer(link, name, next(self.topic.sessions), terms)
        if place is None:
            self._consumers.append(consumer)
        else:
            former = self._consumers[place]
            consumer.queue = former.queue  # its unsent messages go to its successor
            self._consumers[place] = consumer
            former.link.end(
                ConsumerBusy(
                    f"another connection took the consumer's place in {self.name}",
                    field="consumer",
                    reason="taken_over",
                )
            )
        self._members_changed()
        self.wake()
        return consumer.session

    def leave(self, consumer_id: int) -> None:
        consumer = self._find(consumer_id)
        if consumer is None:
            return
        was_active = self._consumers[0] is consumer
        self._consumers.remove(consumer)
        self._members_changed()
        for batch, indices in consumer.queue.drain():
            if self._consumers:
                self._route(batch, indices)
            else:
                self._drop(CONSUMER_GONE, len(indices))
        if self.type is SubscriptionType.FAILOVER and was_active and self._consumers:
            self._consumers[0].link.activated()
        self.wake()

    def _members_changed(self) -> None:
        self.links = {one.link.consumer_id: one.link for one in self._consumers}
        self.topic.changes.note(self.topic.name)
        self._turn = 0
        if self.type is SubscriptionType.KEY_SHARED:
            filters = {one.name: one.pattern for one in self._consumers if one.pattern is not None}
            self._owners = KeyOwners([one.name for one in self._consumers], filters)

    def grant(self, consumer_id: int, messages: int, size_bytes: int) -> None:
        consumer = self._find(consumer_id)
        if consumer is not None:
            consumer.credit_messages += messages
            consumer.credit_bytes += size_bytes
            self.wake()

    def flowing(self, consumer_id: int) -> None:
        """Wake up: the consumer's connection takes messages again."""
        self.wake()

    # -- answers: there is nothing to answer for -------------------------------------------------------------

    def ack(
        self, consumer_id: int, session: int, ranges: Sequence[Range], masks: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Do nothing: nothing is kept that could be acknowledged."""

    def nack(
        self, consumer_id: int, session: int, ranges: Sequence[Range], delay_ms: int, reason: str
    ) -> None:
        """Do nothing: nothing is kept that could be delivered again."""

    def ack_delivered(self, ranges: Sequence[Range]) -> None:
        """Do nothing: nothing is kept that could be acknowledged."""

    def nack_delivered(self, ranges: Sequence[Range], delay_ms: int, reason: str) -> None:
        """Do nothing: nothing is kept that could be delivered again."""

    def extend(self, consumer_id: int, session: int, ranges: Sequence[Range], extension_ms: int) -> None:
        """Do nothing: nothing expires here."""

    def taken(self, consumer_id: int, session: int, total: int, *, busy: bool) -> None:
        """Do nothing: nothing expires here."""

    def given_back(self, consumer_id: int, session: int, ranges: Sequence[Range]) -> None:
        """Do nothing: nothing was recalled."""

    def ack_timeout_ms(self, requested_ms: int | None) -> int:
        """Return 0: nothing expires here."""
        return 0

    def terminate(self, consumer_id: int, session: int, ranges: Sequence[Range], reason: str) -> None:
        """Do nothing: nothing is kept that could be given up."""

    def confirm(self, done: OutcomeCallback) -> None:
        """Confirm immediately: there is nothing to wait for."""
        done(None)

    def seek(self, offset: int, *, by: str | None = None) -> None:
        """Drop queued messages and give the consumers new sessions. Every position means now."""
        for consumer in self._consumers:
            lost = sum(len(indices) for _, indices in consumer.queue.drain())
            consumer.dropped += lost
            self._drop("seek", lost)
            consumer.session = next(self.topic.sessions)
            consumer.link.session_changed(consumer.session, self.topic.commit, "seek")

    def restore_cursor(self, cursor: CursorSnapshot) -> None:
        """Do nothing: the topic stores nothing to go back to."""

    def skip(self, count: int) -> Range | None:
        """Return None: there is nothing to skip."""
        return None

    def purge(self) -> None:
        """Drop the messages queued for all consumers."""
        self.seek(self.topic.commit)

    def exhausted_by(self, policy: SubscriptionPolicy) -> int:
        """Return 0: nothing is delivered twice."""
        return 0

    def set_policy(self, policy: SubscriptionPolicy) -> None:
        """Keep the policy, which has no effect: nothing is delivered twice."""
        self.policy = policy

    def write_cursor(self) -> None:
        """Do nothing: there is no cursor."""

    # -- deliver ---------------------------------------------------------------------------------------------

    def offer(self, batch: CachedBatch) -> None:
        """Queue a published batch for the consumers. O(consumers), never waits."""
        if self._consumers:
            self._route(batch, all_of(batch))
            self.topic.changes.note(self._key)
            turns = self._engine.turns
            (turns.at_once if batch.count == 1 else turns.wake)(self)  # a lone message is sent immediately
        else:
            self._drop(NO_CONSUMER, batch.count)

    def _route(self, batch: CachedBatch, indices: Indices) -> None:
        match self.type:
            case SubscriptionType.EXCLUSIVE | SubscriptionType.FAILOVER:
                self._give(self._consumers[0], batch, indices)
            case SubscriptionType.SHARED:
                self._share(batch, indices)
            case SubscriptionType.KEY_SHARED:
                self._by_key(batch, indices)

    def _give(self, consumer: LiveConsumer, batch: CachedBatch, indices: Indices) -> None:
        lost = len(indices) - consumer.queue.offer(batch, indices)
        if lost:
            consumer.dropped += lost
            self._drop(QUEUE_FULL, lost)

    def _share(self, batch: CachedBatch, indices: Indices) -> None:
        count = len(self._consumers)
        turns = [self._consumers[(self._turn + i) % count] for i in range(count)]
        if all(consumer.single for consumer in turns):
            indices = array_of(indices)
            for i, consumer in enumerate(turns):
                if len(part := indices[i::count]):
                    self._give_or_pass(consumer, turns, batch, part)
            self._turn = (self._turn + len(indices)) % count
            return
        best = next((one for one in turns if one.queue.room(batch) >= len(indices)), turns[0])
        self._give_or_pass(best, turns, batch, indices)
        self._turn = (self._consumers.index(best) + 1) % count

    def _give_or_pass(
        self, first: LiveConsumer, turns: Sequence[LiveConsumer], batch: CachedBatch, indices: Indices
    ) -> None:
        """Queue messages for one consumer, its overflow for the others, and drop the rest."""
        at = turns.index(first)
        for consumer in (*turns[at:], *turns[:at]):
            indices = indices[consumer.queue.offer(batch, indices) :]
            if not len(indices):
                return
        first.dropped += len(indices)
        self._drop(QUEUE_FULL, len(indices))

    def _by_key(self, batch: CachedBatch, indices: Indices) -> None:
        owners = self._owners
        assert owners is not None
        indices = array_of(indices)
        slots = key_slots(producer_bytes(batch))[indices]
        if owners.filtered:
            keys = BatchColumns(batch).keys
            who = owners.by_key([keys[i] for i in indices.tolist()], slots)
            refused = int(np.count_nonzero(who < 0))
            if refused:
                self._drop(KEY_REFUSED, refused)
        else:
            who = owners.by_slot(slots)
        for i, consumer in enumerate(self._consumers):
            mine = indices[who == i]
            if len(mine):
                self._give(consumer, batch, mine)

    def _drop(self, reason: str, count: int) -> None:
        if count:
            self.dropped[reason] += count
            self.topic.changes.note(self._key)
            self._engine.dropped[self.topic.name, reason] += count

    def wake(self) -> None:
        """Request a turn, and note the change for lists."""
        self.topic.changes.note(self._key)
        self._engine.turns.wake(self)

    def step(self) -> bool:
        """Send one frame to one consumer that can take it."""
        ready = [consumer for consumer in self._consumers if consumer.ready]
        if not ready or self.closed is not None:
            return False
        # The consumer with the fewest delivered messages goes first, so all get their frames in turn.
        consumer = min(ready, key=lambda one: one.delivered)
        allowed = self._rate.allowed(self)
        if allowed == 0:
            return False
        self.topic.changes.note(self._key)
        sent = consumer.send(self.topic, allowed)
        self.delivered += sent
        self._rate.sent(sent)
        return len(ready) > 1 or consumer.ready

    def tick(self) -> None:
        """Wake up: the dispatch rate permits more messages."""
        self.wake()

    def close(self, error: ClusterError) -> None:
        """End all consumers: the topic or the subscription is gone."""
        self.closed = error
        self.topic.changes.note(self._key)
        for link in list(self.links.values()):
            link.end(error)
        self._consumers.clear()
        self.links = {}
