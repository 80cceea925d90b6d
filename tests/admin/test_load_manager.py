"""The load manager's decisions, in a cluster that is a table of numbers: what is moved, when, and when not."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_admin.engine import balancer
from pydanube_admin.engine.balancer import (
    SETTLING,
    BalanceOptions,
    Balancer,
    Evidence,
    Rhythm,
    snapshot_of,
)
from pydanube_core.balance import BalanceVerdict, BrokerLoad, LoadReport, Resource, TopicLoad, assess
from pydanube_core.balance.plan import Rejection
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.facts import BrokerAddress, MoveFacts

OPTIONS = BalanceOptions(interval_s=60, cooldown_s=600, max_moves=100)
MIB = 1 << 20


class Cluster:
    """Topics with steady loads, which each look sees with an error of a few percent, as rates are."""

    def __init__(
        self, loads: dict[str, float], owners: dict[str, str], brokers: Sequence[str], seed: int = 0
    ) -> None:
        self.loads = loads
        self.owners = owners
        self.brokers = brokers
        self.draw = random.Random(seed)
        self.rhythm = Rhythm(OPTIONS)
        self.moves: Counter[str] = Counter()

    def total(self, broker: str) -> float:
        return sum(load for topic, load in self.loads.items() if self.owners[topic] == broker)

    def uneven(self) -> float:
        """The busiest broker over the mean."""
        mean = sum(self.loads.values()) / len(self.brokers)
        return max(self.total(broker) for broker in self.brokers) / mean

    def reports(self, noise: float) -> list[LoadReport]:
        seen = {topic: load * self.draw.uniform(1 - noise, 1 + noise) for topic, load in self.loads.items()}
        return [
            LoadReport(
                broker=BrokerLoad(
                    broker_id=broker,
                    load={
                        Resource.NETWORK_IN: sum(v for t, v in seen.items() if self.owners[t] == broker),
                    },
                ),
                topics=tuple(
                    TopicLoad(topic=topic, broker_id=broker, load={Resource.NETWORK_IN: load})
                    for topic, load in seen.items()
                    if self.owners[topic] == broker
                ),
            )
            for broker in self.brokers
        ]

    def look(self, now_ms: int, *, noise: float = 0.02) -> int:
        """One interval of the mode `act`; returns how many topics moved."""
        if self.rhythm.waits(now_ms) is not None:
            return 0
        snapshot = snapshot_of(
            self.reports(noise), (), (), self.rhythm, interval_s=OPTIONS.interval_s, now_ms=now_ms
        )
        moves = assess(snapshot, OPTIONS.policy).moves
        for move in moves:
            assert self.owners[move.topic] == move.source
            self.owners[move.topic] = move.target
            self.moves[move.topic] += 1
        if moves:
            self.rhythm.moved([move.topic for move in moves], now_ms)
        return len(moves)


def skewed(seed: int, topics: int = 40) -> Cluster:
    """Three brokers, one with three times what another has."""
    draw = random.Random(seed)
    loads = {f"/default/t{n}": draw.uniform(0.5, 1.5) * MIB for n in range(topics)}
    owners = {}
    for n, topic in enumerate(loads):
        owners[topic] = "a" if n % 5 < 3 else "bc"[n % 5 - 3]
    return Cluster(loads, owners, "abc", seed)


@pytest.mark.parametrize("seed", range(10))
def test_skew_of_three_to_one_is_even_within_three_intervals_and_no_topic_moves_twice(seed: int) -> None:
    cluster = skewed(seed)
    assert cluster.total("a") > 2.5 * cluster.total("b")
    before = cluster.uneven()
    for number in range(20):
        cluster.look(number * 60_000)
        if number == 2:
            assert cluster.uneven() <= 1.10
        assert cluster.uneven() <= before
    assert max(cluster.moves.values()) == 1


def test_after_moves_nothing_moves_before_rates_tell_of_them() -> None:
    cluster = skewed(1)
    assert cluster.look(0)
    cluster.owners |= dict.fromkeys(cluster.owners, "a")  # as bad as can be
    assert not cluster.look(60_000 * SETTLING - 1)
    assert cluster.look(60_000 * SETTLING)


def test_topic_that_moved_a_moment_ago_stays_and_moves_again_after_the_cool_down() -> None:
    rhythm = Rhythm(OPTIONS)
    rhythm.moved(["/default/t"], 0)
    assert rhythm.cooling("/default/t", 599_999)
    assert not rhythm.cooling("/default/t", 600_000)
    assert not rhythm.cooling("/default/other", 0)


def test_no_wait_gets_longer_when_the_clock_is_set_back() -> None:
    hour, rhythm = 3_600_000, Rhythm(OPTIONS)
    rhythm.moved(["/default/t"], hour)
    settling_s = SETTLING * OPTIONS.interval_s
    assert rhythm.waits(0) == settling_s
    assert rhythm.waits(int(settling_s * 1000)) is None
    assert rhythm.cooling("/default/t", 0)
    assert rhythm.cooling("/default/t", 599_999)
    assert not rhythm.cooling("/default/t", 600_000)


def left_after(intervals: int, *, by_topics: float, besides: float) -> int:
    """Topics of twenty that stay at one of three brokers: processors per topic, and what else that broker has to do."""
    kib, evidence = 1024, Evidence()
    owners = {f"/default/t{n}": "abc"[n // 20] for n in range(60)}
    heavy = {topic: by_topics if owner == "a" else 0.001 for topic, owner in owners.items()}
    for _ in range(intervals):
        reports = []
        for broker in "abc":
            own = [topic for topic, owner in owners.items() if owner == broker]
            cpu = sum(heavy[topic] for topic in own) + (besides if broker == "a" else 0.0)
            load = {Resource.CPU: cpu, Resource.NETWORK_IN: 10.0 * kib * len(own)}
            share = {Resource.CPU: cpu / max(1, len(own)), Resource.NETWORK_IN: 10.0 * kib}
            reports.append(
                LoadReport(
                    broker=BrokerLoad(broker_id=broker, load=load),
                    topics=tuple(TopicLoad(topic=t, broker_id=broker, load=share) for t in own),
                )
            )
        snapshot = snapshot_of(reports, (), (), Rhythm(OPTIONS), interval_s=60, now_ms=0)
        evidence.look(snapshot)
        snapshot = evidence.applied(snapshot)
        moves = assess(snapshot, OPTIONS.policy).moves
        evidence.leave({move.source for move in moves}, snapshot)
        owners |= {move.topic: move.target for move in moves}
    return sum(owner == "a" for owner in owners.values())


def test_broker_whose_processors_are_busy_with_something_else_keeps_its_topics() -> None:
    after_one = left_after(1, by_topics=0.001, besides=2.0)
    assert 0 < after_one < 20
    assert left_after(20, by_topics=0.001, besides=2.0) == after_one


def test_topics_that_do_take_the_processors_are_spread() -> None:
    assert left_after(20, by_topics=0.1, besides=0.0) <= 8


@given(
    st.lists(st.tuples(st.floats(0.0, 40.0), st.sampled_from("abcd")), min_size=1, max_size=40),
    st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None)
def test_no_look_makes_the_busiest_busier_and_looking_ends(loads: list[tuple[float, str]], seed: int) -> None:
    cluster = Cluster(
        {f"/default/t{n}": load * MIB for n, (load, _) in enumerate(loads)},
        {f"/default/t{n}": owner for n, (_, owner) in enumerate(loads)},
        "abcd",
        seed,
    )
    quiet = 0
    for number in range(60):
        busiest = max(cluster.total(broker) for broker in cluster.brokers)
        moved = cluster.look(number * 120_000, noise=0.0)
        assert max(cluster.total(broker) for broker in cluster.brokers) <= busiest * (1 + 1e-9)
        quiet = 0 if moved else quiet + 1
    assert quiet > 5, "it comes to rest"


def report(broker: str, load: float, *, age_s: float = 1.0, accepts: bool = True) -> LoadReport:
    return LoadReport(
        broker=BrokerLoad(broker_id=broker, load={Resource.NETWORK_IN: load}, age_s=age_s, accepts=accepts),
        topics=tuple(
            TopicLoad(topic=f"/default/{broker}{n}", broker_id=broker, load={Resource.NETWORK_IN: load / 10})
            for n in range(10)
        ),
    )


def judged(reports: Sequence[LoadReport], *silent: str, under_way: Sequence[MoveFacts] = ()) -> object:
    return assess(
        snapshot_of(reports, silent, under_way, Rhythm(OPTIONS), interval_s=60, now_ms=0), OPTIONS.policy
    )


def test_nothing_moves_on_stale_or_missing_data() -> None:
    busy, idle = report("a", 90 * MIB), report("b", MIB)
    assert judged([busy, idle]).verdict is BalanceVerdict.IMBALANCED  # type: ignore[attr-defined]
    for found in (
        judged([busy, report("b", MIB, age_s=121)]),
        judged([busy], "b"),
        judged([report("a", 90 * MIB, age_s=121), idle]),
    ):
        assert (found.verdict, list(found.moves)) == (BalanceVerdict.UNDECIDED, [])  # type: ignore[attr-defined]
        assert Rejection.STALE_DATA in found.rejected  # type: ignore[attr-defined]


def test_nothing_goes_to_a_broker_that_does_not_answer() -> None:
    reports = [report("a", 90 * MIB), *(report(each, 10 * MIB) for each in "bcde")]
    found = judged(reports, "f")
    assert found.moves  # type: ignore[attr-defined]
    assert all(move.target != "f" for move in found.moves)  # type: ignore[attr-defined]


def test_what_leaves_a_draining_broker_is_left_to_its_drain() -> None:
    found = judged([report("a", 10 * MIB), report("b", 10 * MIB), report("c", 10 * MIB, accepts=False)])
    assert (found.verdict, list(found.moves)) == (BalanceVerdict.BALANCED, [])  # type: ignore[attr-defined]


def test_topics_that_are_on_their_way_stay_out_of_it() -> None:
    reports = [report("a", 90 * MIB), report("b", 10 * MIB)]
    under_way = [
        MoveFacts(topic=f"/default/a{n}", source="a", target="b", stage="moving", begun_at_ms=0)
        for n in range(10)
    ]
    found = judged(reports, under_way=under_way)
    assert not found.moves  # type: ignore[attr-defined]
    assert Rejection.COOLING_DOWN in found.rejected  # type: ignore[attr-defined]


class Leader:
    """The port of a broker that leads. Its second judgement does not end."""

    life = "1/1"

    def __init__(self) -> None:
        self.judged = 0
        self.noted: list[Mapping[str, str]] = []
        self.told = anyio.Event()

    async def leader(self) -> BrokerAddress:
        return BrokerAddress(broker_id="1", broker_url="", admin_url="")

    async def loads(self) -> Sequence[LoadReport]:
        return []

    async def moves(self) -> Sequence[MoveFacts]:
        self.judged += 1
        if self.judged > 1:
            await anyio.sleep_forever()
        return []

    def note_balance(self, _: object, silent: Mapping[str, str]) -> None:
        self.noted.append(silent)
        if not silent:
            self.told.set()


@pytest.mark.anyio
async def test_a_broker_that_is_back_is_not_called_silent_until_the_next_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(balancer, "AGAIN_S", 0.001)
    leader, answers = Leader(), iter([{"2": "why", "3": "why"}, {"2": "why", "4": "new"}, {}])

    async def noting(work: Callable[[], Awaitable[Any]]) -> tuple[Any, dict[str, str]]:
        looked.options = BalanceOptions(interval_s=3600)  # from the first judgement on
        return await work(), next(answers)

    async def rebalance() -> None:
        raise AssertionError("nothing is moved")

    looked = Balancer(cast("ClusterPort", leader), BalanceOptions(interval_s=0.01), noting, now_ms=lambda: 0)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(looked.run, rebalance)
            await leader.told.wait()
            group.cancel_scope.cancel()
    assert [sorted(each) for each in leader.noted] == [["2", "3"], ["2"], []]
    assert leader.judged == 1, "before the next interval"
