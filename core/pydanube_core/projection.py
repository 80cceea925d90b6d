"""What queues and disks come to at other rates. Pure arithmetic, in which everything goes on as it is now.

Rates are messages, or bytes, a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DAY_S: Final = 86_400
#: A subscription keeps up if it acknowledges at least this share of what is published, and little waits.
KEEPS_UP: Final = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """One subscription: what comes in, what its consumers acknowledge, and what waits."""

    produced: float
    consumed: float
    lag_messages: int

    @property
    def keeps_up(self) -> bool:
        """Whether only the arrivals limit what is acknowledged, so that the consumers' best is not known."""
        return self.consumed >= self.produced * KEEPS_UP and self.lag_messages <= max(10, self.produced)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A subscription at other rates."""

    produced: float
    consumed: float  # at most so much. With nothing waiting, as much as is published
    grows_per_s: float  # of the lag. Below 0 it shrinks
    drains_in_s: float | None  # None: never


def outlook(pace: Pace, *, load: float = 1.0, workers: float = 1.0, most: float | None = None) -> Outlook:
    """Return the outlook with `load` times the messages, and `workers` times the consumers that work.

    Args:
        most: the highest rate of delivery that a policy allows.
    """
    produced, capacity = pace.produced * load, pace.consumed * workers
    if most is not None:
        capacity = min(capacity, most)
    grows = produced - capacity
    if grows <= 0 and not pace.lag_messages:
        return Outlook(produced=produced, consumed=produced, grows_per_s=0.0, drains_in_s=0.0)
    drains = pace.lag_messages / -grows if grows < 0 else None
    return Outlook(produced=produced, consumed=capacity, grows_per_s=grows, drains_in_s=drains)


def full_in_days(*, free_bytes: int, guard_bytes: int, bytes_per_s: float) -> float | None:
    """Return the days until only the reserve of a disk is left. None: nothing is written."""
    room = free_bytes - guard_bytes
    if room <= 0:
        return 0.0
    return None if bytes_per_s <= 0 else room / bytes_per_s / DAY_S


def kept_bytes(
    *, stored_bytes: int, bytes_per_s: float, age_s: int | None, limit_bytes: int | None
) -> int | None:
    """Return the bytes that a log comes to under retention, None if it grows without an end.

    By age it settles at what arrives in that time. By size at the limit, if it grows to it at all.
    """
    by_age = None if age_s is None else round(bytes_per_s * age_s)
    if limit_bytes is None:
        return by_age
    grown = limit_bytes if bytes_per_s > 0 else min(stored_bytes, limit_bytes)
    return grown if by_age is None else min(by_age, grown)
