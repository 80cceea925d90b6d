"""Recall messages from one consumer's buffer for another that is idle."""

from __future__ import annotations

from typing import Final, NamedTuple

from pydanube_broker.subscription.consumer import Consumer
from pydanube_broker.subscription.members import Members, SubscriptionType
from pydanube_broker.subscription.ranges import Range, head_of_mask, normalise, ranges_of

RECALL_PAUSE_MS: Final = 100  # between two recalls from the same consumer
# Maximum messages of one recall. In the worst case (key-shared) each is a range of its own, and the next
# recall follows soon.
RECALL_MESSAGES: Final = 8_192


class Recall(NamedTuple):
    """A request that a consumer gives back those of these messages that its application has not taken."""

    consumer_id: int
    session: int
    ranges: list[Range]


def _idle(consumer: Consumer) -> bool:
    return consumer.has_credit and not consumer.in_flight


def next_recall(type: SubscriptionType, members: Members, now_ms: int) -> Recall | None:
    """Return the messages to recall and their consumer. None if there are none.

    O(consumers), and O(messages in a buffer) for a recall. O(1) without consumers that report.
    """
    if type not in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED) or not members.reporting:
        return None
    consumers = members.consumers
    aside = [
        one for one in consumers if one.set_aside and one.unhandled.messages and now_ms >= one.recall_at_ms
    ]
    if not aside and (len(consumers) < 2 or not any(map(_idle, consumers))):
        return None
    holders = aside or [one for one in consumers if one.unhandled.messages and now_ms >= one.recall_at_ms]
    if not holders:
        return None
    holder = max(holders, key=lambda one: one.unhandled.messages)
    total = sum(one.unhandled.messages for one in consumers)
    takers = sum(one.has_credit or one is holder for one in consumers)
    fair = 0 if aside else total // takers
    wanted = min(holder.unhandled.messages - fair, RECALL_MESSAGES)
    if wanted < 1:
        return None
    holder.recall_at_ms = now_ms + RECALL_PAUSE_MS
    ranges: list[Range] = []
    for chunk, sent in reversed(holder.unhandled.parts()):
        # Leave out messages that were acknowledged or came back since.
        mask = 0
        for flight in chunk.flights:
            if flight.consumer is holder and not flight.taken:
                mask |= flight.mask & sent
        if members.slots is not None:
            mask = members.slots.draining(chunk, mask)
        count = mask.bit_count()
        if count > wanted:
            mask ^= head_of_mask(mask, count - wanted)
            count = wanted
        ranges += ranges_of(mask, chunk.start)
        wanted -= count
        if not wanted:
            break
    return Recall(holder.consumer_id, holder.session, normalise(ranges)) if ranges else None
