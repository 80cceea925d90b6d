"""Check the usual batch in one flat function.

The usual batch is what the SDK sends of messages without keys and attributes: uncompressed payloads and a table of one
producer. A lone message is one, and a walk of a dozen calls through its columns (`validate`) costs more than what is
to be checked: 15 µs there, 2 µs here. The answer is yes or "I do not know": everything that `validate` promises of
such a batch is asked here, and what is not found good is walked through, and refused if so by the walk, in its words.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np

from pydanube_core.batch.layout import PRODUCER_PART_BYTES, Column, padded
from pydanube_core.batch.view import ProducerPart

Buffer = bytes | memoryview

# The last millisecond of the year 9999: what a calendar can show
MAX_PUBLISH_TIME_MS: Final = 253_402_300_799_999
MAX_SEQUENCE: Final = (1 << 63) - 1

_BODY: Final = PRODUCER_PART_BYTES
_RESERVED: Final = slice(36, 40)  # of the producer part
_PAYLOAD: Final = int(Column.PAYLOAD)
_NOT_PLAIN: Final = ~(Column.PAYLOAD | Column.PRODUCERS)
_ZEROS: Final = tuple(bytes(n) for n in range(8))
_INT32: Final[Any] = np.dtype("<i4")
_FEW: Final = 64  # up to here a tuple of offsets is compared in the time in which numpy gets going
_FEW_OFFSETS: Final = tuple(struct.Struct(f"<{n + 1}i") for n in range(_FEW + 1))
_ONE_PRODUCER: Final = struct.Struct("<IIQii")  # rows, 0, id, offsets of the name; then name and padding
_NAME: Final = _ONE_PRODUCER.size

assert _NAME % 8 == 0


def is_plain(data: Buffer, part: ProducerPart, *, max_message_bytes: int) -> bool:
    """Whether `data` is a usual batch and nothing is wrong with it.

    Args:
        data: producer part and body; `part` was read from it and its checksum verified.
    """
    codec, n, columns, raw, stored, _, _, sequence, time_ms, _, _ = part
    if (
        codec
        or columns & _NOT_PLAIN
        or raw != stored
        or raw > max_message_bytes  # beyond it one message may be too large
        or not 0 <= time_ms <= MAX_PUBLISH_TIME_MS
        or sequence > MAX_SEQUENCE - n + 1
    ):
        return False
    start = _BODY + padded(4 * n + 4)
    end = start + raw
    at = padded(end)
    if at > len(data) or data[_RESERVED] != _ZEROS[4] or data[end:at] != _ZEROS[at - end]:
        return False
    if not n & 1 and data[start - 4 : start] != _ZEROS[4]:  # an odd number of offsets leaves four bytes
        return False
    if n <= _FEW:
        offsets = _FEW_OFFSETS[n].unpack_from(data, _BODY)
        if offsets[0] or offsets[n] != raw or (n > 1 and sorted(offsets) != [*offsets]):
            return False
    else:
        many = np.frombuffer(data, _INT32, n + 1, _BODY)
        if many[0] or many[n] != raw or np.count_nonzero(many[1:] < many[:-1]):
            return False
    if columns == _PAYLOAD:
        return at == len(data)
    table = bytes(data[at:])
    if len(table) < _NAME:
        return False
    rows, reserved, _, first, name_bytes = _ONE_PRODUCER.unpack_from(table)
    name_end = _NAME + name_bytes
    return (
        rows == 1
        and not reserved
        and not first
        and name_bytes >= 0
        and len(table) == padded(name_end)
        and table[name_end:] == _ZEROS[len(table) - name_end]
        and table[_NAME:name_end].isascii()
    )
