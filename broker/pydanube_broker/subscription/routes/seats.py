"""The share of each seat in a routed part: `who` has one byte a message, the seat it goes to.

With numpy, which the broker always has, some nanoseconds a message; small parts and the base install do without.
"""

from __future__ import annotations

from array import array
from collections.abc import MutableSequence, Sequence

try:
    import numpy as np
except ImportError:  # the base install
    np = None  # type: ignore[assignment]

from pydanube_broker.subscription.routes.route_table import LARGE_PART
from pydanube_broker.subscription.routes.spreading import indices_for


def indices_of(who: bytes | bytearray, seat: int) -> MutableSequence[int]:
    """The messages of one seat, ascending; of a large part as 64-bit numbers, which the shell need not convert."""
    if np is None or len(who) < LARGE_PART:
        return indices_for(who, seat)
    found = np.flatnonzero(np.frombuffer(who, np.uint8) == seat)
    return array("q", found.astype(np.int64, copy=False).tobytes())


def bytes_by_seat(who: bytes | bytearray, sizes: Sequence[int] | None) -> Sequence[int] | None:
    """How many bytes go to each seat; None where that is not cheaper than adding up the indices of each."""
    if np is None or not isinstance(sizes, array) or len(who) < LARGE_PART:
        return None
    # Sums of whole numbers far below 2^53, so they are exact.
    totals = np.bincount(np.frombuffer(who, np.uint8), np.frombuffer(sizes, np.int64), 256)
    return totals.astype(np.int64).tolist()  # type: ignore[no-any-return]
