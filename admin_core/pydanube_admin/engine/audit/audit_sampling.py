"""What is written into the audit by sample: reads, which change nothing, and refusals that come by the thousand.

Pure. Changes are never left out. A program that asks for the lag each second would fill the audit with that alone, and
whoever sends bad calls in a loop could make it grow as fast as he likes: of reads that are alike one a minute is
recorded, and of refusals so many in a second; how many were left out is a record of its own.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

READS_APART_MS: Final = 60_000
MOST_ALIKE: Final = 1000  # kinds of reads that are remembered
REFUSALS_A_SECOND: Final = 50


class AuditReads(StrEnum):
    """`[admin] audit_reads`."""

    SAMPLED = "sampled"  # the first in a minute of each principal, face and operation
    ALL = "all"
    NONE = "none"


class ReadSampling:
    """Which reads are recorded. Single user: the loop."""

    def __init__(self, which: AuditReads) -> None:
        self._which = which
        self._last_ms: dict[tuple[str, str, str], int] = {}  # the one recorded last comes last

    def takes(self, principal: str, face: str, operation: str, now_ms: int) -> bool:
        """Whether a read that was carried out is recorded."""
        if self._which is not AuditReads.SAMPLED:
            return self._which is AuditReads.ALL
        kind = (principal, face, operation)
        last = self._last_ms.get(kind)
        if last is not None and 0 <= now_ms - last < READS_APART_MS:
            return False
        self._last_ms.pop(kind, None)
        self._last_ms[kind] = now_ms
        if len(self._last_ms) > MOST_ALIKE:
            del self._last_ms[next(iter(self._last_ms))]
        return True


class RefusalBound:
    """Which refusals are recorded, and how many were not. Single user: the loop."""

    def __init__(self) -> None:
        self._second = -1
        self._taken = 0
        self._left_out = 0

    def takes(self, now_ms: int) -> bool:
        """Whether a refusal is recorded, as one of the first of its second."""
        if now_ms // 1000 != self._second:
            self._second, self._taken = now_ms // 1000, 0
        self._taken += 1
        if self._taken <= REFUSALS_A_SECOND:
            return True
        self._left_out += 1
        return False

    def left_out(self) -> int:
        """Return how many were left out since this was asked last."""
        count, self._left_out = self._left_out, 0
        return count
