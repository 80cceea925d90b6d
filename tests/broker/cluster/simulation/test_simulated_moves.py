"""Moves of topics under everything that goes wrong, seed by seed: the real machines, in virtual time.

A seed that failed is run again, with all that happened, by

    SIMULATION_SEED=1234 python -m pytest tests/broker/cluster/simulation -k replayed -s
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.broker.cluster.simulation.broker import SimBroker
from tests.broker.cluster.simulation.bugs import BUGS
from tests.broker.cluster.simulation.cluster import FAULTS, coverage_table, impossible, run_seed
from tests.broker.cluster.simulation.world import STAGES

SEEDS = 200
LONG_SEEDS = 10_000
SHARDS = 10
SEED = os.environ.get("SIMULATION_SEED")
SHOWN = 60  # of the newest lines of what happened


def run_all(seeds: Iterable[int]) -> Counter[tuple[str, str]]:
    """Run seeds; fails with the first that is wrong. What went wrong at which stage, counted."""
    coverage: Counter[tuple[str, str]] = Counter()
    moves = 0
    for seed in seeds:
        cluster, error = run_seed(seed)
        if error is not None:
            happened = "\n".join(cluster.world.trace[-SHOWN:])
            pytest.fail(f"{happened}\nSIMULATION_SEED={seed}: {error!r}")
        coverage += cluster.world.coverage
        moves += sum(history.moves for history in cluster.histories.values())
    print(f"\n{moves} moves\n{coverage_table(coverage, STAGES)}")
    return coverage


def never_happened(coverage: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    cells = [(fault, stage) for fault in FAULTS for stage in STAGES if not impossible(fault, stage)]
    return [cell for cell in cells if not coverage[cell]]


@pytest.mark.timeout(300)
def test_nothing_is_lost_doubled_or_stuck_and_every_fault_meets_every_stage() -> None:
    assert never_happened(run_all(range(SEEDS))) == []


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_nothing_is_lost_doubled_or_stuck_in_many_seeds(shard: int) -> None:
    run_all(range(SEEDS + shard, SEEDS + LONG_SEEDS, SHARDS))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: type[SimBroker]) -> None:
    assert any(run_seed(seed, bug)[1] is not None for seed in range(SEEDS)), bug.__doc__


def test_a_seed_is_the_same_each_time() -> None:
    first, second = run_seed(7)[0].world, run_seed(7)[0].world
    assert first.trace == second.trace
    assert len(first.trace) > SHOWN


@pytest.mark.skipif(SEED is None, reason="SIMULATION_SEED names none")
def test_a_seed_is_replayed() -> None:
    cluster, error = run_seed(int(SEED or 0))
    print("\n".join(["", *cluster.world.trace]))
    if error is not None:
        raise error
