"""No acknowledged value is lost, whatever the store does to pieces and whoever dies; and bugs planted on purpose are found.

SIMULATION_SEED=12 python -m pytest tests/broker/chain/test_simulated_chains.py -k replayed
"""

from __future__ import annotations

import os

import pytest
from pydanube_broker.chain import piece
from pydanube_broker.chain.piece import PieceHeader, Place

from tests.broker.chain.simulation import BUGS, Owner, run_seed

SEEDS = 40
FOUND = (
    1_683,
    3_215,
)  # a piece that dropped segments let reading begin at a later one that was not stored yet
LONG_SEEDS = 4_000
SHARDS = 8
SEED = os.environ.get("SIMULATION_SEED")


@pytest.mark.timeout(300)
def test_no_acknowledged_value_is_lost_and_every_fault_happens() -> None:
    faults: set[str] = set()
    stages: set[str] = set()
    acknowledged = 0
    for seed in (*range(SEEDS), *FOUND):
        try:
            world = run_seed(seed)
        except Exception as error:
            pytest.fail(f"SIMULATION_SEED={seed}: {error!r}")
        faults |= world.store.happened
        stages |= world.stages
        acknowledged += world.acknowledged
    assert faults == {"refused", "late", "doubled", "answer lost"}
    assert stages == {
        "opened",
        "another heir was faster",
        "an heir died",
        "fenced while it ran",
        "a slower successor was fenced",
        "the disk had less than the chain",
        "the disk had more than the chain",
        "dropped",
        "begins later",
    }
    assert acknowledged > 40 * SEEDS


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_acknowledged_value_is_lost_in_many_seeds(shard: int) -> None:
    for seed in range(SEEDS + shard, SEEDS + LONG_SEEDS, SHARDS):
        try:
            run_seed(seed)
        except Exception as error:
            pytest.fail(f"SIMULATION_SEED={seed}: {error!r}")


@pytest.mark.skipif(SEED is None, reason="SIMULATION_SEED is not set")
def test_one_seed_is_replayed() -> None:
    run_seed(int(SEED or 0))


def fails(kind: type[Owner]) -> bool:
    for seed in range(SEEDS):
        try:
            run_seed(seed, kind)
        except Exception:
            return True
    return False


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: type[Owner]) -> None:
    assert fails(bug)


@pytest.mark.timeout(300)
def test_a_reader_that_takes_late_pieces_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def any_piece(self: Place, header: PieceHeader) -> bool:
        return True

    monkeypatch.setattr(piece.Place, "continued_by", any_piece)
    assert fails(Owner)
