"""Who went from a subscription, and how: what a diagnosis asks about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_DEPARTURES: Final = 16  # of a subscription, to see that its consumers come and go


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """The consumer that went last; what a diagnosis asks about it."""

    at_ms: int
    name: str
    abrupt: bool
    in_flight: int
    unread: int
    floor: int  # where the cursor stood
