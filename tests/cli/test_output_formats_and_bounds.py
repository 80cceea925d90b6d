"""What consume writes, how, and where it ends."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_cli.messages.bounds import Bounds
from pydanube_cli.messages.formats import Format, formatter
from pydanube_cli.messages.lines import Outlet

MOMENT = datetime(2026, 1, 31, 12, 0, 0, 5000, tzinfo=UTC)


@dataclass
class OneMessage:
    payload: bytes
    offset: int = 7
    topic: str = "/default/t"
    partition: int | None = None
    append_time: datetime = MOMENT
    publish_time: datetime = MOMENT
    producer: str = "p"
    delivery_count: int = 1
    schema: Any = None
    key: str | None = None
    attributes: dict[str, str] = field(default_factory=dict)
    is_null: bool = False


@dataclass
class SomeBatch:
    payloads: Sequence[bytes]
    null: int | None = None

    @property
    def nulls(self) -> list[bool]:
        return [at == self.null for at in range(len(self.payloads))]

    def messages(self) -> list[OneMessage]:
        return [
            OneMessage(payload, is_null=null) for payload, null in zip(self.payloads, self.nulls, strict=True)
        ]


@given(payloads=st.lists(st.binary(max_size=30), min_size=1))
def test_raw_is_the_bytes_and_a_line_end(payloads: list[bytes]) -> None:
    assert formatter(Format.RAW)(SomeBatch(payloads)) == b"".join(payload + b"\n" for payload in payloads)


@given(payloads=st.lists(st.binary(max_size=30), min_size=1))
def test_text_is_one_clean_line_a_message(payloads: list[bytes]) -> None:
    out = formatter(Format.TEXT)(SomeBatch(payloads)).decode()
    assert out.endswith("\n")
    shown = out[:-1].split("\n")
    assert len(shown) == len(payloads)
    assert all(c.isprintable() or c == "\t" for line in shown for c in line)


def test_text_shows_readable_text_as_it_is() -> None:
    payloads = [b"plain\tline", "grüße ☂".encode(), b"\x1b[31mred", b"two\nlines", b"\xff\xfe", b""]
    assert formatter(Format.TEXT)(SomeBatch(payloads)).decode().split("\n") == [
        "plain\tline",
        "grüße ☂",
        "\\x1b[31mred",
        "two\\nlines",
        "\\xff\\xfe",
        "",
        "",
    ]


def test_separator_character_inside_an_ascii_payload_is_escaped() -> None:
    assert formatter(Format.TEXT)(SomeBatch([b"a\x1fb"])) == b"a\\x1fb\n"


def test_a_null_payload_is_no_empty_line() -> None:
    batch = SomeBatch([b"a", b"", b""], null=1)
    assert formatter(Format.TEXT)(batch) == b"a\n(null: its key is deleted)\n\n"
    assert formatter(Format.RAW)(batch) == b"a\n\n"
    assert formatter(Format.HEX)(batch) == b"61\nnull\n\n"
    payloads = [json.loads(each)["payload"] for each in formatter(Format.JSON)(batch).splitlines()]
    assert payloads == ["a", None, ""]


def test_hex() -> None:
    assert formatter(Format.HEX)(SomeBatch([b"\x00\xff", b""])) == b"00ff\n\n"


def test_json_line_has_the_fields_of_the_interface() -> None:
    lines = formatter(Format.JSON)(SomeBatch([b"x", b"\xff"])).splitlines()
    first, second = map(json.loads, lines)
    assert first == {
        "topic": "/default/t",
        "partition": None,
        "offset": 7,
        "append_time": "2026-01-31T12:00:00.005Z",
        "publish_time": "2026-01-31T12:00:00.005Z",
        "producer": "p",
        "delivery_count": 1,
        "schema_subject": None,
        "schema_version": None,
        "key": None,
        "attributes": {},
        "payload": "x",
    }
    assert second["payload_base64"] == "/w=="
    assert "payload" not in second


@given(
    batches=st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(1, 5))),
    ends=st.dictionaries(st.sampled_from([0, 1]), st.integers(0, 12)),
    count=st.none() | st.integers(1, 12),
)
def test_nothing_beyond_an_end_and_nothing_below_it_is_left(
    batches: list[tuple[int, int]], ends: dict[int | None, int], count: int | None
) -> None:
    bounds = Bounds(partitions=(0, 1), ends=dict(ends), count=count)
    heads = {0: 0, 1: 0}
    taken: list[tuple[int, int]] = []
    for partition, size in batches:
        offsets = range(heads[partition], heads[partition] + size)
        heads[partition] += size
        wanted = bounds.take(partition, offsets, 0)
        taken += [(partition, offset) for offset in offsets[:wanted]]
    assert all(offset < ends.get(partition, 10**9) for partition, offset in taken)
    assert bounds.taken == len(taken)
    assert count is None or len(taken) <= count
    if not bounds.reached:
        below = [(p, o) for p in (0, 1) for o in range(heads[p]) if o < ends.get(p, 10**9)]
        assert sorted(taken) == below


def test_partition_ends_at_its_head_also_when_offsets_have_holes() -> None:
    bounds = Bounds(partitions=(None,), ends={None: 10})
    assert bounds.take(None, [4, 9], 0) == 2
    assert bounds.reached
    bounds = Bounds(partitions=(None,), ends={None: 10})
    assert bounds.take(None, [4, 12], 0) == 1
    assert bounds.reached


def test_empty_topic_is_at_its_end_at_once() -> None:
    assert Bounds(partitions=(None,), ends={None: 0}).reached
    assert not Bounds(partitions=(0, 1), ends={0: 0, 1: 3}).reached


def test_time_ends_a_partition() -> None:
    bounds = Bounds(partitions=(None,), end_time_ms=1000)
    assert bounds.take(None, [0, 1], 999) == 2
    assert bounds.take(None, [2], 1000) == 0
    assert bounds.reached


@pytest.mark.anyio
async def test_outlet_writes_to_a_slow_pipe_without_holding_up_the_loop() -> None:
    reading, writing = os.pipe()
    data = bytes(range(256)) * 4096  # many times what a pipe holds
    got = bytearray()
    turns = 0

    def read() -> None:
        while chunk := os.read(reading, 65_536):
            got.extend(chunk)

    try:
        with anyio.fail_after(60):
            async with Outlet(writing) as outlet, anyio.create_task_group() as tasks:
                written = anyio.Event()

                async def write() -> None:
                    await outlet.write(data)
                    await outlet.write(b"end")
                    written.set()

                tasks.start_soon(write)
                for _ in range(100):  # nobody reads yet: the write cannot be over, and the loop turns
                    await anyio.lowlevel.checkpoint()
                    turns += 1
                assert not written.is_set()
                async with anyio.create_task_group() as readers:
                    readers.start_soon(anyio.to_thread.run_sync, read)
                    await written.wait()
                    os.close(writing)
                    writing = -1
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    assert turns == 100
    assert bytes(got) == data + b"end"


@pytest.mark.anyio
async def test_outlet_reports_a_reader_that_is_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        with anyio.fail_after(60):
            async with Outlet(writing) as outlet:
                with pytest.raises(BrokenPipeError):
                    await outlet.write(b"x")
    finally:
        os.close(writing)


@pytest.mark.anyio
async def test_outlet_writes_files_directly(tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as file, anyio.fail_after(60):
        async with Outlet(file.fileno()) as outlet:
            await outlet.write(b"a")
            await outlet.write(b"b")
    assert (tmp_path / "f").read_bytes() == b"ab"
