"""Parse and bound the ranges and masks of offsets in a consumer's answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydanube_core.batch import MAX_BATCH_MESSAGES
from pydanube_core.errors import InvalidArgument
from pydanube_core.generated import danube_stream_pb2 as pb

# Per answer: twice as many as for every second message of the longest span in flight
MAX_RANGES: Final = 65_536
MAX_MASKS: Final = 1_024  # per answer: one per batch, and a batch may hold a single message
MAX_MASK_BYTES: Final = MAX_BATCH_MESSAGES // 8


def masks_of(masks: Sequence[pb.OffsetMask]) -> list[tuple[int, int]]:
    """Return each mask as (offset of its lowest bit, bits). Raises `InvalidArgument`."""
    if len(masks) > MAX_MASKS:
        raise InvalidArgument(
            f"{len(masks)} masks in one request, at most {MAX_MASKS} are taken: send them in several",
            field="masks",
            value=len(masks),
            limit=MAX_MASKS,
        )
    found: list[tuple[int, int]] = []
    for each in masks:
        if len(each.bits) > MAX_MASK_BYTES:
            raise InvalidArgument(
                f"a mask of {len(each.bits)} bytes, at most {MAX_MASK_BYTES} are taken: use several, or ranges",
                field="masks",
                value=len(each.bits),
                limit=MAX_MASK_BYTES,
            )
        if mask := int.from_bytes(each.bits, "little"):
            found.append((each.first, mask))
    return found


def check_number(flat: Sequence[int]) -> None:
    """Refuse too many ranges in one request, and an odd count of numbers. Raises `InvalidArgument`."""
    if len(flat) > 2 * MAX_RANGES:
        raise InvalidArgument(
            f"{len(flat) // 2} ranges in one request, at most {MAX_RANGES} are taken: send them in several",
            field="ranges",
            value=len(flat) // 2,
            limit=MAX_RANGES,
        )
    if len(flat) % 2:
        raise InvalidArgument("ranges are pairs of first and end offset", field="ranges", value=len(flat))


def pairs_of(flat: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges. Raises `InvalidArgument`."""
    check_number(flat)
    return list(zip(flat[::2], flat[1::2], strict=True))
