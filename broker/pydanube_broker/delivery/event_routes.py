"""Which method of the subscription each event stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from pydanube_broker.delivery import events as ev
from pydanube_broker.delivery.effects import Effect

if TYPE_CHECKING:
    from pydanube_broker.delivery.subscription import Subscription

__all__ = ["apply_event"]


def apply_event(sub: Subscription, event: ev.Event, now_ms: int) -> list[Effect]:
    """Call the method that the event names."""
    match event:
        case ev.LogGrew():
            sub.grew(event.next_offset)
        case ev.CreditGranted():
            sub.grant(event.consumer_id, event.messages, event.size_bytes)
        case ev.Acked():
            sub.ack(event.consumer_id, event.session, event.ranges)
        case ev.Nacked():
            return sub.nack(
                event.consumer_id,
                event.session,
                event.ranges,
                now_ms,
                delay_ms=event.delay_ms,
                reason=event.reason,
            )
        case ev.Extended():
            sub.extend(event.consumer_id, event.session, event.ranges, event.extension_ms, now_ms)
        case ev.Terminated():
            return sub.terminate(event.consumer_id, event.session, event.ranges, now_ms, reason=event.reason)
        case ev.ConsumerJoined():
            return sub.join(
                event.consumer_id,
                event.name,
                now_ms,
                credit_messages=event.credit_messages,
                credit_bytes=event.credit_bytes,
                window_messages=event.window_messages,
                ack_timeout_ms=event.ack_timeout_ms,
                single=event.single,
                key_filters=event.key_filters,
            )
        case ev.ConsumerLeft():
            return sub.leave(event.consumer_id, now_ms)
        case ev.Skipped():
            sub.skipped(event.start, event.end)
        case ev.Sought():
            return sub.seek(event.offset, now_ms)
        case ev.SkippedMessages():
            sub.skip(event.count)
        case ev.Purged():
            return sub.purge(now_ms)
        case ev.PolicyChanged():
            return sub.set_policy(event.policy, now_ms)
        case ev.DeadLettered():
            sub.dead_lettered(event.generation, event.ranges)
        case ev.DeadLetterFailed():
            sub.dead_letter_failed(event.generation, event.ranges, now_ms)
        case ev.Tick():
            return sub.tick(now_ms)
        case _:
            assert_never(event)
    return []
