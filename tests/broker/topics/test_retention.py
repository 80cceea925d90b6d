"""What retention may take without asking more than the numbers: never a message that a subscription has not read."""

from __future__ import annotations

import pytest
from pydanube_broker.topics.retention import Keep


@pytest.mark.parametrize("keep", [Keep(bytes=1), Keep(age_ms=1), Keep(from_offset=1000)])
def test_a_part_with_one_unread_message_stays(keep: Keep) -> None:
    def may_go(end: int, slowest: int | None) -> bool:
        return keep.may_go(end=end, newest_ms=0, bytes_left=100, now=10_000, slowest=slowest)

    assert may_go(10, None)
    assert may_go(10, 10)  # the floor is one past the last message that was read
    assert not may_go(11, 10)
    assert not may_go(10, 0)


def test_unread_messages_go_only_where_a_policy_drops_them() -> None:
    assert Keep(bytes=1, drop_unread=True).may_go(end=11, newest_ms=0, bytes_left=1, now=0, slowest=10)
    assert not Keep(drop_unread=True).may_go(end=11, newest_ms=0, bytes_left=1, now=0, slowest=10)


def test_a_part_is_kept_until_each_limit_is_passed() -> None:
    def may_go(keep: Keep, *, end: int = 10, newest_ms: int = 5000, bytes_left: int = 50) -> bool:
        return keep.may_go(end=end, newest_ms=newest_ms, bytes_left=bytes_left, now=6000, slowest=None)

    assert [may_go(Keep(age_ms=age)) for age in (999, 1000, 1001)] == [True, False, False]
    assert [may_go(Keep(bytes=size)) for size in (49, 50, 51)] == [True, True, False]
    assert [may_go(Keep(from_offset=offset)) for offset in (9, 10, 11)] == [False, True, True]
    assert not may_go(Keep())
