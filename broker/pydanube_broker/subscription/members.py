"""The consumers attached to a subscription: their order, sessions and credit."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from enum import StrEnum

from pydanube_core.errors import ConsumerBusy, InvalidArgument

from pydanube_broker.subscription.consumer import Consumer
from pydanube_broker.subscription.effects import (
    Activated,
    Effect,
    SessionEnded,
    SessionReason,
    SessionStarted,
)
from pydanube_broker.subscription.handover import Handover, go_on
from pydanube_broker.subscription.routes.key_filters import check_key_filters
from pydanube_broker.subscription.routes.key_slots import KeySlots
from pydanube_broker.subscription.takers import Takers
from pydanube_broker.subscription.terms import ANY_SESSION, ConsumerTerms
from pydanube_broker.subscription.window import Window


class SubscriptionType(StrEnum):
    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    FAILOVER = "failover"
    KEY_SHARED = "key-shared"


class Members:
    """The consumers of one subscription, by arrival. Exclusive and failover send to the first."""

    __slots__ = (
        "_by_id", "_by_name", "_by_rank", "_ranks", "_sessions", "_type", "_window", "batched", "idle", "reporting",
        "slots", "takers",
    )  # fmt: skip

    def __init__(
        self, type: SubscriptionType, window: Window, slots: KeySlots | None, sessions: Iterator[int]
    ) -> None:
        self._type = type
        self._window = window
        self.slots = slots  # key-shared only
        self.takers = Takers()  # shared only
        self.reporting = 0  # consumers that report which messages their applications take
        self.batched = 0  # consumers that take more than one message at a time
        self._by_rank: dict[int, Consumer] = {}
        self._ranks = itertools.count()
        self._by_id: dict[int, Consumer] = {}
        self._by_name: dict[str, Consumer] = {}
        self._sessions = sessions
        # Sessions by name of consumers that held nothing at the former owner and have not reconnected yet.
        self.idle: dict[str, int] = {}

    @property
    def consumers(self) -> Collection[Consumer]:
        """Return the consumers in their order."""
        return self._by_rank.values()

    def named(self, name: str) -> Consumer | None:
        return self._by_name.get(name)

    def find(self, consumer_id: int) -> Consumer | None:
        return self._by_id.get(consumer_id)

    def join(
        self, consumer_id: int, name: str, terms: ConsumerTerms, *, ack_timeout_ms: int, now_ms: int
    ) -> list[Effect]:
        """Attach a consumer, as `Subscription.join` does. `ack_timeout_ms` is the final value, 0 for none."""
        check_key_filters(self._type.value, terms.key_filters)
        same_id = self.find(consumer_id)
        if same_id is not None and same_id.name != name:
            raise InvalidArgument(
                f"consumer_id: {consumer_id} is attached as {same_id.name!r}",
                field="consumer_id",
                value=consumer_id,
            )
        if self._type is SubscriptionType.EXCLUSIVE:
            for holder in [one for one in self.consumers if one.absent and one.name != name]:
                # A reserved place does not outlast the join of another consumer
                self.leave(holder.consumer_id)
        old = self.named(name)
        if self._type is SubscriptionType.EXCLUSIVE and self.consumers and old is None:
            busy = next(iter(self.consumers)).name
            raise ConsumerBusy(
                f"the exclusive subscription is held by consumer {busy!r}. Disconnect it, use its name to take "
                f"over, or subscribe as failover",
                field="consumer",
                value=name,
                holder=busy,
            )
        if self.slots is not None and old is None:
            self.slots.check_room()
        effects: list[Effect] = []
        idle = self.idle.pop(name, None)
        if old is not None:
            del self._by_id[old.consumer_id]
            effects.append(
                SessionEnded(
                    consumer_id=old.consumer_id, session=old.session, reason=SessionReason.TAKEN_OVER
                )
            )
        consumer = Consumer(
            consumer_id=consumer_id,
            name=name,
            session=next(self._sessions),
            ack_timeout_ms=ack_timeout_ms,
            terms=terms,
            now_ms=now_ms,
        )
        # A take-over keeps the place: a standby that reconnects does not go to the end of the line.
        # But in failover, a consumer that was set aside goes behind the one that took over.
        last = old is None or (old.set_aside and self._type is SubscriptionType.FAILOVER)
        rank = None if old is None or last else old.rank
        if old is not None:
            self._remove(old, replaced=not last)
        self._add(consumer, rank)
        if self.slots is not None:
            if old is None:
                self.slots.add(consumer, self._window)
            else:
                self.slots.replace(old, consumer, self._window)
        if old is not None and old.absent and terms.resumes in (old.session, ANY_SESSION):
            go_on(self._window, old, consumer, now_ms)
            if self.slots is not None:
                self.slots.took_over(consumer)
            consumer.resumed = True
        elif old is not None:
            self._release(old)
        elif idle is not None and terms.resumes in (idle, ANY_SESSION):
            consumer.resumed = True
        self._window.version += 1
        effects.append(self._session_started(consumer, SessionReason.JOINED))
        if self._type is SubscriptionType.FAILOVER and self.active is consumer:
            effects.append(Activated(consumer_id=consumer_id))
        return effects

    def reserve_places(self, handover: Handover) -> list[Consumer]:
        """Add places for consumers that have not yet reconnected since the topic moved here. Return them."""
        absent = []
        for number, each in enumerate(handover.consumers, 1):
            consumer = Consumer(
                consumer_id=-number,  # no connection has a negative id
                name=each.consumer,
                session=each.session,
                ack_timeout_ms=0,
                terms=ConsumerTerms(),
            )
            consumer.keeps = each.ranges
            self._add(consumer)
            if self.slots is not None:
                self.slots.add(consumer, self._window)
            absent.append(consumer)
        return absent

    @property
    def active(self) -> Consumer | None:
        """Return the consumer that exclusive and failover send to: the first that is not set aside."""
        for consumer in self.consumers:
            if not consumer.set_aside:
                return consumer
        return None

    def leave(self, consumer_id: int) -> None:
        """Detach a consumer and make the messages it held ready. Unknown ids are ignored."""
        consumer = self._by_id.pop(consumer_id, None)
        if consumer is None:
            return
        self._remove(consumer)
        if self.slots is not None:
            self.slots.remove(consumer, self._window)
        self._release(consumer)
        self._window.version += 1

    def to_the_end(self, consumer: Consumer) -> None:
        """Put an attached consumer behind all others."""
        self._remove(consumer)
        self._add(consumer)

    def _add(self, consumer: Consumer, rank: int | None = None) -> None:
        """Add a consumer, at the rank of its predecessor if given, else behind all others."""
        consumer.rank = next(self._ranks) if rank is None else rank
        self._by_rank[consumer.rank] = consumer
        self._by_id[consumer.consumer_id] = consumer
        self._by_name[consumer.name] = consumer
        self.batched += not consumer.single
        self.reporting += consumer.reports
        if self._type is SubscriptionType.SHARED:
            consumer.notes = self.takers.changed
            consumer.changed()

    def _remove(self, consumer: Consumer, *, replaced: bool = False) -> None:
        """Remove a consumer. If it is replaced, the entry of its rank stays, and so the order."""
        if not replaced:
            del self._by_rank[consumer.rank]
        del self._by_name[consumer.name]
        self.batched -= not consumer.single
        self.reporting -= consumer.reports
        consumer.notes = None
        self.takers.remove(consumer)

    def grant(self, consumer_id: int, messages: int, size_bytes: int) -> None:
        """Add credit to a consumer. Unknown ids are ignored.

        Raises `InvalidArgument` if the credit is negative.
        """
        if messages < 0 or size_bytes < 0:
            raise InvalidArgument(
                "credit is added, never taken away. Give 0 or more", field="messages", value=messages
            )
        consumer = self.find(consumer_id)
        if consumer is not None:
            had_credit = consumer.has_credit
            consumer.credit_messages += messages
            if consumer.credit_bytes is not None:
                consumer.credit_bytes += size_bytes
            consumer.changed()
            if self.slots is not None and not had_credit and consumer.has_credit:
                self.slots.recheck_held = True

    def pause(self, consumer_id: int) -> None:
        """Plan nothing more for a consumer until `resume`. Unknown ids are ignored."""
        consumer = self.find(consumer_id)
        if consumer is not None:
            consumer.paused = True
            consumer.changed()

    def resume(self, consumer_id: int) -> None:
        """Plan for a paused consumer again. Unknown ids are ignored."""
        consumer = self.find(consumer_id)
        if consumer is not None and consumer.paused:
            consumer.paused = False
            consumer.changed()
            if self.slots is not None and consumer.has_credit:
                self.slots.recheck_held = True

    def renew_sessions(self) -> list[Effect]:
        """Give every consumer a new session, after a seek."""
        return [self._renew(consumer, SessionReason.SEEK) for consumer in self.consumers]

    def end_session(self, consumer: Consumer, reason: SessionReason) -> Effect:
        """End a consumer's session and make the messages it holds ready again. It stays attached."""
        self._release(consumer)
        self._window.version += 1
        return self._renew(consumer, reason)

    def _renew(self, consumer: Consumer, reason: SessionReason) -> Effect:
        consumer.session = next(self._sessions)
        consumer.unhandled.clear()
        return self._session_started(consumer, reason)

    def _session_started(self, consumer: Consumer, reason: SessionReason) -> SessionStarted:
        return SessionStarted(
            consumer_id=consumer.consumer_id,
            session=consumer.session,
            offset=self._window.floor,
            reason=reason,
        )

    def _release(self, consumer: Consumer) -> None:
        """Make all messages that a consumer holds ready. O(its flights)."""
        for flight in tuple(consumer.flights):
            mask = flight.mask
            self._window.end_flight(flight, mask)
            self._window.count_return(flight.chunk, mask, failed=False)
            self._window.make_ready(flight.chunk, mask)
