"""Names of objects: `<cluster>/topics/<namespace>/<topic>/<topic_id>/<start>-<end>-<epoch>-<generation>-<random>.parquet`.

The name contains the covered offsets `[start, end)`. Start has 20 digits, so that a listing is in order. The epoch is the
writer's. No write is in progress under a name of a lower epoch than the owner's. The random part makes the name of every
attempt unique, so that a late write of a dead process cannot replace a committed object.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

_FILE: Final = re.compile(r"(\d{20})-(\d+)-(\d+)-(\d+)-([0-9a-f]+)\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ObjectName:
    """The last part of a key. `generation` is 0 for a flush, and one more than its sources' for a compaction."""

    start: int
    end: int
    epoch: int
    generation: int
    random: str

    def __post_init__(self) -> None:
        assert 0 <= self.start < self.end < 10**20
        assert self.epoch >= 0
        assert self.generation >= 0

    def __str__(self) -> str:
        return f"{self.start:020d}-{self.end}-{self.epoch}-{self.generation}-{self.random}.parquet"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse the last part of a key. Return None if it is no object name."""
        match = _FILE.fullmatch(text.rpartition("/")[2])
        if match is None:
            return None
        start, end, epoch, generation = map(int, match.groups()[:4])
        if start >= end:
            return None
        return cls(start=start, end=end, epoch=epoch, generation=generation, random=match[5])


def topic_folder(cluster: str, namespace: str, topic: str, topic_id: int) -> str:
    """Return the folder of one topic's objects. Topic names may have dots and dashes, never slashes."""
    return f"{cluster}/topics/{namespace}/{topic}/{topic_id}"
