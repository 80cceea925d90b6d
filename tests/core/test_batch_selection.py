"""Cut batches say of each message what the whole batch said."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.batch import (
    MAX_BATCH_BYTES,
    BatchColumn,
    BatchView,
    Codec,
    broker_part,
    encode_batch,
    read_producer_part,
)
from pydanube_core.batch.select import (
    KEY_SLOTS,
    Cutter,
    key_slots,
)
from pydanube_core.batch.validate import validate_batch
from pydanube_core.errors import InvalidArgument

from tests.core.batches import Row, encodings, rows_given, rows_of, steady


def expected(rows: list[Row], indices: Sequence[int]) -> list[Row]:
    return [rows[i].moved(rows[indices[0]].delta) for i in indices]


@steady
@given(arguments=encodings(max_messages=40), data=st.data())
def test_a_selection_keeps_the_meaning_of_every_column(
    arguments: dict[str, Any], data: st.DataObject
) -> None:
    batch, rows = encode_batch(**arguments), rows_given(arguments)
    indices = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1)))
    cutter = Cutter(batch)
    cut, first_delta, last_delta = cutter.select(indices)
    assert (first_delta, last_delta) == (rows[indices[0]].delta, rows[indices[-1]].delta)
    assert cutter.select(indices) == Cutter(batch).select(indices) == (cut, first_delta, last_delta), (
        "cut twice is cut alike"
    )
    assert rows_of(cut) == expected(rows, indices)
    part, whole = (
        validate_batch(cut, max_message_bytes=10**6, allow_offset_delta=True),
        read_producer_part(batch),
    )
    assert (part.producer_id, part.producer_epoch) == (whole.producer_id, whole.producer_epoch)
    assert part.columns & BatchColumn.KEY == whole.columns & BatchColumn.KEY
    assert Cutter(memoryview(b"." + batch)[1:]).select(np.array(indices))[0] == cut
    assert (
        not part.columns & BatchColumn.OFFSET_DELTA or part.count > 1
    )  # holes are told only where there are any
    assert Cutter(cut).select(range(part.count)) == (cut, 0, last_delta - first_delta)


@steady
@given(arguments=encodings(max_messages=40), alike=st.booleans(), data=st.data())
def test_a_cut_of_an_arranged_batch_is_the_same(
    arguments: dict[str, Any], alike: bool, data: st.DataObject
) -> None:
    """Neighbours of the arrangement, a part of them, and rows that are not neighbours there."""
    if alike:  # what is laid out: payloads of one length, and no columns but these
        known = {"payloads", "keys", "publish_times_ms", "codec", "first_sequence"}
        arguments = {name: value for name, value in arguments.items() if name in known}
        length = data.draw(st.integers(0, 9))
        arguments["payloads"] = [bytes(payload[:length]).ljust(length) for payload in arguments["payloads"]]
    batch = encode_batch(**arguments)
    count = len(arguments["payloads"])
    who = data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    seats = [[row for row in range(count) if who[row] == seat] for seat in range(4)]  # 4: in nobody's
    arranged, plain = Cutter(batch, np.array([row for rows in seats for row in rows], np.intp)), Cutter(batch)
    for rows in filter(None, seats):
        assert arranged.select(rows) == plain.select(rows)
        low = data.draw(st.integers(0, len(rows) - 1))
        high = data.draw(st.integers(low + 1, len(rows)))
        assert arranged.select(rows[low:high]) == plain.select(rows[low:high])
    other = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    assert arranged.select(other) == plain.select(other)


@steady
@given(arguments=encodings(max_messages=40), data=st.data())
def test_a_slice_is_the_selection_of_a_range(arguments: dict[str, Any], data: st.DataObject) -> None:
    batch, rows = encode_batch(**arguments), rows_given(arguments)
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    cut, first_delta, last_delta = Cutter(batch).slice(start, stop)
    assert (first_delta, last_delta) == (rows[start].delta, rows[stop - 1].delta)
    assert rows_of(cut) == expected(rows, range(start, stop))
    assert Cutter(batch).select(range(start, stop)) == (cut, first_delta, last_delta)
    validate_batch(cut, max_message_bytes=10**6, allow_offset_delta=True)


def test_offsets_stay_what_they_were() -> None:
    batch = encode_batch([b"%d" % i for i in range(10)])
    cut, first, last = Cutter(batch).select([2, 3, 7])
    assert (first, last) == (2, 7)
    head = broker_part(base_offset=100 + first, last_offset=107, epoch=1, append_time_ms=0, resealed=True)
    view = BatchView.stored(head + cut)
    assert list(view.offsets()) == [102, 103, 107]
    assert view.payloads() == [b"2", b"3", b"7"]
    # and of that selection again
    narrower, second, _ = Cutter(cut).select([1, 2])
    assert (second, BatchView(narrower).payloads()) == (1, [b"3", b"7"])
    assert BatchView(narrower, base_offset=102 + second).offsets() == [103, 107]


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([128] * 400, id="equal"),
        pytest.param([0] * 400, id="empty"),
        pytest.param([i % 9 for i in range(400)], id="short"),
        pytest.param([900 + i % 200 for i in range(400)], id="long"),
        pytest.param([0, 5000] * 200, id="long and empty"),
        pytest.param([5000, 0] * 200, id="empty at the end"),
    ],
)
@pytest.mark.parametrize("part", [1, 2, 7, 50, 399, 400])
def test_gathering_is_the_same_by_every_way(sizes: list[int], part: int) -> None:
    rng = random.Random(part)
    payloads = [rng.randbytes(size) for size in sizes]
    batch = encode_batch(payloads)
    for indices in (sorted(rng.sample(range(400), part)), list(range(400 - part, 400))):
        assert BatchView(Cutter(batch).select(indices)[0]).payloads() == [payloads[i] for i in indices]


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_cut_is_never_larger_than_its_batch(codec: Codec) -> None:
    rng = random.Random(1)
    payloads = [rng.randbytes(100) * 10 for _ in range(2000)]
    batch = encode_batch(payloads, codec=codec)
    half, _, _ = Cutter(batch).select(range(0, 2000, 2))
    assert read_producer_part(half).raw_bytes == 1_000_000
    assert len(half) < len(batch)
    assert read_producer_part(half).codec is codec
    few, _, _ = Cutter(batch).select(range(0, 6, 2))
    assert read_producer_part(few).codec is Codec.NONE  # takes less room than the batch as it is
    assert BatchView(few).payloads() == payloads[0:6:2]
    large = encode_batch([bytes(40_000)] * 400, codec=codec)
    assert len(Cutter(large).select(range(0, 400, 2))[0]) < MAX_BATCH_BYTES


def test_tables_shrink_to_the_rows_in_use() -> None:
    batch = encode_batch(
        [b"a", b"b", b"c", b"d"],
        producers=[(1, "one"), (2, "two"), (3, "three")],
        producer_index=[0, 2, 1, 2],
        schemas=[(7, 1), (8, 2)],
        schema_index=[0, 1, 1, 0],
    )
    one, _, _ = Cutter(batch).select([1, 3])
    assert BatchView(one).producers() == [(3, "three")]
    assert BatchView(one).producer_index() is None
    assert BatchView(one).schemas() == ([(7, 1), (8, 2)], (1, 0))
    two, _, _ = Cutter(batch).select([0, 1])
    assert BatchView(two).producers() == [(1, "one"), (3, "three")]
    assert BatchView(two).producer_index() == (0, 1)


@pytest.mark.parametrize("indices", [[], [0, 0], [1, 0], [-1], [3], [0, 3], [0, 1, 1]])
def test_indices_ascend_within_the_batch(indices: list[int]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Cutter(encode_batch([b"a", b"b", b"c"])).select(indices)
    assert refused.value.details == {"field": "indices", "value": indices}


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (2, 1), (-1, 2), (0, 4), (3, 3)])
def test_slices_lie_within_the_batch(start: int, stop: int) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Cutter(encode_batch([b"a", b"b", b"c"])).slice(start, stop)
    assert refused.value.details == {"field": "indices", "value": [start, stop]}


# -- slots, sizes --------------------------------------------------------------------------------------------


def test_slots_are_pinned() -> None:
    """Written down: a slot that changed would move keys between consumers while messages are in flight."""
    check = (
        0xCBF43926 & 0xFFFF
    )  # the check value every description of CRC-32 gives for the first of these keys
    keys: list[bytes | None] = [b"123456789", b"", b"orders", b"user-1", "é".encode()]
    assert key_slots(encode_batch([b""] * 5, keys=keys)).tolist() == [check, 0, 65006, 17940, 36158]


@steady
@given(arguments=encodings(), slots=st.sampled_from([1, 16, 1000, KEY_SLOTS]))
def test_a_message_goes_by_its_key_or_else_by_its_producer(arguments: dict[str, Any], slots: int) -> None:
    def slot(row: Row) -> int:
        number, name = row.producer
        return crc32(row.key if row.key is not None else (name or str(number)).encode()) % slots

    rows = rows_given(arguments)
    batch = encode_batch(**arguments)
    assert key_slots(batch, slots).tolist() == [slot(row) for row in rows]
    if "producers" not in arguments:
        named = key_slots(batch, slots, producer_name="p").tolist()
        assert named == [crc32(b"p" if row.key is None else row.key) % slots for row in rows]


@given(
    keys=st.lists(st.binary(max_size=40) | st.none(), min_size=1, max_size=200),
    times=st.sampled_from([1, 100]),
)
def test_slots_of_many_keys_are_those_of_each(keys: list[bytes | None], times: int) -> None:
    many = keys * times
    slots = key_slots(encode_batch([b""] * len(many), keys=many, producers=[(1, "p")]))
    assert slots.tolist() == [crc32(b"p" if key is None else key) % KEY_SLOTS for key in many]


def test_keys_spread_over_the_slots() -> None:
    keys = [b"user-%d" % i for i in range(20_000)]
    slots = key_slots(encode_batch([b""] * 20_000, keys=keys), 64)
    counts = np.bincount(slots, minlength=64)
    assert len(counts) == 64
    assert counts.max() < 2 * counts.min()


@steady
@given(arguments=encodings())
def test_sizes_are_those_of_what_each_message_holds(arguments: dict[str, Any]) -> None:
    rows = rows_given(arguments)
    batch = encode_batch(**arguments)
    sizes = Cutter(batch).sizes().tolist()
    assert sizes == [
        len(row.payload) + len(row.key or b"") + sum(len((k + v).encode()) for k, v in row.attributes.items())
        for row in rows
    ]
