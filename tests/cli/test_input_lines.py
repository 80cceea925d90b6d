"""Input as messages: any cut of the bytes gives the same lines; a blocked reader holds nobody up."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_cli.messages import lines
from pydanube_cli.messages.lines import LineSource, file_pieces, split_lines, whole
from pydanube_core.errors import InvalidArgument, MessageTooLarge


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(edges)]


def all_lines(pieces: list[bytes]) -> list[bytes]:
    return [line for part in split_lines(iter(pieces)) for line in part]


@given(
    data=st.lists(st.sampled_from([b"\n", b"\r\n", b"a", b"\xff\x00", b"long" * 9])),
    cuts=st.lists(st.integers(0)),
)
def test_any_cut_of_the_input_gives_the_same_lines(data: list[bytes], cuts: list[int]) -> None:
    text = b"".join(data)
    expected = text.split(b"\n")
    if expected[-1] == b"":
        expected.pop()  # what follows the last line end is no line
    assert all_lines(pieces_of(text, cuts)) == expected
    joined = b"".join(line + b"\n" for line in all_lines(pieces_of(text, cuts)))
    assert joined == text + (b"" if text.endswith(b"\n") or not text else b"\n")


def test_empty_lines_carriage_returns_and_a_last_line_without_end_are_messages() -> None:
    assert all_lines([b"\n\nx\r\nlast"]) == [b"", b"", b"x\r", b"last"]
    assert all_lines([]) == []
    assert all_lines([b"\n"]) == [b""]


def test_line_without_an_end_is_refused_before_memory_is_full() -> None:
    with pytest.raises(MessageTooLarge):
        list(split_lines(iter([b"x" * 600] * 3), max_bytes=1000))


def test_a_line_that_is_too_long_is_cut_and_the_lines_after_it_are_whole() -> None:
    pieces = [b"a\n" + b"x" * 600, b"y" * 600, b"z" * 600, b"end\nnext\n", b"last"]
    lines = [line for part in split_lines(iter(pieces), max_bytes=1000, cut=True) for line in part]
    assert [line[:3] for line in lines] == [b"a", b"xxx", b"nex", b"las"]
    assert 1000 < len(lines[1]) < 1010, "no more is kept of it than shows that it is too long"


def test_whole_input_is_one_message_even_if_empty() -> None:
    assert list(whole(iter([b"a\nb", b"\nc"]))) == [[b"a\nb\nc"]]
    assert list(whole(iter([]))) == [[b""]]
    with pytest.raises(MessageTooLarge):
        list(whole(iter([b"x" * 600] * 3), max_bytes=1000))


def test_file_is_read_again_for_each_repetition(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"a\nb\n")
    assert b"".join(file_pieces(file, repeat=3)) == b"a\nb\n" * 3


@pytest.mark.anyio
async def test_everything_arrives_in_order_whatever_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_GATHERED_LINES", 10)  # so that the thread has to wait for the loop

    def numbers() -> Iterator[list[bytes]]:
        for number in range(1000):
            yield [b"%d" % number]

    taken: list[bytes] = []
    with anyio.fail_after(60):
        async with LineSource(numbers) as source:
            while (gathered := await source.take()) is not None:
                assert len(gathered.payloads) <= 12
                assert gathered.payload_bytes == sum(map(len, gathered.payloads))
                taken += gathered.payloads
    assert taken == [b"%d" % number for number in range(1000)]


@pytest.mark.anyio
async def test_failing_input_gives_what_came_before_and_then_the_error() -> None:
    def broken() -> Iterator[list[bytes]]:
        yield [b"before"]
        raise OSError(5, "Input/output error", "tape")

    with anyio.fail_after(60):
        async with LineSource(broken) as source:
            first = await source.take()
            assert first is not None
            assert first.payloads == [b"before"]
            with pytest.raises(InvalidArgument, match="cannot read tape"):
                await source.take()


@pytest.mark.anyio
async def test_stop_ends_the_input_while_the_thread_is_in_a_read() -> None:
    reading, writing = os.pipe()
    begun = threading.Event()

    def blocked() -> Iterator[list[bytes]]:
        begun.set()
        yield [os.read(reading, 1)]

    try:
        with anyio.fail_after(60):
            async with LineSource(blocked) as source, anyio.create_task_group() as tasks:

                async def take() -> None:
                    assert await source.take() is None

                tasks.start_soon(take)
                await anyio.to_thread.run_sync(begun.wait)
                source.stop()
    finally:
        os.close(writing)  # lets the thread go
        os.close(reading)
