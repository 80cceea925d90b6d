"""Messages in the buffer of a consumer that expire: at once for one that answers, later for one from which nothing comes."""

from __future__ import annotations

import pytest
from pydanube_broker.subscription.terms import ConsumerTerms

from tests.broker.subscription.test_subscription_exclusive import EXACT, exclusive, offsets_of, pull


@pytest.mark.parametrize("answers", [True, False])
def test_untaken_messages_are_sent_again_without_a_delay_only_if_their_consumer_has_answered(
    answers: bool,
) -> None:
    """A silent consumer would get them again and again. For one that answers, a delay would only hold up its messages."""
    sub = exclusive(end=10)
    sub.join(1, "a", 0, ConsumerTerms(credit_messages=1000, credit_bytes=1 << 30, reports=True))
    session = sub.session_of(1)
    assert session is not None
    assert len(offsets_of(pull(sub, 1_000))) == 10
    if answers:
        sub.answers.ack(1, session, [(0, 4)], now_ms=2_000)
    left = list(range(4 if answers else 0, 10))
    due_ms = sub.next_deadline_ms()
    assert due_ms is not None
    sub.tick(due_ms)
    assert offsets_of(pull(sub, due_ms)) == (left if answers else [])
    if not answers:
        later_ms = due_ms + EXACT.base_redelivery_delay_ms
        sub.tick(later_ms - 1)
        assert offsets_of(pull(sub, later_ms - 1)) == []
        sub.tick(later_ms)
        assert offsets_of(pull(sub, later_ms)) == left
