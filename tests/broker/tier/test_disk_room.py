"""What the tier may take of the journal's disk, by the bytes that are free."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.tier.disk_room import FLUSH_SHARE, LEAST_BYTES, DiskRoom, shares_disk
from pydanube_core.errors import DiskFull

MIB = 1 << 20
SIZES = st.integers(0, 4096 * MIB)


def _room(free: int | None, guard: int) -> DiskRoom:
    room = DiskRoom(Path("/data"), lambda: (free, guard))
    room.shared = True
    return room


@given(free=SIZES, guard=st.integers(1, 4096 * MIB), taken=SIZES, size=SIZES)
def test_flushes_may_take_three_quarters_of_the_guard_and_all_else_none(
    free: int, guard: int, taken: int, size: int
) -> None:
    room = _room(free, guard)
    with room.taken(taken):
        if free - taken - guard // FLUSH_SHARE < LEAST_BYTES:
            with pytest.raises(DiskFull, match="waits"):
                room.for_flush()
        else:
            most = room.for_flush()
            assert most >= LEAST_BYTES
            assert free - taken - most == guard // FLUSH_SHARE
        if free - taken - size < guard:
            with pytest.raises(DiskFull, match=f"a merge in /default/t of {size} bytes waits: {free} bytes"):
                room.check(size, "a merge in /default/t")
        else:
            room.check(size, "a merge in /default/t")
    if free >= guard:
        room.check(0, "what was taken was given back")


@pytest.mark.parametrize(("free", "guard", "shared"), [(None, MIB, True), (0, 0, True), (0, MIB, False)])
def test_nothing_is_held_back_where_nobody_knows_or_the_disk_is_another(
    free: int | None, guard: int, shared: bool
) -> None:
    room = _room(free, guard)
    room.shared = shared
    assert room.for_flush() >= 1 << 50
    room.check(1 << 50, "anything")


def test_a_folder_of_the_same_disk_is_found_before_it_is_made(tmp_path: Path) -> None:
    assert shares_disk(tmp_path, tmp_path / "not" / "made" / "yet")
    assert not shares_disk(tmp_path, Path("/proc/nothing"))
