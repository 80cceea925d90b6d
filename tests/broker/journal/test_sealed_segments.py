"""What retention is told of segments: their sizes, by which it decides how many go, and the topics in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.journal.ledger import SEGMENT_BYTES, Desk
from tests.broker.journal.test_checkpoints import fill

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


async def test_sealed_segments_are_those_before_the_one_that_is_written_each_with_its_bytes(
    fast_path: Path,
) -> None:
    desk = Desk(fast_path / "j")
    await desk.start()
    assert desk.journal.sealed() == []
    await fill(desk, 4)
    sealed = desk.journal.sealed()
    assert len(sealed) >= 3
    bases = [base for base, _, _ in sealed]
    for (base, size, runs), following in zip(sealed, [*bases[1:], None], strict=True):
        assert 0 < size <= SEGMENT_BYTES
        assert following is None or base + size <= following
        assert set(runs) == {1}
    assert bases == sorted(bases)
    assert sum(size for _, size, _ in sealed) <= desk.journal.next_lsn - bases[0]
    ends = [runs[1].end for _, _, runs in sealed]
    assert ends == sorted(ends)
    await desk.journal.close()
