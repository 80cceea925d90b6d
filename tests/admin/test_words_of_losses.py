"""The loss of a plan in words: an unknown number of messages is never none."""

from __future__ import annotations

import pytest
from pydanube_admin.engine.forecast import blast_radius
from pydanube_admin.wording.radius import lost_text, radius_text, sums_of


@pytest.mark.parametrize(
    ("messages", "later", "text"),
    [
        (None, "later", "an unknown number of messages now, of 3 topics, 5 subscriptions"),
        (0, "later", "no message now, of 3 topics, 5 subscriptions"),
        (2, "later", "2 messages now, of 3 topics, 5 subscriptions"),
        (None, None, "3 topics, 5 subscriptions, an unknown number of messages"),
    ],
)
def test_unknown_messages_are_not_no_message(messages: int | None, later: str | None, text: str) -> None:
    radius = blast_radius(topics=3, subscriptions=5, messages=messages, bytes=None)
    assert lost_text(radius, later) == text


def test_a_sum_with_an_unknown_number_is_unknown() -> None:
    sums = sums_of([blast_radius(topics=1, messages=None), blast_radius(topics=2, messages=4)])
    assert radius_text(sums) == "3 topics, an unknown number of messages"
