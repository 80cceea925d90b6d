"""Pack samples for transport from the readers of files to the judges: one row for each subscription and file.

Its samples are packed into one value, because moving each sample as a row costs ten times as much as judging it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pydanube_core import zstd
from pydanube_core.errors import CorruptObject, ObjectMissing
from pydanube_core.telemetry import table_named
from pydanube_storage.objects import StoreOptions
from pydanube_storage.telemetry.reading import read_samples
from pydanube_storage.topics.located import open_for_reading

from pydanube_spark.reports.lag.history import ARRAYS
from pydanube_spark.reports.source import topic_matches

_LEVEL: Final = 1  # zstd
PACKED: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("topic_id", pa.int64()),
        pa.field("partition", pa.int64()),
        pa.field("subscription", pa.string()),
        pa.field("subscription_id", pa.int64()),
        pa.field("type", pa.string()),
        pa.field("broker_id", pa.string()),
        pa.field("last_ms", pa.int64()),
        pa.field("samples", pa.binary()),
        pa.field("damaged", pa.string()),
    ]
)


def packed_samples(
    store: StoreOptions, keys: Iterable[str], topic: str | None, start_ms: int, end_ms: int
) -> Iterator[Any]:
    """Yield a batch of `PACKED` for each file: one row per subscription, or a row with `damaged` for a damaged file."""
    opened = open_for_reading(store)
    table = table_named("cursors")
    names = ["topic", "topic_id", "partition", "subscription", "subscription_id", "type", "broker_id"]
    for key in keys:
        try:
            samples = read_samples(opened, key, table, columns=[*names, *ARRAYS])
        except (CorruptObject, ObjectMissing) as error:
            yield pa.RecordBatch.from_pylist([{"damaged": error.message}], schema=PACKED)
            continue
        rows = list(_packed(samples, names, topic, start_ms, end_ms))
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=PACKED)


def _packed(
    samples: Any, names: list[str], topic: str | None, start_ms: int, end_ms: int
) -> Iterator[dict[str, Any]]:
    arrays = {name: _numbers(samples.column(name)) for name in ARRAYS}
    ids = np.stack([_numbers(samples.column("topic_id")), _numbers(samples.column("subscription_id"))])
    if not ids.shape[1]:
        return
    edges = np.flatnonzero((ids[:, 1:] != ids[:, :-1]).any(axis=0)) + 1
    firsts, ends = np.concatenate([[0], edges]), np.concatenate([edges, [ids.shape[1]]])
    subjects = samples.select(names).take(pa.array(firsts)).to_pylist()
    matrix = np.stack([arrays[name] for name in ARRAYS])
    times = arrays["taken_at"]
    for subject, first, end in zip(subjects, firsts, ends, strict=True):
        if not topic_matches(subject["topic"], topic):
            continue
        own, when = matrix[:, first:end], times[first:end]
        order = np.argsort(when, kind="stable")  # the newest is first in the file
        own, when = own[:, order], when[order]
        low, high = np.searchsorted(when, [start_ms, end_ms])
        if low < high:
            yield {**subject, "last_ms": int(when[high - 1]), "samples": pack(own[:, low:high])}


def _numbers(column: Any) -> Any:
    """Return a column of integers or times, with -1 for null."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return whole.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)


def pack(arrays: Any) -> bytes:
    """Pack rows of integers as compressed differences: a twentieth of the bytes for Spark's shuffle, which dominates."""
    steps = np.diff(arrays, axis=1, prepend=0)
    return zstd.compress(np.ascontiguousarray(steps).tobytes(), level=_LEVEL)


def unpacked(values: Sequence[bytes]) -> dict[str, Any]:
    """Return the arrays of a subscription from its packed parts, in order of time."""
    parts = [
        np.frombuffer(zstd.decompress(value), np.int64).reshape(len(ARRAYS), -1).cumsum(axis=1)
        for value in values
    ]
    whole = np.concatenate(parts, axis=1)
    if (np.diff(whole[0]) < 0).any():
        whole = whole[:, np.argsort(whole[0], kind="stable")]
    return dict(zip(ARRAYS, whole, strict=True))
