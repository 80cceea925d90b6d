"""Brokers count as lost only in a calm view: not in a leader's first lease, after an outage, or when most go at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.moves.loss_watch import LossWatch

LEASE_MS = 10_000
FIVE = [BrokerId(n) for n in range(1, 6)]


def seen(watch: LossWatch, now_ms: int, members: list[int], *, connected: bool = True) -> set[BrokerId]:
    return watch.look(now_ms, members=[BrokerId(n) for n in members], owners=FIVE, connected=connected)


def test_leader_decides_nothing_in_its_first_lease() -> None:
    watch = LossWatch(100, LEASE_MS)
    assert seen(watch, 100, [1, 2, 3, 4]) == set()
    assert seen(watch, 10_099, [1, 2, 3, 4]) == set()
    assert seen(watch, 10_100, [1, 2, 3, 4]) == {5}
    assert seen(watch, 10_101, [1, 2, 3, 4, 5]) == set()


def test_nothing_is_decided_within_a_lease_after_the_store_was_away() -> None:
    watch = LossWatch(0, LEASE_MS)
    assert seen(watch, 20_000, [1, 2, 3, 4]) == {5}
    assert seen(watch, 21_000, [1, 2, 3, 4], connected=False) == set()
    assert seen(watch, 30_999, [1, 2, 3, 4]) == set()
    assert seen(watch, 31_000, [1, 2, 3, 4]) == {5}


def test_another_lease_is_waited_if_more_than_half_go_in_one_look() -> None:
    watch = LossWatch(0, LEASE_MS)
    assert seen(watch, 20_000, [1, 2, 3, 4]) == {5}
    assert seen(watch, 21_000, [1, 2]) == {3, 4, 5}, "two of four are not more than half"
    assert seen(watch, 22_000, []) == set()
    assert seen(watch, 31_999, [1]) == set()
    assert seen(watch, 32_000, [1]) == {2, 3, 4, 5}


@given(
    begun=st.integers(0, 50_000),
    looks=st.lists(
        st.tuples(st.integers(0, 15_000), st.sets(st.sampled_from(FIVE)), st.booleans()), max_size=30
    ),
)
def test_what_is_found_is_gone_and_the_view_was_calm_for_a_lease(
    begun: int, looks: list[tuple[int, set[BrokerId], bool]]
) -> None:
    watch, now, before, troubled = LossWatch(begun, LEASE_MS), begun, set[BrokerId](), begun
    for pause, members, connected in looks:
        now += pause
        found = watch.look(now, members=members, owners=FIVE, connected=connected)
        if not connected or 2 * len(before - members) > len(before):
            troubled = now
        assert found == (set(FIVE) - members if now - troubled >= LEASE_MS else set())
        before = members
