"""How balance is judged and planned: properties, and small clusters with answers worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_core.balance import (
    BalanceVerdict,
    BrokerLoad,
    Move,
    Policy,
    Resource,
    Snapshot,
    TopicLoad,
    assess,
    excess_of,
    moves_by_number,
    spread_of,
)
from pydanube_core.balance.measures import gini, robust_z
from pydanube_core.balance.plan import Rejection

IN = Resource.NETWORK_IN
NO_FLOOR = Policy(floors={})


def cluster(
    *brokers: Sequence[float], capacity: float | None = 100.0, names: Sequence[str] | None = None
) -> Snapshot:
    """One list of topic loads (bytes in a second) for each broker."""
    ids = list(names or [f"b{number}" for number in range(len(brokers))])
    topics = [
        TopicLoad(topic=f"/default/t{owner}-{number}", broker_id=ids[owner], load={IN: load})
        for owner, loads in enumerate(brokers)
        for number, load in enumerate(loads)
    ]
    return Snapshot(
        epoch=1,
        interval_s=5.0,
        topics=topics,
        brokers=[
            BrokerLoad(
                broker_id=ids[number],
                load={IN: float(sum(loads))},
                capacity={} if capacity is None else {IN: capacity},
            )
            for number, loads in enumerate(brokers)
        ],
    )


def test_figures_of_a_spread_worked_out_by_hand() -> None:
    found = spread_of([1.0, 2.0, 3.0, 6.0])
    assert (found.mean, found.highest, found.max_over_mean) == (3.0, 6.0, 2.0)
    assert found.cv == pytest.approx(3.5**0.5 / 3)
    assert found.gini == pytest.approx(1 / 3)
    assert gini([0.0, 0.0, 0.0, 8.0]) == pytest.approx(0.75)
    assert robust_z([1.0, 1.0, 1.0, 9.0]) == [None] * 4
    assert robust_z([1.0, 2.0, 3.0, 13.0])[3] == pytest.approx(0.6745 * 10.5 / 1.0)


def test_a_balanced_cluster_gets_the_empty_plan_and_says_so() -> None:
    found = assess(cluster([10, 10], [11, 10], [10, 9]), NO_FLOOR)
    assert found.verdict is BalanceVerdict.BALANCED
    assert found.moves == []
    assert found.rejected == {Rejection.BALANCED: 1}
    assert found.score == 100.0


def test_the_one_move_that_levels_is_found_with_its_before_and_after() -> None:
    found = assess(cluster([20, 10, 10], [20], [20]), NO_FLOOR)
    assert found.verdict is BalanceVerdict.IMBALANCED
    (move, *_) = found.moves
    assert (move.source, move.load[IN]) == ("b0", 10)
    assert (move.source_before, move.source_after) == (pytest.approx(0.4), pytest.approx(0.3))
    assert found.highest_after == pytest.approx(0.3)


def test_two_heavy_topics_are_swapped_for_lighter_ones_where_no_single_move_helps() -> None:
    found = assess(cluster([30, 30], [20, 20]), replace(NO_FLOOR, start_band=0.15))
    assert {move.swapped_with is not None for move in found.moves} == {True}
    assert found.highest_after == pytest.approx(0.5)


def test_one_heavy_topic_cannot_be_helped_by_moving_it() -> None:
    found = assess(cluster([60], [10], [10]), NO_FLOOR)
    assert found.moves == []
    assert found.verdict is BalanceVerdict.IMBALANCED
    assert Rejection.ONE_HEAVY_TOPIC in found.rejected


def test_old_samples_decide_nothing_and_are_named() -> None:
    snapshot = cluster([10], [50], [10])
    brokers = [replace(broker, age_s=11.0) for broker in snapshot.brokers[:1]] + list(snapshot.brokers[1:])
    found = assess(replace(snapshot, brokers=brokers), NO_FLOOR)
    assert found.verdict is BalanceVerdict.UNDECIDED
    assert found.missing == ["b0"]
    assert found.score is None


def test_an_unknown_capacity_is_never_a_number() -> None:
    found = assess(cluster([20, 10, 10], [20], [20], capacity=None), NO_FLOOR)
    assert found.verdict is BalanceVerdict.IMBALANCED
    assert not found.resources[IN].capacity_known
    assert [each.mean_used for each in found.what_if] == [None] * 3
    assert all(each.fits is None for each in found.what_if)


def test_a_draining_broker_is_emptied() -> None:
    snapshot = cluster([10, 10], [20], [20])
    brokers = [replace(snapshot.brokers[0], accepts=False), *snapshot.brokers[1:]]
    found = assess(replace(snapshot, brokers=brokers), NO_FLOOR)
    assert {move.source for move in found.moves if move.forced} == {"b0"}
    assert {move.target for move in found.moves} == {"b1", "b2"}


def test_too_full_everywhere_asks_for_a_broker() -> None:
    found = assess(cluster([45, 45], [45, 45]), NO_FLOOR)
    assert found.verdict is BalanceVerdict.OVERLOADED
    assert "add a broker" in found.because
    assert [(each.brokers, each.fits) for each in found.what_if] == [(1, False), (2, False), (3, True)]


def test_a_topic_that_has_just_moved_stays() -> None:
    snapshot = cluster([20, 10, 10], [20], [20])
    topics = [replace(topic, cooling_down=topic.broker_id == "b0") for topic in snapshot.topics]
    found = assess(replace(snapshot, topics=topics), NO_FLOOR)
    assert found.moves == []
    assert found.rejected[Rejection.COOLING_DOWN] > 0


def test_what_is_below_the_floor_is_not_worth_a_move() -> None:
    assert assess(cluster([20, 10, 10], [20], [20]), Policy()).verdict is BalanceVerdict.BALANCED


CLUSTERS = st.lists(
    st.lists(st.floats(0.5, 40.0, allow_nan=False), min_size=0, max_size=6), min_size=2, max_size=5
).filter(any)


def applied(snapshot: Snapshot, moves: Sequence[Move]) -> Snapshot:
    """The snapshot as the moves would leave it."""
    topics = {topic.topic: topic for topic in snapshot.topics}
    load = {broker.broker_id: dict(broker.load) for broker in snapshot.brokers}
    for move in moves:
        topic = topics[move.topic]
        assert topic.broker_id == move.source
        for r, amount in topic.load.items():
            load[move.source][r] = max(0.0, load[move.source].get(r, 0.0) - amount)
            load[move.target][r] = load[move.target].get(r, 0.0) + amount
        topics[move.topic] = replace(topic, broker_id=move.target)
    brokers: list[BrokerLoad] = [replace(b, load=load[b.broker_id]) for b in snapshot.brokers]
    return replace(
        snapshot, brokers=brokers, topics=list(topics.values()), epoch=snapshot.epoch + bool(moves)
    )


@given(CLUSTERS)
@settings(deadline=None)
def test_a_plan_never_raises_the_maximum_and_is_what_it_predicts(loads: list[list[float]]) -> None:
    snapshot = cluster(*loads)
    found = assess(snapshot, NO_FLOOR)
    if found.highest_before is None or found.highest_after is None:
        return
    assert found.highest_after <= found.highest_before * (1 + 1e-6)
    again = assess(applied(snapshot, found.moves), NO_FLOOR)
    assert again.highest_before == pytest.approx(found.highest_after)
    assert len({move.topic for move in found.moves}) == len(found.moves)


@given(CLUSTERS, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_names_of_brokers_do_not_change_the_score(loads: list[list[float]], random: object) -> None:
    names = [f"b{number}" for number in range(len(loads))]
    shuffled = list(names)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = assess(cluster(*loads), NO_FLOOR), assess(cluster(*loads, names=shuffled), NO_FLOOR)
    assert one.score == pytest.approx(other.score)
    assert one.verdict is other.verdict


@given(CLUSTERS, st.floats(0.01, 1000.0))
@settings(deadline=None)
def test_the_unit_of_load_does_not_matter(loads: list[list[float]], factor: float) -> None:
    one = assess(cluster(*loads), NO_FLOOR)
    other = assess(
        cluster(*[[load * factor for load in each] for each in loads], capacity=100.0 * factor), NO_FLOOR
    )
    assert one.score == pytest.approx(other.score)
    assert one.verdict is other.verdict


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 30), min_size=1),
    st.integers(0, 200),
)
def test_moves_by_number_leave_a_difference_of_one_at_most(counts: dict[str, int], most: int) -> None:
    movable = {
        broker: [f"{broker}{n}" for n in range(excess)] for broker, excess in excess_of(counts).items()
    }
    moves = moves_by_number(counts, movable, most=most)
    after = dict(counts)
    for move in moves:
        assert move.topic.startswith(move.source)
        assert after[move.source] - after[move.target] >= 2, "each move helps"
        after[move.source] -= 1
        after[move.target] += 1
        assert (move.source_after, move.target_after) == (after[move.source], after[move.target])
    assert len({move.topic for move in moves}) == len(moves) <= most
    if len(moves) < most:
        assert max(after.values()) - min(after.values()) <= 1


def test_a_topic_that_may_not_move_stays() -> None:
    assert moves_by_number({"a": 9, "b": 0}, {"a": ["t"]}, most=9)[0].topic == "t"
    assert len(moves_by_number({"a": 9, "b": 0}, {"a": ["t"]}, most=9)) == 1
    assert moves_by_number({"a": 1, "b": 0}, {"a": ["t"]}, most=9) == []
