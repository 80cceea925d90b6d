"""Messages between broker and child: a number, a JSON object and bytes, length-prefixed, over a socket pair."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pydanube_broker.journal import CachedBatch

HEAD: Final = struct.Struct("<QIQ")  # number of the call, bytes of JSON, bytes behind it
_COUNT: Final = struct.Struct("<I")
_BATCH: Final = struct.Struct("<QQIqI")  # base, end, count, append time, bytes


def encode_message(number: int, body: Any, blob_bytes: int) -> bytes:
    text = json.dumps(body, separators=(",", ":")).encode()
    return HEAD.pack(number, len(text), blob_bytes) + text


def pack_batches(batches: Sequence[tuple[int, int, int, int, bytes]]) -> bytes:
    """(base, end, count, append time, stored bytes) each."""
    table = [_BATCH.pack(base, end, count, time_ms, len(data)) for base, end, count, time_ms, data in batches]
    return b"".join((_COUNT.pack(len(batches)), *table, *(data for *_, data in batches)))


def unpack_batches(blob: memoryview) -> Iterable[CachedBatch]:
    """The batches, each a view into `blob`."""
    (count,) = _COUNT.unpack_from(blob)
    at = _COUNT.size + count * _BATCH.size
    for base, end, messages, time_ms, size in _BATCH.iter_unpack(blob[_COUNT.size : at]):
        yield CachedBatch(base, end, messages, time_ms, size, (blob[at : at + size],))
        at += size
    assert at == len(blob)
