"""Batches become objects and come back: every column of every message, whatever the cut."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_core.batch import BROKER_PART_BYTES, Codec, broker_part, encode_batch, read_broker_part
from pydanube_core.batch.validate import validate_batch
from pydanube_core.errors import CorruptObject, ObjectMissing

from tests.core.batches import Row, encodings, rows_given, rows_of, steady

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from pydanube_storage.objects import LocalStore  # noqa: E402
from pydanube_storage.parquet import Meta, ObjectReader, ObjectWriter, batches_of  # noqa: E402
from pydanube_storage.parquet.columns import SCHEMA  # noqa: E402
from pydanube_storage.parquet.encode import RowGroup  # noqa: E402
from pydanube_storage.parquet.read import Expected, digest_of  # noqa: E402

TIME_MS = 1_767_225_600_000


def stored(base: int, arguments: dict[str, Any], *, epoch: int = 1, time_ms: int = TIME_MS) -> bytes:
    deltas = arguments.get("offset_deltas") or range(len(arguments["payloads"]))
    head = broker_part(base_offset=base, last_offset=base + deltas[-1], epoch=epoch, append_time_ms=time_ms)
    return head + encode_batch(**arguments)


def written(path: Path, batches: list[bytes], start: int, end: int) -> tuple[LocalStore, Any]:
    store = LocalStore(path)
    meta = Meta(cluster="c", topic="/default/t", topic_id=7, start=start, end=end, subscriptions={"s": 3})
    with ObjectWriter(store.spool / "one.tmp", meta) as writer:
        for batch in batches:
            writer.add(batch)
        facts = writer.finish()
    store.put("one", store.spool / "one.tmp")
    return store, facts


def absolute(batch: bytes) -> list[tuple[int, int, Row]]:
    """(offset, append time, message without its place in the batch)."""
    head = read_broker_part(batch)
    return [
        (head.base_offset + row.delta, head.append_time_ms, row.moved(row.delta))
        for row in rows_of(batch[BROKER_PART_BYTES:])
    ]


def all_rows(reader: ObjectReader) -> list[tuple[int, int, Row]]:
    found = []
    for index in range(reader.row_groups):
        for batch in batches_of(reader.read_row_group(index)):
            part = validate_batch(
                batch.data[BROKER_PART_BYTES:], max_message_bytes=10**7, allow_offset_delta=True
            )
            head = read_broker_part(batch.data)
            assert (batch.base, batch.end, batch.count) == (
                head.base_offset,
                head.last_offset + 1,
                part.count,
            )
            assert head.resealed
            found += absolute(batch.data)
    return found


@settings(steady, max_examples=40)
@given(
    several=st.lists(encodings(), min_size=1, max_size=5),
    gaps=st.lists(st.integers(0, 9), min_size=5, max_size=5),
)
def test_every_column_survives_the_way_there_and_back(
    several: list[dict[str, Any]], gaps: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    batches: list[bytes] = []
    expected: list[tuple[int, int, Row]] = []
    base = 5
    for i, (arguments, gap) in enumerate(zip(several, gaps, strict=False)):
        time_ms = TIME_MS + i // 2
        batches.append(stored(base, arguments, time_ms=time_ms))
        rows = rows_given(arguments)
        expected += [(base + row.delta, time_ms, row.moved(row.delta)) for row in rows]
        base += rows[-1].delta + 1 + gap
    store, facts = written(tmp_path_factory.mktemp("objects"), batches, 5, base)
    reader = ObjectReader(
        store,
        "one",
        Expected(bytes=facts.bytes, footer_bytes=facts.footer_bytes, footer_crc=facts.footer_crc),
    )
    assert all_rows(reader) == expected
    assert facts.messages == reader.messages == len(expected)
    assert (facts.min_append_time_ms, facts.max_append_time_ms) == (expected[0][1], expected[-1][1])
    assert facts.digest == digest_of(store, "one", facts.bytes)


def test_the_footer_has_statistics_of_every_column_but_the_payload(tmp_path: Path) -> None:
    arguments = {"payloads": [b"a", b"b"], "keys": [b"k", b"l"], "attributes": [{"x": "1"}, {"y": "2"}]}
    written(tmp_path, [stored(10, {**arguments, "producers": [(4, "p")], "schema": (9, 2)})], 10, 12)
    group = pq.read_metadata(tmp_path / "one").row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    assert [each.path_in_schema for each in columns if not each.is_stats_set] == ["payload"]
    assert (columns[0].statistics.min, columns[0].statistics.max) == (10, 11)


def test_the_table_is_what_the_interface_says(tmp_path: Path) -> None:
    batch = stored(
        10,
        {
            "payloads": [b"a", b"b"],
            "keys": [b"k", None],
            "attributes": [{"x": "1"}, None],
            "producers": [(4, "p")],
            "schema": (9, 2),
            "publish_time_ms": TIME_MS + 1,
        },
    )
    store, _ = written(tmp_path, [batch], 10, 12)
    table = pq.read_table(tmp_path / "one")
    assert table.column_names == [
        "offset", "append_time", "publish_time", "producer", "sequence", "key", "attributes", "schema_id",
        "schema_version", "payload",
    ]  # fmt: skip
    first, second = table.to_pylist()
    assert (first["offset"], second["offset"]) == (10, 11)
    assert first["append_time"].timestamp() * 1000 == TIME_MS
    assert first["producer"] == {"id": 4, "name": "p"}
    assert (first["key"], second["key"]) == ("k", None)
    assert (dict(first["attributes"]), dict(second["attributes"])) == ({"x": "1"}, {})
    assert (first["schema_id"], first["schema_version"], first["payload"]) == (9, 2, b"a")
    footer = pq.ParquetFile(tmp_path / "one").metadata
    assert footer.metadata[b"danube.topic"] == b"/default/t"
    assert footer.metadata[b"danube.subscriptions"] == b'{"s": 3}'
    assert {footer.row_group(0).column(i).compression for i in range(footer.num_columns)} == {"ZSTD"}
    assert footer.row_group(0).column(0).statistics.max == 11
    assert ObjectReader(store, "one").meta.epochs == ((1, 10),)


def test_row_groups_are_of_eight_to_sixteen_megabytes(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    batches = [
        stored(i * 1000, {"payloads": [random.bytes(1000) for _ in range(1000)]}, time_ms=TIME_MS + i)
        for i in range(40)
    ]
    store, _ = written(tmp_path, batches, 0, 40_000)
    reader = ObjectReader(store, "one")
    sizes = [reader.footer.row_group(i).total_byte_size for i in range(reader.row_groups)]
    assert all(8 << 20 <= size <= 16 << 20 for size in sizes[:-1]), sizes
    assert reader.row_groups == 4
    assert [reader.row_group_at(x) for x in (0, reader.first[1] - 1, reader.first[1], 40_000)] == [0, 0, 1, 4]
    assert reader.row_group_end(reader.row_groups - 1) == 40_000
    assert reader.offset_at_time(TIME_MS + 17) == 17_000
    assert reader.offset_at_time(TIME_MS + 40) is None


def test_a_changed_byte_anywhere_is_noticed(tmp_path: Path) -> None:
    batches = [stored(0, {"payloads": [b"text %d" % i for i in range(20)], "keys": [b"k"] * 20})]
    store, facts = written(tmp_path, batches, 0, 20)
    expected = Expected(bytes=facts.bytes, footer_bytes=facts.footer_bytes, footer_crc=facts.footer_crc)
    whole = (tmp_path / "one").read_bytes()
    original = all_rows(ObjectReader(store, "one", expected))
    quiet = 0
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 0x10
        (tmp_path / "one").write_bytes(changed)
        with contextlib.suppress(CorruptObject):
            assert all_rows(ObjectReader(store, "one", expected)) == original, f"byte {at}: other messages"
            quiet += 1
    assert quiet <= 4 + 24 * 14, "only the leading magic and page headers may change without an effect"
    (tmp_path / "one").write_bytes(whole[:-1])
    with pytest.raises(CorruptObject):
        ObjectReader(store, "one", expected)
    store.delete("one")
    with pytest.raises(ObjectMissing):
        ObjectReader(store, "one", expected)


def test_a_batch_that_rotted_in_the_journal_is_not_written(tmp_path: Path) -> None:
    batch = bytearray(stored(0, {"payloads": [b"x" * 100]}))
    batch[-50] ^= 1
    group = RowGroup()
    with pytest.raises(Exception, match="CHECKSUM_MISMATCH"):
        group.add(bytes(batch))


def test_compressed_batches_are_inflated_once(tmp_path: Path) -> None:
    payloads = [b"abc" * 100] * 100
    for codec in Codec:
        group = RowGroup()
        group.add(stored(0, {"payloads": payloads, "codec": codec}))
        batch = group.to_arrow()
        batch.validate(full=True)
        assert batch.schema == SCHEMA
        assert batch.column("payload").to_pylist() == payloads


def test_digests_of_the_first_objects_are_still_understood(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("one", b"bytes")
    assert digest_of(store, "one", 5) == hashlib.sha256(b"bytes").hexdigest()
    former = hashlib.blake2b(b"bytes", digest_size=16).hexdigest()
    assert digest_of(store, "one", 5, like=former) == former


def test_an_object_of_format_2_has_nulls_that_are_read_as_empty_beside_their_attribute(
    tmp_path: Path,
) -> None:
    """What a later build writes once a cluster has only builds that read it."""
    null = [("danube-null", "1")]
    rows = {"payloads": [b"a", b"", b""], "attributes": [{}, dict(null), {}]}
    store, facts = written(tmp_path, [stored(0, rows)], 0, 3)
    table = pq.read_table(tmp_path / "one")
    payload = pa.array([b"a", None, b""], pa.binary())
    later = table.set_column(
        table.schema.get_field_index("payload"), pa.field("payload", pa.binary()), payload
    )
    footer = {**pq.read_metadata(tmp_path / "one").metadata, b"danube.format_version": b"2"}
    pq.write_table(later.replace_schema_metadata(footer), tmp_path / "two.tmp", write_page_checksum=True)
    store.put("two", tmp_path / "two.tmp")
    old, new = ObjectReader(store, "one"), ObjectReader(store, "two")
    assert all_rows(new) == all_rows(old)
    assert new.read_row_group(0, ["payload"]).column("payload").to_pylist() == [b"a", b"", b""]
    with ObjectWriter(tmp_path / "merged.tmp", facts.meta) as writer:  # as compaction does
        writer.add_table(new.read_row_group(0), ((1, 0),))
        assert writer.finish().messages == 3


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(("null", "allowed", "written_as"), [(True, 2, 2), (True, 1, 1), (False, 2, 1)])
def test_an_object_has_format_2_where_it_may_and_holds_a_null_payload(
    tmp_path: Path, null: bool, allowed: int, written_as: int, merged: bool
) -> None:
    marked = [("danube-null", "1")] if null else [("x", "y")]
    rows = {
        "payloads": [b"a", b"", b"", b"b"],
        "attributes": [{}, dict(marked), {}, {"danube-null": "of no meaning beside a payload"}],
    }
    batch = stored(0, rows)
    store, facts = written(tmp_path, [batch], 0, 4)
    before = ObjectReader(store, "one")
    assert facts.meta.format_version == 1
    with ObjectWriter(tmp_path / "two.tmp", replace(facts.meta, format_version=allowed)) as writer:
        if merged:
            writer.add_table(before.read_row_group(0), facts.meta.epochs)
        else:
            writer.add(batch)
        meta = writer.finish().meta
    payloads = pq.read_table(tmp_path / "two.tmp").column("payload").to_pylist()
    store.put("two", tmp_path / "two.tmp")
    after = ObjectReader(store, "two")
    assert (meta.format_version, after.meta) == (written_as, meta)
    assert payloads == [b"a", None if written_as == 2 else b"", b"", b"b"]
    assert all_rows(after) == all_rows(before)
    assert [each.data for each in batches_of(after.read_row_group(0))] == [
        each.data for each in batches_of(before.read_row_group(0))
    ]
