"""Damage: a journal that was cut, and every bit flipped. Either it is said, or nothing acknowledged is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from zlib import crc32

import anyio
import pytest
from pydanube_broker.journal.records import FILE_HEADER_BYTES, SECTOR
from pydanube_core.batch import encode_batch
from pydanube_core.errors import CorruptJournal, FormatTooNew

from tests.broker.journal.ledger import SEGMENT_BYTES, Desk, Truth


async def write_journal(folder: Path, *, clean: bool, segments: int = 1) -> Truth:
    """A small journal of two topics with sectors of zeros in it, everything acknowledged."""
    desk = Desk(folder)
    await desk.start()
    for step in range(400):
        desk.append(1, size=(1, 40, 1400)[step % 3], count=2, seed=step)
        desk.append(2, size=200, seed=step)
        desk.move_cursor(1, 3, desk.truth.next(1))
        assert await desk.durable()
        if step >= 2 and desk.journal.statistics().segments >= segments:
            break
    # the last group, which nothing proves when the process is killed: batches with and without zeros of their own
    for payload in (b"x" * 700, bytes(1800), b"", b"y" * 900 + bytes(1100)):
        desk.append(1, data=encode_batch([payload, b"", b""]))
        desk.move_cursor(2, 4, 2)
    assert await desk.durable()
    assert desk.waiting == 0
    if clean:
        await desk.journal.close()
    else:
        desk.journal.abandon()
    return desk.truth


async def outcome(folder: Path, truth: Truth) -> str:
    """What a start on the damaged copy says; reading everything back is part of it."""
    desk = Desk(folder, truth.copy())
    try:
        with anyio.fail_after(20):
            await desk.start()
    except CorruptJournal as error:
        segment, place = error.details["segment"], error.details["offset"]
        return "corrupt" if str(segment).endswith(".journal") and place >= 0 else f"vague: {error}"
    except FormatTooNew:
        return "too new"
    finally:
        desk.journal.abandon()
    return "whole"


def outcomes(
    source: Path, truth: Truth, name: str, change: Callable[[bytearray, int], None], places: Iterable[int]
) -> dict[int, str]:
    """What a start says for each place at which one file is changed."""
    original = (source / name).read_bytes()

    async def scenario() -> dict[int, str]:
        said: dict[int, str] = {}
        folder = source.with_name("copy")
        for place in places:
            if not folder.exists():
                shutil.copytree(source, folder)
            data = bytearray(original)
            change(data, place)
            (folder / name).write_bytes(data)
            said[place] = await outcome(folder, truth)
            if said[place] == "whole":
                shutil.rmtree(folder)  # a refused journal is as it was: see the last test
        shutil.rmtree(folder, ignore_errors=True)
        return said

    return anyio.run(scenario)


def newest(folder: Path, *, older: int = 0) -> Path:
    """The segment in which the records end, or one of those before it."""
    written = [
        path
        for path in sorted(folder.glob("*.journal"))
        if any(path.read_bytes()[FILE_HEADER_BYTES : FILE_HEADER_BYTES + 16])
    ]
    return written[-1 - older]


def length_used(path: Path) -> int:
    return len(path.read_bytes().rstrip(b"\0"))


def flip(data: bytearray, place: int) -> None:
    data[place // 8] ^= 1 << place % 8


def lose_sector(data: bytearray, place: int) -> None:
    data[place : place + SECTOR] = bytes(SECTOR)


def cut(data: bytearray, place: int) -> None:
    del data[place:]


@pytest.mark.parametrize("clean", [True, False])
def test_a_journal_cut_at_any_byte_of_its_tail_is_refused(fast_path: Path, clean: bool) -> None:
    """Segments are made whole: a short one was cut by somebody, and what is gone may have been acknowledged."""
    source = fast_path / "source"
    truth = anyio.run(lambda: write_journal(source, clean=clean))
    path = newest(source)
    end = length_used(path)
    places = [0, 1, 63, 64, *range(end - 6000, end - 200, 7), *range(end - 200, end + 16), SEGMENT_BYTES - 1]
    said = outcomes(source, truth, path.name, cut, places)
    assert set(said.values()) == {"corrupt"}
    assert anyio.run(outcome, source, truth) == "whole"


def test_a_missing_segment_is_refused_wherever_it_was(fast_path: Path) -> None:
    source = fast_path / "source"
    truth = anyio.run(lambda: write_journal(source, clean=False, segments=4))
    written = [newest(source, older=i).name for i in range(4)]
    for name in written[:-1]:  # the oldest may have been given up by the journal itself
        folder = fast_path / "copy"
        shutil.copytree(source, folder)
        (folder / name).unlink()
        assert anyio.run(outcome, folder, truth) == "corrupt", name
        shutil.rmtree(folder)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "step",
    [79, pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(1800)])],
)
def test_no_flipped_bit_loses_what_was_acknowledged_in_silence(
    fast_path: Path, clean: bool, step: int
) -> None:
    """Its last group is acknowledged and unproven: there, damage must not be taken for a torn end."""
    source = fast_path / "source"
    truth = anyio.run(lambda: write_journal(source, clean=clean))
    path = newest(source)
    end = length_used(path)
    assert bytes(1024) in path.read_bytes()[end - 6000 : end], "the group has sectors of zeros of its own"
    said = outcomes(source, truth, path.name, flip, range(0, (end + 100) * 8, step))
    # What does not matter are the zeros that fill up records and those behind the last.
    assert set(said.values()) == {"corrupt", "whole"}
    assert list(said.values()).count("whole") < len(said) / 20


def test_a_sector_that_is_lost_before_a_record_that_proves_it_durable_is_no_torn_end(fast_path: Path) -> None:
    """The proof is a later header, also in a segment that does not begin the journal."""
    source = fast_path / "source"
    truth = anyio.run(lambda: write_journal(source, clean=False, segments=5))
    path = newest(source)
    assert int(path.stem) > 0
    proven = length_used(path) - 6400  # the last group is behind it
    said = outcomes(source, truth, path.name, lose_sector, range(SECTOR, proven, SECTOR))
    assert len(said) > 1
    assert set(said.values()) == {"corrupt"}


@pytest.mark.parametrize("sidecars", [True, False])
def test_damage_in_an_old_segment_is_found_when_it_is_read(fast_path: Path, sidecars: bool) -> None:
    source = fast_path / "source"
    truth = anyio.run(lambda: write_journal(source, clean=True, segments=4))
    if not sidecars:
        for index in source.glob("*.index"):
            index.unlink()
    path = newest(source, older=3)
    bits = range(FILE_HEADER_BYTES * 8, length_used(path) * 8, 997)
    said = outcomes(source, truth, path.name, flip, bits)
    assert set(said.values()) == {"corrupt", "whole"}  # whole: marks, cursors, whose state the heads hold
    assert list(said.values()).count("corrupt") > len(said) / 2


def test_a_damaged_sidecar_is_made_anew(fast_path: Path) -> None:
    source = fast_path / "source"
    truth = anyio.run(lambda: write_journal(source, clean=True, segments=4))
    index = min(source.glob("*.index"))
    size = index.stat().st_size
    flips = [*range(0, 400, 13), *range(400, size * 8, 411)]
    assert set(outcomes(source, truth, index.name, flip, flips).values()) == {"whole"}
    assert set(outcomes(source, truth, index.name, cut, range(0, size, 73)).values()) == {"whole"}


def test_a_segment_of_a_later_format_is_refused_untouched(fast_path: Path) -> None:
    source = fast_path / "source"
    truth = anyio.run(lambda: write_journal(source, clean=True))
    path = newest(source)
    data = bytearray(path.read_bytes())
    data[8] = 2
    data[60:64] = crc32(data[:60]).to_bytes(4, "little")
    path.write_bytes(data)
    before = {p.name: p.read_bytes() for p in source.iterdir()}
    assert anyio.run(outcome, source, truth) == "too new"
    assert {p.name: p.read_bytes() for p in source.iterdir()} == before


def test_a_refused_journal_is_left_as_it_was(fast_path: Path) -> None:
    source = fast_path / "source"
    truth = anyio.run(lambda: write_journal(source, clean=False))
    path = newest(source)
    data = bytearray(path.read_bytes())
    flip(data, (length_used(path) - 300) * 8)
    path.write_bytes(data)
    (source / "left.journal.new").write_bytes(b"half")
    before = {p.name: p.read_bytes() for p in source.iterdir()}
    assert anyio.run(outcome, source, truth) == "corrupt"
    assert {p.name: p.read_bytes() for p in source.iterdir()} == before
