"""Make batches from Arrow columns, without a Python object for each message.

A batch has its payloads and keys in Arrow's layout (`pydanube_core.batch.layout`): offsets and one run of bytes. So a
slice of a column is used as it is, with offsets counted from 0. Needs pyarrow, which is installed if the caller has
such a column.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Final, Protocol, TypeGuard

from pydanube_core.batch import PackedColumn
from pydanube_core.errors import InvalidArgument

from pydanube.sending.outbound import MESSAGE_OVERHEAD_BYTES, PackedMessages

_SLICE: Final = 65_536  # messages per turn of the loop


class Bounds(Protocol):
    """The present limits of a lane: bytes of a batch, and bytes of a message."""

    limit_bytes: int
    max_message_bytes: int


def is_arrow(column: object) -> TypeGuard[Any]:
    """Return whether a value is an Arrow array, or a chunked one."""
    arrow = sys.modules.get("pyarrow")
    return arrow is not None and isinstance(column, (arrow.Array, arrow.ChunkedArray))


def slices_of(messages: Any, keys: Any, *, topic: str) -> Iterator[tuple[Any, Any]]:
    """Yield slices of payloads as `binary` and keys as `string`, None for keys if there are none.

    Raises:
        InvalidArgument: the columns are of other types, there are fewer keys than messages, or a null payload has no key.
    """
    import pyarrow as pa

    _check(messages, (pa.types.is_binary, pa.types.is_large_binary), "messages", topic)
    names, columns = ["payload"], [messages]
    if keys is not None:
        _check(keys, (), "keys", topic)
        if len(keys) < len(messages):
            raise InvalidArgument(f"{topic}: fewer keys than messages", field="keys", value=len(keys))
        names, columns = [*names, "key"], [messages, keys[: len(messages)]]
    _check_nulls(messages, columns[1] if len(columns) > 1 else None, topic)
    for batch in pa.Table.from_arrays(columns, names=names).to_batches(max_chunksize=_SLICE):
        payloads = batch.column(0).cast(pa.binary())
        own = None if keys is None else batch.column(1).cast(pa.string())
        yield payloads, None if own is None or own.null_count == len(own) else own


def _check_nulls(messages: Any, keys: Any, topic: str) -> None:
    import pyarrow.compute as pc

    if not messages.null_count:
        return
    if keys is None or pc.any(pc.and_(messages.is_null(), keys.is_null())).as_py():
        raise InvalidArgument(
            f"{topic}: a payload is null and has no key. A null payload marks its key as deleted, and takes key=",
            field="payload",
            value=None,
        )


def _check(column: Any, more: tuple[Any, ...], field: str, topic: str) -> None:
    import pyarrow as pa

    allowed = (pa.types.is_string, pa.types.is_large_string, *more)
    if not any(is_one(column.type) for is_one in allowed):
        wanted = "binary or string" if more else "string"
        raise InvalidArgument(
            f"{topic}: {field} are a column of {wanted}, not of {column.type}",
            field=field,
            value=str(column.type),
        )


def packed(payloads: Any, keys: Any, bounds: Bounds) -> Iterator[PackedMessages] | None:
    """Cut a slice into batches. None if one of its messages needs individual treatment.

    That is a null payload, a message without a key among others with one, and one as large as a batch may be.

    Args:
        payloads, keys: as `slices_of` yields them.
        bounds: read again for each batch, because they may change with a connection.
    """
    if payloads.null_count or (keys is not None and keys.null_count):
        return None
    ends, key_ends = _offsets(payloads), None if keys is None else _offsets(keys)
    largest = _longest(payloads) + (0 if keys is None else _longest(keys))
    if largest + MESSAGE_OVERHEAD_BYTES > min(bounds.limit_bytes, bounds.max_message_bytes):
        return None
    return _cut(payloads, keys, ends, key_ends, bounds)


def _cut(
    payloads: Any, keys: Any, ends: memoryview, key_ends: memoryview | None, bounds: Bounds
) -> Iterator[PackedMessages]:
    start, count = 0, len(payloads)

    def size(stop: int) -> int:
        """Bytes of the messages from `start` on, to before `stop`."""
        of_keys = 0 if key_ends is None else key_ends[stop] - key_ends[start]
        return ends[stop] - ends[start] + of_keys + MESSAGE_OVERHEAD_BYTES * (stop - start)

    while start < count:
        stop = bisect_right(range(count + 1), bounds.limit_bytes, lo=start + 1, key=size) - 1
        stop = max(stop, start + 1)  # the limit may have become smaller
        yield PackedMessages(
            _column(payloads, start, stop, ends),
            None if key_ends is None else _column(keys, start, stop, key_ends),
            size(stop),
        )
        start = stop


def _longest(column: Any) -> int:
    import pyarrow.compute as pc

    return int(pc.max(pc.binary_length(column)).as_py() or 0)


def _offsets(column: Any) -> memoryview:
    """Return where the entries begin in the buffer, and where the last one ends."""
    return memoryview(column.buffers()[1]).cast("i")[column.offset : column.offset + len(column) + 1]


def _column(column: Any, start: int, stop: int, ends: memoryview) -> PackedColumn:
    import pyarrow as pa
    import pyarrow.compute as pc

    first, last = ends[start], ends[stop]
    raw = pa.Array.from_buffers(
        pa.int32(), stop - start + 1, [None, column.buffers()[1]], offset=column.offset + start
    )
    counted = pc.subtract(raw, pa.scalar(first, pa.int32()))
    offsets = memoryview(counted.buffers()[1])[4 * counted.offset :][: 4 * len(counted)]
    return PackedColumn(offsets, memoryview(column.buffers()[2] or b"")[first:last])
