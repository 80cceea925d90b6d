"""Set aside consumers that hang, put them on trial, and take them back.

A consumer *lets everything expire* when one of its deliveries runs into the ack timeout and it has answered
nothing since it was handed that delivery. More messages would only be delayed too, so it is set aside: it is
sent nothing, and the messages it let expire are ready immediately for the others.

Messages in the buffer of a consumer that reports do not expire. In key-shared and failover no other consumer
may be sent them. There a consumer is also set aside when it holds only such messages and its application took
nothing for an ack timeout.

* Shared: it keeps its session. The messages in its buffer are recalled, and a late ack counts.
* Key-shared: its slots move to the others. Failover: the next consumer takes over. In both, all messages it
  holds are ready again and a new session begins, so that its late answers are void. Otherwise two consumers
  could work on one key concurrently.

It is taken back when it answers. It is also taken back when no other consumer is left that takes all of its
messages, so an exclusive consumer, or the only one, is never set aside. After some ack timeouts, longer each
time, it is put on trial: it gets new messages one at a time, and the first answer ends the trial. A failover
consumer gets no trial, because it is the last in the line.
"""

from __future__ import annotations

from collections.abc import Container
from operator import attrgetter
from typing import Final

from pydanube_broker.subscription.chunk import Chunk
from pydanube_broker.subscription.consumer import Consumer, Standing
from pydanube_broker.subscription.effects import Activated, Effect, SessionReason
from pydanube_broker.subscription.members import Members, SubscriptionType
from pydanube_broker.subscription.planning import only_untaken_since
from pydanube_broker.subscription.window import Window

# Ack timeouts until the first trial. A trial that fails delays one message by another ack timeout.
FIRST_TRIAL_TIMEOUTS: Final = 4
MOST_DOUBLINGS: Final = 4

_rank: Final = attrgetter("rank")


