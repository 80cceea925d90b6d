"""Which parts of a journal segment the child reads for the batches of one topic."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.tier.work import GAP_BYTES, READ_BYTES, bodies, near

from tests.core.batches import steady


def places(*spans: tuple[int, int]) -> array[int]:
    return array("Q", [position << 32 | size for position, size in spans])


def test_neighbours_are_one_read_and_far_batches_are_not() -> None:
    far = 2000 + GAP_BYTES + 1
    assert list(near(places((0, 1000), (1000, 1000), (far, 10), (far + 50, 10)))) == [(0, 2), (2, 4)]


def test_a_read_is_bounded_but_for_a_batch_that_is_larger() -> None:
    half = READ_BYTES // 2
    assert list(near(places((0, half), (half, half), (2 * half, half)))) == [(0, 2), (2, 3)]
    assert list(near(places((0, 3 * half), (3 * half, 1)))) == [(0, 1), (1, 2)]
    assert list(near(places())) == []


@steady
@given(spans=st.lists(st.tuples(st.integers(0, 100_000), st.integers(1, 5_000)), max_size=30))
def test_every_body_is_given_whatever_lies_between(
    spans: list[tuple[int, int]], tmp_path_factory: object
) -> None:
    data, wanted, positions = bytearray(), [], []
    for number, (gap, size) in enumerate(spans):
        data += b"\xff" * gap
        positions.append((len(data), size))
        wanted.append(bytes([number]) * size)
        data += wanted[-1]
    path = Path(tmp_path_factory.mktemp("segment")) / "one"  # type: ignore[attr-defined]
    path.write_bytes(data)
    found = list(bodies(path, places(*positions)))
    assert [position for position, _ in found] == [position for position, _ in positions]
    assert [bytes(body) for _, body in found] == wanted


def test_no_byte_before_the_first_batch_of_a_read_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(9000))
    read, pread = list[tuple[int, int]](), os.pread

    def noted(fd: int, size: int, at: int) -> bytes:
        read.append((size, at))
        return pread(fd, size, at)

    monkeypatch.setattr(os, "pread", noted)
    assert [len(body) for _, body in bodies(path, places((8000, 100), (8200, 50)))] == [100, 50]
    assert read == [(250, 8000)]
