"""Columns of a validated batch are Arrow arrays as they stand: wrapped without a copy, fully valid, equal in content."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from pydanube_core.batch import PRODUCER_PART_BYTES, BatchColumn, BatchView, Codec, encode_batch
from pydanube_core.batch.layout import padded
from pydanube_core.batch.validate import validate_batch
from pydanube_core.errors import InvalidArgument

from tests.core.batches import encodings, patched, rows_given, steady

pa = pytest.importorskip("pyarrow")


def ragged(buffer: Any, at: int, n: int, kind: Any, validity: Any = None) -> tuple[Any, int]:
    """A variable-length column as an array, and where it ends."""
    start = at + padded(4 * (n + 1))
    length = int(np.frombuffer(buffer, "<i4", n + 1, at)[n])
    offsets, data = buffer.slice(at, 4 * (n + 1)), buffer.slice(start, length)
    return pa.Array.from_buffers(kind, n, [validity, offsets, data]), start + padded(length)


def arrays(batch: bytes) -> dict[str, Any]:
    view, buffer = BatchView(batch), pa.py_buffer(batch)
    n, found = len(view), {}
    found["payload"], _ = ragged(buffer, PRODUCER_PART_BYTES, n, pa.binary())
    if (at := view.column_start(BatchColumn.KEY)) is not None:
        bits = (n + 7) // 8
        found["key"], _ = ragged(buffer, at + padded(bits), n, pa.string(), buffer.slice(at, bits))
    if (at := view.column_start(BatchColumn.ATTRIBUTES)) is not None:
        total = int(np.frombuffer(batch, "<i4", n + 1, at)[n])
        keys, values_at = ragged(buffer, at + padded(4 * (n + 1)), total, pa.string())
        values, _ = ragged(buffer, values_at, total, pa.string())
        kind = pa.map_(pa.string(), pa.string())
        fields = [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())]
        entries = pa.StructArray.from_arrays([keys, values], fields=fields)
        offsets = buffer.slice(at, 4 * (n + 1))
        found["attributes"] = pa.Array.from_buffers(kind, n, [None, offsets], children=[entries])
    return found


@settings(steady, max_examples=60)
@given(arguments=encodings())
def test_columns_of_a_validated_batch_are_valid_arrow_arrays(arguments: dict[str, Any]) -> None:
    batch = encode_batch(**(arguments | {"codec": Codec.NONE}))
    validate_batch(batch, max_message_bytes=10**6, allow_offset_delta=True)
    found, rows = arrays(batch), rows_given(arguments)
    for array in found.values():
        array.validate(full=True)
    assert found["payload"].to_pylist() == [row.payload for row in rows]
    if "key" in found:
        assert [None if k is None else k.encode() for k in found["key"].to_pylist()] == [
            row.key for row in rows
        ]
    if "attributes" in found:
        assert [dict(pairs) for pairs in found["attributes"].to_pylist()] == [row.attributes for row in rows]


def test_the_array_that_would_end_the_process_is_refused() -> None:
    """Offsets that rise far beyond the bytes and come back: Arrow's quick check passes, writing them does not return."""
    batch = patched(
        encode_batch([b"x" * 10, b"y" * 5, b"z" * 5]), PRODUCER_PART_BYTES, "i", 0, 10, 1 << 28, 20
    )
    array = arrays(batch)["payload"]
    array.validate()
    with pytest.raises(pa.ArrowInvalid):
        array.validate(full=True)
    with pytest.raises(InvalidArgument):
        validate_batch(batch, max_message_bytes=10**9)
