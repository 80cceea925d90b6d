"""Gather acknowledgements into ranges, and into masks where that is smaller, as for every fourth message of a batch.

One gatherer belongs to one session of one consumer's stream. Acknowledging the next offset in turn is one addition,
inlined in `Message.ack`. Everything else comes here. The lane takes the ranges and sends them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from pydanube_core.batch import MAX_BATCH_MESSAGES
from pydanube_core.errors import ClusterError
from pydanube_core.generated import danube_stream_pb2 as pb

from pydanube.wire.transport import copy_of

FEW_MESSAGES: Final = 16  # of a batch: ranges cost no more
MAX_MASKS: Final = 512  # in one message to the broker, which takes 1 024
RANGES_A_REQUEST: Final = 16_384  # a broker takes 65 536, but smaller requests delay others less

_ONE: Final = ord("1")


def cut(flat: Sequence[int]) -> list[Sequence[int]]:
    """Split ranges into as many requests as they need, at least one."""
    step = 2 * RANGES_A_REQUEST
    return [flat[at : at + step] for at in range(0, len(flat), step)] or [flat]


class AckGatherer:
    """Ranges of acknowledged offsets that were not sent yet.

    `next` is one past the run that is being extended, or -1 without one. Then the next ack has to come through `note`,
    which arms the flush, notices the end of the session and raises a failure.
    """

    __slots__ = (
        "_arm", "_counted", "_dropped", "_first", "_lost", "_masks", "_ranges", "_takes_masks", "error", "next",
        "session", "stale",
    )  # fmt: skip

    def __init__(
        self,
        session: int,
        arm: Callable[[], None],
        dropped: Callable[[int, bool], None],
        *,
        takes_masks: bool = False,
    ) -> None:
        self.session = session
        self._takes_masks = takes_masks  # the broker does
        self._masks: dict[int, int] = {}  # bits, by the offset that the lowest stands for
        self.next = -1
        self.stale = False
        self._lost = False
        self._dropped = dropped  # called with late acks, and whether a lost connection is the cause
        self.error: ClusterError | None = None
        self._first = 0
        self._ranges: list[tuple[int, int]] = []
        self._arm = arm
        self._counted = 0

    def note(self, first: int, end: int) -> None:
        """Acknowledge [first, end). Stale deliveries are counted and dropped: the broker sends them again.

        Raises:
            ClusterError: the consumer has failed or is closed.
        """
        assert first < end
        if self.error is not None:
            raise copy_of(self.error)
        if self.stale:
            self._dropped(end - first, self._lost)
            return
        if self.next < 0:
            if not self._masks:
                self._arm()
        elif first == self.next:
            self.next = end
            return
        else:
            self._ranges.append((self._first, self.next))
        self._first, self.next = first, end

    def note_mask(self, offsets: Sequence[int]) -> bool:
        """Acknowledge these offsets, ascending, by one mask. False if they have to be noted range by range."""
        if not self._takes_masks or isinstance(offsets, range) or len(offsets) < FEW_MESSAGES:
            return False
        first, last = offsets[0], offsets[-1]
        if self.stale or self.error is not None or last - first >= MAX_BATCH_MESSAGES:
            return False
        if len(self._masks) >= MAX_MASKS and first not in self._masks:
            return False
        digits = bytearray(b"0") * (last - first + 1)
        for offset in offsets:
            digits[last - offset] = _ONE
        if not self.pending:
            self._arm()
        self._masks[first] = self._masks.get(first, 0) | int(digits, 2)
        return True

    @property
    def pending(self) -> bool:
        """Whether there are acknowledgements that have not been sent."""
        return self.next >= 0 or bool(self._masks)

    def requests(self, *, confirm: int = 0) -> list[pb.Ack]:
        """Return the gathered requests in the order to send. With `confirm`, the last one requests a confirmation."""
        if not self.pending and not confirm:
            return []
        ranges = self.take()
        masks = [
            pb.OffsetMask(first=first, bits=mask.to_bytes((mask.bit_length() + 7) // 8, "little"))
            for first, mask in self._take_masks(ranges).items()
        ]
        *parts, last = cut(ranges)
        return [
            *(pb.Ack(session=self.session, ranges=part) for part in parts),
            pb.Ack(session=self.session, ranges=last, masks=masks, confirm=confirm),
        ]

    def _take_masks(self, flat: Sequence[int]) -> dict[int, int]:
        """Return the gathered masks without offsets that the ranges have, and clear them."""
        masks, self._masks = self._masks, {}
        for first, mask in masks.items() if flat else ():
            end = first + mask.bit_length()
            at = max(bisect_right(flat, first) - 1, 0) & ~1
            while at < len(flat) and flat[at] < end:
                low, high = max(flat[at] - first, 0), min(flat[at + 1], end) - first
                if low < high:
                    mask &= ~(((1 << (high - low)) - 1) << low)
                at += 2
            masks[first] = mask
        self._counted += sum(mask.bit_count() for mask in masks.values())
        return masks

    def take(self) -> list[int]:
        """Return the gathered ranges, ascending and merged, flat: first, end, first, end …, and clear them."""
        if self.next < 0:
            return []
        self._ranges.append((self._first, self.next))
        self.next = -1
        ranges, self._ranges = self._ranges, []
        if len(ranges) == 1:
            flat = [*ranges[0]]
        else:
            ranges.sort()
            flat = [*ranges[0]]
            for first, end in ranges[1:]:
                if first <= flat[-1]:
                    flat[-1] = max(flat[-1], end)
                else:
                    flat += (first, end)
        self._counted += sum(flat[1::2]) - sum(flat[::2])
        return flat

    def expire(self, *, lost: bool = False) -> None:
        """End the session: drop the gathered acks and all later ones. `lost`: with its connection."""
        flat = self.take()
        masks = self._take_masks(flat)
        dropped = sum(flat[1::2]) - sum(flat[::2]) + sum(mask.bit_count() for mask in masks.values())
        self._counted -= dropped
        self._lost = lost
        self._dropped(dropped, lost)
        self.stale = True

    def fail(self, error: ClusterError) -> None:
        self.expire()
        self.error = error

    @property
    def acked(self) -> int:
        """Messages acknowledged in this session, sent or not."""
        masked = sum(mask.bit_count() for mask in self._masks.values())
        if self.next < 0:
            return self._counted + masked
        return (
            self._counted + masked + self.next - self._first + sum(end - first for first, end in self._ranges)
        )
