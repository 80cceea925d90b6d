"""A real process with the real helpers, killed at any moment (docs/research/behaviours.md#row-1, row 3)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from tests.broker.journal.ledger import Desk, Truth, Written, make_data

ROOT = Path(__file__).resolve().parents[3]
SEGMENT_BYTES = 64 << 10


def publish_until_killed(folder: Path, truth: Truth, seed: int) -> int:
    """Let a publisher run, kill it after a number of acknowledgements, and return how many there were."""
    chance = random.Random(seed)
    limit = chance.randint(1, 400)
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.broker.journal.publisher_script",
            str(folder),
            str(seed),
            str(SEGMENT_BYTES),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    acknowledged = 0
    assert child.stdout is not None
    with child.stdout as lines:
        for line in lines:
            match line.split():
                case ["a", *numbers]:
                    topic, base, count, size, data_seed = map(int, numbers)
                    batches = truth.batches.setdefault(topic, [])
                    assert base == (batches[-1].end if batches else 0), "the next offset is last + 1"
                    data = make_data(topic, base, count, size, data_seed)
                    batches.append(Written(base, base + count, 1000 + base, data))
                case ["d", topic_text, end]:
                    truth.promised[int(topic_text)] = int(end)
                    acknowledged += 1
                    if acknowledged == limit:
                        os.kill(child.pid, signal.SIGKILL)
    assert child.wait(timeout=30) == -signal.SIGKILL
    return acknowledged


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_row_1_and_row_3_sigkill_under_load_keeps_what_was_acknowledged(
    tmp_path: Path, fast_path: Path, where: str
) -> None:
    """Memory: on tmpfs the kernel knows no read that does not wait, and the journal must do without."""
    folder = (tmp_path if where == "disk" else fast_path) / "j"
    truth = Truth()
    rounds = 5 if where == "disk" else 2

    async def start_again() -> None:
        with anyio.fail_after(30):
            desk = Desk(folder, truth, segment_bytes=SEGMENT_BYTES, cache_bytes=1)
            await desk.start()
            await desk.journal.close()

    for seed in range(rounds):
        assert publish_until_killed(folder, truth, seed) > 0
        anyio.run(start_again)
    assert sum(truth.promised.values()) > 100
    assert len(list(folder.glob("*.journal"))) > rounds