class SettingAside:
    """Decides which consumers are set aside, and for how long."""

    __slots__ = ("_members", "_not_answering", "_stand_in", "_type", "_window", "next_trial_ms")

    def __init__(self, type: SubscriptionType, members: Members, window: Window) -> None:
        self._type = type
        self._members = members
        self._window = window
        self.next_trial_ms: int | None = None
        # Set aside or on trial. Consumers that have left stay here until the next use.
        self._not_answering: dict[Consumer, None] = {}
        self._stand_in: Consumer | None = None  # the last consumer found that takes the messages of others

    def let_expire(self, silent: Container[Consumer], now_ms: int) -> list[Effect]:
        """Set aside consumers that let everything expire, if others can take their messages. O(consumers)."""
        effects: list[Effect] = []
        for consumer in tuple(self._members.consumers):
            if consumer in silent and self.may_set_aside(consumer):
                effects += self._set_aside(consumer, now_ms)
        return effects

    def reported(self, consumer: Consumer, now_ms: int) -> list[Effect]:
        """Process a report of a consumer. Set it aside if its application took nothing for an ack timeout.

        O(in flight) in that case.
        """
        if self._type not in (SubscriptionType.KEY_SHARED, SubscriptionType.FAILOVER):
            return []  # shared: the messages in its buffer are recalled
        long_ago_ms = now_ms - consumer.ack_timeout_ms
        if max(consumer.took_at_ms, consumer.answered_at_ms) > long_ago_ms:
            return []
        if consumer.standing is not Standing.ANSWERING or not self.may_set_aside(consumer):
            return []
        waits_since_ms = only_untaken_since(self._window, consumer)
        if waits_since_ms is None or waits_since_ms > long_ago_ms:
            return []
        return self._set_aside(consumer, now_ms)

    def _set_aside(self, consumer: Consumer, now_ms: int) -> list[Effect]:
        active = self._members.active
        consumer.standing, consumer.standing_since_ms = Standing.SET_ASIDE, now_ms
        consumer.changed()
        self._not_answering[consumer] = None
        self._window.version += 1
        if self._type is not SubscriptionType.FAILOVER:
            doubled = FIRST_TRIAL_TIMEOUTS << min(consumer.trials, MOST_DOUBLINGS)
            consumer.trial_at_ms = now_ms + doubled * consumer.ack_timeout_ms
            consumer.trials += 1
            self.next_trial_ms = min(self.next_trial_ms or consumer.trial_at_ms, consumer.trial_at_ms)
        self.settle(now_ms, but=consumer)
        effects: list[Effect] = []
        if self._type is not SubscriptionType.SHARED:
            if self._members.slots is not None:
                self._members.slots.set_aside(consumer, self._window)
            effects.append(self._members.end_session(consumer, SessionReason.SET_ASIDE))
        return effects + self.activated(active)

    def answered(self, consumer: Consumer) -> None:
        """Note that a consumer has answered."""
        consumer.has_answered = True
        if consumer.standing is not Standing.ANSWERING:
            consumer.trials = 0
            self._take_back(consumer, Standing.ANSWERING, None)
            self._next()

    def answered_late(self, chunk: Chunk, mask: int) -> None:
        """Note late answers to messages that came back from their consumers and were not sent since."""
        for consumer_id, came_back in chunk.not_first.items():
            late = self._members.find(consumer_id) if came_back & mask else None
            if late is not None:
                self.answered(late)

    def due(self, now_ms: int) -> None:
        """Put consumers on trial whose trial is due."""
        if self.next_trial_ms is None or now_ms < self.next_trial_ms:
            return
        for consumer in self._attached():
            if consumer.set_aside and consumer.trial_at_ms is not None and consumer.trial_at_ms <= now_ms:
                self._take_back(consumer, Standing.ON_TRIAL, now_ms)
        self._next()

    def settle(self, now_ms: int, *, but: Consumer | None = None) -> None:
        """Take back consumers whose messages no other consumer takes, those set aside earliest first.

        O(1) while all consumers answer, and while a consumer without key filters stands in for all.
        """
        if not self._not_answering or self._stands_in(self._stand_in):
            return
        aside = [one for one in self._attached() if one.set_aside and one is not but]
        for consumer in sorted(aside, key=lambda one: one.standing_since_ms or 0):
            others = self._members.consumers
            found = next((one for one in others if not one.set_aside and one.takes_all_of(consumer)), None)
            self._stand_in = found
            if found is None:
                self._take_back(consumer, Standing.ANSWERING, now_ms)
        self._next()

    def _stands_in(self, one: Consumer | None) -> bool:
        """Return whether a consumer takes the messages of any other."""
        if one is None or one.set_aside or one.key_filters or self._members.find(one.consumer_id) is not one:
            return False
        return one.takes_all_of(one)

    def may_set_aside(self, consumer: Consumer) -> bool:
        """Return whether another consumer takes all messages this one would be sent. O(consumers)."""
        if self._type is SubscriptionType.EXCLUSIVE or consumer.set_aside:
            return False
        return any(one is not consumer and one.takes_all_of(consumer) for one in self._members.consumers)

    def activated(self, before: Consumer | None) -> list[Effect]:
        """Failover: return the effects that notify a newly active consumer, if it differs from `before`."""
        after = self._members.active
        if self._type is not SubscriptionType.FAILOVER or after is None or after is before:
            return []
        return [Activated(consumer_id=after.consumer_id)]

    def _take_back(self, consumer: Consumer, standing: Standing, now_ms: int | None) -> None:
        was_aside = consumer.set_aside
        consumer.standing = standing
        consumer.standing_since_ms = None if standing is Standing.ANSWERING else now_ms
        consumer.trial_at_ms = None
        consumer.changed()
        self._window.version += 1
        members = self._members
        if members.slots is not None:
            if was_aside:
                members.slots.take_back(consumer, self._window)
            members.slots.recheck_held = True
        elif self._type is SubscriptionType.FAILOVER:  # it does not go before the one that took over
            members.to_the_end(consumer)

    def _next(self) -> None:
        times = [one.trial_at_ms for one in self._attached() if one.trial_at_ms is not None]
        self.next_trial_ms = min(times, default=None)

    def _attached(self) -> list[Consumer]:
        """Return the consumers that are set aside or on trial, by arrival. Forget the others."""
        there = [
            one
            for one in self._not_answering
            if one.standing is not Standing.ANSWERING and self._members.find(one.consumer_id) is one
        ]
        self._not_answering = dict.fromkeys(there)
        return sorted(there, key=_rank)
