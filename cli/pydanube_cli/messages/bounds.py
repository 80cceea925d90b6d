"""Where reading ends: offsets by partition, a time, a count. Pure: batches in, how much of them to take out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Bounds:
    """The end of a consumption over the partitions of one topic.

    Args:
        ends: partition → offset, exclusive. Only partitions with an end of this kind.
        end_time_ms: append time, exclusive, or None for no such end.
        count: how many messages in all, or None for no such end.
        partitions: all partitions, so that the end of the last one ends the consumption.
    """

    partitions: Sequence[int | None]
    ends: Mapping[int | None, int] = field(default_factory=dict)
    end_time_ms: int | None = None
    count: int | None = None
    taken: int = 0
    ended: set[int | None] = field(default_factory=set)

    def __post_init__(self) -> None:
        assert set(self.ends) <= set(self.partitions), "an end for a partition that is none"
        # Nothing lies below offset 0: such a partition is at its end before the first message.
        self.ended |= {partition for partition, end in self.ends.items() if end == 0}

    @property
    def reached(self) -> bool:
        """Whether nothing more is wanted."""
        return self.taken == self.count or len(self.ended) == len(self.partitions)

    def take(self, partition: int | None, offsets: Sequence[int], append_time_ms: int) -> int:
        """Return how many of a batch's messages, from its first, are wanted, and count them.

        Offsets ascend and are not empty. Ends the partition when the batch reaches its end.
        """
        if partition in self.ended or self.reached:
            return 0
        if self.end_time_ms is not None and append_time_ms >= self.end_time_ms:
            self.ended.add(partition)
            return 0
        wanted = len(offsets)
        if (end := self.ends.get(partition)) is not None:
            wanted = bisect_left(offsets, end)
            if offsets[-1] >= end - 1:
                self.ended.add(partition)
        if self.count is not None:
            wanted = min(wanted, self.count - self.taken)
        self.taken += wanted
        return wanted
