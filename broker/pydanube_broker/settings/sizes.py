"""Sizes of the journal's segments, and of the space that is kept free.

Apart from the settings, so that helpers that read a journal need no pydantic.
"""

from __future__ import annotations

from typing import Final

from pydanube_core.batch.layout import MAX_COPY_BYTES

# Bytes of the first journal segment after a start, and the smallest `journal.segment_bytes`. A batch of the largest
# message fits behind the head. A larger head is in a file of its own.
FIRST_SEGMENT_BYTES: Final = 16 << 20
MAX_SEGMENT_BYTES: Final = 1 << 30  # a start reads whole segments into memory
assert FIRST_SEGMENT_BYTES >= 3 * MAX_COPY_BYTES
RELAXED_SHARE: Final = 20  # an unset min_free_bytes is at most a 20th of the disk, so that small disks work


def guard_bytes(total_bytes: int, *, min_free_bytes: int, explicit: bool) -> int:
    """Return the free bytes below which publishing stops, on a disk of `total_bytes`."""
    return min_free_bytes if explicit else min(min_free_bytes, total_bytes // RELAXED_SHARE)
