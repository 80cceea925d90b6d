"""What retention may take without asking more than the numbers: never a message that a subscription has not read."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest
from pydanube_broker.settings.sections import Journal
from pydanube_broker.topics.gate import BATCHES_A_SECOND, TopicGate
from pydanube_broker.topics.limits import Limits
from pydanube_broker.topics.retention import JournalRetention, Keep


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


@pytest.mark.parametrize(
    ("stamped_h", "newest_h", "goes"),
    [(-2, 0, True), (0, 0, False), (1000, -2, True), (1000, 0, False)],
    ids=["old", "new", "old, by a clock that ran ahead", "new, by a clock that ran ahead"],
)
def test_a_segment_is_as_old_as_its_newest_message_and_no_newer_than_its_topics(
    stamped_h: int, newest_h: int, goes: bool
) -> None:
    now_ms, hour_ms = time.time_ns() // 1_000_000, 3_600_000
    topic = SimpleNamespace(link=None, state=SimpleNamespace(append_time_ms=now_ms + newest_h * hour_ms))
    run = SimpleNamespace(end=10, last_time_ms=now_ms + stamped_h * hour_ms)
    given_up: list[tuple[int, int]] = []
    hub: Any = SimpleNamespace(
        tiering=True,
        topics={1: topic},
        journal=SimpleNamespace(sealed=lambda: [(0, 100, {1: run})]),
        give_up=lambda topic_id, end: given_up.append((topic_id, end)),
    )
    JournalRetention(hub, Journal(retention_age="1h")).apply()
    assert given_up == ([(1, 10)] if goes else [])


def test_each_topic_is_trimmed_by_its_own_limits_as_far_as_its_segments_are_sealed() -> None:
    """The oldest of three segments is beyond topic 1's limit. Topic 2 keeps everything, and topic 3 is not here."""
    trimmed: list[tuple[int, int]] = []

    def topic(number: int, limits: Limits) -> Any:
        return SimpleNamespace(
            topic_id=number, link=None, start_offset=0, commit=30, subscriptions={}, state=SimpleNamespace(
                append_time_ms=0, cursors={}
            ),
            gate=SimpleNamespace(limits=limits), options=SimpleNamespace(topic=SimpleNamespace(is_audit=False)),
            trim=lambda offset: trimmed.append((number, offset)),
        )  # fmt: skip

    def run(end: int) -> Any:
        return SimpleNamespace(end=end, last_time_ms=0, size=100)

    hub: Any = SimpleNamespace(
        tiering=False,
        topics={1: topic(1, Limits(retention_bytes=150)), 2: topic(2, Limits())},
        journal=SimpleNamespace(
            sealed=lambda: [(0, 100, {n: run(end) for n in (1, 2, 3)}) for end in (10, 20)],
            stored_bytes=lambda topic_id, start: 300 - 10 * start,
        ),
    )
    JournalRetention(hub, Journal()).apply()
    assert trimmed == [(1, 10), (2, 0)]


def test_nothing_behind_a_part_that_stays_is_deleted() -> None:
    """By a clock that was set back, a later segment is older than an earlier one."""
    now_ms = time.time_ns() // 1_000_000
    topic: Any = SimpleNamespace(
        topic_id=1, start_offset=0, subscriptions={}, state=SimpleNamespace(append_time_ms=now_ms, cursors={})
    )
    runs = [SimpleNamespace(end=end, last_time_ms=ms) for end, ms in ((10, 0), (20, now_ms), (30, 0))]
    hub: Any = SimpleNamespace(
        topics={1: topic},
        journal=SimpleNamespace(
            sealed=lambda: [(0, 100, {1: run}) for run in runs],
            stored_bytes=lambda topic_id, start: 300 - 10 * start,
        ),
    )
    found = JournalRetention(hub, Journal()).forecast(topic, Keep(age_ms=3_600_000))
    assert found == (10, 100)


def test_batches_of_a_topic_with_a_rate_are_a_share_of_a_second_and_one_message_at_least() -> None:
    gate = TopicGate("/default/t", Limits(), itertools.count(1))
    assert gate.batch_messages == 0
    for rate, expected in ((1, 1), (BATCHES_A_SECOND, 1), (50 * BATCHES_A_SECOND, 50)):
        gate.limits = Limits(max_publish_rate=rate)
        assert gate.batch_messages == expected
