"""Which broker gets a new topic: zones first, then who is clearly less busy, then who has fewer topics."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.cluster.owner_choice import CLEARLY, FLOORS, Candidate, choose_owner, rounded_load
from pydanube_core.balance import Resource

LOADS = st.dictionaries(st.sampled_from(sorted(FLOORS)), st.floats(0, 1e9), max_size=3)
STANDINGS = st.dictionaries(
    st.integers(1, 9).map(BrokerId),
    st.builds(
        Candidate,
        topics=st.integers(0, 50),
        zone=st.sampled_from(["", "a", "b", "c"]),
        load=st.none() | LOADS,
        topics_then=st.integers(0, 50),
    ),
    min_size=1,
)


def placed(standings: dict[BrokerId, Candidate], topics: int, *, parts: bool, seed: int) -> Counter[BrokerId]:
    """Give away so many topics, or partitions of one, as whoever makes them at once does."""
    standings, beside, got = dict(standings), Counter[str](), Counter[BrokerId]()
    draw = random.Random(seed)
    for _ in range(topics):
        broker = choose_owner(standings, beside if parts else {}, draw)
        standings[broker] = replace(standings[broker], topics=standings[broker].topics + 1)
        beside[standings[broker].zone] += 1
        got[broker] += 1
    return got


@given(STANDINGS, st.integers(1, 60), st.integers())
def test_partitions_are_even_over_zones(standings: dict[BrokerId, Candidate], topics: int, seed: int) -> None:
    got = placed(standings, topics, parts=True, seed=seed)
    zones = Counter({each.zone: 0 for each in standings.values()})
    for broker, count in got.items():
        zones[standings[broker].zone] += count
    assert max(zones.values()) - min(zones.values()) <= 1


@given(STANDINGS, st.integers())
def test_of_two_the_one_that_is_clearly_busier_gets_nothing(
    standings: dict[BrokerId, Candidate], seed: int
) -> None:
    two = dict(list(standings.items())[:2])
    chosen = choose_owner(two, {}, random.Random(seed))
    (other,) = two.keys() - {chosen} or {chosen}
    if two[chosen].load is None or two[other].load is None:
        assert two[chosen].topics <= two[other].topics
        return
    busiest = max(FLOORS, key=lambda resource: max(each.expected(resource) for each in two.values()))
    ours, theirs = two[chosen].expected(busiest), two[other].expected(busiest)
    if max(ours, theirs) < 1:
        assert two[chosen].topics <= two[other].topics
    else:
        assert ours <= CLEARLY * theirs or ours < 1


@given(st.integers())
def test_where_nobody_is_busy_topics_are_even(seed: int) -> None:
    quiet = {BrokerId(n): Candidate(topics=0, load={}) for n in (1, 2, 3)}
    got = placed(quiet, 300, parts=False, seed=seed)
    assert max(got.values()) - min(got.values()) <= 30


@given(st.integers())
def test_a_busy_broker_gets_fewer_and_the_quiet_one_not_all(seed: int) -> None:
    heavy = {Resource.NETWORK_IN: 100.0 * (1 << 20)}
    light = {Resource.NETWORK_IN: 10.0 * (1 << 20)}
    standings = {
        BrokerId(1): Candidate(topics=100, load=heavy, topics_then=100),
        BrokerId(2): Candidate(topics=100, load=light, topics_then=100),
        BrokerId(3): Candidate(topics=100, load=heavy, topics_then=100),
    }
    few = placed(standings, 30, parts=False, seed=seed)
    assert few[BrokerId(2)] >= max(few[BrokerId(1)], few[BrokerId(3)])
    many = placed(standings, 3000, parts=False, seed=seed)
    assert min(many[BrokerId(n)] for n in (1, 3)) > 0, "what came since counts"


def test_what_is_told_is_little_and_seldom_another() -> None:
    assert rounded_load({Resource.CPU: 0.04, Resource.NETWORK_IN: 1.0}) == {}
    assert (
        rounded_load({Resource.CPU: 0.1234}) == rounded_load({Resource.CPU: 0.1249}) == {Resource.CPU: 0.12}
    )
